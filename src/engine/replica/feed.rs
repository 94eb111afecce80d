//! Follows the commits of other replicas, and notifies them of this replica's commits. A notification has no content and may be lost; the
//! changes are always read from the feed.

use std::sync::Arc;
use std::time::Duration;

use bloom_core::cache::CacheRead;
use bloom_core::ids::{TaskId, WorkerId, created_at, has_time};
use bloom_core::task::TaskState;
use bloom_core::worker::Worker;
use bloom_database::{Database, FeedEntry, Result};
use tokio::sync::Notify;

use super::Replica;
use super::remembered::Remembered;
use crate::background::Background;
use crate::changes::Changes;
use crate::clock::Clock;

/// The feed is read at least this often, even if no notification arrives.
const POLL_EVERY: Duration = Duration::from_millis(250);
/// At most five notifications a second, because PostgreSQL serializes commits that notify.
const NOTIFY_EVERY: Duration = Duration::from_millis(200);
/// Rows per read.
const PAGE: usize = 1_000;
/// How far the clocks of replicas may differ. A rebuild stops at ids that are newer than its start by more than this.
const SKEW_MS: i64 = 60_000;

pub(crate) struct Feed {
    database: Arc<dyn Database>,
    replica: Arc<Replica>,
    clock: Arc<Clock>,
    /// Wakes `notify`: this replica has committed, and the others must be notified.
    committed: Notify,
    /// Wakes `follow`: the feed must be read at once.
    wanted: Notify,
    /// Wakes `follow`: commits may have been missed, so the cache must be rebuilt.
    missed: Notify,
}

struct CaughtUp {
    gap: bool,
    more: bool,
}

impl Feed {
    pub(crate) fn new(database: Arc<dyn Database>, replica: Arc<Replica>, clock: Arc<Clock>) -> Self {
        Self { database, replica, clock, committed: Notify::new(), wanted: Notify::new(), missed: Notify::new() }
    }

    /// Notifies other replicas of a commit.
    pub(crate) fn announce_commit(&self) {
        self.committed.notify_one();
    }

    /// Requests a read of the feed.
    pub(crate) fn want(&self) {
        self.wanted.notify_one();
    }

    /// Requests a rebuild of the cache.
    pub(crate) fn want_rebuild(&self) {
        self.missed.notify_one();
    }

    /// Requests a new read of the cache's suspects, if there are any.
    pub(crate) fn check_suspects(&self) {
        if self.replica.lock().cache.has_suspects() {
            self.want();
        }
    }

    /// Follows the commits of other replicas, and rebuilds the cache if some may have been missed.
    pub(crate) async fn follow(self: Arc<Self>, background: Background) {
        let is_shared = self.database.is_shared();
        let mut must_rebuild = false;
        loop {
            tokio::select! {
                biased;
                () = background.stopped() => return,
                () = self.missed.notified() => must_rebuild = true,
                () = self.wanted.notified() => {}
                heard = self.database.heard(), if is_shared => {
                    if heard.is_err() {
                        tokio::time::sleep(POLL_EVERY).await;
                    }
                }
                () = tokio::time::sleep(POLL_EVERY), if is_shared || must_rebuild => {}
            }
            if let Err(error) = self.poll(is_shared, &mut must_rebuild).await {
                crate::log_failure(&error, "the feed of other replicas could not be read");
            }
        }
    }

    async fn poll(&self, is_shared: bool, must_rebuild: &mut bool) -> Result<()> {
        if self.replica.lock().cache.has_suspects() {
            self.clear_suspects().await?;
        }
        while !*must_rebuild && is_shared {
            let CaughtUp { gap, more } = self.catch_up().await?;
            *must_rebuild = gap;
            if !more {
                return Ok(());
            }
        }
        if *must_rebuild {
            self.rebuild().await?;
            *must_rebuild = false;
            self.replica.announce(&self.replica.lock(), Changes { reset: true, settings: true, ..Changes::default() });
        }
        Ok(())
    }

