//! What takes no tasks for a while, and why: accounts, profiles, or the whole agent.

use std::collections::BTreeMap;
use std::path::PathBuf;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::home::{read_json, write_json_durably};
use super::stream::cut;
use bloom_api::answers::PausedAccount;
use bloom_core::Ms;
use bloom_core::limits::PAUSE_MS;
use bloom_core::pause::{PauseCause, PauseKind};

/// The first pause after a failure. Each further one is twice as long.
const FIRST_MS: Ms = 15_000;
/// Programs write the file of credentials without a login, too.
const HURRY_EVERY_MS: Ms = 60_000;
const LONGEST_MS: Ms = 30 * 60 * 1000;
/// Texts of failures are shown with the worker.
const MAX_MESSAGE: usize = 300;

#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Pause {
    pub cause: PauseCause,
    pub since: Ms,
    /// When the pause ends, or when a probe is made.
    pub until: Ms,
    /// It goes on until a probe succeeds.
    is_probed: bool,
    /// How many pauses there were before this one without a success in between.
    before: u32,
    /// When a login had a probe made at once.
    #[serde(default)]
    hurried_at: Option<Ms>,
    /// What the last failure said.
    pub message: String,
    /// The worker that found it out, if the server told of it.
    #[serde(default)]
    pub told_by: Option<String>,
}

impl Pause {
    fn is_on(&self, now: Ms) -> bool {
        self.is_probed || self.until > now
    }
}

/// What is paused: its kind and its name.
pub type Paused = (PauseKind, String);

#[derive(Debug)]
pub struct Pauses {
    /// Where pauses for a quota are stored, by account. The others are not: a restarted agent tries again.
    path: PathBuf,
    all: Mutex<BTreeMap<Paused, Pause>>,
    /// What other workers found, as the server told last. They end when the server no longer tells of them, so they are not stored.
    told: Mutex<BTreeMap<Paused, Pause>>,
}

impl Pauses {
    pub fn load(path: PathBuf, now: Ms) -> Self {
        let stored: BTreeMap<String, Pause> = read_json(&path).unwrap_or_default();
        // The clock may have been wrong when they were stored.
        let is_possible = |pause: &Pause| {
            pause.cause == PauseCause::Quota && (now - PAUSE_MS..=now).contains(&pause.since) && is_possible_end(pause.until, now)
        };
        let stored = stored.into_iter().filter(|(_, pause)| is_possible(pause));
        let all = stored.map(|(account, pause)| ((PauseKind::Account, account), pause)).collect();
        Self { path, all: Mutex::new(all), told: Mutex::default() }
    }

    /// Pauses until this time. A shorter pause does not shorten a longer one.
    pub fn until(&self, paused: &Paused, cause: PauseCause, until: Ms, message: &str, now: Ms) {
        let until = until.clamp(now, now + PAUSE_MS);
        let mut all = self.all.lock();
        let known = all.get(paused).filter(|known| known.is_on(now));
        if known.is_some_and(|known| known.is_probed || known.until >= until) {
            return;
        }
        let since = known.map_or(now, |known| known.since);
        let message = cut(message, MAX_MESSAGE).to_owned();
        all.insert(paused.clone(), Pause { cause, since, until, is_probed: false, before: 0, hurried_at: None, message, told_by: None });
        self.store(&all, now);
    }

    fn store(&self, all: &BTreeMap<Paused, Pause>, now: Ms) {
        let kept = all.iter().filter(|(_, pause)| pause.cause == PauseCause::Quota && pause.is_on(now));
        let kept: BTreeMap<&str, &Pause> = kept.map(|((_, account), pause)| (account.as_str(), pause)).collect();
        if let Err(error) = write_json_durably(&self.path, &kept) {
            tracing::warn!(%error, "the pauses of accounts could not be stored; after a restart, the agent will not know them as they are");
        }
    }

    /// Pauses after a failure: each time longer, until a success lifts the pause. With `is_probed`, only that ends it.
    pub fn failed(&self, paused: &Paused, cause: PauseCause, is_probed: bool, message: &str, now: Ms) -> Pause {
        let mut all = self.all.lock();
        let known = all.get(paused).filter(|known| known.cause == cause);
        // A run that began before the pause, and fails in it, is no further try.
        let (before, until) = match known {
            Some(known) if known.until > now => (known.before, known.until),
            Some(known) => (known.before.saturating_add(1), now + length(known.before.saturating_add(1))),
            None => (0, now + length(0)),
        };
        let since = known.map_or(now, |known| known.since);
        let hurried_at = known.and_then(|known| known.hurried_at);
        let pause =
            Pause { cause, since, until, is_probed, before, hurried_at, message: cut(message, MAX_MESSAGE).to_owned(), told_by: None };
        all.insert(paused.clone(), pause.clone());
        pause
    }

