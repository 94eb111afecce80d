//! Workers whose agent has just failed are let alone for a while, longer each time; before the next task its health is asked for.
//! Otherwise a dead agent would eat up the attempts of every task in the queue.

use std::collections::HashMap;

use super::Agents;
use bloom_core::Ms;
use bloom_core::ids::WorkerId;

const FIRST_MS: Ms = 1_000;
const LONGEST_MS: Ms = 300_000;
/// Asking for its health costs no task anything.
const LONGEST_SILENCE_MS: Ms = 30_000;
/// Doublings from the first rest to the longest.
const DOUBLINGS: u32 = 9;

#[derive(Default)]
pub(super) struct Rests(HashMap<WorkerId, Rest>);

struct Rest {
    /// In a row.
    failures: u32,
    stage: Stage,
}

#[derive(Clone, Copy, PartialEq)]
enum Stage {
    Until(Ms),
    /// Its health is being asked for.
    Asked,
    /// It has answered: it gets another try.
    Back,
}

impl Rests {
    pub fn failed(&mut self, worker: &str, now: Ms) {
        let rest = self.0.entry(worker.to_owned()).or_insert(Rest { failures: 0, stage: Stage::Back });
        // Pushes that were under way together fail together; that is one failure.
        if rest.stage != Stage::Back {
            return;
        }
        rest.lengthen(now, LONGEST_MS);
    }

    /// Answers whether the worker had a bad name until now.
    pub fn went_well(&mut self, worker: &str) -> bool {
        self.0.remove(worker).is_some()
    }

    pub fn rests(&self, worker: &str) -> bool {
        self.0.get(worker).is_some_and(|rest| rest.stage != Stage::Back)
    }

    /// The workers whose rest is over, for a look at their health; and when the next one's is.
    fn take_rested(&mut self, now: Ms) -> (Vec<WorkerId>, Option<Ms>) {
        let mut rested = Vec::new();
        let mut next = None;
        for (worker, rest) in &mut self.0 {
            match rest.stage {
                Stage::Until(at) if at <= now => {
                    rest.stage = Stage::Asked;
                    rested.push(worker.clone());
                }
                Stage::Until(at) => next = Some(next.map_or(at, |next: Ms| next.min(at))),
                Stage::Asked | Stage::Back => {}
            }
        }
        (rested, next)
    }

    fn answered(&mut self, worker: &str, is_well: bool, now: Ms) {
        match self.0.get_mut(worker) {
            Some(rest) if is_well => rest.stage = Stage::Back,
            Some(rest) => rest.lengthen(now, LONGEST_SILENCE_MS),
            None => {}
        }
    }
}

impl Rest {
    fn lengthen(&mut self, now: Ms, longest_ms: Ms) {
        self.stage = Stage::Until(now + (FIRST_MS << self.failures.min(DOUBLINGS)).min(longest_ms));
        self.failures = self.failures.saturating_add(1);
    }
}

impl Agents {
    /// Whether tasks may be brought to the worker by themselves, as far as its agent is known.
    pub fn is_reachable(&self, worker: &str) -> bool {
        !self.rests().rests(worker)
    }

    /// Asks for the health of those that have rested; answers when the next one will have.
    pub fn ask_rested(&self) -> Option<Ms> {
        let (rested, next) = self.rests().take_rested(self.0.engine.now());
        for worker in rested {
            let agents = self.clone();
            self.0.engine.spawn(async move {
                let engine = &agents.0.engine;
                let Some(url) = engine.worker_url(&worker) else {
                    // It has left.
                    agents.rests().went_well(&worker);
                    return;
                };
                let is_well = tokio::select! {
                    health = agents.health(&url) => health.is_ok(),
                    () = engine.stopped() => return,
                };
                agents.rests().answered(&worker, is_well, engine.now());
                engine.alarms().push_due.ring();
            });
        }
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rest_gets_longer_until_a_push_goes_well() {
        let mut rests = Rests::default();
        let mut now = 0;
        for (turn, long) in [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300].into_iter().enumerate() {
            rests.failed("w", now);
            rests.failed("w", now);
            assert_eq!(rests.take_rested(now), (Vec::new(), Some(now + long * 1000)), "failure {turn}");
            assert!(rests.rests("w") && !rests.rests("other"));
            now += long * 1000;
            assert_eq!(rests.take_rested(now), (vec!["w".to_owned()], None));
            assert!(rests.rests("w"), "its health is not known yet");
            rests.answered("w", true, now);
            assert!(!rests.rests("w"));
        }
        assert!(rests.went_well("w") && !rests.went_well("w"));
        rests.failed("w", now);
        assert_eq!(rests.take_rested(now).1, Some(now + 1000));
    }

    #[test]
    fn an_agent_that_does_not_answer_rests_on() {
        let mut rests = Rests::default();
        rests.failed("w", 0);
        assert_eq!(rests.take_rested(1_000).0, ["w"]);
        rests.answered("w", false, 1_000);
        assert_eq!(rests.take_rested(1_000), (Vec::new(), Some(3_000)));
        let mut now = 3_000;
        for _ in 0..9 {
            assert_eq!(rests.take_rested(now).0, ["w"]);
            rests.answered("w", false, now);
            now += 30_000;
        }
        assert_eq!(rests.take_rested(now - 30_000), (Vec::new(), Some(now)), "it is asked again soon");
    }
}