    /// Notifies other replicas of commits: of the first one at once, and then at most five times a second.
    pub(crate) async fn notify(self: Arc<Self>, background: Background) {
        loop {
            tokio::select! {
                biased;
                () = background.stopped() => return,
                () = self.committed.notified() => {}
            }
            // If the notification is lost, the other replicas still read the feed a quarter of a second later.
            let _ = self.database.notify().await;
            tokio::select! {
                biased;
                () = background.stopped() => return,
                () = tokio::time::sleep(NOTIFY_EVERY) => {}
            }
        }
    }

    async fn catch_up(&self) -> Result<CaughtUp> {
        let read = self.replica.begin_read();
        let (positions, own) = self.replica.lock().positions();
        let feed = self.database.feed(&positions, &own).await?;
        if feed.gap {
            return Ok(CaughtUp { gap: true, more: false });
        }
        self.take_over(&feed.entries, &read).await?;
        Ok(CaughtUp { gap: false, more: feed.more })
    }

    /// Reads the rows that the entries name. The entries' positions are recorded last, so that an error does not skip entries.
    async fn take_over(&self, entries: &[FeedEntry], read: &CacheRead) -> Result<()> {
        if entries.iter().any(|entry| entry.changes.queues) {
            self.read_queues().await?;
        }
        let mut tasks: Vec<TaskId> = entries.iter().flat_map(|entry| &entry.changes.tasks).copied().collect();
        tasks.sort_unstable();
        tasks.dedup();
        for page in tasks.chunks(PAGE) {
            let rows = self.database.task_states(page).await?;
            self.put_tasks(&mut self.replica.lock(), rows, read);
        }
        let mut workers: Vec<_> = entries.iter().flat_map(|entry| &entry.changes.workers).cloned().collect();
        workers.sort_unstable();
        workers.dedup();
        for page in workers.chunks(PAGE) {
            let rows = self.database.workers_by_id(page).await?;
            self.put_workers(&mut self.replica.lock(), rows, read);
        }
        {
            let mut changes = Changes::default();
            let mut remembered = self.replica.lock();
            for entry in entries {
                remembered.remove_tasks(&entry.changes.removed_tasks);
                changes.removed_tasks.extend_from_slice(&entry.changes.removed_tasks);
                for (id, revision) in &entry.changes.removed_workers {
                    remembered.remove_worker(id, *revision);
                    if remembered.cache.fleet.worker(id).is_none() {
                        changes.removed_workers.push(id.clone());
                    }
                }
                changes.events.extend_from_slice(&entry.changes.events);
                changes.settings |= entry.changes.settings;
                remembered.count(entry.at, &entry.counts);
            }
            self.replica.announce(&remembered, changes);
        }
        if entries.iter().any(|entry| entry.changes.recounted) {
            self.read_counts().await?;
        }
        Ok(())
    }

    /// Reads the settings of the queues.
    pub(crate) async fn read_queues(&self) -> Result<()> {
        let rows = self.database.queues().await?;
        self.replica.put_queues(rows);
        Ok(())
    }

    /// Reads the counts, and with them the positions from which the feed is followed.
    pub(crate) async fn read_counts(&self) -> Result<()> {
        self.replica.lock().begin_counts();
        let read = self.database.counts().await;
        self.replica.lock().end_counts(read.as_ref().ok().cloned());
        read.map(drop)
    }

