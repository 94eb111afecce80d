//! Ends expired leases.
//!
//! Leases expire by the database's clock. After a period in which nobody could renew them, or after a step of that clock, they first get a
//! grace period. Each run therefore begins with the service mark, which shows both.

use std::sync::Arc;

use bloom_core::Ms;
use bloom_core::command::Grace;
use bloom_core::ids::{LeaseId, TaskId};
use bloom_core::op;
use bloom_core::reply::Due;
use bloom_core::task::TaskState;
use bloom_database::Service;
use bloom_engine::Error;
use tokio::sync::Mutex;

use super::service::{self, ClockStep, ClockSteps, Reading};
use super::{PAGE, PAGE_ROWS, RECONCILE_EVERY_MS, ReconcileContext, unreadable};

/// How long workers have to renew their leases after a period in which no replica served.
const GRACE_MS: i64 = 10_000;
/// The interval of the search for leases that last too long. If a clock steps and steps back between two runs, neither run notices it, so
/// leases that were made or renewed in between have a wrong expiry. The search reads all active leases.
const TTL_CHECK_EVERY_MS: Ms = 5_000;

pub(super) async fn run(context: ReconcileContext, steps: ClockSteps) {
    let engine = context.engine.clone();
    let clock = Arc::new(Mutex::new(ObservedClock { steps, ..ObservedClock::default() }));
    context.run("lease_expiry", &engine.alarms.lease_due, RECONCILE_EVERY_MS, |context| reconcile(context, clock.clone())).await;
}

/// The state of the database's clock, as observed during this leadership.
#[derive(Default)]
struct ObservedClock {
    steps: ClockSteps,
    epoch: Option<i64>,
    /// The number of the last clock step to which all active leases were adjusted.
    followed: u64,
    grace: Grace,
    /// When the next search for leases that last longer than their TTL is due, in the elapsed time of this process.
    next_ttl_check_ms: Ms,
}

impl ObservedClock {
    fn observe(&mut self, epoch: i64, service: Service) {
        if self.epoch != Some(epoch) {
            // A step forward also ends the previous leadership, so the new leader may have to adjust the leases.
            *self = Self { steps: self.steps.clone(), epoch: Some(epoch), ..Self::default() };
        }
        self.grace = Grace { resumed_at: service.resumed_at, grace_ms: GRACE_MS, found_due_at: None };
    }

    /// The recent steps to which some active leases may not have been adjusted yet. A step counts as followed only when all commands for it
    /// have succeeded. After a step forward they may be refused, and this replica leads again with the same epoch.
    fn unfollowed(&self) -> Vec<ClockStep> {
        self.steps.after(self.followed)
    }
}

async fn reconcile(context: ReconcileContext, clock: Arc<Mutex<ObservedClock>>) -> Result<Option<Ms>, Error> {
    let mut clock = clock.lock().await;
    let database = &context.engine.database;
    let Some(epoch) = context.leadership.epoch() else { return Ok(None) };
    let (service, reading) = service::marked(&context.engine, &clock.steps).await.map_err(unreadable)?;
    clock.observe(epoch, service);
    for ClockStep { number, step_ms, .. } in clock.unfollowed() {
        tracing::warn!(step_ms, "the clock of the database has stepped; active leases are adjusted");
        if !follow_step(&context, step_ms, service.now).await? {
            return Ok(None);
        }
        clock.followed = number;
    }
    while clock.next_ttl_check_ms <= reading.answered_ms {
        let leases = database.leases_beyond_ttl(PAGE_ROWS).await.map_err(unreadable)?;
        if leases.len() < PAGE {
            clock.next_ttl_check_ms = reading.answered_ms + TTL_CHECK_EVERY_MS;
        }
        if !leases.is_empty() && !end(&context, leases, clock.grace).await? {
            return Ok(None);
        }
    }
    loop {
        let asked_ms = context.engine.clock.elapsed_ms();
        let due = database.due_leases(PAGE_ROWS).await.map_err(unreadable)?;
        clock.steps.observe(Reading::of(&context.engine, asked_ms, due.now));
        if !clock.unfollowed().is_empty() {
            return Ok(Some(context.engine.clock.now()));
        }
        if due.items.is_empty() {
            return Ok(due.next_at);
        }
        // The mark is written after the query, so that a gap in service during the query leads to a grace period, too.
        let (service, _) = service::marked(&context.engine, &clock.steps).await.map_err(unreadable)?;
        if !clock.unfollowed().is_empty() {
            return Ok(Some(context.engine.clock.now()));
        }
        clock.grace.resumed_at = service.resumed_at;
        let is_last = due.items.len() < PAGE;
        if !end(&context, due.items, Grace { found_due_at: Some(due.now), ..clock.grace }).await? {
            return Ok(None);
        }
        if is_last {
            return Ok(due.next_at);
        }
    }
}

/// Moves the expiry of all active leases by the step. Returns whether this replica still leads.
async fn follow_step(context: &ReconcileContext, step_ms: Ms, at: Ms) -> Result<bool, Error> {
    let mut after = None;
    loop {
        let page = context.engine.database.active_tasks(after, PAGE_ROWS).await.map_err(unreadable)?;
        after = page.last().map(|task| task.id);
        let follow = |task: &TaskState| op::ClockStepped { task: task.id, step_ms, at };
        if context.submit_led(page.iter().map(follow)).await?.is_none() {
            return Ok(false);
        }
        if page.len() < PAGE {
            return Ok(true);
        }
    }
}

/// Ends these leases, unless they get a grace period. Returns whether this replica still leads.
async fn end(context: &ReconcileContext, leases: Vec<(TaskId, LeaseId)>, grace: Grace) -> Result<bool, Error> {
    let expire = |(task, lease)| op::ExpireLease { task, lease, grace };
    let Some(replies) = context.submit_led(leases.into_iter().map(expire)).await? else { return Ok(false) };
    for reply in replies {
        match reply {
            // The lease was renewed after the query, or got a grace period.
            Due::Later(at) => context.engine.alarms.lease_due.ring_before(at),
            Due::Done => context.progress.add(1),
        }
    }
    Ok(true)
}
