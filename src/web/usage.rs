//! Usage: the cost and the tokens of runs over a period, grouped by one or two keys, as a page and as CSV.

use std::collections::BTreeSet;

use askama::Template;
use axum::http::HeaderValue;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::Response;
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan as _};
use serde_json::Value;
use url::form_urlencoded;

use crate::answer::plain;
use crate::call::{Listed, path_part};
use crate::chart::{Chart, LEAST_BARS};
use crate::filters::{WrongFilters, by_api, unknown};
use crate::refused::{Refused, Said, Wrong};
use crate::times::{cost, dollars, number, shortened};
use crate::visit::{Fields, Layout, Visit};
use bloom_api::csv;
use bloom_api::keys::Key as ApiKey;
use bloom_api::reports::UsageRow;
use bloom_api::tasks::Task;
use bloom_api::time_text;
use bloom_api::usage::{USAGE_WORDS, usage_key};
use bloom_core::api_key::Scope;
use bloom_core::usage::Usage;
use bloom_core::{DAY_MS, Ms};

const ROWS: usize = 60;
/// The page size of calls that read all rows.
const ROWS_OF_CALL: usize = 1_000;
/// The maximum number of rows of a file. If there are more, no file is made, because people would take a part for the whole.
const MAX_CSV_ROWS: usize = 10_000;
/// The maximum number of rows that are sorted by cost.
const MAX_SORTED_ROWS: usize = 10_000;
const NAME_CHARS: usize = 80;
/// The maximum number of days in a chart. If the period is longer, the chart has its last days.
const CHART_DAYS: Ms = 62;
/// The query that is used if the address has none.
const FIRST: &[u8] = b"since=30d&by=day";
/// The filters in the address. They have the names of the API.
const FILTERS: [&str; 7] = ["agent_slug", "context_id", "project", "worker_id", "team", "created_by", "label"];
/// All fields that the address may have, except the place in the list.
const FIELDS: [&str; 11] =
    ["since", "until", "by", "order", "agent_slug", "context_id", "project", "worker_id", "team", "created_by", "label"];
/// The orders of the rows.
const ORDERS: [&str; 2] = ["cost", "name"];
/// How many tasks are read for the labels by which the form offers to group, and the maximum number of these labels.
const TASKS: usize = 50;
const LABELS: usize = 20;

/// The request in the address, as a query of the API: the keys to group by, and everything else.
struct Asked {
    by: Vec<String>,
    filter: String,
    /// The beginning and the end of the period, if they are given.
    times: [Option<Ms>; 2],
}

impl Asked {
    /// # Errors
    /// The errors, by field.
    fn of(fields: &Fields, v: &Layout) -> Result<Self, Wrong> {
        let mut wrong = Wrong::new();
        let mut query = form_urlencoded::Serializer::new(fields.query_of(&FILTERS));
        let mut times = [None, None];
        for (time, field, parameter) in [(0, "since", "from"), (1, "until", "to")] {
            match fields.get(field).map(|text| time_text::past(text.trim(), v.now)) {
                None => {}
                Some(Ok(at)) => {
                    times[time] = Some(at);
                    query.append_pair(parameter, &at.to_string());
                }
                Some(Err(text)) => drop(wrong.insert(field.to_owned(), text)),
            }
        }
        let by =
            words_of(fields).into_iter().map(usage_key).collect::<Result<Vec<_>, _>>().map_err(|text| wrong.insert("by".to_owned(), text));
        match by {
            Ok(mut by) if wrong.is_empty() => {
                if by.is_empty() {
                    by.push("day".to_owned());
                }
                Ok(Self { by, filter: query.finish(), times })
            }
            _ => Err(wrong),
        }
    }

    fn path(&self, by: &str, limit: usize) -> String {
        format!("usage?limit={limit}&by={}&{}", path_part(by), self.filter)
    }
}

/// The keys to group by, in the words of the address: the two choices of the form, or a list that is separated by commas.
fn words_of(fields: &Fields) -> Vec<&str> {
    fields.all("by").flat_map(|text| text.split(',')).map(str::trim).filter(|word| !word.is_empty()).collect()
}

