//! Word from other replicas, and to them. A wake-up carries nothing and may be lost: what counts is read from the feed of commits.

use std::time::Duration;

use bloom_core::cache::Read;
use bloom_core::ids::{TaskId, WorkerId, created_at};
use bloom_core::task::TaskState;
use bloom_database::{Error, FeedEntry, Result};

use super::Engine;
use super::changes::Changes;

/// A look at the feed at least so often, whatever wake-ups come.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// At most five wake-ups a second go out: PostgreSQL serialises commits that notify.
const TELL_EVERY: Duration = Duration::from_millis(200);
/// Rows read at once.
const PAGE: usize = 1_000;
/// How far clocks of replicas may differ, for ids that are made while the cache is rebuilt.
const SKEW_MS: i64 = 60_000;

/// Follows the commits of other replicas, and rebuilds the cache when something may have been missed.
pub(super) async fn follow(engine: Engine) {
    let is_shared = engine.0.database.is_shared();
    let mut must_rebuild = false;
    loop {
        tokio::select! {
            biased;
            () = engine.0.stop.cancelled() => return,
            () = engine.0.rebuild.notified() => must_rebuild = true,
            () = engine.0.feed_wanted.notified() => {}
            heard = engine.0.database.heard(), if is_shared => {
                if heard.is_err() {
                    tokio::time::sleep(LOOK_EVERY).await;
                }
            }
            () = tokio::time::sleep(LOOK_EVERY), if is_shared || must_rebuild => {}
        }
        let caught_up = async {
            if engine.0.replica.lock().cache.has_suspects() {
                engine.clear_suspects().await?;
            }
            while !must_rebuild && is_shared {
                let CaughtUp { gap, more } = engine.catch_up().await?;
                must_rebuild = gap;
                if !more {
                    return Ok(());
                }
            }
            if must_rebuild {
                engine.rebuild().await?;
                must_rebuild = false;
                engine.announce(Changes { reset: true, settings: true, ..Changes::default() });
            }
            Ok::<_, Error>(())
        };
        if let Err(error) = caught_up.await {
            tracing::warn!(%error, "the feed of other replicas could not be read");
        }
    }
}

/// Tells other replicas that there was a commit: the first at once, then at most five a second.
pub(super) async fn tell(engine: Engine) {
    loop {
        tokio::select! {
            biased;
            () = engine.0.stop.cancelled() => return,
            () = engine.0.committed.notified() => {}
        }
        // A lost wake-up costs them a quarter of a second.
        let _ = engine.0.database.notify().await;
        tokio::select! {
            biased;
            () = engine.0.stop.cancelled() => return,
            () = tokio::time::sleep(TELL_EVERY) => {}
        }
    }
}

struct CaughtUp {
    gap: bool,
    more: bool,
}

impl Engine {
    async fn catch_up(&self) -> Result<CaughtUp> {
        let read = self.0.replica.begin_read();
        let (positions, own) = self.0.replica.lock().positions();
        let feed = self.0.database.feed(&positions, &own).await?;
        if feed.gap {
            return Ok(CaughtUp { gap: true, more: false });
        }
        self.take_over(&feed.entries, &read).await?;
        Ok(CaughtUp { gap: false, more: feed.more })
    }

    /// Reads what the entries name, and takes it in before they count as read.
    async fn take_over(&self, entries: &[FeedEntry], read: &Read) -> Result<()> {
        let mut tasks: Vec<TaskId> = entries.iter().flat_map(|entry| &entry.changes.tasks).copied().collect();
        tasks.sort_unstable();
        tasks.dedup();
        for page in tasks.chunks(PAGE) {
            let rows = self.0.database.task_states(page).await?;
            self.0.replica.lock().put_tasks(rows.iter(), read);
            self.announce(Changes { tasks: rows.into_iter().map(Into::into).collect(), ..Changes::default() });
        }
        let mut workers: Vec<_> = entries.iter().flat_map(|entry| &entry.changes.workers).cloned().collect();
        workers.sort_unstable();
        workers.dedup();
        let mut changes = Changes::default();
        for page in workers.chunks(PAGE) {
            let rows = self.0.database.workers_by_id(page).await?;
            let mut remembered = self.0.replica.lock();
            rows.iter().for_each(|worker| remembered.put_worker(worker, read));
            changes.workers.extend(rows.into_iter().map(Into::into));
        }
        {
            let mut remembered = self.0.replica.lock();
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
        }
        if !changes.is_empty() {
            self.announce(changes);
        }
        if entries.iter().any(|entry| entry.changes.recounted) {
            self.read_counts().await?;
        }
        Ok(())
    }

