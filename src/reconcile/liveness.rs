//! Marks workers that have not been seen for too long.

use super::Context;
use crate::core::Ms;
use crate::core::command::{Loss, Op, Rejection, Reply};
use crate::engine::Error;

pub(super) async fn run(context: Context) {
    let engine = context.engine.clone();
    context.drive("worker_liveness", &engine.alarms().worker_silent, look).await;
}

async fn look(context: Context) -> Result<Option<Ms>, Error> {
    let engine = &context.engine;
    let silent_for_ms = context.options.worker_offline_after_ms;
    let (silent, mut next) = engine.silent_workers(silent_for_ms);
    for worker in silent {
        let Some(command) = context.led(Op::LoseWorker { worker: worker.clone(), cause: Loss::Silent { for_ms: silent_for_ms } }) else {
            return Ok(None);
        };
        match engine.submit(command).await {
            // Seen through another replica.
            Ok(Reply::NotDue(at)) => {
                engine.seen(&worker, at - silent_for_ms - 1);
                next = Some(next.map_or(at, |next| next.min(at)));
            }
            Ok(_) => {}
            Err(Error::Rejected(Rejection::NotLeader)) => return Ok(context.stands_down()),
            Err(error) => return Err(error),
        }
    }
    Ok(next)
}
