//! The commands and jobs that wait for a writer, in queues by urgency, with limits on their number and size.

use std::collections::VecDeque;

use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};

use super::Error;
use bloom_core::command::{Command, Operation as _, Reply, RowKeys, Urgency, Weight};
use bloom_database::{Done, Maintenance};

/// Limits of one batch.
const BATCH_COMMANDS: usize = 512;
const BATCH_ROWS: usize = 2_000;
const BATCH_BYTES: usize = 4 << 20;
/// Limits of the waiting commands. Beyond them, callers have to retry later.
const QUEUE_COMMANDS: usize = 8_192;
const QUEUE_BYTES: usize = 64 << 20;

pub(super) type MaintenanceReply = oneshot::Sender<Result<Done, Error>>;
/// The maximum number of waiting maintenance jobs.
const QUEUE_MAINTENANCE: usize = 64;

/// The next work of a writer.
pub(super) enum Work {
    Batch(Vec<Pending>),
    Maintenance(Maintenance, MaintenanceReply),
}

/// A command that waits for its reply.
pub(super) struct Pending {
    pub command: Command,
    /// Rows that an earlier try turned out to need, in addition to those that the operation names.
    pub extra: RowKeys,
    pub tries: u32,
    pub reply: oneshot::Sender<Result<Reply, Error>>,
    rows: usize,
    bytes: usize,
}

impl Pending {
    pub(crate) fn new(command: Command, reply: oneshot::Sender<Result<Reply, Error>>) -> Self {
        let Weight { rows, bytes } = command.op.weight();
        Self { command, extra: RowKeys::default(), tries: 0, reply, rows, bytes }
    }
}

/// How many rows of a batch the commands of each urgency may fill while others wait.
const SHARES: [usize; Urgency::COUNT] = [BATCH_ROWS, BATCH_ROWS / 2, BATCH_ROWS, BATCH_ROWS];
/// After this many consecutive batches without room for the first command of a queue, the next batch takes it regardless of the limits, so
/// that other commands never starve it.
const PASSED_OVER: u32 = 8;
/// The number of rows to count for each task whose dependencies are loaded too.
const ROWS_OF_DEPENDENCIES: usize = 20;

#[derive(Default)]
struct Queues {
    maintenance: VecDeque<(Maintenance, MaintenanceReply)>,
    by_urgency: [VecDeque<Pending>; Urgency::COUNT],
    /// For each queue, the number of consecutive batches that had no room for its first command.
    passed_over: [u32; Urgency::COUNT],
    commands: usize,
    bytes: usize,
    maintenance_next: bool,
    closed: bool,
}

#[derive(Default)]
pub(super) struct Inbox {
    queues: Mutex<Queues>,
    arrived: Notify,
}

impl Inbox {
    /// Accepts either all of the commands or none.
    pub(crate) fn push(&self, commands: Vec<Pending>) -> Result<(), Error> {
        let bytes: usize = commands.iter().map(|pending| pending.bytes).sum();
        {
            let mut queues = self.queues.lock();
            if queues.closed {
                return Err(Error::Unavailable);
            }
            if queues.commands + commands.len() > QUEUE_COMMANDS || queues.bytes + bytes > QUEUE_BYTES {
                return Err(Error::Busy);
            }
            queues.commands += commands.len();
            queues.bytes += bytes;
            for pending in commands {
                queues.by_urgency[pending.command.op.urgency() as usize].push_back(pending);
            }
        }
        self.arrived.notify_one();
        Ok(())
    }

    /// Puts a command back in front of all others of its urgency, because it has already waited.
    pub(crate) fn push_again(&self, mut pending: Pending) {
        pending.rows = pending.command.op.weight().rows + pending.extra.dependencies.len() * ROWS_OF_DEPENDENCIES;
        let mut queues = self.queues.lock();
        queues.commands += 1;
        queues.bytes += pending.bytes;
        queues.by_urgency[pending.command.op.urgency() as usize].push_front(pending);
        drop(queues);
        self.arrived.notify_one();
    }

    pub(crate) fn push_maintenance(&self, job: Maintenance, reply: MaintenanceReply) -> Result<(), Error> {
        let mut queues = self.queues.lock();
        if queues.closed {
            return Err(Error::Unavailable);
        }
        if queues.maintenance.len() >= QUEUE_MAINTENANCE {
            return Err(Error::Busy);
        }
        queues.maintenance.push_back((job, reply));
        drop(queues);
        self.arrived.notify_one();
        Ok(())
    }

