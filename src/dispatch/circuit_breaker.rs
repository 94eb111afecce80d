//! A circuit breaker for each worker that tasks are pushed to. A failed push opens it, for longer each time. When that time is over, the
//! agent's health is checked before the next task is sent. Without it, a dead agent would use up the attempts of every queued task.

use std::collections::HashMap;

use super::Agents;
use bloom_core::Ms;
use bloom_core::ids::WorkerId;

const FIRST_MS: Ms = 1_000;
const LONGEST_MS: Ms = 300_000;
/// Shorter than for pushes, because a health check affects no task.
const LONGEST_HEALTH_MS: Ms = 30_000;
/// The number of doublings from the shortest time to the longest.
const DOUBLINGS: u32 = 9;

#[derive(Default)]
pub(super) struct CircuitBreakers(HashMap<WorkerId, CircuitBreaker>);

struct CircuitBreaker {
    /// Failures in a row.
    failures: u32,
    state: State,
}

#[derive(Clone, Copy, PartialEq)]
enum State {
    /// No task is pushed before this time.
    Open(Ms),
    /// The agent's health is being checked.
    Checking,
    /// Tasks are pushed.
    Closed,
}

impl CircuitBreakers {
    pub(crate) fn failed(&mut self, worker: &str, now: Ms) {
        let breaker = self.0.entry(worker.to_owned()).or_insert(CircuitBreaker { failures: 0, state: State::Closed });
        // Pushes that were in progress together fail together, which counts as one failure.
        if breaker.state != State::Closed {
            return;
        }
        breaker.open_longer(now, LONGEST_MS);
    }

    /// Returns whether a push had failed before.
    pub(crate) fn succeeded(&mut self, worker: &str) -> bool {
        self.0.remove(worker).is_some()
    }

    pub(crate) fn is_open(&self, worker: &str) -> bool {
        self.0.get(worker).is_some_and(|breaker| breaker.state != State::Closed)
    }

    /// The workers whose health is to be checked now, and when the next check is due.
    fn take_due(&mut self, now: Ms) -> (Vec<WorkerId>, Option<Ms>) {
        let mut due = Vec::new();
        let mut next = None;
        for (worker, breaker) in &mut self.0 {
            match breaker.state {
                State::Open(at) if at <= now => {
                    breaker.state = State::Checking;
                    due.push(worker.clone());
                }
                State::Open(at) => next = Some(next.map_or(at, |next: Ms| next.min(at))),
                State::Checking | State::Closed => {}
            }
        }
        (due, next)
    }

    fn checked(&mut self, worker: &str, is_well: bool, now: Ms) {
        match self.0.get_mut(worker) {
            Some(breaker) if is_well => breaker.state = State::Closed,
            Some(breaker) => breaker.open_longer(now, LONGEST_HEALTH_MS),
            None => {}
        }
    }
}

impl CircuitBreaker {
    fn open_longer(&mut self, now: Ms, longest_ms: Ms) {
        self.state = State::Open(now + (FIRST_MS << self.failures.min(DOUBLINGS)).min(longest_ms));
        self.failures = self.failures.saturating_add(1);
    }
}

impl Agents {
    /// Whether the leader may push tasks to the worker.
    pub fn is_reachable(&self, worker: &str) -> bool {
        !self.breakers().is_open(worker)
    }

    /// Starts the health checks that are due. Returns when the next one is due.
    pub fn check_due(&self) -> Option<Ms> {
        let (due, next) = self.breakers().take_due(self.0.engine.clock.now());
        for worker in due {
            let agents = self.clone();
            self.0.engine.background.spawn(async move {
                let engine = &agents.0.engine;
                let Some(url) = engine.replica.worker_url(&worker) else {
                    // The worker was removed.
                    agents.breakers().succeeded(&worker);
                    return;
                };
                let is_well = tokio::select! {
                    health = agents.health(&url) => health.is_ok(),
                    () = engine.background.stopped() => return,
                };
                agents.breakers().checked(&worker, is_well, engine.clock.now());
                engine.alarms.push_due.ring();
            });
        }
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_breaker_is_open_for_longer_until_a_push_succeeds() {
        let mut breakers = CircuitBreakers::default();
        let mut now = 0;
        for (turn, long) in [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300].into_iter().enumerate() {
            breakers.failed("w", now);
            breakers.failed("w", now);
            assert_eq!(breakers.take_due(now), (Vec::new(), Some(now + long * 1000)), "failure {turn}");
            assert!(breakers.is_open("w") && !breakers.is_open("other"));
            now += long * 1000;
            assert_eq!(breakers.take_due(now), (vec!["w".to_owned()], None));
            assert!(breakers.is_open("w"), "the health check has not ended yet");
            breakers.checked("w", true, now);
            assert!(!breakers.is_open("w"));
        }
        assert!(breakers.succeeded("w") && !breakers.succeeded("w"));
        breakers.failed("w", now);
        assert_eq!(breakers.take_due(now).1, Some(now + 1000));
    }

    #[test]
    fn an_agent_that_does_not_answer_stays_behind_an_open_breaker() {
        let mut breakers = CircuitBreakers::default();
        breakers.failed("w", 0);
        assert_eq!(breakers.take_due(1_000).0, ["w"]);
        breakers.checked("w", false, 1_000);
        assert_eq!(breakers.take_due(1_000), (Vec::new(), Some(3_000)));
        let mut now = 3_000;
        for _ in 0..9 {
            assert_eq!(breakers.take_due(now).0, ["w"]);
            breakers.checked("w", false, now);
            now += 30_000;
        }
        assert_eq!(breakers.take_due(now - 30_000), (Vec::new(), Some(now)), "its health is checked again within 30 s");
    }
}
