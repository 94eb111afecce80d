//! The writers of the scripted database.

use async_trait::async_trait;
use bloom_core::Ms;
use bloom_core::audit::AuditEntry;
use bloom_core::command::RowKeys;
use bloom_core::task::TaskState;
use bloom_core::working_set::{Loaded, WorkingSet};
use bloom_database::{Changed, CountDeltas, Done, Error, LockWait, Maintenance, Position, Result, Writer};

use crate::scripted::{Call, ScriptedDatabase};
use crate::tables::Tables;

pub(crate) struct ScriptedWriter {
    database: ScriptedDatabase,
    id: i64,
    n: i64,
}

impl ScriptedWriter {
    pub fn new(database: ScriptedDatabase, id: i64) -> Self {
        Self { database, id, n: 0 }
    }

    /// Records a commit as the next batch, unless its leadership has ended.
    fn commit(&self, tables: &mut Tables, now: Ms, epoch: Option<i64>, counts: CountDeltas, changes: Changed) -> Result<()> {
        if epoch.is_some_and(|epoch| !tables.is_led(now, epoch)) {
            return Err(Error::NotLeader);
        }
        tables.record(Position { writer: self.id, n: self.n + 1 }, now, counts, changes);
        Ok(())
    }
}

#[async_trait]
impl Writer for ScriptedWriter {
    fn id(&self) -> i64 {
        self.id
    }

    fn n(&self) -> i64 {
        self.n
    }

    async fn begin_and_load(&mut self, keys: &RowKeys, wait: LockWait) -> Result<Loaded> {
        self.database.record_lock_wait(wait);
        self.database.ask(Call::Load, |tables, now| tables.memory.load(now, keys)).await
    }

    async fn save(&mut self, set: &WorkingSet, check_epoch: Option<i64>) -> Result<()> {
        self.database.arrive(Call::Save).await?;
        if self.database.is_refused(set) {
            return Err(Error::Other("refused".into()));
        }
        let lost = self.database.take_lost_commit();
        let lost_error = || Error::CommitUnknown("the connection broke".into());
        if lost == Some(false) {
            return Err(lost_error());
        }
        {
            let now = self.database.clock();
            let mut tables = self.database.tables();
            let before = tables.memory.clone();
            tables.memory.save(set).map_err(|index| Error::Conflict(index.into()))?;
            if let Err(error) = self.commit(&mut tables, now, check_epoch, CountDeltas::of(set), Changed::of(set)) {
                tables.memory = before;
                return Err(error);
            }
        }
        self.database.answer(Call::Save).await;
        if lost.is_some() {
            return Err(lost_error());
        }
        self.n += 1;
        Ok(())
    }

    async fn rollback(&mut self) -> Result<()> {
        self.database.arrive(Call::Other).await
    }

    async fn resolve_commit(&mut self) -> Result<bool> {
        self.database.arrive(Call::ResolveCommit).await?;
        let mut tables = self.database.tables();
        // The writer was removed after a long silence, so it is registered again.
        if !tables.writers.contains_key(&self.id) {
            (self.id, self.n) = (tables.register_writer(), 0);
            return Ok(false);
        }
        self.n += 1;
        Ok(tables.resolve(Position { writer: self.id, n: self.n }, self.database.clock()))
    }

    async fn maintain(&mut self, job: &Maintenance) -> Result<Done> {
        self.database.arrive(Call::Maintain).await?;
        let now = self.database.clock();
        let mut tables = self.database.tables();
        let done = match job {
            Maintenance::CompactCounts => {
                tables.compact();
                Done::default()
            }
            Maintenance::PruneBatches { older_than_ms } => {
                tables.prune_batches(now - older_than_ms);
                Done::default()
            }
            Maintenance::PruneAudit { older_than_ms, limit, .. } => {
                let is_old = |entry: &mut AuditEntry| entry.timestamp < now - older_than_ms;
                let limit = usize::try_from(*limit).expect("a limit");
                let rows = tables.memory.audit.extract_if(.., is_old).take(limit).count() as u64;
                Done { rows, ..Done::default() }
            }
            // There is no object store in these tests.
            Maintenance::MoveOutput { .. } | Maintenance::SetMark { .. } => Done::default(),
            // The contents of files, what keys store, when they were used last, and what reconcilers did, are known to the store alone.
            Maintenance::StoreChunk { .. }
            | Maintenance::DropChunks { .. }
            | Maintenance::RemoveFiles { .. }
            | Maintenance::MoveFile { .. }
            | Maintenance::RecordKeyUses { .. }
            | Maintenance::RecordReconcilers { .. }
            | Maintenance::SetStoredBytes { .. } => Done::default(),
            Maintenance::RemoveTasks { finished_for_ms, limit } => {
                let is_due = |task: &TaskState| {
                    let is_old = |finished_for_ms: &Ms| task.finished_at.is_some_and(|at| at <= now - finished_for_ms);
                    task.remove_at.is_some_and(|at| at <= now) || finished_for_ms.as_ref().is_some_and(is_old)
                };
                let done = tables.remove_tasks(is_due, *limit);
                if done.is_batch {
                    let changes = Changed { removed_tasks: done.removed.clone(), ..Changed::default() };
                    self.commit(&mut tables, now, None, done.counts.clone(), changes)?;
                    self.n += 1;
                }
                done
            }
            Maintenance::CorrectCounts { missing, epoch } => {
                let changes = Changed { recounted: true, ..Changed::default() };
                self.commit(&mut tables, now, Some(*epoch), missing.clone(), changes)?;
                self.n += 1;
                Done { is_batch: true, ..Done::default() }
            }
        };
        Ok(done)
    }

    async fn close(self: Box<Self>) {}
}
