//! What takes no tasks for a while, and why: an account, a profile, or the whole agent.

use std::collections::BTreeMap;
use std::path::PathBuf;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::accounts::reported::{Told, ToldAccounts};
use crate::claude::stream::cut;
use crate::home::{read_json, write_json_durably};
use crate::profile::Profile;
use bloom_api::directives::PausedAccount;
use bloom_core::Ms;
use bloom_core::limits::PAUSE_MS;
use bloom_core::pause::{PauseCause, PauseKind};

/// The first pause after a failure. Each further pause is twice as long.
const FIRST_MS: Ms = 15_000;
/// The minimum time between two probes because of a login: programs also write the credentials file without a login.
const HURRY_EVERY_MS: Ms = 60_000;
const LONGEST_MS: Ms = 30 * 60 * 1000;
/// The first pause for a used-up quota. Until the quota is renewed, probes are refused and cost nothing.
const FIRST_OF_QUOTA_MS: Ms = 5 * 60 * 1000;
const LONGEST_OF_QUOTA_MS: Ms = 60 * 60 * 1000;
/// The longest pause for a quota that no probe can end.
const UNPROBED_QUOTA_MS: Ms = 15 * 60 * 1000;
/// The length of a failure's text, in bytes. The text is shown with the worker.
const MAX_MESSAGE: usize = 300;

#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) struct Pause {
    pub cause: PauseCause,
    pub since: Ms,
    /// When the pause ends, or when the next probe is made.
    pub until: Ms,
    /// Whether the pause lasts until a probe succeeds.
    is_probed: bool,
    /// How many pauses came before this one without a success in between.
    before: u32,
    /// When a login last caused an immediate probe.
    #[serde(default)]
    hurried_at: Option<Ms>,
    /// What the last failure said.
    pub message: String,
    /// The worker that found it out, if the server reported it.
    #[serde(default)]
    pub told_by: Option<String>,
    /// When the quota is reset, according to the stream of a run. A run can print anything, so this time only decides when to check, and
    /// guarantees nothing.
    #[serde(default)]
    resets_at: Option<Ms>,
    /// The profile whose run was refused. Probes use it.
    #[serde(default)]
    pub profile: Option<String>,
}

/// The failure of a run or a probe.
#[derive(Clone, Debug)]
pub(crate) struct Failed<'a> {
    pub cause: PauseCause,
    pub message: &'a str,
    /// Whether a probe can end the pause; otherwise the pause ends by itself.
    pub is_probed: bool,
    pub resets_at: Option<Ms>,
    pub profile: Option<String>,
}

impl Pause {
    fn is_on(&self, now: Ms) -> bool {
        self.is_probed || self.until > now
    }
}

/// What is paused: its kind and its name.
pub(crate) type Paused = (PauseKind, String);

/// The account and the profile, which can be paused, of the profile with this name.
pub(crate) fn of(name: &str, profile: &Profile) -> [Paused; 2] {
    [(PauseKind::Account, profile.account.clone()), (PauseKind::Profile, name.to_owned())]
}

#[derive(Debug)]
pub(crate) struct Pauses {
    /// The file with the pauses for quotas, by account. Other pauses are not stored: a restarted agent tries again.
    path: PathBuf,
    all: Mutex<BTreeMap<Paused, Pause>>,
    /// What other workers found, as the server last reported it. It is not stored, because it ends when the server no longer reports it.
    told: Mutex<ToldAccounts>,
}

impl Pauses {
    pub(crate) fn load(path: PathBuf, now: Ms) -> Self {
        let stored: BTreeMap<String, Pause> = read_json(&path).unwrap_or_default();
        // The clock may have been wrong when the pauses were stored.
        let is_possible = |pause: &Pause| {
            pause.cause == PauseCause::Quota && (now - PAUSE_MS..=now).contains(&pause.since) && is_possible_end(pause.until, now)
        };
        let stored = stored.into_iter().filter(|(_, pause)| is_possible(pause));
        let all = stored.map(|(account, pause)| ((PauseKind::Account, account), pause)).collect();
        Self { path, all: Mutex::new(all), told: Mutex::default() }
    }

