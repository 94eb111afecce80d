//! Gauges that are set at each scrape, from values that other parts keep in memory.

use std::collections::{BTreeMap, BTreeSet};

use prometheus::{Error, GaugeVec, IntGauge, IntGaugeVec};

use super::metric_families::{Families, MAX_AGENTS, MAX_LABEL_BYTES, OTHER};
use bloom_core::Ms;
use bloom_core::agent_queue::{ALL_QUEUES, AgentQueue};
use bloom_core::pause::PauseCause;
use bloom_core::task::Status;
use bloom_core::worker::WorkerStatus;

/// The label that stands for all queues together.
const ALL: &str = "_all";

/// The queued tasks of one agent at one priority.
#[derive(Clone, Copy, Debug)]
pub struct QueueDepth<'a> {
    /// The agent of the tasks.
    pub agent: &'a str,
    /// 0..=9
    pub priority: i64,
    /// How many tasks there are.
    pub tasks: i64,
    /// How long the first of these tasks has been ready; `None` if none is ready, or if that is unknown.
    pub oldest_age_seconds: Option<f64>,
}

/// The gauges of the current state. They are set just before each scrape.
pub struct Scraped {
    tasks: IntGaugeVec,
    queue_tasks: IntGaugeVec,
    queue_age: GaugeVec,
    queue_paused: IntGaugeVec,
    queue_limit: IntGaugeVec,
    active_leases: IntGauge,
    asking: IntGauge,
    workers: IntGaugeVec,
    worker_pauses: IntGaugeVec,
    free_slots: IntGauge,
    /// Has no labels, and no series on servers without a control plane. The same holds for the next two.
    membridge_up: IntGaugeVec,
    membridge_failures: IntGaugeVec,
    membridge_success: GaugeVec,
    connections: IntGaugeVec,
    outage: IntGaugeVec,
    disk_free: IntGaugeVec,
    disk_size: IntGaugeVec,
    /// Has no labels, and no series on servers that do not use https.
    certificate_expiry: GaugeVec,
}

impl Scraped {
    pub(super) fn new(f: &Families<'_>) -> Result<Self, Error> {
        let queue = &["agent", "priority"];
        Ok(Self {
            tasks: f.gauges("bloom_tasks", "Tasks by status.", &["status"])?,
            queue_tasks: f.gauges("bloom_queue_tasks", "Queued tasks by agent and priority (high 7-9, normal 4-6, low 0-3).", queue)?,
            queue_age: f.exact_gauges("bloom_queue_oldest_age_seconds", "How long the first task of the queue has been ready.", queue)?,
            queue_paused: f.gauges("bloom_queue_paused", "1 for each queue that is paused.", &["agent"])?,
            queue_limit: f.gauges("bloom_queue_limit", "The most active leases of each queue that is limited.", &["agent"])?,
            active_leases: f.gauge("bloom_active_leases", "Active leases.")?,
            asking: f.gauge("bloom_tasks_needing_human", "Tasks whose runs wait for a person.")?,
            workers: f.gauges("bloom_workers", "Workers by status.", &["status"])?,
            worker_pauses: f.gauges("bloom_worker_pauses", "Accounts, profiles and workers that are paused, by cause.", &["cause"])?,
            free_slots: f.gauge("bloom_worker_free_slots", "Free slots on workers that are online and take tasks.")?,
            membridge_up: f.gauges("bloom_membridge_up", "1 if the control plane answered its last call, else 0.", &[])?,
            membridge_failures: f.gauges("bloom_membridge_consecutive_failures", "Failed calls to the control plane in a row.", &[])?,
            membridge_success: f.exact_gauges(
                "bloom_membridge_last_success_timestamp_seconds",
                "Time of the last successful call to the control plane; 0 = never.",
                &[],
            )?,
            disk_free: f.gauges("bloom_disk_free_bytes", "Bytes that the server may still write to a disk.", &["directory"])?,
            disk_size: f.gauges("bloom_disk_size_bytes", "Size of a disk, without what is kept for root.", &["directory"])?,
            connections: f.gauges("bloom_database_connections", "Open database connections for reads, by state.", &["state"])?,
            outage: f.gauges("bloom_database_outage", "1 for the reason why nothing can be written, else 0.", &["reason"])?,
            certificate_expiry: f.exact_gauges(
                "bloom_tls_certificate_expiry_timestamp_seconds",
                "When the certificate expires that new connections get; only on servers that speak https.",
                &[],
            )?,
        })
    }

