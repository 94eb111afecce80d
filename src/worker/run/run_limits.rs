//! The limits at which the agent itself, besides its supervisor, stops a run.

use std::time::{Duration, Instant};

use crate::claude::stream::Activity;
use crate::machine::boot_clock::now;
use crate::machine::process::TERM_GRACE;
use crate::profile::Profile;
use crate::run::run_dir::Record;
use crate::run::verdict::Stop;
use crate::supervisor::wait_time::Waits;
use bloom_client::now_ms;
use bloom_core::Ms;

/// How long a process with nothing left to do may continue after its result: some never end.
const AFTER_RESULT: Duration = Duration::from_secs(10);
/// How much later than the supervisor the agent ends a run that exceeds its time limit.
const TIMEOUT_SLACK: Duration = Duration::from_secs(20);

/// The limits at which the agent stops a run. The supervisor has further limits; the time limit is in both places, because a run can stop
/// its supervisor.
pub(crate) struct Limits {
    end: Instant,
    waits: Waits,
    /// How long the CLI may wait for its background tasks.
    background: Duration,
    /// Since when it only waits, or has nothing to do, after a result.
    since: Option<(Activity, Instant)>,
}

impl Limits {
    /// `asked`: how long people were asked before this process.
    pub(crate) fn new(record: &Record, profile: &Profile, started_at: Ms, asked: Duration) -> Self {
        let ran = Duration::from_millis(u64::try_from(now_ms().saturating_sub(started_at)).unwrap_or(0));
        let left = record.task.policy.timeout().saturating_add(asked).saturating_sub(ran);
        Self {
            end: Instant::now() + left + TIMEOUT_SLACK,
            waits: Waits::new(now()),
            background: Duration::from_secs(profile.background_seconds),
            since: None,
        }
    }

    /// Sets until when the run waits for a person at most; 0: it does not wait.
    pub(crate) fn wait_until(&mut self, until: u64) {
        self.end += Duration::from_millis(self.waits.set_until(until, now()));
    }

    /// The reason to stop the run now. `activity`: what the CLI is doing after a result; `None`: there is no result yet.
    pub(crate) fn exceeded(&mut self, activity: Option<Activity>) -> Option<Stop> {
        self.end += Duration::from_millis(self.waits.passed(now()));
        let now = Instant::now();
        let limit = match activity {
            None | Some(Activity::Turn) => None,
            Some(Activity::Waits) => Some(self.background),
            Some(Activity::Idle) => Some(AFTER_RESULT),
        };
        let activity = activity.filter(|_| limit.is_some());
        if self.since.map(|(before, _)| before) != activity {
            self.since = activity.map(|activity| (activity, now));
        }
        let is_over = |(_, since)| limit.is_some_and(|limit| now - since >= limit);
        if self.since.is_some_and(is_over) {
            return Some(Stop::Stalled);
        }
        (now >= self.end).then_some(Stop::Timeout)
    }
}

/// The time between SIGTERM and SIGKILL when a lease is lost. It is short, because another worker gets the task soon.
pub(crate) fn lease_grace(record: &Record) -> Duration {
    TERM_GRACE.min(record.lease.ttl() / 10)
}
