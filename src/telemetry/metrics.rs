//! Prometheus metrics. Counters change when something happens; gauges are set at each scrape.

use std::sync::Arc;

use parking_lot::Mutex;
use prometheus::process_collector::ProcessCollector;
use prometheus::{CounterVec, Error, Gauge, Histogram, HistogramVec, IntCounter, IntCounterVec, IntGauge, Registry, TextEncoder};

use super::kubernetes::KubernetesMetrics;
use super::line_queue;
use super::metric_families::{BATCH_COMMANDS, Bounded, FAST_SECONDS, Families, MAX_AGENTS, RUN_SECONDS, WAIT_SECONDS};
use super::objects::ObjectMetrics;
use super::scrape::Scraped;
use bloom_core::Ms;
use bloom_core::task::{Outcome, Reason};
use bloom_core::usage::Usage;

const MAX_MODELS: usize = 20;

type Hook = Box<dyn Fn(&Scraped) + Send + Sync>;

/// The metrics of the process. Clones share them.
#[derive(Clone)]
pub struct Metrics(Arc<Inner>);

struct Inner {
    registry: Registry,
    /// The lock also prevents two scrapes from mixing their gauges.
    before_render: Mutex<Vec<Hook>>,
    http_requests: IntCounterVec,
    http_seconds: HistogramVec,
    http_refused: IntCounterVec,
    connections_refused: IntCounter,
    pages_loaded_again: IntCounterVec,
    commands: IntCounterVec,
    batch_commands: HistogramVec,
    commit_seconds: HistogramVec,
    conflicts: IntCounterVec,
    lease_expiries: IntCounter,
    retries: IntCounter,
    count_corrections: IntCounter,
    pushes: IntCounterVec,
    assignment_seconds: Histogram,
    run_seconds: HistogramVec,
    run_failures: IntCounterVec,
    reconcile_runs: IntCounterVec,
    reconcile_errors: IntCounterVec,
    reconcile_items: IntCounterVec,
    reconcile_seconds: HistogramVec,
    leader: IntGauge,
    leader_epoch: IntGauge,
    database_up: IntGauge,
    kubernetes: KubernetesMetrics,
    backup_interval: Gauge,
    backup_success: Gauge,
    backup_seconds: Gauge,
    backup_bytes: IntGauge,
    backup_failures: IntCounter,
    tokens: IntCounterVec,
    cost: CounterVec,
    cost_agents: Bounded,
    cost_models: Bounded,
    log_lines_lost: IntCounter,
    objects: ObjectMetrics,
    scraped: Scraped,
}