    /// Pauses until this time. A shorter pause does not shorten a longer one.
    pub(crate) fn until(&self, paused: &Paused, cause: PauseCause, until: Ms, message: &str, now: Ms) {
        let until = until.clamp(now, now + PAUSE_MS);
        let mut all = self.all.lock();
        let known = all.get(paused).filter(|known| known.is_on(now));
        if known.is_some_and(|known| known.is_probed || known.until >= until) {
            return;
        }
        let since = known.map_or(now, |known| known.since);
        let message = cut(message, MAX_MESSAGE).to_owned();
        let pause = Pause {
            cause,
            since,
            until,
            is_probed: false,
            before: 0,
            hurried_at: None,
            message,
            told_by: None,
            resets_at: None,
            profile: None,
        };
        all.insert(paused.clone(), pause);
    }

    fn store(&self, all: &BTreeMap<Paused, Pause>, now: Ms) {
        let kept = all.iter().filter(|(_, pause)| pause.cause == PauseCause::Quota && pause.is_on(now));
        let kept: BTreeMap<&str, &Pause> = kept.map(|((_, account), pause)| (account.as_str(), pause)).collect();
        if let Err(error) = write_json_durably(&self.path, &kept) {
            tracing::warn!(%error, "the pauses of accounts could not be stored; after a restart, the agent will not know them as they are");
        }
    }

    /// Pauses after a failure, for longer each time, until a success lifts the pause. With `is_probed`, only a success ends the pause.
    pub(crate) fn failed(&self, paused: &Paused, failed: Failed<'_>, now: Ms) -> Pause {
        let Failed { cause, message, is_probed, resets_at, profile } = failed;
        let mut all = self.all.lock();
        let known = all.get(paused).filter(|known| known.cause == cause).cloned();
        let message = cut(message, MAX_MESSAGE).to_owned();
        let fresh =
            Pause { cause, since: now, until: now, is_probed, before: 0, hurried_at: None, message, told_by: None, resets_at, profile };
        let pause = match known {
            // The run began before the pause, so its failure is no further try.
            Some(known) if known.until > now => Pause { message: fresh.message, is_probed, ..known },
            Some(known) => Pause {
                since: known.since,
                before: known.before.saturating_add(1),
                hurried_at: known.hurried_at,
                resets_at: fresh.resets_at.or(known.resets_at),
                profile: fresh.profile.clone().or(known.profile),
                ..fresh
            },
            None => fresh,
        };
        let until = if pause.until > now { pause.until } else { now + pause.length(now) };
        let pause = Pause { until, ..pause };
        all.insert(paused.clone(), pause.clone());
        if cause == PauseCause::Quota {
            self.store(&all, now);
        }
        pause
    }

    /// Replaces the accounts that the server reported as out of quota. Returns whether that changes anything.
    pub(crate) fn tell(&self, accounts: &[PausedAccount], can_probe: impl Fn(&str) -> bool, now: Ms) -> bool {
        self.told.lock().hear(accounts, can_probe, now)
    }

    /// Ends the pause of the account that began at `since`, because an administrator wants so. Returns whether there was such a pause.
    pub(crate) fn resume(&self, account: &str, since: Ms, now: Ms) -> bool {
        let paused = (PauseKind::Account, account.to_owned());
        let Some(pause) = self.on(now).remove(&paused).filter(|pause| pause.since == since) else { return false };
        if pause.told_by.is_some() { self.has_looked(&paused, now) } else { self.lift(&paused, now) | self.has_looked(&paused, now) }
    }

    /// Records that the agent knows by itself whether the account works, so that reports of other workers no longer count. Returns whether
    /// one counted until now.
    pub(crate) fn has_looked(&self, (kind, name): &Paused, now: Ms) -> bool {
        *kind == PauseKind::Account && self.told.lock().has_looked(name, now)
    }

    /// Ends the pause, if there is one. Returns whether there was one.
    pub(crate) fn lift(&self, paused: &Paused, now: Ms) -> bool {
        let mut all = self.all.lock();
        let lifted = all.remove(paused);
        if lifted.as_ref().is_some_and(|pause| pause.cause == PauseCause::Quota) {
            self.store(&all, now);
        }
        lifted.is_some()
    }