    /// Waits for the next work. It alternates between a batch of the waiting commands, within the limits, and a maintenance job. Returns
    /// `None` if the inbox is closed and empty.
    pub(crate) async fn next(&self) -> Option<Work> {
        loop {
            {
                let mut queues = self.queues.lock();
                queues.maintenance_next = !queues.maintenance_next;
                if queues.maintenance_next
                    && let Some((job, reply)) = queues.maintenance.pop_front()
                {
                    return Some(Work::Maintenance(job, reply));
                }
                let batch = queues.take();
                if !batch.is_empty() {
                    return Some(Work::Batch(batch));
                }
                if let Some((job, reply)) = queues.maintenance.pop_front() {
                    return Some(Work::Maintenance(job, reply));
                }
                if queues.closed {
                    return None;
                }
            }
            self.arrived.notified().await;
        }
    }

    pub(crate) fn close(&self) {
        self.queues.lock().closed = true;
        self.arrived.notify_one();
    }
}

impl Queues {
    fn take(&mut self) -> Vec<Pending> {
        let mut batch = Vec::new();
        let (mut rows, mut bytes) = (0, 0);
        let mut of_queue = [0; Urgency::COUNT];
        // The second pass ignores the shares, so that the rest of the batch is filled too.
        for shares in [SHARES, [BATCH_ROWS; Urgency::COUNT]] {
            for (at, queue) in self.by_urgency.iter_mut().enumerate() {
                while let Some(next) = queue.front() {
                    let has_room = batch.len() < BATCH_COMMANDS && rows + next.rows <= BATCH_ROWS && bytes + next.bytes <= BATCH_BYTES;
                    let fits = has_room && of_queue[at] + next.rows <= shares[at];
                    let is_its_turn = of_queue[at] == 0 && self.passed_over[at] >= PASSED_OVER;
                    if !(fits || is_its_turn || batch.is_empty()) {
                        break;
                    }
                    let Some(next) = queue.pop_front() else { break };
                    rows += next.rows;
                    of_queue[at] += next.rows;
                    bytes += next.bytes;
                    batch.push(next);
                }
            }
        }
        for (at, queue) in self.by_urgency.iter().enumerate() {
            let is_passed_over = of_queue[at] == 0 && !queue.is_empty();
            self.passed_over[at] = if is_passed_over { self.passed_over[at] + 1 } else { 0 };
        }
        self.taken(batch)
    }

    fn taken(&mut self, batch: Vec<Pending>) -> Vec<Pending> {
        self.commands -= batch.len();
        self.bytes -= batch.iter().map(|pending| pending.bytes).sum::<usize>();
        batch
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bloom_core::command::Op;
    use bloom_core::ids::TaskId;
    use bloom_core::op;
    use bloom_test_world::world::spec;

    fn queues(ops: impl IntoIterator<Item = Op>) -> Queues {
        let mut queues = Queues::default();
        for op in ops {
            let pending = Pending::new(op.into(), oneshot::channel().0);
            queues.commands += 1;
            queues.bytes += pending.bytes;
            queues.by_urgency[pending.command.op.urgency() as usize].push_back(pending);
        }
        queues
    }

    fn reevaluate() -> Op {
        op::Reevaluate { tasks: vec![TaskId::nil(); 100], progress: None }.into()
    }

    fn cancel() -> Op {
        op::Cancel { task: TaskId::nil() }.into()
    }

    fn create(tasks: usize) -> Op {
        op::Create { tasks: vec![spec("c"); tasks] }.into()
    }

    fn names(batch: &[Pending]) -> Vec<&'static str> {
        let mut names: Vec<_> = batch.iter().map(|pending| pending.command.op.name()).collect();
        names.dedup();
        names
    }

    #[test]
    fn a_batch_begins_with_what_is_most_urgent() {
        let mut queues = queues([create(5), create(1), reevaluate(), cancel()]);
        let batch = queues.take();
        assert_eq!((names(&batch), queues.commands), (vec!["cancel", "reevaluate", "create"], 0));
        assert!(matches!(&batch[3].command.op, Op::Create(op::Create { tasks }) if tasks.len() == 5), "bulk comes last");
    }

    #[test]
    fn a_flood_of_re_evaluations_leaves_room_for_the_others() {
        let mut queues = queues((0..1_000).map(|_| reevaluate()).chain((0..10).map(|_| create(1))));
        assert_eq!(names(&queues.take()), ["reevaluate", "create", "reevaluate"]);
    }

    #[test]
    fn what_never_has_room_has_its_turn() {
        let mut queues = queues((0..1_000).map(|_| reevaluate()).chain([create(1_000)]));
        let batches = (0..).take_while(|_| !names(&queues.take()).contains(&"create")).count();
        assert_eq!(batches, PASSED_OVER as usize);
    }

    #[test]
    fn re_evaluations_weigh_more_with_what_their_tasks_wait_for() {
        let inbox = Inbox::default();
        for _ in 0..3 {
            let mut pending = Pending::new(reevaluate().into(), oneshot::channel().0);
            pending.extra.dependencies = (0..100).map(TaskId::from_u128).collect();
            inbox.push_again(pending);
        }
        assert_eq!(inbox.queues.lock().take().len(), 1, "a single one fills a batch");
    }
}
