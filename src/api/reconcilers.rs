//! What the reconcilers did last.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::words::AnyReconcilerState;
use bloom_core::Ms;
use bloom_core::reconciler::ReconcilerRun;

/// A reconciler, and its runs since the replica that runs it took it over.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct Reconciler<'a> {
    /// Its name, as in the metrics.
    pub name: Cow<'a, str>,
    /// Whether it does its work.
    pub state: AnyReconcilerState,
    /// The longest pause between two runs; `null` if it runs only when something has changed.
    pub every_ms: Option<Ms>,
    /// When its last run began; before the first run, when the replica took it over.
    pub started_at: Ms,
    /// When the oldest run that is in progress began; `null` if none is.
    pub running_since: Option<Ms>,
    /// How long the last finished run took; `null` if none has finished.
    pub duration_ms: Option<Ms>,
    /// How many things the last finished run changed or removed.
    pub items: i64,
    /// Number of finished runs.
    pub runs: i64,
    /// Number of finished runs that failed.
    pub failures: i64,
    /// When a run last ended without an error.
    pub succeeded_at: Option<Ms>,
    /// When a run last ended with an error.
    pub failed_at: Option<Ms>,
    /// The error of the last failed run.
    pub error: Option<Cow<'a, str>>,
    /// When the replica that runs it recorded this; it does so every few seconds.
    pub recorded_at: Ms,
}

impl<'a> Reconciler<'a> {
    /// What is shown of it at this time.
    pub fn new(run: &'a ReconcilerRun, now: Ms) -> Self {
        Self {
            name: Cow::from(&run.name),
            state: run.state(now).into(),
            every_ms: run.every_ms,
            started_at: run.started_at,
            running_since: run.running_since,
            duration_ms: run.duration_ms,
            items: run.items,
            runs: run.runs,
            failures: run.failures,
            succeeded_at: run.succeeded_at,
            failed_at: run.failed_at,
            error: run.error.as_deref().map(Cow::from),
            recorded_at: run.recorded_at,
        }
    }
}