    /// Has a probe made at once, at most once a minute, without making the next pause longer. Returns false if it is too early.
    pub(crate) fn hurry(&self, paused: &Paused, now: Ms) -> bool {
        if paused.0 == PauseKind::Account {
            self.told.lock().hurry(&paused.1, now);
        }
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

    pub(crate) fn is_paused(&self, paused: &Paused, now: Ms) -> bool {
        let is_told = || paused.0 == PauseKind::Account && self.told.lock().get(&paused.1, now).is_some();
        self.all.lock().get(paused).is_some_and(|pause| pause.is_on(now)) || is_told()
    }

    /// The active pauses. What the agent found out itself takes precedence over reports.
    pub(crate) fn on(&self, now: Ms) -> BTreeMap<Paused, Pause> {
        let told = self.told.lock();
        let mut on: BTreeMap<Paused, Pause> =
            told.on(now).map(|(account, told)| ((PauseKind::Account, account.to_owned()), Pause::told(told))).collect();
        on.extend(self.all.lock().iter().filter(|(_, pause)| pause.is_on(now)).map(|(paused, pause)| (paused.clone(), pause.clone())));
        on
    }

    /// The paused accounts and profiles for which a probe is due.
    pub(crate) fn due(&self, now: Ms) -> Vec<Paused> {
        let (all, told) = (self.all.lock(), self.told.lock());
        let own = all.iter().filter(|(_, pause)| pause.is_probed && pause.until <= now).map(|(paused, _)| paused.clone());
        let of_others = told.due(now).map(|account| (PauseKind::Account, account.to_owned())).filter(|paused| !all.contains_key(paused));
        own.chain(of_others).collect()
    }

    /// The next time at which a pause ends or a probe is due.
    pub(crate) fn next(&self, now: Ms) -> Option<Ms> {
        let own = self.all.lock().values().map(|pause| pause.until).filter(|until| *until > now).min();
        own.into_iter().chain(self.told.lock().next(now)).min()
    }
}

impl Pause {
    fn told(told: &Told) -> Self {
        Self {
            cause: PauseCause::Quota,
            since: told.since,
            until: told.until(),
            is_probed: false,
            before: 0,
            hurried_at: None,
            message: String::new(),
            told_by: Some(told.worker.clone()),
            resets_at: None,
            profile: None,
        }
    }

    /// How long the pause lasts from now on, until it ends or the next probe is made.
    fn length(&self, now: Ms) -> Ms {
        let grown = |first: Ms, longest: Ms| first.saturating_mul(1 << self.before.min(16)).min(longest);
        let to_reset = self.resets_at.map(|at| at - now).filter(|ms| *ms > 0);
        match (self.cause, self.is_probed) {
            (PauseCause::Quota, true) => grown(FIRST_OF_QUOTA_MS, LONGEST_OF_QUOTA_MS).min(to_reset.unwrap_or(Ms::MAX)),
            (PauseCause::Quota, false) => to_reset.unwrap_or(FIRST_OF_QUOTA_MS).min(UNPROBED_QUOTA_MS),
            _ => grown(FIRST_MS, LONGEST_MS),
        }
    }
}

fn is_possible_end(until: Ms, now: Ms) -> bool {
    until <= now + PAUSE_MS
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

    fn failed(cause: PauseCause, is_probed: bool) -> Failed<'static> {
        Failed { cause, message: "why", is_probed, resets_at: None, profile: None }
    }

    const MINUTE: Ms = 60_000;

    #[test]
    fn a_quota_is_probed_at_growing_distances_and_right_after_its_reset() {
        let (accounts, a) = (load(), account("a"));
        let limited = |resets_at| Failed { resets_at, ..failed(PauseCause::Quota, true) };
        let mut now = 0;
        let mut minutes = |resets_at| {
            let until = accounts.failed(&a, limited(resets_at), now).until;
            assert!(accounts.is_paused(&a, until), "until a probe succeeds");
            let length = (until - now) / MINUTE;
            now = until;
            length
        };
        let reset = Some(100 * MINUTE);
        assert_eq!([reset, None, None, None, None, None].map(&mut minutes), [5, 10, 20, 40, 25, 60], "the reset is in the 100th minute");
        assert_eq!([minutes(Some(MINUTE)), minutes(Some(1 << 50))], [60, 60], "a reset in the past, and one that never comes");
        assert!(accounts.lift(&a, now) && !accounts.is_paused(&a, now));
        assert_eq!(accounts.failed(&a, limited(None), now).until - now, 5 * MINUTE);
    }

