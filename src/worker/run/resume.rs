//! The runs of an earlier process of the agent. After a restart, an update or a crash, this process finds and continues them.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use crate::machine::boot_clock::{millis, now};
use crate::machine::process;
use crate::machine::process::TERM_GRACE;
use crate::machine::removal::remove_all;
use crate::run::run_dir::{Record, RunDir};
use crate::run::verdict::Verdict;
use crate::supervisor::cleanup;
use crate::{Agent, HeldLease};

/// How long an agent that starts waits for the results of earlier runs to be delivered before it takes new tasks.
const REPORT_LIMIT: Duration = Duration::from_secs(30);

impl Agent {
    /// Continues the runs of an earlier process. Returns the leases of runs that had already ended.
    pub(crate) async fn continue_runs(self: &Arc<Self>) -> Vec<Uuid> {
        let mut found: Vec<(RunDir, Record)> = Vec::new();
        let mut unusable = Vec::new();
        for path in self.home.run_dirs() {
            let dir = RunDir::new(path);
            match dir.record() {
                Ok(record) => found.push((dir, record)),
                // Without a record, no process was started.
                Err(error) if error.kind() == io::ErrorKind::NotFound => dir.remove().await,
                Err(error) => unusable.push((dir, error)),
            }
        }
        // Runs with a supervisor are watched again; the others are started.
        let started = |record: &Record| record.process.is_some().then(|| record.lease.id.to_string());
        let keep: Vec<String> = found.iter().filter_map(|(_, record)| started(record)).collect();
        process::sweep(self.home.root(), &keep).await;
        for (dir, error) in unusable {
            cleanup::end(&dir, None, &dir.lease(), TERM_GRACE).await;
            self.set_aside(&dir, &error);
        }
        let renewed = self.home.renewed_at().map(|at| at.age());
        let mut over = Vec::new();
        for (dir, record) in found {
            if record.process.as_ref().is_some_and(|running| !running.leader.is_alive()) {
                over.push(record.lease.id);
            }
            let taken = record.taken.age();
            let left = record.lease.ttl().saturating_sub(renewed.map_or(taken, |renewed| renewed.min(taken)));
            tracing::info!(lease = %record.lease.id, task = %record.task.id, "continuing an earlier run");
            self.continue_run(dir, record, now().saturating_add(millis(left)));
        }
        over
    }

    /// Registers, and waits until the server has the results of these runs. Otherwise a claim could get their tasks again, and the server
    /// would refuse their results.
    pub(crate) async fn register_and_report(&self, over: &[Uuid]) -> Result<(), String> {
        self.register_safely().await?;
        let reported = self.until_runs(|runs| over.iter().all(|lease| !runs.contains_key(lease)));
        if tokio::time::timeout(REPORT_LIMIT, reported).await.is_err() {
            tracing::warn!("some results of earlier runs are not delivered yet; new tasks are taken nevertheless");
        }
        Ok(())
    }

    /// Sets aside a run whose record is damaged, or was written by a newer agent, so that this agent can start. The run's processes have
    /// been ended.
    fn set_aside(self: &Arc<Self>, dir: &RunDir, error: &io::Error) {
        let names = dir.names();
        let of_task = names.map(|(task, _)| task.to_string());
        if let Some((task, lease)) = names {
            let unusable = || Verdict::Release { reason: format!("the agent can't use its files of the run: {error}") };
            self.report(task, lease, dir.verdict().unwrap_or_else(unusable));
        }
        if let Err(error) = remove_all(&dir.temp()) {
            tracing::warn!(task = of_task, run = %dir, %error, "the temporary files of a run could not be removed");
        }
        match self.home.set_aside(dir.path()) {
            Ok(path) => tracing::error!(
                task = of_task,
                path = %path.display(),
                %error,
                "the files of an earlier run can't be used and were set aside; its task is handed back. Were they written by a newer \
                 version of the agent, use that one; else check the disk. Remove the files when they are no longer needed"
            ),
            Err(moving) => {
                tracing::error!(task = of_task, run = %dir, %error, %moving, "the files of an earlier run can't be used: check them, then remove them")
            }
        }
    }

    /// Watches the process of the run again, or starts it.
    fn continue_run(self: &Arc<Self>, dir: RunDir, record: Record, valid_until: u64) {
        let has_begun = record.process.is_some();
        let in_worktree = self.has_worktree(&record.task.context_id);
        let held = HeldLease { has_begun, ..HeldLease::new(&record.task, record.lease.ttl(), valid_until, in_worktree, None) };
        let stop = held.stop.subscribe();
        self.lock().insert(record.lease.id, held);
        self.seen_through.spawn(self.clone().see_through(dir, record, stop));
    }
}
