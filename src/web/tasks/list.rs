//! The list of tasks.

use std::borrow::Cow;
use std::cmp::Reverse;

use askama::Template;
use axum::response::Response;
use uuid::Uuid;

use super::cells::{Alike, Found, Named, is_generated, short_id};
use super::filter::{Filter, NAMES, kept, reasons, times};
use super::tabs::{Tab, tabs};
use crate::advice;
use crate::call::{Listed, path_part};
use crate::filters::{Filtered, OfTask, WrongFilters};
use crate::lang::Lang;
use crate::notes::Note;
use crate::refused::Refused;
use crate::times::{beginning, cost, duration};
use crate::visit::{Fields, Layout, Visit, joined};
use bloom_api::tasks::Task;
use bloom_core::Ms;
use bloom_core::task::{Status, WaitingReason};

/// The number of rows of a page. Even with the longest texts, the page stays below 60 KB.
const ROWS: usize = 25;
/// The number of rows of a sorted page: enough to find the longest or most expensive tasks of a day.
const SORTED_ROWS: usize = 100;
/// The maximum number of API calls for one page of a text search.
const MOST_CALLS: usize = 5;
const PROMPT_CHARS: usize = 100;
/// The limit of a note that has times. They are not counted.
const TIMED_CHARS: usize = 120;
const NAME_CHARS: usize = 32;
/// The maximum number of labels in a row.
const LABELS: usize = 3;
/// The default priority, which a row does not mention.
const USUAL_PRIORITY: i64 = 5;
/// How many characters are shown around a text that was found.
const AROUND_CHARS: usize = 40;

/// A task in a list.
pub(crate) struct Row {
    pub id: Uuid,
    pub status: String,
    pub prompt: String,
    pub agent_slug: String,
    /// Its agent and context, and whatever else distinguishes it from other tasks.
    pub about: Vec<Named>,
    pub worker: Option<Named>,
    /// The key that created it.
    pub owner: Option<Named>,
    pub created_at: Ms,
    pub updated_at: Ms,
    /// Why it waits, or why it failed, in English.
    pub note: Note,
    /// A short form of the note, which replaces it if the page is not in English.
    pub reason: &'static str,
    pub needs_person: bool,
    pub priority: i64,
    /// Empty if no run has had a cost yet.
    pub cost: String,
    pub cost_usd: f64,
    pub finished_at: Option<Ms>,
    /// The duration of its current or last lease.
    pub lasted: Option<Ms>,
    /// The same in words; empty if there is no lease.
    pub took: String,
    /// Where the searched text was found: in the visible beginning of the prompt, or else in the rest of it.
    pub in_beginning: Option<Found>,
    pub in_rest: Option<Found>,
    /// The tasks for which this row stands, if it stands for several.
    pub alike: Option<Alike>,
}

impl Row {
    pub(crate) fn of(lang: Lang, now: Ms, task: Task<'_>) -> Self {
        let lasted = task.lasted(now);
        let note = note(&task);
        let reason = if note.is_empty() { None } else { advice::of(lang, &task).map(|advice| lang.t("", advice.title)) };
        Self {
            reason: reason.unwrap_or_default(),
            id: task.id,
            prompt: beginning(&task.prompt, PROMPT_CHARS),
            agent_slug: beginning(&task.agent_slug, NAME_CHARS),
            about: about(lang, &task),
            worker: task.worker_id.as_deref().map(|worker| Named::of("worker_id", worker)),
            owner: owner(&task),
            created_at: task.created_at,
            updated_at: task.updated_at,
            note: if task.status == Status::Completed { Note::default() } else { note },
            needs_person: needs_person(&task),
            status: task.status.to_string(),
            priority: task.priority,
            cost: task.usage.map(|used| cost(lang, used.cost_usd, used.cost_estimated)).unwrap_or_default(),
            cost_usd: task.usage.map(|used| used.cost_usd).unwrap_or_default(),
            finished_at: task.finished_at,
            lasted,
            took: lasted.map(|ms| duration(lang, ms)).unwrap_or_default(),
            in_beginning: None,
            in_rest: None,
            alike: None,
        }
    }