    /// Statuses that are not listed are set to 0.
    pub fn tasks(&self, by_status: impl IntoIterator<Item = (Status, i64)>) {
        let counts: BTreeMap<Status, i64> = by_status.into_iter().collect();
        for status in Status::ALL {
            self.tasks.with_label_values(&[status.as_str()]).set(counts.get(status).copied().unwrap_or(0));
        }
    }

    /// The number of active leases.
    pub fn active_leases(&self, leases: i64) {
        self.active_leases.set(leases);
    }

    /// The tasks whose runs wait for a person.
    pub fn asking(&self, tasks: usize) {
        self.asking.set(i64::try_from(tasks).unwrap_or(i64::MAX));
    }

    /// Statuses that are not listed are set to 0. `free_slots` is the number of free slots of workers that may get tasks now.
    pub fn workers(&self, by_status: impl IntoIterator<Item = (WorkerStatus, i64)>, free_slots: i64) {
        let counts: BTreeMap<WorkerStatus, i64> = by_status.into_iter().collect();
        for status in WorkerStatus::ALL {
            self.workers.with_label_values(&[status.as_str()]).set(counts.get(status).copied().unwrap_or(0));
        }
        self.free_slots.set(free_slots);
    }

    /// Causes that are not listed are set to 0.
    pub fn worker_pauses(&self, by_cause: &BTreeMap<PauseCause, i64>) {
        for cause in PauseCause::ALL {
            self.worker_pauses.with_label_values(&[cause.as_str()]).set(by_cause.get(cause).copied().unwrap_or(0));
        }
    }

    /// Sets the gauges of the whole queue: the agents with the most tasks get series of their own, all others share `_other`.
    pub fn queue(&self, depths: &[QueueDepth<'_>]) {
        let named = fullest_agents(depths);
        let mut classes: BTreeMap<(&str, &str), (i64, Option<f64>)> = BTreeMap::new();
        for depth in depths {
            let agent = if named.contains(depth.agent) { depth.agent } else { OTHER };
            let (tasks, age) = classes.entry((agent, class(depth.priority))).or_default();
            *tasks += depth.tasks;
            *age = [*age, depth.oldest_age_seconds].into_iter().flatten().reduce(f64::max);
        }
        let Scraped { queue_tasks, queue_age, .. } = self;
        queue_tasks.reset();
        queue_age.reset();
        for ((agent, class), (tasks, age)) in classes {
            queue_tasks.with_label_values(&[agent, class]).set(tasks);
            if let Some(age) = age {
                queue_age.with_label_values(&[agent, class]).set(age);
            }
        }
    }

    /// The paused and limited queues: the first ones have series of their own, and all others share `_other`. All queues together are
    /// `_all`.
    pub fn restricted_queues(&self, queues: &[AgentQueue]) {
        self.queue_paused.reset();
        self.queue_limit.reset();
        for (n, queue) in queues.iter().enumerate() {
            let agent = match queue.agent_slug.as_str() {
                ALL_QUEUES => ALL,
                slug if n <= MAX_AGENTS && slug.len() <= MAX_LABEL_BYTES => slug,
                _ => OTHER,
            };
            if queue.paused_at.is_some() {
                self.queue_paused.with_label_values(&[agent]).inc();
            }
            if let Some(limit) = queue.max_concurrency {
                self.queue_limit.with_label_values(&[agent]).add(limit);
            }
        }
    }

    /// The connection to the control plane. `last_success`: in milliseconds since the epoch; `None`: there was none.
    pub fn membridge(&self, connected: bool, consecutive_failures: u32, last_success: Option<Ms>) {
        self.membridge_up.with_label_values::<&str>(&[]).set(i64::from(connected));
        self.membridge_failures.with_label_values::<&str>(&[]).set(i64::from(consecutive_failures));
        self.membridge_success.with_label_values::<&str>(&[]).set(last_success.unwrap_or(0) as f64 / 1000.0);
    }

    /// The disk of one of the server's directories, in bytes; `None` if it can't be read. `directory` is a fixed word.
    pub fn disk(&self, directory: &str, free_and_size: Option<(u64, u64)>) {
        let Some((free, size)) = free_and_size else {
            // This fails only if there is no such series.
            let _ = self.disk_free.remove_label_values(&[directory]);
            let _ = self.disk_size.remove_label_values(&[directory]);
            return;
        };
        self.disk_free.with_label_values(&[directory]).set(i64::try_from(free).unwrap_or(i64::MAX));
        self.disk_size.with_label_values(&[directory]).set(i64::try_from(size).unwrap_or(i64::MAX));
    }

    /// The database connections for reads. `idle`: how many of the open ones are not in use.
    pub fn connections(&self, open: usize, idle: usize) {
        for (state, count) in [("idle", idle), ("used", open.saturating_sub(idle))] {
            self.connections.with_label_values(&[state]).set(i64::try_from(count).unwrap_or(i64::MAX));
        }
    }

    /// The reason why nothing can be written, one of all possible `reasons`; `None`: there is no outage.
    pub fn outage<'a>(&self, reasons: impl IntoIterator<Item = &'a str>, current: Option<&str>) {
        for reason in reasons {
            self.outage.with_label_values(&[reason]).set(i64::from(current == Some(reason)));
        }
    }

