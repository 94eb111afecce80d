//! Ends leases whose time is over.
//!
//! The time that counts is the database's. While nobody could renew leases, or when that clock stepped, they get a grace first: so each
//! run begins with the service mark, which tells of both.

use std::sync::Arc;

use bloom_core::Ms;
use bloom_core::command::{Grace, Op, Rejection, Reply};
use bloom_core::ids::{LeaseId, TaskId};
use bloom_database::Service;
use bloom_engine::Error;
use tokio::sync::Mutex;

use super::service::{MarkedStep, Reading, STEP_MS};
use super::{Context, PAGE, PAGE_ROWS, RECONCILE_EVERY_MS, unreadable};

/// So long do workers have to come back after a time in which no replica served.
const GRACE_MS: i64 = 10_000;
/// A clock that steps and steps back between two runs is seen by neither; leases that were decided on in between are found by this. It
/// reads all active leases.
const LOOK_BEHIND_EVERY_MS: Ms = 5_000;

pub(super) async fn run(context: Context, marked: MarkedStep) {
    let engine = context.engine.clone();
    let clock = Arc::new(Mutex::new(Clock { marked, ..Clock::default() }));
    context.run("lease_expiry", &engine.alarms().lease_due, RECONCILE_EVERY_MS, |context| reconcile(context, clock.clone())).await;
}

/// What this leadership knows of the database's clock.
#[derive(Default)]
struct Clock {
    marked: MarkedStep,
    epoch: Option<i64>,
    read: Option<Reading>,
    grace: Grace,
    /// From when on, by this machine's elapsed time, a look for leases that seem to last longer than their TTL is due: the clock may have
    /// stepped back unseen.
    look_behind_ms: Ms,
}

impl Clock {
    /// Answers how far the clock has stepped since the last run.
    fn heed(&mut self, epoch: i64, service: Service, reading: Reading) -> Ms {
        let mut step = self.step(&reading);
        if self.epoch != Some(epoch) {
            // A step forward ends the leadership of before, so it is perhaps for this one to follow.
            step = self.marked.recent(reading.told_ms);
            *self = Self { marked: self.marked.clone(), epoch: Some(epoch), ..Self::default() };
        }
        self.read = Some(reading);
        self.grace = Grace { resumed_at: service.resumed_at, grace_ms: GRACE_MS, found_due_at: None };
        if step.abs() > STEP_MS { step } else { 0 }
    }

    fn step(&self, reading: &Reading) -> Ms {
        self.read.map_or(0, |earlier| reading.step_since(&earlier))
    }
}

async fn reconcile(context: Context, clock: Arc<Mutex<Clock>>) -> Result<Option<Ms>, Error> {
    let mut clock = clock.lock().await;
    let database = context.engine.database();
    let Some(epoch) = context.leadership.epoch() else { return Ok(None) };
    let asked_ms = context.engine.elapsed_ms();
    let service = database.mark_served().await.map_err(unreadable)?;
    let reading = Reading { now: service.now, asked_ms, told_ms: context.engine.elapsed_ms() };
    let step_ms = clock.heed(epoch, service, reading);
    if step_ms != 0 {
        tracing::warn!(step_ms, "the clock of the database has stepped; active leases are adjusted");
        if !follow_step(&context, step_ms, service.now).await? {
            return Ok(None);
        }
    }
    while clock.look_behind_ms <= reading.told_ms {
        let leases = database.leases_beyond_ttl(PAGE_ROWS).await.map_err(unreadable)?;
        if leases.len() < PAGE {
            clock.look_behind_ms = reading.told_ms + LOOK_BEHIND_EVERY_MS;
        }
        if !leases.is_empty() && !end(&context, leases, clock.grace).await? {
            return Ok(None);
        }
    }
    loop {
        let asked_ms = context.engine.elapsed_ms();
        let due = database.due_leases(PAGE_ROWS).await.map_err(unreadable)?;
        let reading = Reading { now: due.now, asked_ms, told_ms: context.engine.elapsed_ms() };
        if clock.step(&reading).abs() > STEP_MS {
            return Ok(Some(context.engine.now()));
        }
        if due.items.is_empty() {
            return Ok(due.next_at);
        }
        // Marked after the look, so that the grace is of that moment or later, however long the look took.
        let asked_ms = context.engine.elapsed_ms();
        let service = database.mark_served().await.map_err(unreadable)?;
        let reading = Reading { now: service.now, asked_ms, told_ms: context.engine.elapsed_ms() };
        if clock.step(&reading).abs() > STEP_MS {
            return Ok(Some(context.engine.now()));
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

#[cfg(test)]
mod tests {
    use super::Reading;

    #[test]
    fn an_answer_that_takes_long_is_no_step_of_the_clock() {
        let first = Reading { now: 1_000_000, asked_ms: 0, told_ms: 10 };
        for (now, asked_ms, told_ms, step) in [
            (1_001_000, 1_000, 1_010, 0),
            // Its clock was read long before it answered.
            (1_001_000, 1_000, 6_000, 0),
            (1_006_000, 1_000, 6_000, 0),
            (4_601_000, 1_000, 1_010, 3_599_990),
            (-2_599_000, 1_000, 1_010, -3_599_990),
        ] {
            assert_eq!(Reading { now, asked_ms, told_ms }.step_since(&first), step, "{now}");
        }
    }
}