    /// Whether a worker has the task now.
    pub(crate) fn runs(&self) -> bool {
        [Status::Leased, Status::Running].iter().any(|status| status.as_str() == self.status)
    }

    /// The row of a task that matches the search for this text.
    fn found_by(wanted: &str, lang: Lang, now: Ms, task: Task<'_>) -> Self {
        let in_beginning = Found::of(&beginning(&task.prompt, PROMPT_CHARS), wanted, PROMPT_CHARS);
        let in_rest = if in_beginning.is_none() { Found::of(&task.prompt, wanted, AROUND_CHARS) } else { None };
        Self { in_beginning, in_rest, ..Self::of(lang, now, task) }
    }
}

/// Whether its run waits for the answer of a person.
pub(crate) fn needs_person(task: &Task<'_>) -> bool {
    task.waiting.as_ref().is_some_and(|waiting| waiting.reason == WaitingReason::NeedsHuman)
}

fn owner(task: &Task<'_>) -> Option<Named> {
    task.owner.as_deref().map(|owner| Named::of("owner", owner))
}

/// The names by which people recognize a task, and what is unusual about it.
fn about(lang: Lang, task: &Task<'_>) -> Vec<Named> {
    let mut about = vec![Named::of("agent_slug", &task.agent_slug)];
    about.extend(Some(&task.context_id).filter(|context| !is_generated(context)).map(|context| Named::of("context_id", context)));
    about.extend(task.project.as_deref().map(|project| Named::of("project", project)));
    about.extend(owner(task));
    let labels = task.labels.iter().map(|(name, value)| Named::of("label", &format!("{name}={value}")));
    about.extend(labels.take(LABELS));
    if task.labels.len() > LABELS {
        about.push(Named::words(&format!("+{}", task.labels.len() - LABELS)));
    }
    if task.priority != USUAL_PRIORITY {
        about.push(Named::words(&format!("{} {}", lang.t("priority", "пріоритет"), task.priority)));
    }
    if let Some(failure) = task.failure.as_ref().filter(|_| task.status == Status::Queued) {
        // The failure is shown before the last attempt, so that people notice early if all tasks of a batch fail.
        let reason = lang.word(&failure.reason.to_string());
        let shown = lang.t(format!("tried again: {reason}"), format!("повтор: {reason}"));
        about.push(Named { shown, whole: String::new(), link: String::new() });
    }
    if task.attempts > 1 {
        let (attempts, most) = (task.attempts, task.max_attempts);
        about.push(Named::words(&lang.t(format!("attempt {attempts} of {most}"), format!("спроба {attempts} із {most}"))));
    }
    about
}

/// The orders of the list, by their words in addresses. The default is the newest first.
const SORTS: [&str; 4] = ["ended", "longest", "cost", "priority"];

/// The orders and their labels.
fn sorts(lang: Lang) -> [(&'static str, &'static str); SORTS.len()] {
    let names = [
        lang.t("last ended first", "спершу ті, що закінчилися останніми"),
        lang.t("longest first", "спершу найдовші"),
        lang.t("highest cost first", "спершу найдорожчі"),
        lang.t("highest priority first", "спершу найважливіші"),
    ];
    std::array::from_fn(|at| (SORTS[at], names[at]))
}

/// Sorts rows that are ordered by age, the newest first. Equal rows keep this order.
fn sort(rows: &mut [Row], by: &str) {
    match by {
        "ended" => rows.sort_by_key(|row| Reverse(row.finished_at)),
        "longest" => rows.sort_by_key(|row| Reverse(row.lasted)),
        "cost" => rows.sort_by(|a, b| b.cost_usd.total_cmp(&a.cost_usd)),
        "priority" => rows.sort_by_key(|row| Reverse(row.priority)),
        _ => {}
    }
}

/// Why the task waits, or why it failed, without the commands at the end of the whole text: a row has no room for them, and the task's page
/// has buttons.
fn note(task: &Task<'_>) -> Note {
    let waiting = task.waiting.as_ref();
    let message = waiting.map(|waiting| waiting.message.as_str());
    let told = without_commands(message.or_else(|| task.last_failure().map(|failure| &*failure.message)).unwrap_or_default());
    // Ids are shortened to their ends, as everywhere in lists.
    let told = task.depends_on.iter().map(Uuid::to_string).fold(told, |told, id| told.replace(&id, &short_id(&id)));
    let note = waiting.map(|waiting| Note::of_waiting(waiting, &told)).filter(Note::has_times);
    note.map_or_else(|| Note::plain(beginning(&told, PROMPT_CHARS)), |note| note.shortened(TIMED_CHARS))
}