/// Whether rows are sorted by cost. Days and weeks are in the order of time, unless another order is chosen.
fn is_by_cost(fields: &Fields) -> Result<bool, Refused> {
    let order = fields.word("order", &ORDERS)?;
    Ok(order == "cost" || order.is_empty() && !matches!(words_of(fields).first(), None | Some(&("day" | "week"))))
}

/// A value of a grouping key, and the address of the list of its tasks if there is a filter for it.
struct Key {
    text: String,
    tasks: Option<String>,
}

impl Key {
    fn of(v: &Layout, by: &str, value: &str) -> Self {
        let text = match value {
            "" => v.t("none", "немає").to_owned(),
            _ if by == "created_by" => creator(v, value),
            _ => shortened(value, NAME_CHARS),
        };
        let filter = match by {
            "agent_slug" | "context_id" | "worker_id" | "project" => Some((by, value.to_owned())),
            "team" if v.sees_all() => Some((by, value.to_owned())),
            "created_by" => value.strip_prefix("key:").map(|name| ("owner", name.to_owned())),
            _ => by.strip_prefix("label:").map(|name| ("label", format!("{name}={value}"))),
        };
        let filter = filter.filter(|_| !value.is_empty());
        Self { text, tasks: filter.map(|(name, value)| format!("/tasks?{name}={}", path_part(&value))) }
    }
}

/// The label of the actor that created tasks, as the audit trail names it.
fn creator(v: &Layout, actor: &str) -> String {
    match actor.strip_prefix("key:") {
        Some(name) => {
            let name = shortened(name, NAME_CHARS);
            v.t(format!("{name} (key)"), format!("{name} (ключ)"))
        }
        None if matches!(actor, "api" | "admin") && v.is_open => v.t("without a key", "без ключа").to_owned(),
        None if matches!(actor, "api" | "admin") => v.t("admin key", "ключ адміністратора").to_owned(),
        None => shortened(actor, NAME_CHARS),
    }
}

struct Row {
    keys: Vec<Key>,
    runs: String,
    input_tokens: String,
    output_tokens: String,
    cost_usd: f64,
    cost: String,
    /// The length of its bar, in percent of the longest one.
    bar: String,
}

fn row(v: &Layout, row: UsageRow<'_>) -> Row {
    Row {
        keys: row.keys.iter().map(|(by, value)| Key::of(v, by, value.as_str().unwrap_or_default())).collect(),
        runs: number(row.runs),
        input_tokens: number(row.input_tokens),
        output_tokens: number(row.output_tokens),
        cost_usd: row.cost_usd,
        cost: cost(v.at.lang, row.cost_usd, row.cost_estimated),
        bar: String::new(),
    }
}

#[derive(Template)]
#[template(path = "usage.html")]
struct UsagePage<'a> {
    v: &'a Layout,
    fields: &'a Fields,
    wrong: WrongFilters,
    /// The titles of the columns with the keys.
    titles: Vec<String>,
    rows: Vec<Row>,
    total: Option<Row>,
    charts: Vec<Chart>,
    /// The addresses of the next page and of the CSV file.
    next: Option<String>,
    file: String,
    /// The names of labels by which rows can be grouped.
    labels: BTreeSet<String>,
    is_by_cost: bool,
    /// Whether the rows are too many to be sorted.
    is_unsorted: bool,
}

