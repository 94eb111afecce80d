//! Runs a command in every case and compares the outcomes with a table.

use super::cases::{Case, cases};
use bloom_core::command::{Op, Rejection, Reply};
use bloom_core::ids::TaskId;
use bloom_core::reply;
use bloom_core::reply::Due;
use bloom_core::reply::StoredResult;
use bloom_test_world::world::World;

/// Checks the outcomes of `op` in every state. A line of the table is an outcome, `<-`, and the states that lead to it.
pub fn check(op: impl Fn(&mut Case) -> Op, expected: &str) {
    check_in(cases().into_iter(), op, expected);
}

/// Like [`check`], but only in these states.
pub fn check_in(cases: impl Iterator<Item = Case>, op: impl Fn(&mut Case) -> Op, expected: &str) {
    let rows = cases.map(|mut case| {
        let op = op(&mut case);
        let before = case.world.clone();
        let answer = case.world.run(op);
        case.world.check();
        (case.name, outcome(&before, &case.world, case.task, &answer))
    });
    compare(rows, expected);
}

pub fn compare(rows: impl Iterator<Item = (&'static str, String)>, expected: &str) {
    let mut outcomes: Vec<(String, Vec<&str>)> = Vec::new();
    for (state, outcome) in rows {
        match outcomes.iter_mut().find(|(other, _)| *other == outcome) {
            Some((_, states)) => states.push(state),
            None => outcomes.push((outcome, vec![state])),
        }
    }
    let lines: Vec<String> = outcomes.into_iter().map(|(outcome, states)| format!("{outcome} <- {}", states.join(" | "))).collect();
    // A line that starts with a bar continues the line before.
    let expected = expected.lines().map(str::trim).collect::<Vec<_>>().join("\n").trim().replace("\n|", " |").replace("\n<-", " <-");
    assert!(lines.iter().eq(expected.lines()), "the outcomes differ from the table:\n{}\n", lines.join("\n"));
}

pub fn outcome(before: &World, after: &World, task: TaskId, answer: &Result<Reply, Rejection>) -> String {
    match answer {
        Err(rejection) => {
            assert_eq!(before.db, after.db, "a rejection changes nothing");
            format!("✗ {}", name_leases(before, &rejection.to_string()))
        }
        Ok(reply) => {
            let mut told: Vec<String> = said(reply).into_iter().collect();
            if before.db == after.db {
                told.push("unchanged".into());
            } else {
                told.push(describe(after, task));
                told.extend(ends(before, after));
                told.extend(audit(before, after));
            }
            told.join("; ")
        }
    }
}

fn name_leases(world: &World, text: &str) -> String {
    let leases = world.db.active().filter_map(|task| task.lease.as_ref()).map(|lease| lease.id).chain(world.db.past_leases.keys().copied());
    leases.fold(text.replace(&Case::no_lease().to_string(), "unknown"), |text, lease| text.replace(&lease.to_string(), "known"))
}

fn said(reply: &Reply) -> Option<String> {
    match reply {
        Reply::Completed(reply::Completed { result: StoredResult::Before(_), .. }) => Some("told before".into()),
        Reply::Completed(reply::Completed { result: StoredResult::UsageOnly(_), .. }) => Some("refused, but its usage counts".into()),
        Reply::Recorded(reply::Recorded { newest }) => Some(format!("newest {newest}")),
        Reply::RenewedLeases(reply::RenewedLeases { renewed, lost, .. }) => Some(format!("{} renewed, {} lost", renewed.len(), lost.len())),
        Reply::Due(Due::Later(_)) => Some("not due".into()),
        Reply::Claimed(reply::Claimed { leased, missed, .. }) => Some(format!("{} leased, {missed} missed", leased.len())),
        Reply::Worker(reply::ChangedWorker { created: true, .. }) => Some("new".into()),
        _ => None,
    }
}

fn describe(world: &World, task: TaskId) -> String {
    let Some(task) = world.db.tasks.get(&task) else { return "removed".into() };
    let mut text = format!("{} {}/{}", task.status, task.attempts, task.max_attempts);
    if task.infra_retries > 0 {
        text += &format!(" {} back", task.infra_retries);
    }
    if let Some(parked) = task.parked {
        text += &format!(" parked {parked}");
    }
    if let Some(lease) = &task.lease {
        text += &format!(" on {} till {}", lease.worker_id, (lease.expires_at - world.now) / 1000);
    }
    if task.cancel_requested {
        text += " cancel";
    }
    if let Some(failure) = &task.failure {
        text += &format!(" {}", failure.reason);
    }
    text
}

fn ends(before: &World, after: &World) -> Option<String> {
    let changed = after.db.past_leases.values().filter(|past| before.db.past_leases.get(&past.id) != Some(*past));
    let told: Vec<String> =
        changed.map(|past| format!("lease {}{}", past.status, if past.completed { " with result" } else { "" })).collect();
    (!told.is_empty()).then(|| told.join(", "))
}

fn audit(before: &World, after: &World) -> Option<String> {
    let new = after.db.audit.iter().skip(before.db.audit.len());
    let told: Vec<String> = new.map(|entry| format!("{} by {}", entry.action, entry.actor)).collect();
    (!told.is_empty()).then(|| told.join(", "))
}