impl Metrics {
    /// # Errors
    /// Two families have the same name, which is a mistake in this file.
    pub fn new() -> Result<Self, Error> {
        let registry = Registry::new();
        registry.register(Box::new(ProcessCollector::for_self()))?;
        let f = Families(&registry);
        let build = f.gauges("bloom_build_info", "Always 1; the label is the version of the program.", &["version"])?;
        build.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);
        let inner = Inner {
            before_render: Mutex::default(),
            http_requests: f.counters(
                "bloom_http_requests_total",
                "Requests answered, by route template.",
                &["route", "method", "status"],
            )?,
            http_seconds: f.histograms(
                "bloom_http_request_duration_seconds",
                "Time from a request's head to its answer's head.",
                &["route", "method"],
                FAST_SECONDS,
            )?,
            http_refused: f.counters(
                "bloom_http_refused_total",
                "Rejected requests: a missing, wrong or too weak key, a page of another site, an unknown host.",
                &["reason"],
            )?,
            connections_refused: f.counter(
                "bloom_http_connections_refused_total",
                "Connections that were refused or closed because all, or all of their client's share, were in use.",
            )?,
            pages_loaded_again: f.counters(
                "bloom_web_pages_loaded_again_total",
                "Pages that open browsers loaded again after a change, by source: a page made for several of them (shared), or for this one (made).",
                &["source"],
            )?,
            commands: f.counters("bloom_commands_total", "Commands decided, by operation and outcome.", &["op", "outcome"])?,
            batch_commands: f.histograms("bloom_batch_commands", "Commands in one batch.", &["writer"], BATCH_COMMANDS)?,
            commit_seconds: f.histograms(
                "bloom_commit_duration_seconds",
                "Time of one batch from its first statement to its commit, including waits for the database.",
                &["writer"],
                FAST_SECONDS,
            )?,
            conflicts: f.counters(
                "bloom_batch_conflicts_total",
                "Batches that were decided again because of a conflict with another transaction.",
                &["writer"],
            )?,
            lease_expiries: f.counter("bloom_lease_expiries_total", "Leases that expired.")?,
            retries: f.counter("bloom_task_retries_total", "Tasks that went back to the queue after an attempt.")?,
            count_corrections: f.counter(
                "bloom_count_corrections_total",
                "Stored counts of tasks or leases that did not match the tables and were corrected.",
            )?,
            pushes: f.counters("bloom_push_total", "Tasks pushed to agents, by outcome.", &["outcome"])?,
            assignment_seconds: f.histogram(
                "bloom_task_assignment_duration_seconds",
                "Time from when a task is ready to its lease.",
                WAIT_SECONDS,
            )?,
            run_seconds: f.histograms(
                "bloom_task_run_duration_seconds",
                "Time from a task's lease to its completion.",
                &["outcome"],
                RUN_SECONDS,
            )?,
            run_failures: f.counters("bloom_run_failures_total", "Attempts that failed, by reason.", &["reason"])?,
            reconcile_runs: f.counters("bloom_reconcile_runs_total", "Runs of a reconcile loop.", &["loop"])?,
            reconcile_errors: f.counters("bloom_reconcile_errors_total", "Runs of a reconcile loop that failed.", &["loop"])?,
            reconcile_items: f.counters("bloom_reconcile_items_total", "What the runs of a reconcile loop changed or removed.", &["loop"])?,
            reconcile_seconds: f.histograms(
                "bloom_reconcile_duration_seconds",
                "Time of one run of a reconcile loop.",
                &["loop"],
                FAST_SECONDS,
            )?,
            leader: f.gauge("bloom_leader", "1 on the replica that leads, else 0.")?,
            leader_epoch: f.gauge("bloom_leader_epoch", "Number of the leadership of the replica that leads; 0 on the others.")?,
            database_up: f.gauge("bloom_database_up", "1 while the database can be written to, else 0.")?,
            kubernetes: KubernetesMetrics::new(&f)?,
            backup_interval: f.exact_gauge("bloom_backup_interval_seconds", "Interval of scheduled backups; 0 = the server makes none.")?,
            backup_success: f.exact_gauge(
                "bloom_backup_last_success_timestamp_seconds",
                "Time at which the newest scheduled backup was begun; 0 = there is none.",
            )?,
            backup_seconds: f.exact_gauge("bloom_backup_last_seconds", "How long the last scheduled backup of this process took.")?,
            backup_bytes: f.gauge("bloom_backup_last_bytes", "Size of the last scheduled backup of this process.")?,
            backup_failures: f.counter("bloom_backup_failures_total", "Scheduled backups that failed.")?,
            tokens: f.counters("bloom_tokens_total", "Tokens used by runs, as reported by the agents.", &["agent", "model", "kind"])?,
            cost: f.sums("bloom_cost_usd_total", "US dollars spent by runs, as the agents report or estimate.", &["agent", "model"])?,
            cost_agents: Bounded::new(MAX_AGENTS),
            cost_models: Bounded::new(MAX_MODELS),
            log_lines_lost: f.counter(
                "bloom_log_lines_lost_total",
                "Lines of the log that were lost, because what reads the log was too slow.",
            )?,
            objects: ObjectMetrics::new(&f)?,
            scraped: Scraped::new(&f)?,
            registry: registry.clone(),
        };
        // The series exist from the first scrape on, because `increase` does not count the value with which a series begins.
        Reason::ALL.iter().for_each(|reason| drop(inner.run_failures.with_label_values(&[reason.as_str()])));
        Outcome::ALL.iter().for_each(|outcome| drop(inner.run_seconds.with_label_values(&[outcome.as_str()])));
        Ok(Self(Arc::new(inner)))
    }

    /// `route` is a template such as `/api/runtime/llm-tasks/{id}`, never a raw path.
    pub fn http(&self, route: &str, method: &str, status: u16, seconds: f64) {
        // A client may send any word as a method, so unknown ones must not create new series.
        const METHODS: [&str; 7] = ["GET", "POST", "DELETE", "PUT", "PATCH", "HEAD", "OPTIONS"];
        let method = METHODS.into_iter().find(|known| *known == method).unwrap_or("other");
        let digits = [b'0' + (status / 100 % 10) as u8, b'0' + (status / 10 % 10) as u8, b'0' + (status % 10) as u8];
        let status = str::from_utf8(&digits).unwrap_or("000");
        self.0.http_requests.with_label_values(&[route, method, status]).inc();
        self.0.http_seconds.with_label_values(&[route, method]).observe(seconds);
    }

    /// A request was rejected; `reason` is one of a fixed set.
    pub fn http_refused(&self, reason: &str) {
        self.0.http_refused.with_label_values(&[reason]).inc();
    }

    /// A connection was refused or closed, because all connections or the share of its client are in use.
    pub fn connection_refused(&self) {
        self.0.connections_refused.inc();
    }

    /// A page that is open in a browser was loaded again. `is_shared`: whether it was rendered for another browser.
    pub fn page_loaded_again(&self, is_shared: bool) {
        self.0.pages_loaded_again.with_label_values(&[if is_shared { "shared" } else { "made" }]).inc();
    }

    /// A command was decided. `op` and `outcome` are fixed words.
    pub fn command(&self, op: &str, outcome: &str) {
        self.0.commands.with_label_values(&[op, outcome]).inc();
    }

    /// One batch was committed.
    pub fn batch(&self, writer: &str, commands: usize, commit_seconds: f64) {
        self.0.batch_commands.with_label_values(&[writer]).observe(commands as f64);
        self.0.commit_seconds.with_label_values(&[writer]).observe(commit_seconds);
    }

    /// A batch met a conflict, and its commands are decided again.
    pub fn conflict(&self, writer: &str) {
        self.0.conflicts.with_label_values(&[writer]).inc();
    }

    /// A lease was not renewed in time.
    pub fn lease_expired(&self) {
        self.0.lease_expiries.inc();
    }

    /// A task was queued again after an attempt.
    pub fn retried(&self) {
        self.0.retries.inc();
    }

    /// This many counts were wrong and have been corrected.
    pub fn counts_corrected(&self, counts: u64) {
        self.0.count_corrections.inc_by(counts);
    }

    /// A task was pushed to an agent; `outcome` is one of a fixed set.
    pub fn pushed(&self, outcome: &str) {
        self.0.pushes.with_label_values(&[outcome]).inc();
    }

    /// A task was leased this long after it became ready.
    pub fn assigned(&self, seconds: f64) {
        self.0.assignment_seconds.observe(seconds);
    }

    /// A run ended this long after its lease began. `outcome` is `success` or `error`.
    pub fn run(&self, outcome: &str, seconds: f64) {
        self.0.run_seconds.with_label_values(&[outcome]).observe(seconds);
    }

    /// An attempt failed.
    pub fn run_failed(&self, reason: Reason) {
        self.0.run_failures.with_label_values(&[reason.as_str()]).inc();
    }

    /// A run of the reconciler with this name ended: how long it took, how many things it changed or removed, and whether it had no error.
    pub fn reconciled(&self, name: &str, seconds: f64, items: u64, ok: bool) {
        self.0.reconcile_runs.with_label_values(&[name]).inc();
        self.0.reconcile_seconds.with_label_values(&[name]).observe(seconds);
        // Also called with 0, so that the series exists before the first error.
        self.0.reconcile_errors.with_label_values(&[name]).inc_by(u64::from(!ok));
        self.0.reconcile_items.with_label_values(&[name]).inc_by(items);
    }

    /// `epoch`: the number of the leadership, if this replica leads.
    pub fn leader(&self, epoch: Option<i64>) {
        self.0.leader.set(i64::from(epoch.is_some()));
        self.0.leader_epoch.set(epoch.unwrap_or(0));
    }

    /// Whether the database can be written to.
    pub fn database_up(&self, is_up: bool) {
        self.0.database_up.set(i64::from(is_up));
    }

    /// The metrics of the Kubernetes operator.
    pub fn kubernetes(&self) -> &KubernetesMetrics {
        &self.0.kubernetes
    }

    /// Backups are made at this interval.
    pub fn backups_every(&self, seconds: f64) {
        self.0.backup_interval.set(seconds);
    }

    /// When the newest backup was begun (ms since the epoch).
    pub fn newest_backup(&self, newest: Option<Ms>) {
        self.0.backup_success.set(newest.unwrap_or(0) as f64 / 1000.0);
    }

    /// A backup was made: how long it took, and how large it is.
    pub fn backed_up(&self, seconds: f64, bytes: u64) {
        self.0.backup_seconds.set(seconds);
        self.0.backup_bytes.set(i64::try_from(bytes).unwrap_or(i64::MAX));
    }

    /// A backup could not be made.
    pub fn backup_failed(&self) {
        self.0.backup_failures.inc();
    }

    /// The tokens and the cost of one run.
    pub fn used(&self, agent: &str, model: Option<&str>, usage: &Usage) {
        let agent = self.0.cost_agents.label(agent);
        let model = self.0.cost_models.label(model.unwrap_or("unknown"));
        for (kind, tokens) in [("input", usage.input_tokens), ("output", usage.output_tokens)] {
            self.0.tokens.with_label_values(&[agent, model, kind]).inc_by(u64::try_from(tokens).unwrap_or(0));
        }
        if usage.cost_usd.is_finite() && usage.cost_usd > 0.0 {
            self.0.cost.with_label_values(&[agent, model]).inc_by(usage.cost_usd);
        }
    }

    /// The metrics of the object store.
    pub fn objects(&self) -> &ObjectMetrics {
        &self.0.objects
    }

    /// `hook` sets gauges at each scrape. It must be quick and must not block.
    pub fn before_render(&self, hook: impl Fn(&Scraped) + Send + Sync + 'static) {
        self.0.before_render.lock().push(Box::new(hook));
    }

    /// All metrics in Prometheus text format.
    pub fn render(&self) -> String {
        let hooks = self.0.before_render.lock();
        hooks.iter().for_each(|hook| hook(self.scraped()));
        // The log starts before the metrics, and counts lost lines itself.
        let lost = &self.0.log_lines_lost;
        lost.inc_by(line_queue::lost().saturating_sub(lost.get()));
        let mut text = String::new();
        if let Err(error) = TextEncoder::new().encode_utf8(&self.0.registry.gather(), &mut text) {
            tracing::error!(%error, "the metrics could not be rendered");
        }
        text
    }

    /// The gauges of the current state.
    pub fn scraped(&self) -> &Scraped {
        &self.0.scraped
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::QueueDepth;
    use bloom_core::task::Status;
    use bloom_core::worker::WorkerStatus;

    #[test]
    fn renders_what_was_told() {
        let metrics = Metrics::new().unwrap();
        metrics.http("/api/runtime/llm-tasks/{id}", "GET", 200, 0.002);
        metrics.http("/api/runtime/llm-tasks/{id}", "BREW", 405, 0.002);
        metrics.command("create", "ok");
        metrics.batch("main", 12, 0.004);
        metrics.lease_expired();
        metrics.counts_corrected(3);
        metrics.pushed("accepted");
        metrics.assigned(0.01);
        metrics.run("success", 12.0);
        metrics.reconciled("expire", 0.001, 3, false);
        metrics.run_failed(Reason::Auth);
        metrics.leader(Some(7));
        metrics.backups_every(86_400.0);
        metrics.newest_backup(Some(1_772_020_800_500));
        metrics.backed_up(1.5, 4096);
        metrics.backup_failed();
        metrics.used("coder", None, &Usage { input_tokens: 3, output_tokens: 4, cost_usd: 0.5, cost_estimated: false });
        metrics.before_render(|scraped| {
            scraped.tasks([(Status::Queued, 7)]);
            scraped.workers([(WorkerStatus::Online, 2)], 5);
            scraped.queue(&[QueueDepth { agent: "coder", priority: 8, tasks: 7, oldest_age_seconds: Some(1.5) }]);
        });
        let text = metrics.render();
        for line in [
            r#"bloom_http_requests_total{method="GET",route="/api/runtime/llm-tasks/{id}",status="200"} 1"#,
            r#"bloom_http_requests_total{method="other",route="/api/runtime/llm-tasks/{id}",status="405"} 1"#,
            r#"bloom_commands_total{op="create",outcome="ok"} 1"#,
            r#"bloom_batch_commands_sum{writer="main"} 12"#,
            "bloom_lease_expiries_total 1",
            "bloom_count_corrections_total 3",
            r#"bloom_push_total{outcome="accepted"} 1"#,
            r#"bloom_reconcile_errors_total{loop="expire"} 1"#,
            r#"bloom_reconcile_items_total{loop="expire"} 3"#,
            "bloom_leader 1",
            "bloom_leader_epoch 7",
            r#"bloom_run_failures_total{reason="auth"} 1"#,
            r#"bloom_run_failures_total{reason="timeout"} 0"#,
            "bloom_backup_interval_seconds 86400",
            "bloom_backup_last_success_timestamp_seconds 1772020800.5",
            "bloom_backup_last_seconds 1.5",
            "bloom_backup_last_bytes 4096",
            "bloom_backup_failures_total 1",
            r#"bloom_tokens_total{agent="coder",kind="output",model="unknown"} 4"#,
            r#"bloom_cost_usd_total{agent="coder",model="unknown"} 0.5"#,
            r#"bloom_tasks{status="queued"} 7"#,
            r#"bloom_tasks{status="dead"} 0"#,
            r#"bloom_workers{status="online"} 2"#,
            "bloom_worker_free_slots 5",
            r#"bloom_queue_tasks{agent="coder",priority="high"} 7"#,
            r#"bloom_queue_oldest_age_seconds{agent="coder",priority="high"} 1.5"#,
            "process_resident_memory_bytes",
        ] {
            assert!(text.contains(line), "{line} is missing in\n{text}");
        }
    }
}
