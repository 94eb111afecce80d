//! Ends leases whose time is over.

use super::{Context, PAGE, housekeeping};
use crate::core::Ms;
use crate::core::command::{Op, Rejection, Reply};
use crate::engine::Error;

pub(super) async fn run(context: Context) {
    let engine = context.engine.clone();
    housekeeping::grace(&engine).await;
    engine.spawn(housekeeping::served(engine.clone()));
    context.drive("lease_expiry", &engine.alarms().lease_due, look).await;
}

async fn look(context: Context) -> Result<Option<Ms>, Error> {
    let engine = &context.engine;
    loop {
        let (due, next) = engine.due_leases(PAGE);
        if due.is_empty() {
            return Ok(next);
        }
        let commands: Vec<_> = due.iter().filter_map(|(task, lease)| context.led(Op::ExpireLease { task: *task, lease: *lease })).collect();
        if commands.len() < due.len() {
            return Ok(None);
        }
        for ((task, _), reply) in due.iter().zip(engine.submit_all(commands).await) {
            match reply {
                // Renewed through another replica.
                Ok(Reply::NotDue(at)) => engine.defer_expiry(*task, at),
                // Ended, here or elsewhere; should this replica not know yet, it asks again in a while.
                Ok(_) => engine.defer_expiry(*task, engine.now() + 1_000),
                Err(Error::Rejected(Rejection::NotLeader)) => return Ok(context.stands_down()),
                Err(error) => return Err(error),
            }
        }
    }
}
