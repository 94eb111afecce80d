//! Ends leases whose time is over.
//!
//! The time that counts is the database's. While nobody could renew leases, or when that clock stepped, they get a grace first: so each
//! look begins with the service mark, which tells of both.

use std::sync::Arc;

use bloom_core::Ms;
use bloom_core::command::{Grace, Op, Rejection, Reply};
use bloom_core::ids::{LeaseId, TaskId};
use bloom_database::Service;
use bloom_engine::Error;
use tokio::sync::Mutex;

use super::{Context, LOOK_EVERY_MS, PAGE, PAGE_ROWS, unreadable};

/// So long do workers have to come back after a time in which no replica served.
const GRACE_MS: i64 = 10_000;
/// The database's clock and this machine's may differ by so much between two looks; more is a step.
const STEP_MS: Ms = 2_000;

pub(super) async fn run(context: Context) {
    let engine = context.engine.clone();
    let clock = Arc::new(Mutex::new(Clock::default()));
    context.drive("lease_expiry", &engine.alarms().lease_due, LOOK_EVERY_MS, |context| look(context, clock.clone())).await;
}

/// What this leadership knows of the database's clock.
#[derive(Default)]
struct Clock {
    epoch: Option<i64>,
    /// Its time, and what had passed here by then.
    read: Option<(Ms, Ms)>,
    grace: Grace,
    /// Leases may seem to last longer than their TTL: the clock may have stepped back.
    may_be_behind: bool,
}

impl Clock {
    /// Answers how far the clock has stepped since the last look.
    fn heed(&mut self, epoch: i64, service: Service, elapsed_ms: Ms) -> Ms {
        let mut step = self.step(service.now, elapsed_ms);
        if self.epoch != Some(epoch) {
            *self = Self { epoch: Some(epoch), may_be_behind: true, ..Self::default() };
            step = 0;
        }
        self.read = Some((service.now, elapsed_ms));
        self.grace = Grace { resumed_at: service.resumed_at, grace_ms: GRACE_MS, found_due_at: None };
        if step.abs() > STEP_MS { step } else { 0 }
    }

    /// How far the clock has moved besides what has passed.
    fn step(&self, now: Ms, elapsed_ms: Ms) -> Ms {
        self.read.map_or(0, |(then, elapsed_then_ms)| now - then - (elapsed_ms - elapsed_then_ms))
    }
}

async fn look(context: Context, clock: Arc<Mutex<Clock>>) -> Result<Option<Ms>, Error> {
    let mut clock = clock.lock().await;
    let database = context.engine.database();
    let Some(epoch) = context.leadership.epoch() else { return Ok(None) };
    let service = database.mark_served().await.map_err(unreadable)?;
    let step_ms = clock.heed(epoch, service, context.engine.elapsed_ms());
    if step_ms != 0 {
        tracing::warn!(step_ms, "the database's clock has stepped; leases go on as if it had not");
        if !follow_step(&context, step_ms, service.now).await? {
            return Ok(None);
        }
    }
    while clock.may_be_behind {
        let leases = database.leases_beyond_ttl(PAGE_ROWS).await.map_err(unreadable)?;
        clock.may_be_behind = leases.len() == PAGE;
        if !leases.is_empty() && !end(&context, leases, clock.grace).await? {
            return Ok(None);
        }
    }
    loop {
        let due = database.due_leases(PAGE_ROWS).await.map_err(unreadable)?;
        if clock.step(due.now, context.engine.elapsed_ms()).abs() > STEP_MS {
            return Ok(Some(context.engine.now()));
        }
        if due.items.is_empty() {
            return Ok(due.next_at);
        }
        let is_last = due.items.len() < PAGE;
        if !end(&context, due.items, Grace { found_due_at: Some(due.now), ..clock.grace }).await? {
            return Ok(None);
        }
        if is_last {
            return Ok(due.next_at);
        }
    }
}

/// Answers whether this replica still leads.
async fn follow_step(context: &Context, step_ms: Ms, at: Ms) -> Result<bool, Error> {
    let mut after = None;
    loop {
        let page = context.engine.database().active_tasks(after, PAGE_ROWS).await.map_err(unreadable)?;
        after = page.last().map(|task| task.id);
        let tasks = page.iter().map(|task| task.id).collect();
        let Some(command) = context.led(Op::ClockStepped { tasks, step_ms, at }) else { return Ok(false) };
        match context.engine.submit(command).await {
            Ok(_) if page.len() < PAGE => return Ok(true),
            Ok(_) => {}
            Err(Error::Rejected(Rejection::NotLeader)) => {
                context.stands_down();
                return Ok(false);
            }
            Err(error) => return Err(error),
        }
    }
}

/// Answers whether this replica still leads.
async fn end(context: &Context, leases: Vec<(TaskId, LeaseId)>, grace: Grace) -> Result<bool, Error> {
    let commands: Vec<_> =
        leases.iter().filter_map(|(task, lease)| context.led(Op::ExpireLease { task: *task, lease: *lease, grace })).collect();
    if commands.len() < leases.len() {
        return Ok(false);
    }
    for reply in context.engine.submit_all(commands).await {
        match reply {
            // Renewed since it was looked at; when it is due next stands beside it now.
            Ok(Reply::NotDue(at)) => context.engine.alarms().lease_due.ring_before(at),
            Ok(_) => {}
            Err(Error::Rejected(Rejection::NotLeader)) => {
                context.stands_down();
                return Ok(false);
            }
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}
