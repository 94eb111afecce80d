//! Accounts: an administrator ends their pauses.

use crate::audit::{Action, Actor, EntityType};
use crate::ids::WorkerId;
use crate::operation::{Operation, Weight};
use crate::pause::{Pause, PauseKind};
use crate::row_keys::RowKeys;
use crate::working_set::{Halt, WorkingSet};

/// Ends the pauses of an account on these workers, where there are any. Each such worker's agent is informed until it no longer reports the
/// pause itself.
#[derive(Clone, Debug)]
pub struct ResumeAccount {
    /// The name of the account.
    pub account: String,
    /// The workers whose pauses of this account end. Names of workers that do not exist are skipped.
    pub workers: Vec<WorkerId>,
}

impl Operation for ResumeAccount {
    type Reply = ();

    fn weight(&self) -> Weight {
        Weight { rows: 2 + self.workers.len() * 2, bytes: 256 + self.workers.len() * 128 }
    }

    fn is_placement(&self) -> bool {
        true
    }

    fn add_keys(&self, keys: &mut RowKeys) {
        keys.workers.extend(self.workers.iter().cloned());
    }

    fn decide(&self, set: &mut WorkingSet) -> Result<(), Halt> {
        let mut changed = Vec::new();
        for id in &self.workers {
            let Some(mut worker) = set.find_worker(id)?.cloned() else { continue };
            let is_meant = |pause: &Pause| pause.kind == PauseKind::Account && pause.name == self.account;
            let mut is_changed = false;
            for pause in worker.pauses.iter_mut().filter(|pause| is_meant(pause) && !pause.is_resumed) {
                pause.is_resumed = true;
                is_changed = true;
            }
            if is_changed {
                changed.push(worker);
            }
        }
        for worker in changed {
            set.audit(Action::AccountResumed, EntityType::Worker, &worker.id, &Actor::Admin, format!("account {}", self.account));
            set.put_worker(worker);
        }
        Ok(())
    }
}
