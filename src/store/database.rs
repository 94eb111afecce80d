//! Implements the interface of the engine and the reconcilers, whose reads have connections of their own.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use async_trait::async_trait;
use bloom_core::Ms;
use bloom_core::agent_queue::AgentQueue;
use bloom_core::ids::{LeaseId, TaskId, WorkerId};
use bloom_core::task::{TaskSpec, TaskState};
use bloom_core::wakeup::{Waiters, Wakeup, WakeupId};
use bloom_core::worker::Worker;
use bloom_database::{CountDeltas, CountsAt, Database, DuePage, Feed, Position, ReadyRow, Result, Scope, Service};

use crate::Clock;
use crate::batch::writer::Writer;
use crate::opening::open::Target;
use crate::reads::lookups::{SPECS, STATES, WORKERS_BY_ID, WORKERS_PAGE};
use crate::replicas::counts::{COUNTS, Parts};
use crate::replicas::leader::{LEAD, MARK_SERVED, MARK_WRITERS, MARK_WRITERS_EVERY_MS, RESIGN};
use crate::replicas::listener::NOTIFY;
use crate::replicas::queue::{ACTIVE, CLOSED_QUEUES, DUE_LEASES, DUE_TASKS, LEASES_BEYOND_TTL, QUEUES, READY_AGENTS, SILENT_WORKERS};
use crate::replicas::wakeup_targets::WAKEUPS;
use crate::replicas::{feed, queue, wakeup_targets};
use crate::sql::args::Args;
use crate::sql::dialect::Kind;
use crate::sql::table::ReadRow;
use crate::{NOW, Store, all, first, one};

#[async_trait]
impl Database for Store {
    fn is_shared(&self) -> bool {
        self.kind() == Kind::Postgres
    }

    async fn writer(&self) -> Result<Box<dyn bloom_database::Writer>> {
        Ok(Box::new(Writer::open(self.clone()).await?))
    }

    async fn now(&self) -> Result<Ms> {
        match self.known_time() {
            Some(now) => Ok(now),
            None => Ok(one(&self.control().fetch(&NOW, Args::new().int(None)).await?, |row| row.take())?),
        }
    }

    async fn feed(&self, positions: &[Position], own: &[i64]) -> Result<Feed> {
        if self.kind() == Kind::Sqlite {
            return Ok(Feed::default());
        }
        let args = Args::new().bulk(feed::known(positions)).ints(own.iter().copied());
        Ok(feed::read(&self.control().fetch(&feed::FEED, args).await?, positions)?)
    }

    async fn heard(&self) -> Result<()> {
        let Target::Postgres { sessions } = &self.inner.target else { return std::future::pending().await };
        Ok(self.inner.listener.lock().await.recv(sessions).await?)
    }

    async fn notify(&self) -> Result<()> {
        if self.kind() == Kind::Postgres {
            self.control().fetch(&NOTIFY, Args::new()).await?;
        }
        Ok(())
    }

    async fn counts(&self) -> Result<CountsAt> {
        let parts = Parts::of(&self.control().fetch(&COUNTS, Args::new()).await?)?;
        Ok(CountsAt { counts: parts.kept, positions: parts.positions })
    }

    async fn task_states(&self, ids: &[TaskId]) -> Result<Vec<TaskState>> {
        Ok(all(&self.control().fetch(&STATES, Args::new().uuids(ids)).await?, ReadRow::read)?)
    }

    async fn workers_by_id(&self, ids: &[WorkerId]) -> Result<Vec<Worker>> {
        Ok(all(&self.control().fetch(&WORKERS_BY_ID, Args::new().texts(ids)).await?, ReadRow::read)?)
    }

    async fn workers_page(&self, after: Option<&str>, limit: i64) -> Result<Vec<Worker>> {
        let args = Args::new().text(after.unwrap_or_default()).int(limit);
        Ok(all(&self.control().fetch(&WORKERS_PAGE, args).await?, ReadRow::read)?)
    }

    async fn active_tasks(&self, after: Option<TaskId>, limit: i64) -> Result<Vec<TaskState>> {
        let args = Args::new().uuid(after.unwrap_or_default()).int(limit);
        Ok(all(&self.control().fetch(&ACTIVE, args).await?, ReadRow::read)?)
    }

    async fn ready_page(&self, scope: &Scope, after: Option<(i64, TaskId)>, limit: i64) -> Result<Vec<ReadyRow>> {
        Ok(queue::ready(self.control(), scope, after, limit).await?)
    }

    async fn queues(&self) -> Result<Vec<AgentQueue>> {
        Ok(all(&self.control().fetch(&QUEUES, Args::new()).await?, ReadRow::read)?)
    }

    async fn closed_queues(&self) -> Result<Vec<String>> {
        Ok(all(&self.control().fetch(&CLOSED_QUEUES, Args::new()).await?, |row| row.take())?)
    }

    async fn ready_agents(&self) -> Result<Vec<String>> {
        Ok(all(&self.control().fetch(&READY_AGENTS, Args::new()).await?, |row| row.take())?)
    }

