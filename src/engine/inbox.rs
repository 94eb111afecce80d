//! What waits for a writer: three queues by urgency, with limits on number and size.

use std::collections::VecDeque;
use std::sync::Mutex;

use tokio::sync::{Notify, oneshot};

use super::Error;
use bloom_core::command::{Command, Keys, Op, Reply};
use bloom_database::{Done, Maintenance};

/// Limits of one batch.
const BATCH_COMMANDS: usize = 512;
const BATCH_ROWS: usize = 2_000;
const BATCH_BYTES: usize = 4 << 20;
/// Limits of what may wait; beyond, callers are told to come again.
const QUEUE_COMMANDS: usize = 8_192;
const QUEUE_BYTES: usize = 64 << 20;

pub(super) type MaintenanceReply = oneshot::Sender<Result<Done, Error>>;
/// Maintenance jobs that may wait.
const QUEUE_MAINTENANCE: usize = 64;

/// What a writer does next.
pub(super) enum Work {
    Batch(Vec<Pending>),
    Maintenance(Maintenance, MaintenanceReply),
}

/// A command on its way.
pub(super) struct Pending {
    pub command: Command,
    /// Rows that it turned out to need, besides those it names.
    pub extra: Keys,
    pub tries: u32,
    pub reply: oneshot::Sender<Result<Reply, Error>>,
    rows: usize,
    bytes: usize,
}

impl Pending {
    pub fn new(command: Command, reply: oneshot::Sender<Result<Reply, Error>>) -> Self {
        let (rows, bytes) = weigh(&command.op);
        Self { command, extra: Keys::default(), tries: 0, reply, rows, bytes }
    }
}

/// Roughly the rows that a command touches and the bytes that it carries.
fn weigh(op: &Op) -> (usize, usize) {
    match op {
        Op::Create { tasks } => (
            tasks.len() * 3,
            tasks.iter().map(|task| 512 + task.prompt.len() + task.context_hints.iter().map(String::len).sum::<usize>()).sum(),
        ),
        Op::Complete(completion) => (4, 512 + completion.output.as_ref().map_or(0, String::len)),
        Op::AppendEvents { events, .. } => (1 + events.len(), events.iter().map(|event| 64 + event.data.len()).sum()),
        Op::Claim(claim) => (2 + claim.candidates.len() * 2, 512),
        Op::RenewLeases { leases, .. } => (leases.len(), 256),
        Op::Reevaluate { tasks, .. } => (2 + tasks.len() * 2, 256),
        Op::RecordLastSeen { last_seen } => (last_seen.len(), 256),
        _ => (2, 256),
    }
}

/// Liveness and placement go before new tasks, single new tasks before bulk. Re-evaluations belong to the first: the answer of a
/// completion waits for them.
fn urgency(op: &Op) -> usize {
    match op {
        Op::Create { tasks } if tasks.len() > 1 => 2,
        Op::RecordAudit { .. } => 2,
        Op::Create { .. } | Op::Requeue { .. } => 1,
        _ => 0,
    }
}

#[derive(Default)]
struct Waiting {
    maintenance: VecDeque<(Maintenance, MaintenanceReply)>,
    queues: [VecDeque<Pending>; 3],
    commands: usize,
    bytes: usize,
    maintenance_next: bool,
    closed: bool,
}

#[derive(Default)]
pub(super) struct Inbox {
    waiting: Mutex<Waiting>,
    arrived: Notify,
}

impl Inbox {
    /// Takes the commands in, all or none.
    pub fn push(&self, commands: Vec<Pending>) -> Result<(), Error> {
        let bytes: usize = commands.iter().map(|pending| pending.bytes).sum();
        {
            let mut waiting = super::lock(&self.waiting);
            if waiting.closed {
                return Err(Error::Unavailable);
            }
            if waiting.commands + commands.len() > QUEUE_COMMANDS || waiting.bytes + bytes > QUEUE_BYTES {
                return Err(Error::Busy);
            }
            waiting.commands += commands.len();
            waiting.bytes += bytes;
            for pending in commands {
                waiting.queues[urgency(&pending.command.op)].push_back(pending);
            }
        }
        self.arrived.notify_one();
        Ok(())
    }

    /// Puts a command back, before all others of its urgency: it has waited once already.
    pub fn push_again(&self, pending: Pending) {
        let mut waiting = super::lock(&self.waiting);
        waiting.commands += 1;
        waiting.bytes += pending.bytes;
        waiting.queues[urgency(&pending.command.op)].push_front(pending);
        drop(waiting);
        self.arrived.notify_one();
    }

    pub fn push_maintenance(&self, job: Maintenance, reply: MaintenanceReply) -> Result<(), Error> {
        let mut waiting = super::lock(&self.waiting);
        if waiting.closed {
            return Err(Error::Unavailable);
        }
        if waiting.maintenance.len() >= QUEUE_MAINTENANCE {
            return Err(Error::Busy);
        }
        waiting.maintenance.push_back((job, reply));
        drop(waiting);
        self.arrived.notify_one();
        Ok(())
    }

    /// The next work: a batch of whatever has gathered, within limits; a maintenance job after every batch, if one waits.
    /// `None` once closed and empty.
    pub async fn next(&self) -> Option<Work> {
        loop {
            {
                let mut waiting = super::lock(&self.waiting);
                waiting.maintenance_next = !waiting.maintenance_next;
                if waiting.maintenance_next
                    && let Some((job, reply)) = waiting.maintenance.pop_front()
                {
                    return Some(Work::Maintenance(job, reply));
                }
                let batch = waiting.take();
                if !batch.is_empty() {
                    return Some(Work::Batch(batch));
                }
                if let Some((job, reply)) = waiting.maintenance.pop_front() {
                    return Some(Work::Maintenance(job, reply));
                }
                if waiting.closed {
                    return None;
                }
            }
            self.arrived.notified().await;
        }
    }

    pub fn close(&self) {
        super::lock(&self.waiting).closed = true;
        self.arrived.notify_one();
    }
}

impl Waiting {
    fn take(&mut self) -> Vec<Pending> {
        let mut batch = Vec::new();
        let (mut rows, mut bytes) = (0, 0);
        for queue in &mut self.queues {
            while let Some(next) = queue.front() {
                let fits = batch.len() < BATCH_COMMANDS && rows + next.rows <= BATCH_ROWS && bytes + next.bytes <= BATCH_BYTES;
                if !fits && !batch.is_empty() {
                    return self.taken(batch);
                }
                let Some(next) = queue.pop_front() else { break };
                rows += next.rows;
                bytes += next.bytes;
                batch.push(next);
            }
        }
        self.taken(batch)
    }

    fn taken(&mut self, batch: Vec<Pending>) -> Vec<Pending> {
        self.commands -= batch.len();
        self.bytes -= batch.iter().map(|pending| pending.bytes).sum::<usize>();
        batch
    }
}
