//! The tasks that stay cancelled when those that they depend on are requeued. They are queued again by a command of their own, because a
//! person may have changed something meanwhile.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use uuid::Uuid;

use super::filters::Filters;
use crate::progress::number;
use crate::server_calls::{Server, read, with_query};
use crate::{ids, term};
use bloom_api::lists::MAX_IDS;
use bloom_api::tasks::Task;
use bloom_core::task::{Reason, Status};

/// What the failure of each such task says, after the id of the task that it depends on.
const FATE: &str = "did not complete";

/// How many calls look for the cancelled tasks, with how many on a page, and how many calls look for those that they depend on.
const MAX_PAGES: usize = 10;
const PAGE: usize = 200;
const MAX_LOOK_UPS: usize = 10;
/// The maximum number of tasks that are named.
const MAX_NAMED: usize = 100;

/// The tasks that were requeued.
pub(crate) enum Requeued<'a> {
    Ids(&'a [String]),
    Matching(&'a Filters),
}

/// Says how many tasks stay cancelled, and which command queues them again. The calls are needed only for that, so the command does not
/// fail if they do.
pub(crate) async fn tell(server: &Server, requeued: Requeued<'_>) {
    let (awaited, more) = cancelled(server).await;
    if awaited.is_empty() {
        return;
    }
    let is_one = matches!(requeued, Requeued::Ids([_]));
    let mut roots = match requeued {
        Requeued::Ids(ids) => ids.iter().filter_map(|id| id.parse().ok()).collect(),
        Requeued::Matching(filters) => queued_again(server, filters, &awaited).await,
    };
    // What is still cancelled was not requeued.
    roots.retain(|id| !awaited.contains_key(id));
    if let Some(text) = text(&levels(&awaited, roots), is_one, more) {
        term::info(&text);
    }
}

/// The tasks that were cancelled because another one did not complete, newest first, each with that one; and whether there are more.
async fn cancelled(server: &Server) -> (BTreeMap<Uuid, Uuid>, bool) {
    let query = [("status", Status::Cancelled.as_str().to_owned()), ("search", FATE.to_owned()), ("limit", PAGE.to_string())];
    let (mut awaited, mut next) = (BTreeMap::new(), Some(with_query("api/runtime/llm-tasks", &query)));
    for _ in 0..MAX_PAGES {
        let Some(page) = next.take() else { break };
        let Ok((found, after)) = server.page(&page).await else { break };
        awaited.extend(found.iter().filter_map(awaits));
        next = after;
    }
    (awaited, next.is_some())
}

/// The id of the task, and that of the task because of which it was cancelled.
fn awaits(task: &Value) -> Option<(Uuid, Uuid)> {
    let task: Task = read(task).ok()?;
    let failure = task.failure.filter(|failure| failure.reason == Reason::DependencyFailed)?;
    let named = failure.message.strip_suffix(FATE)?.strip_prefix("task ")?.trim_end().parse().ok()?;
    Some((task.id, named))
}

/// Those of the tasks because of which others were cancelled that match the filters, whatever their status was, and are open again: a bulk
/// call answers with numbers alone.
async fn queued_again(server: &Server, filters: &Filters, awaited: &BTreeMap<Uuid, Uuid>) -> BTreeSet<Uuid> {
    let filters = filters.of_any_run();
    let wanted: Vec<Uuid> = awaited.values().copied().collect::<BTreeSet<_>>().into_iter().rev().collect();
    let mut again = BTreeSet::new();
    for some in wanted.chunks(MAX_IDS).take(MAX_LOOK_UPS) {
        let Ok(found) = ids::existing(server, some).await else { break };
        let tasks = found.iter().filter_map(|task| read::<Task>(task).ok());
        let is_open = |task: &Task| [Status::Queued, Status::Leased, Status::Running].iter().any(|status| task.status == *status);
        again.extend(tasks.filter(|task| is_open(task) && filters.fits(task)).map(|task| task.id));
    }
    again
}

/// The cancelled tasks that depend on the roots, then those that depend on these, and so on.
fn levels(awaited: &BTreeMap<Uuid, Uuid>, mut roots: BTreeSet<Uuid>) -> Vec<Vec<Uuid>> {
    let mut levels = Vec::new();
    // It ends, because each task awaits one other, which is older, and no root awaits any.
    loop {
        let level: Vec<Uuid> = awaited.iter().filter(|(_, root)| roots.contains(root)).map(|(id, _)| *id).collect();
        if level.is_empty() {
            return levels;
        }
        roots = level.iter().copied().collect();
        levels.push(level);
    }
}

/// `None` if no task stays cancelled.
fn text(levels: &[Vec<Uuid>], is_one: bool, more: bool) -> Option<String> {
    let all: Vec<String> = levels.iter().flatten().map(ids::short).collect();
    let direct = levels.first()?.len();
    let named = all.iter().take(MAX_NAMED).map(String::as_str).collect::<Vec<_>>().join(" ");
    let (on, or_more) = (if is_one { "it" } else { "them" }, if more { " or more" } else { "" });
    let others = match all.len() - direct {
        0 => String::new(),
        others => format!(" ({} directly, {} through others)", number(direct as u64), number(others as u64)),
    };
    let stay = match all.len() {
        1 if !more => format!("1 task that depends on {on} stays cancelled. To queue it again"),
        count => format!("{}{or_more} tasks that depend on {on} stay cancelled{others}. To queue them again", number(count as u64)),
    };
    let rest = if all.len() > MAX_NAMED || more { "; to see the others: bloom-runtime task list --status cancelled" } else { "" };
    Some(format!("{stay}: bloom-runtime task retry {named}{rest}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn direct_and_indirect_dependents_are_told_with_the_command() {
        let id = |number: u128| Uuid::from_u128(number);
        let awaited = BTreeMap::from([(id(2), id(1)), (id(3), id(1)), (id(4), id(3)), (id(6), id(5))]);
        let told = |root, is_one, more| text(&levels(&awaited, BTreeSet::from([id(root)])), is_one, more);
        let all = "3 tasks that depend on it stay cancelled (2 directly, 1 through others). To queue them again: bloom-runtime task retry \
                   00000002 00000003 00000004";
        assert_eq!(told(1, true, false).as_deref(), Some(all));
        let one = "1 task that depends on them stays cancelled. To queue it again: bloom-runtime task retry 00000006";
        assert_eq!(told(5, false, false).as_deref(), Some(one));
        assert!(told(5, true, true).unwrap().starts_with("1 or more tasks that depend on it stay cancelled. To queue"));
        assert_eq!(told(2, true, false), None);
    }
}