    #[test]
    fn a_quota_that_no_probe_can_end_pauses_for_minutes_at_a_time() {
        let (accounts, a) = (load(), account("a"));
        let limited = |resets_at| Failed { resets_at, ..failed(PauseCause::Quota, false) };
        for (now, resets_at, minutes) in [(0, Some(1 << 50), 15), (20, None, 15), (40, Some(43 * MINUTE), 3)] {
            let now = now * MINUTE;
            assert_eq!(accounts.failed(&a, limited(resets_at), now).until - now, minutes * MINUTE);
            assert!(!accounts.is_paused(&a, now + minutes * MINUTE) && accounts.due(now + 16 * MINUTE).is_empty());
        }
    }

    #[test]
    fn a_quota_outlives_the_process() {
        let dir = tempfile::tempdir().unwrap();
        let accounts = |now| Pauses::load(dir.path().join("accounts.json"), now);
        let default = account("default");
        accounts(0).failed(&default, failed(PauseCause::Quota, true), 1_000);
        let later = accounts(9_000);
        assert_eq!(later.on(9_000)[&default].until, 1_000 + 5 * MINUTE);
        accounts(9_000).lift(&default, 9_000);
        assert!(!accounts(9_000).is_paused(&default, 9_000), "the end of a pause outlives the process, too");
        // The clock was wrong when this was stored.
        accounts(20_000).failed(&account("far"), failed(PauseCause::Quota, true), 20_000);
        assert!(!accounts(9_000).is_paused(&account("far"), 9_000));
        later.failed(&default, failed(PauseCause::Credentials, true), 9_000);
        assert!(!accounts(9_000).is_paused(&default, 9_000), "a restarted agent tries the account again");
    }

    #[test]
    fn what_the_agent_found_itself_comes_before_what_it_was_told() {
        let (known, team) = (load(), account("team"));
        let told = [PausedAccount { account: "team".into(), until: 50 * MINUTE, worker: "a".into() }];
        assert!(known.tell(&told, |_| true, 0));
        assert_eq!((known.on(0)[&team].until, known.due(9 * MINUTE).len(), known.due(10 * MINUTE).len()), (10 * MINUTE, 0, 1));
        assert!(known.hurry(&team, MINUTE) && known.due(MINUTE) == [team.clone()]);
        known.failed(&team, failed(PauseCause::Quota, true), MINUTE);
        assert_eq!((known.on(MINUTE)[&team].told_by.clone(), known.due(MINUTE)), (None, vec![]));
        assert!(known.lift(&team, MINUTE) && known.is_paused(&team, MINUTE));
        assert!(known.has_looked(&team, MINUTE) && !known.is_paused(&team, MINUTE));
    }

    #[test]
    fn pauses_after_failures_get_longer_and_a_success_ends_them() {
        let (profiles, coder) = (load(), (PauseKind::Profile, "coder".to_owned()));
        let fail = |now| profiles.failed(&coder, failed(PauseCause::Start, false), now).until - now;
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
        accounts.failed(&a, failed(PauseCause::Billing, true), 0);
        assert_eq!((accounts.due(14_999), accounts.due(15_000)), (vec![], vec![a.clone()]));
        assert!(accounts.is_paused(&a, 1_000_000));
        accounts.failed(&a, failed(PauseCause::Billing, true), 15_000);
        assert_eq!((accounts.due(44_999).len(), accounts.next(15_000)), (0, Some(45_000)));
        assert!(accounts.hurry(&a, 20_000));
        assert_eq!(accounts.due(20_000).len(), 1);
        assert_eq!(accounts.failed(&a, failed(PauseCause::Billing, true), 20_000).until, 50_000, "a login makes no pause longer");
        assert!(!accounts.hurry(&a, 30_000) && accounts.due(30_000).is_empty(), "not twice within a minute");
        accounts.until(&a, PauseCause::Disk, 90_000, "", 20_000);
        assert_eq!(accounts.on(20_000)[&a].cause, PauseCause::Billing);
    }
}
