//! The cached state of the agents' queues: their settings, and how many tasks they have. It is only a hint: before a lease is made, the
//! queue is read under lock.

use std::collections::{BTreeMap, BTreeSet};

use bloom_core::agent_queue::{ALL_QUEUES, AgentQueue, Closed};
use bloom_core::task::Status;
use bloom_core::working_set::Counts;

/// The tasks of one agent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AgentTasks {
    /// Queued tasks, whether ready or not.
    pub queued: i64,
    /// Tasks that are leased or running.
    pub active: i64,
}

#[derive(Default)]
pub(crate) struct Queues {
    /// The queues that have settings, as read in one snapshot.
    rows: BTreeMap<String, AgentQueue>,
    tasks: BTreeMap<String, AgentTasks>,
    /// Queues whose candidates the database has just refused although the cache shows them as open, each with the number of the refusal.
    refused: BTreeMap<String, u64>,
    refusals: u64,
}

/// The state of the queues as the database reported it during one claim. It takes precedence over the cache.
pub(crate) struct QueueState {
    /// The queues that are closed, including [`ALL_QUEUES`] if all are paused.
    pub closed: BTreeSet<String>,
    /// The agents that have ready tasks.
    pub ready: BTreeSet<String>,
}

impl QueueState {
    pub(crate) fn is_open(&self, agent_slug: &str) -> bool {
        !self.closed.contains(ALL_QUEUES) && !self.closed.contains(agent_slug)
    }
}

impl Queues {
    /// Replaces all queues, unless the cache has newer ones. Returns whether they were replaced.
    pub(crate) fn put(&mut self, rows: Vec<AgentQueue>) -> bool {
        let rows: BTreeMap<_, _> = rows.into_iter().map(|queue| (queue.agent_slug.clone(), queue)).collect();
        let newest = |rows: &BTreeMap<String, AgentQueue>| rows.get(ALL_QUEUES).map_or(0, |all| all.revision);
        let is_newer = newest(&rows) >= newest(&self.rows);
        if is_newer {
            self.rows = rows;
            self.refused.clear();
        }
        is_newer
    }

    /// Replaces the numbers of tasks.
    pub(crate) fn recount(&mut self, counts: &Counts) {
        self.tasks.clear();
        self.count(counts);
    }

    /// Adds to the numbers of tasks. Returns the agents of limited queues whose number of active leases went down.
    pub(crate) fn count(&mut self, deltas: &Counts) -> Vec<String> {
        let mut fewer: BTreeMap<&String, i64> = BTreeMap::new();
        for ((agent_slug, _, status), n) in deltas {
            if *status != Status::Queued && !status.is_active() {
                continue;
            }
            let tasks = self.tasks.entry(agent_slug.clone()).or_default();
            if *status == Status::Queued {
                tasks.queued += n;
            } else {
                tasks.active += n;
                self.refused.remove(agent_slug);
                *fewer.entry(agent_slug).or_default() += n;
            }
            if *tasks == AgentTasks::default() {
                self.tasks.remove(agent_slug);
            }
        }
        let is_limited = |agent_slug: &str| self.rows.get(agent_slug).is_some_and(|queue| queue.max_concurrency.is_some());
        fewer.into_iter().filter(|(agent_slug, n)| *n < 0 && is_limited(agent_slug)).map(|(agent_slug, _)| agent_slug.clone()).collect()
    }

    /// The queues that have settings. That of all queues comes first.
    pub(crate) fn rows(&self) -> impl Iterator<Item = &AgentQueue> {
        self.rows.values()
    }

    /// The agents whose queues are limited.
    pub(crate) fn limited(&self) -> Vec<String> {
        self.rows.values().filter(|queue| queue.max_concurrency.is_some()).map(|queue| queue.agent_slug.clone()).collect()
    }

    /// Agents with queued or active tasks.
    pub(crate) fn tasks(&self) -> &BTreeMap<String, AgentTasks> {
        &self.tasks
    }

    fn active(&self, agent_slug: &str) -> i64 {
        self.tasks.get(agent_slug).map_or(0, |tasks| tasks.active)
    }

    /// Why the queue currently grants no lease; `None` if it does.
    pub(crate) fn closed(&self, agent_slug: &str) -> Option<Closed> {
        let closed = |slug: &str| self.rows.get(slug)?.closed(self.active(slug));
        closed(ALL_QUEUES).or_else(|| closed(agent_slug))
    }

    pub(crate) fn is_open(&self, agent_slug: &str) -> bool {
        self.closed(agent_slug).is_none() && !self.refused.contains_key(ALL_QUEUES) && !self.refused.contains_key(agent_slug)
    }

    pub(crate) fn is_any_closed(&self) -> bool {
        !self.refused.is_empty() || self.rows.values().any(|queue| queue.closed(self.active(&queue.agent_slug)).is_some())
    }

    /// How many of the agent's queued tasks can be leased now.
    pub(crate) fn leasable(&self, agent_slug: &str) -> i64 {
        let queued = self.tasks.get(agent_slug).map_or(0, |tasks| tasks.queued);
        if self.is_open(agent_slug) { queued.min(self.room(agent_slug)) } else { 0 }
    }

    /// How many more leases the queue allows, by its cached settings: 0 if it is closed, `i64::MAX` without a limit.
    pub(crate) fn room(&self, agent_slug: &str) -> i64 {
        let limit = self.rows.get(agent_slug).and_then(|queue| queue.max_concurrency);
        if self.closed(agent_slug).is_some() { 0 } else { limit.map_or(i64::MAX, |limit| limit - self.active(agent_slug)) }
    }

    /// Treats these queues as closed if the cache shows them as open, until there is news of them or the refusal is forgotten. Returns the
    /// number of the refusal, or `None` if the cache already shows all of them as closed.
    pub(crate) fn refuse(&mut self, agents: &[String]) -> Option<u64> {
        self.refusals += 1;
        let outdated: Vec<&String> = agents.iter().filter(|agent_slug| self.closed(agent_slug).is_none()).collect();
        let number = (!outdated.is_empty()).then_some(self.refusals);
        self.refused.extend(outdated.into_iter().map(|agent_slug| (agent_slug.clone(), self.refusals)));
        number
    }

    /// Forgets the refusal with this number. Returns the agents whose queues it still closed, because there was no news of them.
    pub(crate) fn forget_refusal(&mut self, number: u64) -> Vec<String> {
        self.refused.extract_if(.., |_, refusal| *refusal == number).map(|(agent_slug, _)| agent_slug).collect()
    }
}