    /// Takes in which accounts the server says are out of quota, instead of what it said before. Returns whether that is another answer.
    pub fn tell(&self, accounts: &[PausedAccount], now: Ms) -> bool {
        let mut told = self.told.lock();
        // The clock of another worker may be wrong.
        let on = accounts.iter().filter(|account| account.until > now && is_possible_end(account.until, now));
        let new: BTreeMap<Paused, Pause> = on
            .map(|PausedAccount { account, until, worker }| {
                let paused = (PauseKind::Account, account.clone());
                let since = told.get(&paused).map_or(now, |known| known.since);
                let (cause, message, told_by) = (PauseCause::Quota, String::new(), Some(worker.clone()));
                (paused, Pause { cause, since, until: *until, is_probed: false, before: 0, hurried_at: None, message, told_by })
            })
            .collect();
        let is_other = *told != new;
        *told = new;
        is_other
    }

    /// Ends the pause, if there is one, and says so.
    pub fn lift(&self, paused: &Paused, now: Ms) -> bool {
        let mut all = self.all.lock();
        let lifted = all.remove(paused);
        if lifted.as_ref().is_some_and(|pause| pause.cause == PauseCause::Quota) {
            self.store(&all, now);
        }
        lifted.is_some()
    }

    /// Has a probe made at once, which does not make the next pause longer; at most once a minute. Returns false if it is too early.
    pub fn hurry(&self, paused: &Paused, now: Ms) -> bool {
        match self.all.lock().get_mut(paused).filter(|pause| pause.is_probed && pause.until > now) {
            Some(pause) if pause.hurried_at.is_some_and(|at| now - at < HURRY_EVERY_MS) => false,
            Some(pause) => {
                (pause.until, pause.hurried_at) = (now, Some(now));
                pause.before = pause.before.saturating_sub(1);
                true
            }
            None => true,
        }
    }

    pub fn is_paused(&self, paused: &Paused, now: Ms) -> bool {
        let is_on = |pauses: &Mutex<BTreeMap<Paused, Pause>>| pauses.lock().get(paused).is_some_and(|pause| pause.is_on(now));
        is_on(&self.all) || is_on(&self.told)
    }

    /// The pauses that are on. What the agent found out itself comes before what it was told.
    pub fn on(&self, now: Ms) -> BTreeMap<Paused, Pause> {
        let mut on = self.told.lock().clone();
        on.extend(self.all.lock().iter().filter(|(_, pause)| pause.is_on(now)).map(|(paused, pause)| (paused.clone(), pause.clone())));
        on.retain(|_, pause| pause.is_on(now));
        on
    }

    /// Those for which a probe is due.
    pub fn due(&self, now: Ms) -> Vec<Paused> {
        self.all.lock().iter().filter(|(_, pause)| pause.is_probed && pause.until <= now).map(|(paused, _)| paused.clone()).collect()
    }

    /// The next time at which a pause ends or a probe is due.
    pub fn next(&self, now: Ms) -> Option<Ms> {
        let next =
            |pauses: &Mutex<BTreeMap<Paused, Pause>>| pauses.lock().values().map(|pause| pause.until).filter(|until| *until > now).min();
        [next(&self.all), next(&self.told)].into_iter().flatten().min()
    }
}

fn is_possible_end(until: Ms, now: Ms) -> bool {
    until <= now + PAUSE_MS
}

