//! Records events of a run.

use crate::arguments::{Holder, NewEvent};
use crate::event::{EventKind, TaskEvent};
use crate::ids::{LeaseId, TaskId, WorkerId};
use crate::limits::RUN_EVENTS_BYTES;
use crate::operation::{Operation, Weight};
use crate::reply::Recorded;
use crate::row_keys::RowKeys;
use crate::working_set::{Halt, WorkingSet};

/// Replaces the first event of a run that exceeds the limit. The events after it are dropped.
const CUT: &str = r#"{"phase":"events_cut","text":"the run has too many events; the rest is not kept"}"#;

/// Records events of a run. Events whose `seq` this lease has sent before are skipped.
#[derive(Clone, Debug)]
pub struct AppendEvents {
    /// The task of the run.
    pub task: TaskId,
    /// The lease of the run: the active one, or the last one if none is active.
    pub lease: LeaseId,
    /// Rejects the events if another worker has the lease; `None`: any worker may have it.
    pub worker: Option<WorkerId>,
    /// The events in the order of their `seq`.
    pub events: Vec<NewEvent>,
}

impl Operation for AppendEvents {
    type Reply = Recorded;

    fn weight(&self) -> Weight {
        Weight { rows: 1 + self.events.len(), bytes: self.events.iter().map(|event| 64 + event.data.len()).sum() }
    }

    fn add_keys(&self, keys: &mut RowKeys) {
        keys.tasks.insert(self.task);
    }

    fn decide(&self, set: &mut WorkingSet) -> Result<Recorded, Halt> {
        let Self { task: id, lease, ref worker, ref events } = *self;
        let task = set.task(id)?;
        task.check_events(&Holder { lease: Some(lease), worker: worker.clone() })?;
        let mut task = task.clone();
        let known = task.event_seq;
        for event in events {
            if event.seq <= task.event_seq {
                continue;
            }
            task.event_seq = event.seq;
            if task.event_bytes > RUN_EVENTS_BYTES {
                continue;
            }
            task.event_bytes += i64::try_from(event.data.len()).unwrap_or(i64::MAX / 2);
            let is_cut = task.event_bytes > RUN_EVENTS_BYTES;
            task.event_count += 1;
            set.dirty.events.push(TaskEvent {
                task_id: id,
                number: task.event_count,
                lease_id: lease,
                seq: event.seq,
                kind: if is_cut { EventKind::Lifecycle } else { event.kind },
                at: event.at,
                data: if is_cut { CUT.to_owned() } else { event.data.clone() },
            });
        }
        let newest = task.event_count;
        if task.event_seq > known {
            set.put_task_quietly(task);
        }
        Ok(Recorded { newest })
    }
}