impl UsagePage<'_> {
    fn given(&self, field: &str) -> String {
        self.fields.text(field)
    }

    /// The two fields for the grouping.
    fn groups(&self) -> [(&'static str, &'static str); 2] {
        [("by", self.v.t("Grouped by", "Групувати за")), ("by2", self.v.t("and by", "і за"))]
    }

    /// The choices of such a field: word, label, and whether it is chosen. A value from the address is always among them.
    fn choices(&self, field: &str) -> Vec<(String, String, bool)> {
        let given = words_of(self.fields).get(usize::from(field == "by2")).copied().unwrap_or_default();
        let of_label = |name: &String| (format!("label:{name}"), title(self.v, &format!("label:{name}")));
        let known = USAGE_WORDS.iter().map(|(word, key)| ((*word).to_owned(), title(self.v, key)));
        let mut choices: Vec<_> = known.chain(self.labels.iter().map(of_label)).collect();
        if !given.is_empty() && choices.iter().all(|(word, _)| word != given) {
            choices.push((given.to_owned(), title(self.v, given)));
        }
        choices.into_iter().map(|(word, name)| (word.clone(), name, word == given)).collect()
    }

    /// Frequent requests, each with its address and name.
    fn presets(&self) -> [(String, &'static str); 5] {
        let t = |english, ukrainian| self.v.t(english, ukrainian);
        let today = Timestamp::from_millisecond(self.v.now).unwrap_or_default().to_zoned(TimeZone::UTC).date();
        let monday = today.saturating_sub(i64::from(today.weekday().to_monday_zero_offset()).days());
        let month = today.first_of_month();
        [
            (format!("since={monday}&by=day"), t("This week by day", "Цей тиждень за днями")),
            (format!("since={monday}&by=creator"), t("This week by person", "Цей тиждень за авторами")),
            (format!("since={month}&by=team"), t("This month by team", "Цей місяць за командами")),
            (format!("since={month}&by=project"), t("This month by project", "Цей місяць за проєктами")),
            (format!("since={month}&by=agent&by=model"), t("This month by agent and model", "Цей місяць за агентами й моделями")),
        ]
    }

    fn wrong(&self, field: &str) -> Option<&Said> {
        self.wrong.get(field)
    }

    /// Whether one of the filters that are not always visible is set or has an error.
    fn has_more(&self) -> bool {
        self.filters().iter().skip(1).any(|(field, _)| !self.given(field).is_empty() || self.wrong(field).is_some())
    }

    /// The filter fields of the form, as name and label. The first one is always visible.
    fn filters(&self) -> Vec<(&'static str, &'static str)> {
        let t = |english, ukrainian| self.v.t(english, ukrainian);
        let mut filters = vec![
            ("label", t("Label (name=value)", "Мітка (назва=значення)")),
            ("agent_slug", t("Agent", "Агент")),
            ("project", t("Project", "Проєкт")),
            ("worker_id", t("Worker", "Воркер")),
            ("context_id", t("Context", "Контекст")),
            ("created_by", t("Creator (key:NAME)", "Хто створив")),
        ];
        // Other visitors see the tasks of one team at most.
        if self.v.sees_all() {
            filters.push(("team", t("Team", "Команда")));
        }
        filters
    }
}

fn title(v: &Layout, key: &str) -> String {
    let known = match key {
        "day" => v.t("Day", "День"),
        "week" => v.t("Week from", "Тиждень від"),
        "agent_slug" => v.t("Agent", "Агент"),
        "model" => v.t("Model", "Модель"),
        "context_id" => v.t("Context", "Контекст"),
        "project" => v.t("Project", "Проєкт"),
        "worker_id" => v.t("Worker", "Воркер"),
        "team" => v.t("Team", "Команда"),
        "created_by" => v.t("Person or key", "Людина або ключ"),
        label => {
            let name = shortened(label.strip_prefix("label:").unwrap_or(label), NAME_CHARS);
            return v.t(format!("Label {name}"), format!("Мітка {name}"));
        }
    };
    known.to_owned()
}

/// The fields of the address, or the default ones if it has none.
fn fields(visit: &Visit) -> Result<Fields, Refused> {
    visit.query().only(&[&FIELDS[..], &["cursor"]].concat())?;
    Ok(if visit.query().is_empty() { Fields::parse(FIRST) } else { visit.query().clone() })
}

