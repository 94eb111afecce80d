//! The rules: what each command does to the rows it names.
//!
//! Every function here first finds out whether it may act and has all the rows it needs, and only then changes something: a command
//! that is rejected, or halts for more rows, has left the working set as it was.

mod complete;
mod create;
mod expire;
mod lease;
mod lease_end;
mod push;
mod readiness;
mod reevaluate;
mod running;
mod task_ops;
mod workers;

pub use task_ops::{MEMBRIDGE_ADMIN_KEY, MEMBRIDGE_SERVER_URL};

use super::command::{Command, Op, Reply};
use super::working_set::{Halt, WorkingSet};

/// Applies one command. `Ok` may have changed the working set, `Err` has not.
pub fn decide(set: &mut WorkingSet, command: &Command) -> Result<Reply, Halt> {
    set.request_id.clone_from(&command.request_id);
    match &command.op {
        Op::Create { tasks } => create::create(set, tasks),
        Op::Lease { task, choice, ttl_ms, origin } => lease::lease(set, *task, choice, *ttl_ms, *origin),
        Op::Push { task, worker, ttl_ms } => push::push(set, *task, worker, *ttl_ms),
        Op::EndPush { task, lease, end } => push::end(set, *task, *lease, end),
        Op::Claim(claim) => lease::claim(set, claim),
        Op::Heartbeat { task, holder } => running::heartbeat(set, *task, holder),
        Op::RenewLeases { worker, leases } => running::renew(set, worker, leases),
        Op::AppendEvents { task, lease, events } => running::append_events(set, *task, *lease, events),
        Op::Complete(completion) => complete::complete(set, completion),
        Op::Release { task, lease, reason } => lease_end::release(set, *task, *lease, reason),
        Op::ExpireLease { task, lease, grace } => expire::expire(set, *task, *lease, grace),
        Op::Cancel { task } => task_ops::cancel(set, *task),
        Op::Requeue { task } => task_ops::requeue(set, *task),
        Op::ClockStepped { task, step_ms, at } => expire::clock_stepped(set, *task, *step_ms, *at),
        Op::Reevaluate { tasks, progress } => reevaluate::reevaluate(set, tasks, progress.as_ref()),
        Op::RegisterWorker(change) => workers::register(set, change),
        Op::RemoveWorker { worker } => workers::remove(set, worker),
        Op::Cordon { worker, wish } => workers::cordon(set, worker, *wish),
        Op::RecordLastSeen { last_seen } => workers::record_seen(set, last_seen),
        Op::MarkOffline { worker, cause } => workers::mark_offline(set, worker, cause),
        Op::Configure { membridge_server_url, membridge_admin_key } => task_ops::configure(set, membridge_server_url, membridge_admin_key),
        Op::RecordAudit { action, entity_type, entity_id, actor, detail } => {
            set.audit(*action, *entity_type, entity_id, actor, detail.clone());
            Ok(Reply::Done)
        }
    }
}
