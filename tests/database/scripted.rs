//! A database whose errors and delays a test decides. Its clock follows the virtual time of the runtime, and steps when a test says so.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use bloom_core::Ms;
use bloom_core::agent_queue::AgentQueue;
use bloom_core::cache::{ReadyRow, Scope};
use bloom_core::ids::{LeaseId, TaskId, WorkerId};
use bloom_core::task::{TaskSpec, TaskState};
use bloom_core::wakeup::{Waiters, Wakeup, WakeupId};
use bloom_core::worker::Worker;
use bloom_core::working_set::WorkingSet;
use bloom_database::{CountDeltas, CountsAt, Database, DuePage, Error, Feed, LockWait, Position, Result, Service, Writer};
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use crate::tables::{START, Tables};
use crate::writer::ScriptedWriter;

const TRIP: Duration = Duration::from_millis(1);

/// The calls that a test can make fail or delay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Call {
    Feed,
    TaskStates,
    WorkersById,
    ReadyPage,
    Queues,
    DueLeases,
    DueTasks,
    SilentWorkers,
    Wakeups,
    Waiters,
    Lead,
    MarkServed,
    CountErrors,
    Load,
    Save,
    ResolveCommit,
    Maintain,
    /// All others.
    Other,
}

type IsRefused = Box<dyn Fn(&WorkingSet) -> bool + Send>;

/// How the statements of one replica behave.
#[derive(Default)]
struct Script {
    is_unavailable: bool,
    errors: BTreeMap<Call, VecDeque<Error>>,
    holds: BTreeMap<Call, (oneshot::Sender<()>, oneshot::Receiver<()>)>,
    /// The connection is lost at the next commit; the value says whether the commit arrives.
    lost_commit: Option<bool>,
    refused: Option<IsRefused>,
    asked: BTreeMap<Call, usize>,
    lock_waits: Vec<LockWait>,
}

/// Delays an answer: the call has read its result, but the answer arrives only after [`let_go`](Self::let_go).
pub struct Hold {
    found: oneshot::Receiver<()>,
    go: oneshot::Sender<()>,
}

impl Hold {
    pub async fn is_found(&mut self) {
        (&mut self.found).await.expect("the call was made");
    }

    pub fn let_go(self) {
        self.go.send(()).expect("the call waits");
    }
}

/// The state that all replicas share.
struct Shared {
    tables: Mutex<Tables>,
    committed: Notify,
    started: Instant,
    offset_ms: Mutex<Ms>,
}

/// The connection of one replica to the database.
#[derive(Clone)]
pub struct ScriptedDatabase {
    shared: Arc<Shared>,
    script: Arc<Mutex<Script>>,
}

impl Default for ScriptedDatabase {
    fn default() -> Self {
        let shared = Shared { tables: Mutex::default(), committed: Notify::new(), started: Instant::now(), offset_ms: Mutex::default() };
        Self { shared: Arc::new(shared), script: Arc::default() }
    }
}

impl ScriptedDatabase {
    /// The connection of another replica to the same tables.
    pub fn beside(&self) -> Self {
        Self { shared: self.shared.clone(), script: Arc::default() }
    }

