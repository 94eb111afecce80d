//! The tabs of the list of tasks: one for each status, with the number of its tasks that match the other filters.

use std::fmt;

use serde::de::IgnoredAny;

use super::filter::{Filter, NAMES};
use crate::refused::Refused;
use crate::visit::{Visit, joined};
use bloom_api::reports::Stats;
use bloom_core::task::Status;

/// The most tasks of a status that are counted while other filters are set. The API has no counts then, so the tasks are listed.
const COUNTED: usize = 50;

/// The statuses that have a link. The link of running tasks includes leased ones, and that of failed tasks includes dead ones.
const TABS: [Status; 5] = [Status::Queued, Status::Running, Status::Completed, Status::Failed, Status::Cancelled];

/// A link to the tasks of a status, or to those that wait for an answer. It keeps the other filters.
pub(super) struct Tab {
    pub link: String,
    pub name: String,
    pub is_here: bool,
    /// The number of its tasks; `None` if it is unknown.
    pub count: Option<Count>,
}

/// A number of tasks.
#[derive(Clone, Copy, Default)]
pub(super) struct Count {
    tasks: i64,
    /// Whether there may be more.
    is_more: bool,
}

impl Count {
    fn sum(counts: impl Iterator<Item = Self>) -> Self {
        counts.fold(Self::default(), |sum, one| Self { tasks: sum.tasks + one.tasks, is_more: sum.is_more || one.is_more })
    }

    async fn of(visit: &Visit, filter: &Filter, status: Option<Status>) -> Result<Self, Refused> {
        let path = format!("llm-tasks?limit={COUNTED}&{}", filter.query(status, visit.layout.now));
        let listed = visit.list(&path, |_: IgnoredAny| ()).await?;
        Ok(Self { tasks: listed.rows.len() as i64, is_more: listed.next.is_some() })
    }
}

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.tasks, if self.is_more { "+" } else { "" })
    }
}

struct Counts {
    by_status: Vec<(Status, Count)>,
    asking: Count,
}

impl Counts {
    /// `None` if they are not known: the visitor does not see all tasks, or the list is that of a search, which may read many tasks to find
    /// few.
    async fn of(visit: &Visit, filter: &Filter) -> Result<Option<Self>, Refused> {
        let others = Filter { status: String::new(), asks: String::new(), ..filter.clone() };
        if others.is_empty() {
            let Some(stats) = visit.find::<Stats>("stats").await? else { return Ok(None) };
            let exact = |tasks| Count { tasks, is_more: false };
            let of = |status: &Status| (*status, exact(stats.tasks.by_status.get(status.as_str()).copied().unwrap_or_default()));
            let by_status = Status::ALL.iter().map(of).collect();
            return Ok(Some(Self { by_status, asking: exact(visit.api.asking() as i64) }));
        }
        if !others.id.is_empty() || !others.text.is_empty() {
            return Ok(None);
        }
        let mut by_status = Vec::new();
        for status in Status::ALL {
            by_status.push((*status, Count::of(visit, &others, Some(*status)).await?));
        }
        let asking = Filter { asks: Filter::asking().asks, ..others };
        Ok(Some(Self { by_status, asking: Count::of(visit, &asking, None).await? }))
    }

    /// The number of the tasks that the tab of this status lists; `None`: of all.
    fn count(&self, status: Option<Status>) -> Count {
        let listed = status.map(|status| Filter::of_status(status).statuses());
        let is_listed = |one: Status| listed.as_ref().is_none_or(|listed| listed.contains(&Some(one)));
        Count::sum(self.by_status.iter().filter(|(one, _)| is_listed(*one)).map(|(_, count)| *count))
    }
}

/// `is_right`: the API accepts the filters, so tasks can be counted with them.
pub(super) async fn tabs(visit: &Visit, filter: &Filter, is_right: bool) -> Result<Vec<Tab>, Refused> {
    let filters = NAMES.strip_prefix(&["status", "asks"]).unwrap_or(&NAMES);
    let others = visit.query().query_of(&[filters, &["sort"]].concat());
    let counts = if is_right { Counts::of(visit, filter).await? } else { None };
    let lang = visit.layout.at.lang;
    let here = Status::parse(&filter.status);
    let asks_here = !filter.asks.is_empty();
    let rare = here.filter(|status| !TABS.contains(status));
    let link = |own: &str| format!("/tasks?{}", joined([own, &others]));
    let tab = |status: Option<Status>| Tab {
        link: link(&status.map(|status| format!("status={status}")).unwrap_or_default()),
        name: status.map_or_else(|| lang.t("all", "усі").to_owned(), |status| lang.word(status.as_str()).into_owned()),
        is_here: here == status && !asks_here,
        count: counts.as_ref().map(|counts| counts.count(status)),
    };
    let asking = Tab {
        link: link("asks=true"),
        name: lang.t("asks you", "запитує вас").to_owned(),
        is_here: asks_here,
        count: counts.as_ref().map(|counts| counts.asking),
    };
    // A visitor who sees only some tasks must not learn whether others wait for an answer, so the tab is always shown.
    let is_shown = asks_here || !visit.layout.sees_all() || visit.api.asking() > 0;
    let mut tabs: Vec<Tab> = [None].into_iter().chain(TABS.map(Some)).chain(rare.map(Some)).map(tab).collect();
    if is_shown {
        tabs.insert(1, asking);
    }
    Ok(tabs)
}
