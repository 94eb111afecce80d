//! The loops that drive what is toward what was asked.
//!
//! They own no state: each looks (a bounded snapshot, and the next deadline), and sends commands like everybody else. They are woken by
//! changes and by deadlines; a slow resync stands behind both. All but the shared housekeeping run on the replica that leads.

mod counts;
mod expire;
mod housekeeping;
mod leader;
mod liveness;
mod push;
mod sync;
mod timers;

use std::time::Instant;

use crate::agents::Agents;
use crate::core::Ms;
use crate::core::command::{Command, Op};
use crate::engine::{Alarm, Engine, Error};
use crate::membridge::Membridge;

pub use leader::Leadership;
pub use sync::load_settings;

#[derive(Clone, Debug)]
pub struct Options {
    pub worker_offline_after_ms: i64,
    /// How often the control plane is asked for its workers.
    pub worker_sync_ms: i64,
    /// Of a lease by push.
    pub lease_ttl_ms: i64,
    /// Days that finished tasks are kept; 0 = for ever.
    pub task_retention_days: u32,
    /// Days that the audit trail is kept; 0 = for ever.
    pub audit_retention_days: u32,
}

/// A look at least so often, should every wake-up have been lost.
const RESYNC_MS: Ms = 30_000;
/// After an error, the next try.
const RETRY_MS: Ms = 500;
/// Rows that a loop takes up at once.
const PAGE: usize = 500;

/// Starts the loops; they end with the engine.
pub fn start(engine: &Engine, agents: &Agents, membridge: &Membridge, options: Options) {
    let leadership = Leadership::default();
    let context = Context { engine: engine.clone(), leadership: leadership.clone(), options };
    engine.spawn(leader::keep(engine.clone(), leadership));
    engine.spawn(expire::run(context.clone()));
    engine.spawn(liveness::run(context.clone()));
    engine.spawn(timers::run(context.clone()));
    engine.spawn(push::run(context.clone(), agents.clone()));
    engine.spawn(timers::resync(context.clone()));
    engine.spawn(housekeeping::fold(context.clone()));
    engine.spawn(housekeeping::retain(context.clone()));
    engine.spawn(counts::check(context.clone()));
    engine.spawn(sync::workers(context, membridge.clone()));
    engine.spawn(sync::settings(engine.clone(), membridge.clone()));
}

#[derive(Clone)]
struct Context {
    engine: Engine,
    leadership: Leadership,
    options: Options,
}

impl Context {
    /// A command that counts only while this replica leads.
    fn led(&self, op: Op) -> Option<Command> {
        Some(Command { op, request_id: None, epoch: Some(self.leadership.epoch()?) })
    }

    /// The commit said that somebody else leads. Nothing is due here until that changes.
    fn stands_down(&self) -> Option<Ms> {
        self.leadership.is_over();
        None
    }

    /// Runs a look for ever: whenever its alarm rings, its next time has come, or nothing was heard for a while. The look answers when
    /// it wants to be run again at the latest.
    async fn drive<F>(&self, name: &'static str, alarm: &Alarm, mut look: impl FnMut(Self) -> F)
    where
        F: Future<Output = Result<Option<Ms>, Error>>,
    {
        loop {
            tokio::select! {
                () = self.leadership.begins() => {}
                () = self.engine.stopped() => {}
            }
            if self.engine.is_stopping() {
                return;
            }
            let started = Instant::now();
            let outcome = look(self.clone()).await;
            self.engine.metrics().reconciled(name, started.elapsed().as_secs_f64(), outcome.is_ok());
            let now = self.engine.now();
            let next = match outcome {
                Ok(at) => at.unwrap_or(Ms::MAX).min(now + RESYNC_MS),
                Err(_) => now + RETRY_MS,
            };
            if self.leadership.epoch().is_some() {
                alarm.wait_until(&self.engine, next).await;
            }
        }
    }

    /// As [`drive`](Self::drive), at a fixed pace.
    async fn every<F>(&self, name: &'static str, pause_ms: Ms, mut look: impl FnMut(Self) -> F)
    where
        F: Future<Output = Result<(), Error>>,
    {
        let alarm = Alarm::default();
        self.drive(name, &alarm, |context| {
            let engine = context.engine.clone();
            let looking = look(context);
            async move {
                looking.await?;
                Ok(Some(engine.now() + pause_ms))
            }
        })
        .await;
    }
}
