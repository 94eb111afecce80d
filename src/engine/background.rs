//! The background tasks of an engine and its reconcilers, and their shutdown.

use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Starts background tasks, and signals them to stop. Clones share the tasks and the signal.
#[derive(Clone, Debug)]
pub struct Background {
    stop: CancellationToken,
    tasks: TaskTracker,
    /// Runs all tasks, including those that a writer's thread starts.
    runtime: Handle,
}

impl Background {
    /// Creates a group whose tasks run on the caller's runtime.
    pub(super) fn new() -> Self {
        Self { stop: CancellationToken::new(), tasks: TaskTracker::new(), runtime: Handle::current() }
    }

    /// Starts a task. The shutdown waits for the task, so the task must end once [`stopped`](Self::stopped) returns.
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