fn length(before: u32) -> Ms {
    FIRST_MS.saturating_mul(1 << before.min(16)).min(LONGEST_MS)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn account(name: &str) -> Paused {
        (PauseKind::Account, name.to_owned())
    }

    fn load() -> Pauses {
        Pauses::load("/nonexistent/accounts.json".into(), 0)
    }

    #[test]
    fn a_quota_outlives_the_process_and_ends_by_itself() {
        let dir = tempfile::tempdir().unwrap();
        let accounts = || Pauses::load(dir.path().join("accounts.json"), 9_000);
        let default = account("default");
        accounts().until(&default, PauseCause::Quota, 5_000, "weekly limit", 1_000);
        let later = accounts();
        let until = |now| later.on(now).get(&default).map(|pause| pause.until);
        assert_eq!((until(4_999), until(5_000)), (Some(5_000), None));
        later.until(&default, PauseCause::Quota, 3_000, "", 2_000);
        assert!(later.is_paused(&default, 4_000), "a shorter pause does not shorten it");
        accounts().lift(&default, 4_000);
        assert!(!accounts().is_paused(&default, 4_000), "the end of a pause outlives the process, too");
        // The clock was wrong when this was stored.
        accounts().until(&account("far"), PauseCause::Quota, 20_000 + PAUSE_MS, "", 20_000);
        assert!(!accounts().is_paused(&account("far"), 9_000));
        later.failed(&default, PauseCause::Credentials, true, "401", 9_000);
        assert!(!accounts().is_paused(&default, 9_000), "a restarted agent tries the account again");
    }

    #[test]
    fn what_the_server_tells_holds_until_it_tells_otherwise() {
        let dir = tempfile::tempdir().unwrap();
        let accounts = || Pauses::load(dir.path().join("accounts.json"), 0);
        let (known, team) = (accounts(), account("team"));
        let of = |until| [PausedAccount { account: "team".into(), until, worker: "a".into() }];
        assert!(known.tell(&of(5_000), 1_000) && !known.tell(&of(5_000), 2_000));
        let on = known.on(2_000);
        assert_eq!((on[&team].since, on[&team].told_by.as_deref(), known.next(2_000)), (1_000, Some("a"), Some(5_000)));
        assert!(known.is_paused(&team, 4_999) && !known.is_paused(&team, 5_000));
        known.until(&team, PauseCause::Quota, 4_000, "", 2_000);
        assert_eq!(known.on(2_000)[&team].told_by, None, "its own comes first");
        assert!(known.lift(&team, 2_000) && known.is_paused(&team, 2_000), "a success does not end what others found");
        assert!(!accounts().is_paused(&team, 2_000), "it is not stored");
        assert!(known.tell(&[], 2_000) && !known.is_paused(&team, 2_000));
        assert!(!known.tell(&of(3_000 + PAUSE_MS), 2_000), "the clock of the other one is wrong");
    }

    #[test]
    fn pauses_after_failures_get_longer_and_a_success_ends_them() {
        let (profiles, coder) = (load(), (PauseKind::Profile, "coder".to_owned()));
        let fail = |now| profiles.failed(&coder, PauseCause::Start, false, "no such option", now).until - now;
        assert_eq!(fail(0), 15_000);
        assert_eq!(fail(5_000), 10_000, "a run that had begun before is no further try");
        assert!(!profiles.is_paused(&coder, 15_000));
        assert_eq!([fail(15_000), fail(45_000), fail(10_000_000)], [30_000, 60_000, 120_000]);
        assert_eq!(profiles.on(10_000_000)[&coder].since, 0);
        for minutes in 1..100 {
            assert!(fail(10_000_000 + minutes * 60 * 60_000) <= LONGEST_MS);
        }
        assert!(profiles.lift(&coder, 0) && !profiles.lift(&coder, 0));
        assert_eq!(fail(0), 15_000);
    }

    #[test]
    fn what_needs_a_probe_stays_paused_until_it_succeeds() {
        let (accounts, a) = (load(), account("a"));
        accounts.failed(&a, PauseCause::Billing, true, "no credit", 0);
        assert_eq!((accounts.due(14_999), accounts.due(15_000)), (vec![], vec![a.clone()]));
        assert!(accounts.is_paused(&a, 1_000_000));
        accounts.failed(&a, PauseCause::Billing, true, "no credit", 15_000);
        assert_eq!((accounts.due(44_999).len(), accounts.next(15_000)), (0, Some(45_000)));
        assert!(accounts.hurry(&a, 20_000));
        assert_eq!(accounts.due(20_000).len(), 1);
        assert_eq!(accounts.failed(&a, PauseCause::Billing, true, "no credit", 20_000).until, 50_000, "a login makes no pause longer");
        assert!(!accounts.hurry(&a, 30_000) && accounts.due(30_000).is_empty(), "not twice within a minute");
        accounts.until(&a, PauseCause::Quota, 90_000, "", 20_000);
        assert_eq!(accounts.on(20_000)[&a].cause, PauseCause::Billing);
    }
}