pub(crate) async fn show(visit: Visit) -> Result<Response, Refused> {
    let (v, fields) = (&visit.layout, fields(&visit)?);
    let own = fields.query_of(&FIELDS);
    let mut page = UsagePage {
        v,
        fields: &fields,
        wrong: WrongFilters::new(),
        titles: Vec::new(),
        rows: Vec::new(),
        total: None,
        charts: Vec::new(),
        next: None,
        file: format!("/usage.csv?{own}"),
        labels: labels(&visit).await?,
        is_by_cost: is_by_cost(&fields)?,
        is_unsorted: false,
    };
    let found = match Asked::of(&fields, v) {
        Ok(asked) => read(&visit, &asked, page.is_by_cost).await.map(|found| (asked, found)),
        Err(wrong) => Err(Refused::of_fields(wrong)),
    };
    match found {
        Ok((asked, Found { rows, total, charts, next, is_unsorted })) => {
            page.charts = charts;
            page.is_unsorted = is_unsorted;
            page.titles = asked.by.iter().map(|key| title(v, key)).collect();
            page.rows = rows;
            if page.rows.is_empty() {
                page.wrong = unknown(&visit, &FILTERS).await?;
            }
            if asked.by.iter().any(|key| key == "created_by") {
                let others = keys_without_tasks(&visit).await?;
                for key in page.rows.iter_mut().flat_map(|row| &mut row.keys) {
                    key.tasks = key.tasks.take().filter(|link| !others.contains(link));
                }
            }
            page.total = Some(total);
            page.next = next.map(|cursor| format!("/usage?{own}&cursor={}", path_part(&cursor)));
            visit.ok(&page)
        }
        Err(refused) if !refused.fields.is_empty() => {
            let name = |field: String| match field.as_str() {
                "from" => "since".to_owned(),
                "to" => "until".to_owned(),
                _ => field,
            };
            page.wrong = by_api(refused.fields.into_iter().map(|(field, text)| (name(field), text)).collect());
            visit.show(StatusCode::BAD_REQUEST, &page)
        }
        Err(refused) => Err(refused),
    }
}

/// The links to the lists of tasks of keys that own no tasks, even if they create some. These lists would be empty. Only administrators may
/// see keys; for others, there are no such links.
async fn keys_without_tasks(visit: &Visit) -> Result<BTreeSet<String>, Refused> {
    let link = |key: ApiKey<'_>| (key.scope.to_string(), format!("/tasks?owner={}", path_part(&key.name)));
    let keys = visit.list_if_allowed("keys", link).await?.map(|listed| listed.rows).unwrap_or_default();
    Ok(keys.into_iter().filter(|(scope, _)| !Scope::parse(scope).is_some_and(Scope::owns_tasks)).map(|(_, link)| link).collect())
}

/// The names of the labels that the newest tasks have.
async fn labels(visit: &Visit) -> Result<BTreeSet<String>, Refused> {
    let names = |task: Task<'_>| task.labels.keys().map(|name| name.to_string()).collect::<Vec<_>>();
    let listed = visit.list(&format!("llm-tasks?limit={TASKS}"), names).await?;
    Ok(listed.rows.into_iter().flatten().filter(|name| name.chars().count() <= NAME_CHARS && !name.contains(',')).take(LABELS).collect())
}

/// A page of rows, and the total of all rows.
struct Found {
    rows: Vec<Row>,
    total: Row,
    /// The charts by day, if the rows are grouped by day.
    charts: Vec<Chart>,
    next: Option<String>,
    is_unsorted: bool,
}

/// A page of the rows, sorted by cost in descending order; `None` if there are too many rows.
async fn sorted(visit: &Visit, asked: &Asked) -> Result<Option<Listed<Row>>, Refused> {
    let path = asked.path(&asked.by.join(","), ROWS_OF_CALL);
    let Some(mut rows) = all(visit, &path, MAX_SORTED_ROWS, |found| row(&visit.layout, found)).await? else { return Ok(None) };
    rows.sort_by(|a, b| b.cost_usd.total_cmp(&a.cost_usd));
    let cursor = visit.query().text("cursor");
    let known = if cursor.is_empty() { Some(0) } else { cursor.parse::<usize>().ok() };
    let first = known.ok_or_else(|| Refused::new(400, "Invalid cursor", "Непридатне місце у списку"))?;
    let end = first.saturating_add(ROWS);
    let next = (end < rows.len()).then(|| end.to_string());
    Ok(Some(Listed { rows: rows.into_iter().skip(first).take(ROWS).collect(), next }))
}

