//! Accounts that other workers found out of quota, as the server reports them. Another worker can be wrong, or lie. So this agent believes
//! it for some minutes, and then checks for itself.

use std::collections::BTreeMap;

use bloom_api::directives::PausedAccount;
use bloom_core::Ms;
use bloom_core::limits::{PAUSE_MS, WORKER_ACCOUNTS};

/// How long an account is paused because another worker reported it.
const BELIEF_MS: Ms = 10 * 60 * 1000;
/// How long other workers are not believed after this agent has checked for itself.
const DISBELIEF_MS: Ms = 60 * 60 * 1000;

/// What the server reported to this agent about one account.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Told {
    pub worker: String,
    pub since: Ms,
    /// When the other worker checks the account again.
    until: Ms,
    /// When this agent checks for itself.
    look_at: Ms,
    /// Whether this agent can check with a probe. Otherwise one of its runs finds out.
    can_probe: bool,
    is_told: bool,
    looked_at: Option<Ms>,
}

impl Told {
    pub(crate) fn until(&self) -> Ms {
        self.until.min(self.look_at)
    }

    pub(crate) fn is_on(&self, now: Ms) -> bool {
        self.is_told && self.looked_at.is_none() && now < self.until && (self.can_probe || now < self.look_at)
    }

    fn is_due(&self, now: Ms) -> bool {
        self.is_on(now) && self.look_at <= now
    }

    fn new(worker: &str, now: Ms) -> Self {
        let look_at = now + BELIEF_MS;
        Self { worker: worker.to_owned(), since: now, until: now, look_at, can_probe: false, is_told: false, looked_at: None }
    }

    /// Takes in what the server reports now. An hour after this agent's own check, it checks again: at once if it can probe, because the
    /// account was reported before.
    fn hear(&mut self, account: &PausedAccount, can_probe: bool, now: Ms) {
        if self.looked_at.is_some_and(|at| now >= at + DISBELIEF_MS) {
            let look_at = if can_probe { now } else { now + BELIEF_MS };
            (self.since, self.look_at, self.looked_at) = (now, look_at, None);
        }
        (self.until, self.can_probe, self.is_told) = (account.until, can_probe, true);
        self.worker.clone_from(&account.worker);
        if !can_probe && self.look_at <= now {
            self.looked_at.get_or_insert(self.look_at);
        }
    }

    /// Whether to remember the account, so that another report of it does not begin a new time of belief.
    fn is_kept(&self, now: Ms) -> bool {
        self.is_told || now < self.looked_at.unwrap_or(self.look_at) + DISBELIEF_MS
    }
}

#[derive(Debug, Default)]
pub(crate) struct ToldAccounts(BTreeMap<String, Told>);

impl ToldAccounts {
    /// Replaces the accounts that the server reported as out of quota. Returns whether that changes anything.
    pub(crate) fn hear(&mut self, accounts: &[PausedAccount], can_probe: impl Fn(&str) -> bool, now: Ms) -> bool {
        let before: Vec<_> = self.shown(now);
        self.0.values_mut().for_each(|told| told.is_told = false);
        // The clock of another worker may be wrong.
        let possible = accounts.iter().filter(|account| account.until > now && account.until <= now + PAUSE_MS);
        for account in possible.take(WORKER_ACCOUNTS) {
            let told = self.0.entry(account.account.clone()).or_insert_with(|| Told::new(&account.worker, now));
            told.hear(account, can_probe(&account.account), now);
        }
        self.0.retain(|_, told| told.is_kept(now));
        self.shown(now) != before
    }

    fn shown(&self, now: Ms) -> Vec<(String, Told)> {
        self.on(now).map(|(account, told)| (account.to_owned(), told.clone())).collect()
    }

    pub(crate) fn on(&self, now: Ms) -> impl Iterator<Item = (&str, &Told)> {
        self.0.iter().filter(move |(_, told)| told.is_on(now)).map(|(account, told)| (account.as_str(), told))
    }

    pub(crate) fn get(&self, account: &str, now: Ms) -> Option<&Told> {
        self.0.get(account).filter(|told| told.is_on(now))
    }

    pub(crate) fn due(&self, now: Ms) -> impl Iterator<Item = &str> {
        self.0.iter().filter(move |(_, told)| told.is_due(now)).map(|(account, _)| account.as_str())
    }

    /// Makes this agent check the account at once.
    pub(crate) fn hurry(&mut self, account: &str, now: Ms) {
        if let Some(told) = self.0.get_mut(account).filter(|told| told.is_on(now) && told.can_probe) {
            told.look_at = told.look_at.min(now);
        }
    }

    /// Records that this agent has checked for itself, so that the report no longer counts. Returns whether the report counted until now.
    pub(crate) fn has_looked(&mut self, account: &str, now: Ms) -> bool {
        let Some(told) = self.0.get_mut(account) else { return false };
        let was_on = told.is_on(now);
        told.looked_at = Some(now);
        was_on
    }

    /// The next time at which a report ends.
    pub(crate) fn next(&self, now: Ms) -> Option<Ms> {
        self.on(now).map(|(_, told)| if told.can_probe { told.until } else { told.until() }).filter(|at| *at > now).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Ms = 60_000;

    fn of(until: Ms) -> [PausedAccount; 1] {
        [PausedAccount { account: "team".into(), until, worker: "a".into() }]
    }

    fn is_on(known: &ToldAccounts, now: Ms) -> bool {
        known.get("team", now).is_some()
    }

    #[test]
    fn what_the_server_tells_holds_until_it_tells_otherwise() {
        let mut known = ToldAccounts::default();
        let mut hear = |accounts: &[PausedAccount], now| known.hear(accounts, |_| true, now);
        assert!(hear(&of(5_000), 1_000) && !hear(&of(5_000), 2_000));
        assert!(hear(&[], 3_000) && hear(&of(5_000), 3_000));
        assert!(hear(&of(3_000 + PAUSE_MS), 2_000), "the clock of the other one is wrong");
        known.hear(&of(5_000), |_| true, 4_000);
        let told = known.get("team", 4_999).unwrap();
        assert_eq!((told.since, told.until(), known.next(4_000)), (1_000, 5_000, Some(5_000)));
        assert!(!is_on(&known, 5_000));
    }

    #[test]
    fn after_some_minutes_the_agent_looks_for_itself_however_often_it_is_told() {
        for can_probe in [true, false] {
            let mut known = ToldAccounts::default();
            for minute in 0..10 {
                known.hear(&of((minute + 60) * MINUTE), |_| can_probe, minute * MINUTE);
                assert!(is_on(&known, minute * MINUTE) && known.due(minute * MINUTE).next().is_none());
                known.hear(&[], |_| can_probe, minute * MINUTE + 1);
            }
            known.hear(&of(70 * MINUTE), |_| can_probe, 10 * MINUTE);
            assert_eq!((is_on(&known, 10 * MINUTE), known.due(10 * MINUTE).count()), (can_probe, usize::from(can_probe)));
            assert_eq!(known.has_looked("team", 10 * MINUTE), can_probe);
            for minute in 11..70 {
                known.hear(&of((minute + 60) * MINUTE), |_| can_probe, minute * MINUTE);
                assert!(!is_on(&known, minute * MINUTE));
            }
            known.hear(&of(130 * MINUTE), |_| can_probe, 70 * MINUTE);
            assert!(is_on(&known, 70 * MINUTE));
            assert_eq!(known.due(70 * MINUTE).count(), usize::from(can_probe), "this time at once");
        }
    }
}