fn without_commands(text: &str) -> String {
    let without = |part: &str| match part.split_once("bloom-runtime ") {
        None => Some(part.to_owned()),
        Some((before, _)) => before.rsplit_once(". ").map(|(sentence, _)| sentence.to_owned()),
    };
    let left: Vec<String> = text.split("; ").filter_map(without).collect();
    if left.is_empty() { text.to_owned() } else { left.join("; ") }
}

#[derive(Template)]
#[template(path = "tasks.html")]
struct Tasks<'a> {
    v: &'a Layout,
    filter: &'a Filter,
    tabs: Vec<Tab>,
    times: [(&'static str, &'static str); 4],
    reasons: Vec<(&'static str, Cow<'static, str>)>,
    sort: String,
    sorts: [(&'static str, &'static str); SORTS.len()],
    rows: Vec<Row>,
    /// The address of the next page, and that of the first page if this is another one.
    next: Option<String>,
    first: Option<String>,
    fields: &'a Fields,
    wrong: WrongFilters,
    done: Option<Done>,
    /// Whether a button for the selected tasks was pressed although none was selected.
    is_unselected: bool,
    /// The fields of the address that the form for many tasks keeps, so that it leads back to this page.
    kept: Vec<(&'a str, &'a str)>,
}

impl Tasks<'_> {
    /// The filters that are typed and below "Filters", as name and label.
    fn texts(&self) -> Vec<(&'static str, &'static str)> {
        let t = |english, ukrainian| self.v.t(english, ukrainian);
        let mut texts = vec![
            ("agent_slug", t("Agent", "Агент")),
            ("context_id", t("Context", "Контекст")),
            ("worker_id", t("Worker", "Воркер")),
            ("project", t("Project", "Проєкт")),
            ("owner", t("Key that created it", "Ключ, що створив")),
            ("depends_on", t("Depends on the task (id)", "Залежить від завдання (ідентифікатор)")),
            ("label", t("Label (name=value)", "Мітка (назва=значення)")),
            ("id", t("Part of the id", "Частина ідентифікатора")),
        ];
        if self.v.sees_all() {
            texts.push(("team", t("Team of the key", "Команда ключа")));
        }
        texts
    }
}

pub(crate) async fn list(visit: Visit) -> Result<Response, Refused> {
    let filter = Filter::of(visit.query(), &["cursor", "done", "matched", "depends", "sort", "unselected"])?;
    let sorted = visit.query().word("sort", &SORTS)?;
    // The form has another name for the text to search for.
    let found = async {
        search(&visit, &filter, if sorted.is_empty() { ROWS } else { SORTED_ROWS }).await.map_err(|mut refused| {
            let text = refused.fields.remove("search");
            refused.fields.extend(text.map(|text| ("text".to_owned(), text)));
            refused
        })
    };
    // A wrong filter is told at its field, where it can be corrected, and a wrong place in the list below the filters.
    let Filtered { listed: Listed { mut rows, next }, wrong, .. } =
        match OfTask::of(&visit, ("/tasks", "depends_on"), &kept(), found).await? {
            OfTask::List(found) => found,
            OfTask::Part(whole) => return Ok(whole),
        };
    sort(&mut rows, &sorted);
    let own = visit.query().query_of(&[&NAMES[..], &["sort"]].concat());
    visit.ok(&Tasks {
        v: &visit.layout,
        filter: &filter,
        tabs: tabs(&visit, &filter, wrong.is_empty()).await?,
        times: times(visit.layout.at.lang),
        reasons: reasons(visit.layout.at.lang),
        sort: sorted,
        sorts: sorts(visit.layout.at.lang),
        rows,
        next: next.map(|cursor| format!("/tasks?{}", joined([&own, &format!("cursor={cursor}")]))),
        first: visit.query().get("cursor").map(|_| format!("/tasks?{own}")),
        fields: visit.query(),
        wrong,
        done: Done::of(visit.layout.at.lang, visit.query()),
        is_unselected: visit.query().get("unselected").is_some(),
        kept: visit.query().given(&kept()).collect(),
    })
}

