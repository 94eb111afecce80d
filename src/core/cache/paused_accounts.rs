//! The accounts that are out of quota, and the workers that found this out.

use std::collections::{BTreeMap, BTreeSet};

use crate::Ms;
use crate::ids::WorkerId;
use crate::limits::PAUSE_MS;
use crate::pause::{Pause, PauseCause, PauseKind, PausedAccount};
use crate::worker::Worker;

/// An account, identified by its name and the namespaces that its workers serve. Workers of other namespaces may have a different account
/// with that name, and must not be able to pause this one.
type Account = (Option<Vec<String>>, String);

#[derive(Debug, Default)]
pub(super) struct PausedAccounts(BTreeMap<Account, BTreeSet<(Ms, WorkerId)>>);

impl PausedAccounts {
    pub(crate) fn add(&mut self, worker: &Worker) {
        for (account, until) in found_by(worker) {
            self.0.entry(account).or_default().insert((until, worker.id.clone()));
        }
    }

    pub(crate) fn remove(&mut self, worker: &Worker) {
        for (account, until) in found_by(worker) {
            let Some(pauses) = self.0.get_mut(&account) else { continue };
            pauses.remove(&(until, worker.id.clone()));
            if pauses.is_empty() {
                self.0.remove(&account);
            }
        }
    }

    /// The longest pause of this account that workers other than this one have found, if it has not ended and `counts` accepts its finder.
    /// A pause that is longer than a pause can be comes from a wrong clock, and must not hide the others.
    pub(crate) fn found_by_others(
        &self,
        worker: &Worker,
        account: &str,
        now: Ms,
        counts: impl Fn(&WorkerId) -> bool,
    ) -> Option<PausedAccount> {
        let pauses = self.0.get(&account_of(worker, account))?.iter().rev();
        let (until, finder) = pauses
            .take_while(|(until, _)| *until > now)
            .find(|(until, finder)| *until <= now + PAUSE_MS && *finder != worker.id && counts(finder))?;
        Some(PausedAccount { account: account.to_owned(), until: *until, worker: finder.clone() })
    }
}

fn account_of(worker: &Worker, account: &str) -> Account {
    let mut namespaces = worker.capabilities.namespaces.clone();
    namespaces.iter_mut().for_each(|namespaces| namespaces.sort_unstable());
    (namespaces, account.to_owned())
}

/// The accounts that the worker itself found to be out of quota. Other causes are not shared: their ends are unknown, and each worker has
/// its own credentials for the account and probes them. Pauses that the worker heard of from others are not shared again, so that no pause
/// outlives its origin.
fn found_by(worker: &Worker) -> impl Iterator<Item = (Account, Ms)> {
    let is_shared = |pause: &&Pause| {
        pause.kind == PauseKind::Account && pause.cause == PauseCause::Quota && pause.told_by.is_none() && !pause.is_resumed
    };
    worker.pauses.iter().filter(is_shared).map(|pause| (account_of(worker, &pause.name), pause.until))
}