async fn read(visit: &Visit, asked: &Asked, is_by_cost: bool) -> Result<Found, Refused> {
    let v = &visit.layout;
    let sorted = if is_by_cost { sorted(visit, asked).await? } else { None };
    let is_unsorted = is_by_cost && sorted.is_none();
    let path = format!("{}&{}", asked.path(&asked.by.join(","), ROWS), visit.query().query_of(&["cursor"]));
    let mut listed = match sorted {
        Some(sorted) => sorted,
        None => visit.list(&path, |found| row(v, found)).await?,
    };
    let most = listed.rows.iter().map(|row| row.cost_usd).fold(0.0, f64::max);
    for row in &mut listed.rows {
        row.bar = if most > 0.0 { format!("{:.1}", row.cost_usd / most * 100.0) } else { "0".to_owned() };
    }
    // The total is the sum of all days. There are few days, so it can be computed for any page of the rows.
    let mut total = (0, Usage::default());
    let of_days = |found: UsageRow<'_>| {
        let UsageRow { key, runs, input_tokens, output_tokens, cost_usd, cost_estimated, .. } = found;
        (key.to_string(), runs, Usage { input_tokens, output_tokens, cost_usd, cost_estimated })
    };
    let days = all(visit, &asked.path("day", ROWS_OF_CALL), usize::MAX, of_days).await?.unwrap_or_default();
    let charts = if asked.by.iter().any(|key| key == "day") { charts(v, asked, &days) } else { Vec::new() };
    for (_, runs, used) in days {
        total.0 += runs;
        total.1.add(used);
    }
    let (runs, used) = total;
    let total = Row {
        keys: Vec::new(),
        runs: number(runs),
        input_tokens: number(used.input_tokens),
        output_tokens: number(used.output_tokens),
        cost_usd: used.cost_usd,
        cost: cost(v.at.lang, used.cost_usd, used.cost_estimated),
        bar: String::new(),
    };
    Ok(Found { rows: listed.rows, total, charts, next: listed.next, is_unsorted })
}

/// The charts of cost and runs by day, up to the end of the period. With few bars, a chart would say no more than the table.
fn charts(v: &Layout, asked: &Asked, days: &[(String, i64, Usage)]) -> Vec<Chart> {
    let (lang, [from, to]) = (v.at.lang, asked.times);
    // The end itself is not part of the period.
    let last = to.map_or(v.now, |to| (to - 1).min(v.now));
    let count = (last.div_euclid(DAY_MS) - from.unwrap_or_default().div_euclid(DAY_MS) + 1).clamp(0, CHART_DAYS);
    let of_day = |day: &str| days.iter().find(|(known, ..)| known == day);
    let (runs, cost) = (lang.t("Runs per day", "Запусків за день"), lang.t("Cost per day", "Витрати за день"));
    let charts = [
        Chart::per_day(lang, cost, last, count, |day| of_day(day).map(|(.., used)| used.cost_usd), |usd| dollars(lang, usd)),
        Chart::per_day(lang, runs, last, count, |day| of_day(day).map(|(_, runs, _)| *runs as f64), |runs| runs.to_string()),
    ];
    charts.into_iter().filter(|chart| chart.filled >= LEAST_BARS).collect()
}

/// The rows of all pages; `None` if there are more than `most`.
async fn all<T: serde::de::DeserializeOwned, R>(
    visit: &Visit,
    path: &str,
    most: usize,
    convert: impl Fn(T) -> R,
) -> Result<Option<Vec<R>>, Refused> {
    let (mut rows, mut next) = (Vec::new(), Some(String::new()));
    while let Some(cursor) = next {
        let listed = visit.list(&format!("{path}&cursor={cursor}"), &convert).await?;
        rows.extend(listed.rows);
        next = listed.next;
        if rows.len() > most || (rows.len() == most && next.is_some()) {
            return Ok(None);
        }
    }
    Ok(Some(rows))
}

pub(crate) async fn file(visit: Visit) -> Result<Response, Refused> {
    let fields = fields(&visit)?;
    let asked = Asked::of(&fields, &visit.layout).map_err(|wrong| {
        let told = wrong.iter().map(|(field, text)| format!("{field}: {text}")).collect::<Vec<_>>().join("; ");
        Refused::new(400, told.clone(), told)
    })?;
    let rows = all(&visit, &asked.path(&asked.by.join(","), ROWS_OF_CALL), MAX_CSV_ROWS, |row: Value| row).await?.ok_or_else(|| {
        Refused::new(
            400,
            format!("A file has at most {MAX_CSV_ROWS} rows: choose a shorter time or a filter"),
            format!("У файлі щонайбільше {MAX_CSV_ROWS} рядків: виберіть коротший час або фільтр"),
        )
    })?;
    let mut response = plain(csv::text(&rows), Some("usage.csv"));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/csv; charset=utf-8"));
    Ok(response)
}