    async fn specs(&self, ids: &[TaskId]) -> Result<Vec<Arc<TaskSpec>>> {
        Ok(all(&self.control().fetch(&SPECS, Args::new().uuids(ids)).await?, ReadRow::read)?)
    }

    async fn due_leases(&self, limit: i64) -> Result<DuePage<(TaskId, LeaseId)>> {
        let found = self.control().fetch(&DUE_LEASES, Args::new().int(self.known_time()).int(limit + 1)).await?;
        Ok(queue::read_due(&found, limit, |row| {
            let (task, _at, lease): (Option<TaskId>, Option<Ms>, Option<LeaseId>) = (row.take()?, row.take()?, row.take()?);
            Ok(task.zip(lease))
        })?)
    }

    async fn leases_beyond_ttl(&self, limit: i64) -> Result<Vec<(TaskId, LeaseId)>> {
        let found = self.control().fetch(&LEASES_BEYOND_TTL, Args::new().int(self.known_time()).int(limit)).await?;
        Ok(all(&found, |row| Ok((row.take()?, row.take()?)))?)
    }

    async fn due_tasks(&self, limit: i64) -> Result<DuePage<TaskId>> {
        let found = self.control().fetch(&DUE_TASKS, Args::new().int(self.known_time()).int(limit + 1)).await?;
        Ok(queue::read_due(&found, limit, |row| row.take())?)
    }

    async fn silent_workers(&self, silent_for_ms: i64, limit: i64) -> Result<DuePage<WorkerId>> {
        let args = Args::new().int(self.known_time()).int(limit + 1).int(silent_for_ms);
        Ok(queue::read_due(&self.control().fetch(&SILENT_WORKERS, args).await?, limit, |row| row.take())?)
    }

    async fn wakeups(&self, after: Option<WakeupId>, limit: i64) -> Result<Vec<Wakeup>> {
        let args = Args::new().uuid(after.unwrap_or_default()).int(limit);
        Ok(all(&self.control().fetch(&WAKEUPS, args).await?, ReadRow::read)?)
    }

    async fn waiters(&self, wakeup: &Wakeup, limit: i64) -> Result<Waiters> {
        Ok(wakeup_targets::of(self.control(), wakeup, limit).await?)
    }

    async fn lead(&self, holder: &str, ttl_ms: i64) -> Result<Option<i64>> {
        if self.kind() == Kind::Sqlite {
            // There is only one replica on SQLite.
            return Ok(Some(1));
        }
        let args = Args::new().text(holder).int(ttl_ms).int(self.known_time());
        Ok(first(&self.write_aside(&LEAD, args).await?, |row| row.take())?)
    }

    async fn resign(&self, holder: &str) -> Result<()> {
        if self.kind() == Kind::Postgres {
            self.write_aside(&RESIGN, Args::new().text(holder)).await?;
        }
        Ok(())
    }

    async fn mark_served(&self) -> Result<Service> {
        if let Clock::Manual(time) = &self.inner.clock {
            // A manual clock jumps when it is set, and that is not a gap in service.
            return Ok(Service { now: time.load(Ordering::SeqCst), resumed_at: 0 });
        }
        let is_first = self.inner.served.lock().marked.is_none();
        // The first mark comes before the check, so that an import which waits for a lock notices this server.
        if !is_first {
            self.check_writes().await?;
        }
        let stepped = self.follow_wall_clock();
        let (begins, last_import) = {
            let served = self.inner.served.lock();
            // On SQLite, there was no service before this process started.
            (self.kind() == Kind::Sqlite && !served.has_begun, served.last_import())
        };
        let args = Args::new().int(self.known_time()).int(i64::from(stepped || begins)).int(last_import);
        let marked = first(&self.write_aside(&MARK_SERVED, args).await?, |row| Ok((row.take()?, row.take()?)))?;
        let (now, resumed_at) = marked.ok_or_else(|| self.inner.health.imported())?;
        let marks_writers = {
            let mut served = self.inner.served.lock();
            served.has_begun = true;
            served.marked = Some(std::time::Instant::now());
            let recent = |at: Ms| (at..at + MARK_WRITERS_EVERY_MS).contains(&now);
            !served.writers_marked_at.is_some_and(recent)
        };
        if marks_writers {
            let args = Args::new().text(self.inner.replica.as_str()).int(self.known_time());
            self.write_aside(&MARK_WRITERS, args).await?;
            self.inner.served.lock().writers_marked_at = Some(now);
        }
        if is_first {
            self.check_writes().await?;
        }
        Ok(Service { now, resumed_at })
    }

    async fn checkpoint(&self) -> Result<()> {
        Store::checkpoint(self).await?;
        Ok(())
    }

    async fn count_errors(&self) -> Result<CountDeltas> {
        Ok(Store::count_errors(self).await?)
    }

    async fn stored_bytes(&self) -> Result<Vec<(String, i64)>> {
        Ok(self.measure_stored().await?)
    }
}
