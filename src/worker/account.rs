//! The state of each account: open, out of quota until a time, or refused.

use std::collections::BTreeMap;
use std::path::PathBuf;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::home::{read_json, write_json_durably};
use super::profile::Profiles;
use bloom_core::Ms;

/// The maximum pause of an account: the longest quotas are weekly.
const MAX_PAUSE_MS: Ms = 8 * 24 * 3600 * 1000;

/// The states of the accounts that the profiles use.
#[derive(Debug)]
pub struct Accounts {
    path: PathBuf,
    states: Mutex<BTreeMap<String, State>>,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
enum State {
    /// Out of quota until this time.
    Paused(Ms),
    /// Its credentials were refused. Not stored: a restarted agent tries the account again.
    #[serde(skip)]
    Refused,
}

/// Whether the agent as a whole may take new tasks.
#[derive(Clone, Debug, PartialEq)]
pub enum Availability {
    Open,
    Paused { until: Ms, account: String },
    Refused { account: String },
}

impl Accounts {
    pub fn load(path: PathBuf) -> Self {
        let states = read_json(&path).unwrap_or_default();
        Self { path, states: Mutex::new(states) }
    }

    pub fn pause(&self, account: &str, until: Ms, now: Ms) {
        let until = until.clamp(now, now + MAX_PAUSE_MS);
        let mut states = self.states.lock();
        match states.get(account) {
            Some(State::Paused(known)) if *known >= until => return,
            Some(State::Refused) => return,
            _ => {}
        }
        states.insert(account.to_owned(), State::Paused(until));
        let kept: BTreeMap<_, _> = states.iter().filter(|(_, state)| matches!(state, State::Paused(until) if *until > now)).collect();
        if let Err(error) = write_json_durably(&self.path, &kept) {
            tracing::warn!(%error, "the pause of an account could not be stored; the agent will not know it after a restart");
        }
    }

    pub fn refuse(&self, account: &str) {
        self.states.lock().insert(account.to_owned(), State::Refused);
    }

    /// One paused or refused account closes the whole agent. `Agent::offer` uses this if it can't offer the slugs that are still open
    /// instead.
    pub fn availability(&self, profiles: &Profiles, now: Ms) -> Availability {
        let states = self.states.lock();
        let mut availability = Availability::Open;
        for (_, profile) in profiles.all() {
            let account = profile.account.clone();
            match (states.get(&account), &availability) {
                (Some(State::Refused), _) => return Availability::Refused { account },
                (Some(State::Paused(until)), Availability::Paused { until: later, .. }) if until <= later => {}
                (Some(State::Paused(until)), _) if *until > now => availability = Availability::Paused { until: *until, account },
                _ => {}
            }
        }
        availability
    }

    pub fn is_closed(&self, account: &str, now: Ms) -> bool {
        match self.states.lock().get(account) {
            Some(State::Paused(until)) => *until > now,
            Some(State::Refused) => true,
            None => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_outlives_the_process_and_ends_by_itself() {
        let dir = tempfile::tempdir().unwrap();
        let profiles = Profiles::load(None, Some("echo")).unwrap();
        let accounts = || Accounts::load(dir.path().join("accounts.json"));
        accounts().pause("default", 5_000, 1_000);
        let later = accounts();
        assert_eq!(later.availability(&profiles, 4_999), Availability::Paused { until: 5_000, account: "default".into() });
        assert_eq!(later.availability(&profiles, 5_000), Availability::Open);
        later.pause("default", 3_000, 2_000);
        assert!(later.is_closed("default", 4_000), "a shorter pause does not shorten it");
        later.refuse("default");
        assert_eq!(later.availability(&profiles, 9_000), Availability::Refused { account: "default".into() });
        assert_eq!(accounts().availability(&profiles, 9_000), Availability::Open, "a restarted agent tries the account again");
    }
}