    /// Reads everything again that the cache shows, while writes go on: at the start, and after commits may have been missed. It terminates
    /// under any load, because it reads only what existed when it began. Later commits are in the feed after the positions of the counts.
    pub(crate) async fn rebuild(&self) -> Result<()> {
        self.clock.set(self.database.now().await?);
        // The feed is followed from the positions that come with the counts, so copies that were read before the counts are suspects.
        self.read_counts().await?;
        self.read_queues().await?;
        let read = self.replica.begin_rebuild();
        let mut after: Option<String> = None;
        loop {
            let page = self.database.workers_page(after.as_deref(), PAGE as i64).await?;
            let is_last = page.len() < PAGE;
            after = page.last().map(|worker| worker.id.clone());
            let mut remembered = self.replica.lock();
            for worker in &page {
                remembered.put_worker(worker, &read);
            }
            if is_last {
                break;
            }
        }
        let newest = self.clock.now().saturating_add(SKEW_MS);
        let mut after = None;
        loop {
            let page = self.database.active_tasks(after, PAGE as i64).await?;
            let is_last = page.len() < PAGE || page.last().is_some_and(|task| has_time(task.id) && created_at(task.id) > newest);
            after = page.last().map(|task| task.id);
            self.replica.lock().put_tasks(page.iter(), &read);
            if is_last {
                break;
            }
        }
        // Rows that the cache still shows but that have not appeared in the pages are read by id.
        let (tasks, workers) = {
            let remembered = self.replica.lock();
            (remembered.cache.unconfirmed_tasks(&read), remembered.cache.unconfirmed_workers(&read))
        };
        self.read_again(&tasks, &workers, &read).await
    }

    /// Reads the suspects again: rows whose copies in the cache are older than the last rebuild.
    async fn clear_suspects(&self) -> Result<()> {
        let read = self.replica.begin_read();
        let suspects = self.replica.lock().cache.take_suspects();
        let (tasks, workers): (Vec<_>, Vec<_>) = (suspects.tasks.into_iter().collect(), suspects.workers.into_iter().collect());
        let outcome = self.read_again(&tasks, &workers, &read).await;
        if outcome.is_err() {
            self.want_rebuild();
        }
        outcome
    }

    /// Reads these tasks and workers by id. Those that are not found were removed.
    async fn read_again(&self, tasks: &[TaskId], workers: &[WorkerId], read: &CacheRead) -> Result<()> {
        for page in tasks.chunks(PAGE) {
            let rows = self.database.task_states(page).await?;
            let gone: Vec<TaskId> = page.iter().filter(|id| !has(&rows, **id)).copied().collect();
            let mut remembered = self.replica.lock();
            self.put_tasks(&mut remembered, rows, read);
            remembered.remove_tasks(&gone);
            self.replica.announce(&remembered, Changes { removed_tasks: gone, ..Changes::default() });
        }
        for page in workers.chunks(PAGE) {
            let rows = self.database.workers_by_id(page).await?;
            let gone: Vec<&WorkerId> = page.iter().filter(|id| !rows.iter().any(|worker| worker.id == **id)).collect();
            let mut remembered = self.replica.lock();
            self.put_workers(&mut remembered, rows, read);
            gone.iter().for_each(|id| remembered.forget_worker(id, read));
            let removed_workers = gone.into_iter().filter(|id| remembered.cache.fleet.worker(id).is_none()).cloned().collect();
            self.replica.announce(&remembered, Changes { removed_workers, ..Changes::default() });
        }
        Ok(())
    }

    /// Adds rows to the cache, and announces those that are the newest.
    fn put_tasks(&self, remembered: &mut Remembered, mut rows: Vec<TaskState>, read: &CacheRead) {
        let older = remembered.put_tasks(rows.iter(), read);
        rows.retain(|task| !older.contains(&task.id));
        self.replica.announce(remembered, Changes { tasks: rows.into_iter().map(Into::into).collect(), ..Changes::default() });
    }

    fn put_workers(&self, remembered: &mut Remembered, mut rows: Vec<Worker>, read: &CacheRead) {
        rows.retain(|worker| remembered.put_worker(worker, read));
        self.replica.announce(remembered, Changes { workers: rows.into_iter().map(Into::into).collect(), ..Changes::default() });
    }
}

fn has(rows: &[TaskState], id: TaskId) -> bool {
    rows.iter().any(|row| row.id == id)
}
