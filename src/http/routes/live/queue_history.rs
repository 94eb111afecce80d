//! The states of the queue in the last hour, for the charts of the pages. Each replica records what it has seen since it started. All
//! replicas hear of all commits, so they record the same.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use bloom_core::Ms;
use bloom_core::task::Status;
use bloom_engine::Engine;
use bloom_store::Store;

const EVERY: Duration = Duration::from_secs(120);
const KEPT: usize = 30;
/// The most queues whose heads are read for one moment. Each of them costs a query.
const MOST_QUEUES: usize = 32;

/// The state of the queue at one time, for the charts of the last hour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// The time of this state.
    pub at: Ms,
    /// Queued tasks, ready or not.
    pub queued: i64,
    /// All runs that have begun so far.
    pub runs: i64,
    /// How long the first task of the queue has been ready; `None` if none is.
    pub waited_ms: Option<Ms>,
}

#[derive(Clone, Default)]
pub(crate) struct History(Arc<Mutex<VecDeque<Moment>>>);

impl History {
    pub(crate) async fn follow(self, engine: Engine, store: Store, shutdown: CancellationToken) {
        let mut ticks = interval(EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                () = shutdown.cancelled() => return,
            }
            match now(&engine, &store).await {
                // Before the first commit that the replica hears of, it does not know how many runs there were.
                Ok(moment) if engine.replica.commits() > 0 => self.keep(moment),
                Ok(_) => {}
                Err(error) => tracing::debug!(%error, "the head of the queue could not be read"),
            }
        }
    }

    fn keep(&self, moment: Moment) {
        let mut moments = self.0.lock();
        if moments.len() >= KEPT {
            moments.pop_front();
        }
        moments.push_back(moment);
    }

    /// The states of the last hour, oldest first. The last one is the current state.
    ///
    /// # Errors
    /// If the database fails.
    pub(crate) async fn until_now(&self, engine: &Engine, store: &Store) -> Result<Vec<Moment>, bloom_store::Error> {
        let now = now(engine, store).await?;
        let mut moments: Vec<Moment> = self.0.lock().iter().copied().collect();
        moments.push(now);
        Ok(moments)
    }
}

async fn now(engine: &Engine, store: &Store) -> Result<Moment, bloom_store::Error> {
    let waited_ms = oldest_ready_ms(engine, store).await?;
    let stats = engine.replica.stats();
    let queued = stats.tasks_by_status.get(&Status::Queued).copied().unwrap_or_default();
    Ok(Moment { at: engine.clock.now(), queued, runs: stats.leases_total, waited_ms })
}

async fn oldest_ready_ms(engine: &Engine, store: &Store) -> Result<Option<Ms>, bloom_store::Error> {
    let counts = engine.replica.counts();
    let queued = counts.iter().filter(|((_, _, status), tasks)| *status == Status::Queued && **tasks > 0);
    let mut oldest: Option<Ms> = None;
    for ((agent, priority, _), _) in queued.take(MOST_QUEUES) {
        let ready_at = store.oldest_ready_at(agent, *priority).await?;
        oldest = oldest.into_iter().chain(ready_at).min();
    }
    Ok(oldest.map(|at| (engine.clock.now() - at).max(0)))
}