    /// Reads the counts, and with them the positions from which the feed is followed.
    pub(super) async fn read_counts(&self) -> Result<()> {
        self.0.replica.begin_counts();
        let read = self.0.database.counts().await;
        self.0.replica.end_counts(read.as_ref().ok().cloned());
        read.map(drop)
    }

    /// Reads all that the cache shows anew, beside those who write: at the start, and after something may have been missed. It ends
    /// under any load, since it only reads what was there when it began; what comes later is in the feed behind the counts' positions.
    pub(super) async fn rebuild(&self) -> Result<()> {
        self.0.clock.set(self.0.database.now().await?);
        // What is committed behind the positions that come with the counts is in the feed; so what was read before them is suspect.
        self.read_counts().await?;
        let read = self.0.replica.begin_rebuild();
        let mut after: Option<String> = None;
        loop {
            let page = self.0.database.workers_page(after.as_deref(), PAGE as i64).await?;
            let is_last = page.len() < PAGE;
            after = page.last().map(|worker| worker.id.clone());
            let mut remembered = self.0.replica.lock();
            page.iter().for_each(|worker| remembered.put_worker(worker, &read));
            if is_last {
                break;
            }
        }
        let newest = self.now().saturating_add(SKEW_MS);
        let mut after = None;
        loop {
            let page = self.0.database.active_tasks(after, PAGE as i64).await?;
            let is_last = page.len() < PAGE || page.last().is_some_and(|task| created_at(task.id) > newest);
            after = page.last().map(|task| task.id);
            self.0.replica.lock().put_tasks(page.iter(), &read);
            if is_last {
                break;
            }
        }
        // What was shown before and has not turned up is read by its id.
        let (tasks, workers) = {
            let remembered = self.0.replica.lock();
            (remembered.cache.unconfirmed_tasks(&read), remembered.cache.unconfirmed_workers(&read))
        };
        self.read_again(&tasks, &workers, &read).await
    }

    /// Reads again what is shown by copies that are older than the last rebuild.
    async fn clear_suspects(&self) -> Result<()> {
        let read = self.0.replica.begin_read();
        let suspects = self.0.replica.lock().cache.take_suspects();
        let (tasks, workers): (Vec<_>, Vec<_>) = (suspects.tasks.into_iter().collect(), suspects.workers.into_iter().collect());
        let outcome = self.read_again(&tasks, &workers, &read).await;
        if outcome.is_err() {
            self.0.rebuild.notify_one();
        }
        outcome
    }

    pub(super) fn check_suspects(&self) {
        if self.0.replica.lock().cache.has_suspects() {
            self.0.feed_wanted.notify_one();
        }
    }

    /// Reads these by their ids; those that are not found are gone.
    async fn read_again(&self, tasks: &[TaskId], workers: &[WorkerId], read: &Read) -> Result<()> {
        for page in tasks.chunks(PAGE) {
            let rows = self.0.database.task_states(page).await?;
            let mut remembered = self.0.replica.lock();
            remembered.put_tasks(rows.iter(), read);
            let gone: Vec<TaskId> = page.iter().filter(|id| !has(&rows, **id)).copied().collect();
            remembered.remove_tasks(&gone);
        }
        for page in workers.chunks(PAGE) {
            let rows = self.0.database.workers_by_id(page).await?;
            let mut remembered = self.0.replica.lock();
            rows.iter().for_each(|worker| remembered.put_worker(worker, read));
            for id in page.iter().filter(|id| !rows.iter().any(|worker| worker.id == **id)) {
                remembered.forget_worker(id, read);
            }
        }
        Ok(())
    }
}

fn has(rows: &[TaskState], id: TaskId) -> bool {
    rows.iter().any(|row| row.id == id)
}
