//! The tasks that an engine and its reconcilers run, and their stop.

use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Starts background tasks, and tells them when to stop. Clones share them.
#[derive(Clone, Debug)]
pub struct Background {
    stop: CancellationToken,
    tasks: TaskTracker,
    /// Runs all tasks, also those that a writer's thread starts.
    runtime: Handle,
}

impl Background {
    /// Tasks run on the caller's runtime.
    pub(super) fn new() -> Self {
        Self { stop: CancellationToken::new(), tasks: TaskTracker::new(), runtime: Handle::current() }
    }

    /// The stop waits for the task, so the task must end when [`stopped`](Self::stopped) returns.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn_on(task, &self.runtime);
    }

    /// Waits until the stop begins.
    pub async fn stopped(&self) {
        self.stop.cancelled().await;
    }

    /// Whether the stop has begun.
    pub fn is_stopping(&self) -> bool {
        self.stop.is_cancelled()
    }

    pub(super) fn begin_stop(&self) {
        self.stop.cancel();
        self.tasks.close();
    }

    /// Waits until all tasks have ended.
    pub(super) async fn ended(&self) {
        self.tasks.wait().await;
    }
}
