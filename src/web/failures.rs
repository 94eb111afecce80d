//! What failed in the last day, grouped by cause: many tasks that failed for one cause are one row of the overview.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use crate::refused::Refused;
use crate::tasks::cells::{Alike, Named};
use crate::tasks::filter::Filter;
use crate::tasks::list::Row;
use crate::times::{at_least, shortened};
use crate::visit::Visit;
use bloom_api::tasks::Task;
use bloom_core::task::Status;

/// The maximum number of tasks that are read of each status; "failed" has two.
const READ: usize = 100;
/// The maximum number of agents that a row names.
const AGENTS: usize = 3;
/// How much of a message is read to compare it, and how much of what is left without numbers is compared.
const READ_CHARS: usize = 2_000;
const COMPARED_CHARS: usize = 300;

pub(crate) struct Failures {
    /// One row for each cause, the newest first.
    pub rows: Vec<Row>,
    /// How many tasks failed.
    pub count: usize,
    /// Whether more tasks failed than were read.
    pub is_more: bool,
}

struct Failure {
    cause: (String, String),
    agent: String,
    row: Row,
}

impl Failure {
    fn of(visit: &Visit, task: Task<'_>) -> Self {
        let failure = task.last_failure();
        let reason = failure.map(|failure| failure.reason.to_string()).unwrap_or_default();
        let message = failure.map(|failure| compared(&failure.message)).unwrap_or_default();
        let agent = task.agent_slug.to_string();
        Self { cause: (reason, message), agent, row: Row::of(visit.layout.at.lang, visit.layout.now, task) }
    }
}

/// What is compared of a message: its words without ids and numbers, which differ from task to task.
fn compared(message: &str) -> String {
    let start = shortened(message, READ_CHARS);
    let words = start.split(|letter: char| !letter.is_alphanumeric() && !"-_".contains(letter));
    let told = words.filter(|word| !word.is_empty() && !word.contains(|letter: char| letter.is_ascii_digit()));
    shortened(&told.collect::<Vec<_>>().join(" "), COMPARED_CHARS)
}

impl Failures {
    pub(crate) async fn lately(visit: &Visit) -> Result<Self, Refused> {
        let (filter, now) = (Filter::of_last_day(Status::Failed), visit.layout.now);
        let (mut found, mut is_more) = (Vec::new(), false);
        for status in filter.statuses() {
            let path = format!("llm-tasks?limit={READ}&{}", filter.query(status, now));
            let listed = visit.list(&path, |task: Task| Failure::of(visit, task)).await?;
            found.extend(listed.rows);
            is_more |= listed.next.is_some();
        }
        let count = found.len();
        let mut causes: BTreeMap<(String, String), Vec<Failure>> = BTreeMap::new();
        for failure in found {
            causes.entry(failure.cause.clone()).or_default().push(failure);
        }
        let mut rows: Vec<Row> = causes.into_values().filter_map(|alike| one_row(visit, alike, is_more)).collect();
        rows.sort_by_key(|row| Reverse(row.updated_at));
        Ok(Self { rows, count, is_more })
    }

    /// How many tasks failed, in words.
    pub(crate) fn count(&self, visit: &Visit) -> String {
        at_least(visit.layout.at.lang, self.count as i64, self.is_more)
    }
}

/// The row of the newest of these tasks. A task that is alone is shown as in other lists.
fn one_row(visit: &Visit, mut alike: Vec<Failure>, is_more: bool) -> Option<Row> {
    alike.sort_by_key(|failure| Reverse(failure.row.updated_at));
    let count = alike.len();
    let agents: BTreeSet<String> = alike.iter().map(|failure| failure.agent.clone()).collect();
    let Failure { cause: (reason, _), row, .. } = alike.into_iter().next()?;
    if count == 1 {
        return Some(row);
    }
    let of_day = Filter::of_last_day(Status::Failed);
    let named = |agent: &String| {
        let mut named = Named::of("agent_slug", agent);
        if !named.link.is_empty() {
            named.link.push_str(&format!("&status={}&finished_since={}", of_day.status, of_day.finished_since));
        }
        named
    };
    let alike = Alike {
        count: at_least(visit.layout.at.lang, count as i64, is_more),
        reason: visit.layout.word(reason).into_owned(),
        message: row.note.text(),
        agents: agents.iter().take(AGENTS).map(named).collect(),
        other_agents: agents.len().saturating_sub(AGENTS),
    };
    Some(Row { alike: Some(alike), ..row })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_and_numbers_do_not_make_another_cause() {
        let same = ["task 0190a0a0-0000-7000-8000-000000000001: no such table: users (3 s)", "task 17: no such table: users (12 s)"];
        assert_eq!(same.map(compared), ["task no such table users s", "task no such table users s"]);
        assert_ne!(compared("no such table: users"), compared("no such table: orders"));
        assert_eq!(compared(&"ї ".repeat(5_000)).chars().count(), COMPARED_CHARS + 1);
        assert_eq!(compared(""), "");
    }
}