/// The tasks of a page. A text search may return few tasks or none although older ones match: the next page continues where the search
/// ended.
async fn search(visit: &Visit, filter: &Filter, limit: usize) -> Result<Listed<Row>, Refused> {
    let mut rows = Vec::new();
    let mut next = visit.query().get("cursor").map(str::to_owned);
    for _ in 0..if filter.text.is_empty() { 1 } else { MOST_CALLS } {
        let listed = newest(visit, filter, next.as_deref(), limit - rows.len()).await?;
        rows.extend(listed.rows);
        next = listed.next;
        if next.is_none() || rows.len() >= limit {
            break;
        }
    }
    Ok(Listed { rows, next })
}

/// The newest tasks that match. Each status needs a call of its own.
pub(crate) async fn newest(visit: &Visit, filter: &Filter, cursor: Option<&str>, limit: usize) -> Result<Listed<Row>, Refused> {
    let Layout { now, ref at, .. } = visit.layout;
    let cursor = cursor.map(|cursor| format!("&cursor={}", path_part(cursor))).unwrap_or_default();
    let (mut rows, mut next) = (Vec::new(), None);
    for status in filter.statuses() {
        let path = format!("llm-tasks?limit={limit}&{}{cursor}", filter.query(status, now));
        let listed = visit.list(&path, |task: Task| Row::found_by(&filter.text, at.lang, now, task)).await?;
        rows.extend(listed.rows);
        // If several lists end early, the one that ends at the newest task determines up to where all lists are complete.
        next = next.max(listed.next);
    }
    // The order of ids is the order of creation. A task whose status changes between two calls is in both answers.
    rows.sort_by_key(|row: &Row| Reverse(row.id));
    rows.dedup_by_key(|row| row.id);
    rows.retain(|row| next.as_ref().is_none_or(|end| row.id.to_string() >= *end));
    if rows.len() > limit {
        rows.truncate(limit);
        next = rows.last().map(|row| row.id.to_string());
    }
    Ok(Listed { rows, next })
}

/// The result of a form for many tasks.
struct Done {
    text: String,
    /// Whether all selected tasks were changed.
    is_all: bool,
}

impl Done {
    fn of(lang: Lang, query: &Fields) -> Option<Self> {
        let number = |name| query.get(name).and_then(|text| text.parse::<u32>().ok());
        let changed = number("done")?;
        let matched = number("matched").unwrap_or(changed);
        let were = if changed == 1 { "was" } else { "were" };
        if changed >= matched {
            let tasks = lang.count(changed.into(), ["task", "tasks"], ["завдання", "завдання", "завдань"]);
            return Some(Self { text: lang.t(format!("{tasks} {were} changed."), format!("Змінено {tasks}.")), is_all: true });
        }
        let tasks = lang.count(matched.into(), ["tasks", "tasks"], ["завдання", "завдань", "завдань"]);
        let mut text = lang.t(format!("{changed} of {tasks} {were} changed."), format!("Змінено {changed} із {tasks}."));
        if query.get("depends").is_some() {
            text.push_str(lang.t(
                " The others depend on tasks that did not complete: requeue these first, or all together.",
                " Решта залежить від завдань, що не завершилися: спершу поверніть у чергу їх або всі разом.",
            ));
        }
        Some(Self { text, is_all: false })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_leave_out_commands() {
        for (text, shown) in [
            (
                "agent 'a' has as many leases as allowed; `bloom-runtime queue limit --agent a N` changes the limit",
                "agent 'a' has as many leases as allowed",
            ),
            ("full; `bloom-runtime queue limit` changes it; some ask; see bloom-runtime task list --asks", "full; some ask"),
            ("it took too long. With more time: bloom-runtime task retry ID", "it took too long"),
            ("no end: bloom-runtime task list", "no end: bloom-runtime task list"),
            ("exit 1: bad", "exit 1: bad"),
        ] {
            assert_eq!(without_commands(text), shown);
        }
    }
}