    pub fn tables(&self) -> MutexGuard<'_, Tables> {
        self.shared.tables.lock().expect("nothing panics while it holds the tables")
    }

    fn script(&self) -> MutexGuard<'_, Script> {
        self.script.lock().expect("nothing panics while it holds the script")
    }

    pub fn clock(&self) -> Ms {
        START + self.shared.started.elapsed().as_millis() as Ms + *self.shared.offset_ms.lock().expect("the clock")
    }

    pub fn step_clock(&self, by_ms: Ms) {
        *self.shared.offset_ms.lock().expect("the clock") += by_ms;
    }

    /// While this is set, every call fails.
    pub fn set_unavailable(&self, is_unavailable: bool) {
        self.script().is_unavailable = is_unavailable;
    }

    /// Makes the next such call fail; if called twice, the next two.
    pub fn fail(&self, call: Call, error: Error) {
        self.script().errors.entry(call).or_default().push_back(error);
    }

    /// Delays the answer of the next such call, which reads its result at once.
    pub fn hold(&self, call: Call) -> Hold {
        let ((found_here, found), (go, go_there)) = (oneshot::channel(), oneshot::channel());
        self.script().holds.insert(call, (found_here, go_there));
        Hold { found, go }
    }

    /// Breaks the connection at the next commit, after or before the commit has arrived.
    pub fn lose_commit(&self, has_arrived: bool) {
        self.script().lost_commit = Some(has_arrived);
    }

    /// From now on, each save for which this holds fails.
    pub fn refuse(&self, is_refused: impl Fn(&WorkingSet) -> bool + Send + 'static) {
        self.script().refused = Some(Box::new(is_refused));
    }

    /// How often this call was made so far.
    pub fn asked(&self, call: Call) -> usize {
        self.script().asked.get(&call).copied().unwrap_or_default()
    }

    /// The lock wait of each load so far.
    pub fn lock_waits(&self) -> Vec<LockWait> {
        self.script().lock_waits.clone()
    }

    /// Records the lock wait of a load.
    pub(crate) fn record_lock_wait(&self, wait: LockWait) {
        self.script().lock_waits.push(wait);
    }

    pub(crate) fn is_refused(&self, set: &WorkingSet) -> bool {
        self.script().refused.as_ref().is_some_and(|is_refused| is_refused(set))
    }

    /// `Some` if the connection is lost at this commit; the value says whether the commit arrives.
    pub(crate) fn take_lost_commit(&self) -> Option<bool> {
        self.script().lost_commit.take()
    }

    /// Makes another replica the leader.
    pub fn elect_another(&self) {
        let expires_at = self.clock() + 1_000;
        let mut tables = self.tables();
        let leader = tables.leader.as_mut().expect("there is a leader");
        (leader.holder, leader.epoch, leader.expires_at) = ("another".into(), leader.epoch + 1, expires_at);
    }

    /// A call arrives. Each call takes some time, so that time also passes for a loop without pauses.
    pub(crate) async fn arrive(&self, call: Call) -> Result<()> {
        tokio::time::sleep(TRIP).await;
        let mut script = self.script();
        *script.asked.entry(call).or_default() += 1;
        if script.is_unavailable {
            return Err(Error::Unavailable("the database is away".into()));
        }
        script.errors.get_mut(&call).and_then(VecDeque::pop_front).map_or(Ok(()), Err)
    }

    /// Waits while the answer of the call is delayed.
    pub(crate) async fn answer(&self, call: Call) {
        let hold = self.script().holds.remove(&call);
        if let Some((found, go)) = hold {
            found.send(()).expect("the test waits");
            go.await.expect("the test lets go");
        }
    }

    pub(crate) async fn ask<T: Send>(&self, call: Call, read: impl FnOnce(&mut Tables, Ms) -> T + Send) -> Result<T> {
        self.arrive(call).await?;
        let found = read(&mut self.tables(), self.clock());
        self.answer(call).await;
        Ok(found)
    }
}

#[async_trait]
impl Database for ScriptedDatabase {
    fn is_shared(&self) -> bool {
        true
    }

    async fn writer(&self) -> Result<Box<dyn Writer>> {
        let id = self.ask(Call::Other, |tables, _| tables.register_writer()).await?;
        Ok(Box::new(ScriptedWriter::new(self.clone(), id)))
    }

    async fn now(&self) -> Result<Ms> {
        self.ask(Call::Other, |_, now| now).await
    }

    async fn feed(&self, positions: &[Position], own: &[i64]) -> Result<Feed> {
        self.ask(Call::Feed, |tables, _| tables.feed(positions, own)).await
    }

    async fn heard(&self) -> Result<()> {
        self.shared.committed.notified().await;
        Ok(())
    }

    async fn notify(&self) -> Result<()> {
        self.shared.committed.notify_waiters();
        Ok(())
    }

    async fn counts(&self) -> Result<CountsAt> {
        self.ask(Call::Other, |tables, _| tables.counts()).await
    }

