//! Adds a commit to the metrics.

use bloom_core::audit::Action;
use bloom_core::task::Status;
use bloom_core::working_set::WorkingSet;
use bloom_telemetry::Metrics;

pub(super) fn measure(metrics: &Metrics, set: &WorkingSet) {
    for id in &set.dirty.tasks {
        if let Some(Some(task)) = set.loaded.tasks.get(id)
            && let Some(lease) = &task.lease
            && lease.started_at == set.now()
            && task.status == Status::Leased
        {
            metrics.assigned((lease.started_at - task.ready_at.unwrap_or_else(|| task.created_at())) as f64 / 1000.0);
        }
    }
    for result in &set.dirty.results {
        metrics.run(result.status.as_str(), result.duration_ms as f64 / 1000.0);
    }
    for entry in &set.dirty.audit {
        match entry.action {
            Action::LeaseExpired => metrics.lease_expired(),
            Action::TaskRetried | Action::TaskReleased => metrics.retried(),
            _ => {}
        }
    }
    for record in &set.dirty.past_leases {
        if let Some(usage) = record.usage {
            metrics.used(&record.agent_slug, record.model.as_deref(), &usage);
        }
    }
    for record in set.dirty.past_leases.iter().filter(|record| record.ended_at == set.now()) {
        if let Some(Some(task)) = set.loaded.tasks.get(&record.task_id)
            && let Some(failure) = task.failure.as_ref().filter(|failure| failure.at == set.now())
        {
            metrics.run_failed(failure.reason);
        }
    }
}