    /// Seconds since 1970.
    pub fn certificate_expiry(&self, seconds: i64) {
        self.certificate_expiry.with_label_values::<&str>(&[]).set(seconds as f64);
    }
}

fn class(priority: i64) -> &'static str {
    match priority {
        7.. => "high",
        4..=6 => "normal",
        _ => "low",
    }
}

fn fullest_agents<'a>(depths: &[QueueDepth<'a>]) -> BTreeSet<&'a str> {
    let mut totals: BTreeMap<&str, i64> = BTreeMap::new();
    for depth in depths.iter().filter(|depth| depth.agent.len() <= MAX_LABEL_BYTES) {
        *totals.entry(depth.agent).or_default() += depth.tasks;
    }
    let mut agents: Vec<(&str, i64)> = totals.into_iter().collect();
    agents.sort_by_key(|(_, tasks)| std::cmp::Reverse(*tasks));
    agents.into_iter().take(MAX_AGENTS).map(|(agent, _)| agent).collect()
}

#[cfg(test)]
mod tests {
    use prometheus::{Registry, TextEncoder};

    use super::*;

    #[test]
    fn the_queue_shows_the_fullest_agents_and_one_rest() {
        let registry = Registry::new();
        let scraped = Scraped::new(&Families(&registry)).unwrap();
        let render = || TextEncoder::new().encode_to_string(&registry.gather()).unwrap();
        let names: Vec<String> = (0..60).map(|n| format!("agent-{n}")).collect();
        let depths: Vec<QueueDepth<'_>> = (0_i64..)
            .zip(&names)
            .map(|(n, agent)| QueueDepth { agent, priority: 5, tasks: n + 1, oldest_age_seconds: Some(n as f64) })
            .collect();
        scraped.queue(&depths);
        let text = render();
        assert!(text.contains(r#"bloom_queue_tasks{agent="agent-59",priority="normal"} 60"#));
        assert!(!text.contains(r#"agent="agent-3""#));
        // 1 + 2 + … + 10
        assert!(text.contains(r#"bloom_queue_tasks{agent="_other",priority="normal"} 55"#), "{text}");
        assert!(text.contains(r#"bloom_queue_oldest_age_seconds{agent="_other",priority="normal"} 9"#), "{text}");
        scraped.queue(&[]);
        assert!(!render().contains("agent-59"), "an empty queue leaves no series behind");
    }
}