    async fn task_states(&self, ids: &[TaskId]) -> Result<Vec<TaskState>> {
        self.ask(Call::TaskStates, |tables, _| tables.task_states(ids)).await
    }

    async fn workers_by_id(&self, ids: &[WorkerId]) -> Result<Vec<Worker>> {
        self.ask(Call::WorkersById, |tables, _| tables.workers_by_id(ids)).await
    }

    async fn workers_page(&self, after: Option<&str>, limit: i64) -> Result<Vec<Worker>> {
        self.ask(Call::Other, |tables, _| tables.workers_page(after, limit)).await
    }

    async fn active_tasks(&self, after: Option<TaskId>, limit: i64) -> Result<Vec<TaskState>> {
        self.ask(Call::Other, |tables, _| tables.active_tasks(after, limit)).await
    }

    async fn ready_page(&self, scope: &Scope, after: Option<(i64, TaskId)>, limit: i64) -> Result<Vec<ReadyRow>> {
        self.ask(Call::ReadyPage, |tables, _| tables.ready_page(scope, after, limit)).await
    }

    async fn queues(&self) -> Result<Vec<AgentQueue>> {
        self.ask(Call::Queues, |tables, _| tables.queues()).await
    }

    async fn closed_queues(&self) -> Result<Vec<String>> {
        self.ask(Call::Other, |tables, _| tables.closed_queues()).await
    }

    async fn ready_agents(&self) -> Result<Vec<String>> {
        self.ask(Call::Other, |tables, _| tables.ready_agents()).await
    }

    async fn specs(&self, ids: &[TaskId]) -> Result<Vec<Arc<TaskSpec>>> {
        self.ask(Call::Other, |tables, _| ids.iter().filter_map(|id| tables.memory.specs.get(id).cloned()).collect()).await
    }

    async fn due_leases(&self, limit: i64) -> Result<DuePage<(TaskId, LeaseId)>> {
        self.ask(Call::DueLeases, |tables, now| tables.due_leases(now, limit)).await
    }

    async fn leases_beyond_ttl(&self, limit: i64) -> Result<Vec<(TaskId, LeaseId)>> {
        self.ask(Call::Other, |tables, now| tables.leases_beyond_ttl(now, limit)).await
    }

    async fn due_tasks(&self, limit: i64) -> Result<DuePage<TaskId>> {
        self.ask(Call::DueTasks, |tables, now| tables.due_tasks(now, limit)).await
    }

    async fn silent_workers(&self, silent_for_ms: i64, limit: i64) -> Result<DuePage<WorkerId>> {
        self.ask(Call::SilentWorkers, |tables, now| tables.silent_workers(now, silent_for_ms, limit)).await
    }

    async fn wakeups(&self, after: Option<WakeupId>, limit: i64) -> Result<Vec<Wakeup>> {
        self.ask(Call::Wakeups, |tables, _| tables.wakeups(after, limit)).await
    }

    async fn waiters(&self, wakeup: &Wakeup, limit: i64) -> Result<Waiters> {
        self.ask(Call::Waiters, |tables, _| tables.waiters(wakeup, limit)).await
    }

    async fn lead(&self, holder: &str, ttl_ms: i64) -> Result<Option<i64>> {
        self.ask(Call::Lead, |tables, now| tables.lead(now, holder, ttl_ms)).await
    }

    async fn resign(&self, holder: &str) -> Result<()> {
        self.ask(Call::Other, |tables, _| tables.resign(holder)).await
    }

    async fn mark_served(&self) -> Result<Service> {
        self.ask(Call::MarkServed, Tables::mark_served).await
    }

    async fn checkpoint(&self) -> Result<()> {
        Ok(())
    }

    async fn count_errors(&self) -> Result<CountDeltas> {
        self.ask(Call::CountErrors, |tables, _| tables.count_errors()).await
    }

    async fn stored_bytes(&self) -> Result<Vec<(String, i64)>> {
        Ok(Vec::new())
    }
}
