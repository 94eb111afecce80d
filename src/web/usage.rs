//! Usage: the cost and the tokens of runs over a period, by one or two keys; and the same as CSV.

use askama::Template;
use axum::http::HeaderValue;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::Response;
use serde_json::Value;
use url::form_urlencoded;

use crate::answer::plain;
use crate::call::path_part;
use crate::refused::{Refused, Wrong};
use crate::times::{cost, shortened};
use crate::visit::{Fields, Layout, Visit};
use bloom_api::csv;
use bloom_api::reports::UsageRow;
use bloom_api::usage::{USAGE_WORDS, usage_key};
use bloom_api::when;
use bloom_core::usage::Usage;

const ROWS: usize = 60;
/// Rows of a call that is not for the page.
const ROWS_OF_CALL: usize = 1_000;
/// The most rows of a file; more are refused, because part of them would look like all.
const MAX_CSV_ROWS: usize = 10_000;
const NAME_CHARS: usize = 80;
/// What a visitor sees first.
const FIRST: &[u8] = b"since=30d&by=day";
/// The filters of the address, which are those of the API.
const FILTERS: [&str; 5] = ["agent_slug", "context_id", "project", "worker_id", "label"];
/// All that the address may have besides the place in the list.
const FIELDS: [&str; 8] = ["since", "until", "by", "agent_slug", "context_id", "project", "worker_id", "label"];

/// What the address asks for, as a query of the API: what is grouped by, and all else.
struct Asked {
    by: Vec<String>,
    filter: String,
}

impl Asked {
    /// # Errors
    /// What is wrong, by field.
    fn of(fields: &Fields, v: &Layout) -> Result<Self, Wrong> {
        let mut wrong = Wrong::new();
        let mut query = form_urlencoded::Serializer::new(fields.query_of(&FILTERS));
        for (field, parameter) in [("since", "from"), ("until", "to")] {
            match fields.get(field).map(|text| when::past(text.trim(), v.now)) {
                None => {}
                Some(Ok(at)) => drop(query.append_pair(parameter, &at.to_string())),
                Some(Err(text)) => drop(wrong.insert(field.to_owned(), text)),
            }
        }
        let words = fields.all("by").flat_map(|text| text.split(',')).map(str::trim).filter(|word| !word.is_empty());
        let by = words.map(usage_key).collect::<Result<Vec<_>, _>>().map_err(|text| wrong.insert("by".to_owned(), text));
        match by {
            Ok(mut by) if wrong.is_empty() => {
                if by.is_empty() {
                    by.push("day".to_owned());
                }
                Ok(Self { by, filter: query.finish() })
            }
            _ => Err(wrong),
        }
    }

    fn path(&self, by: &str, limit: usize) -> String {
        format!("usage?limit={limit}&by={}&{}", path_part(by), self.filter)
    }
}

struct Row {
    keys: Vec<String>,
    runs: i64,
    input_tokens: i64,
    output_tokens: i64,
    cost_usd: f64,
    cost: String,
    /// How long its bar is, in percent of the longest.
    bar: String,
}

fn row(v: &Layout, row: UsageRow<'_>) -> Row {
    let name = |key: &Value| match key.as_str().unwrap_or_default() {
        "" => v.t("none", "немає").to_owned(),
        name => shortened(name, NAME_CHARS),
    };
    Row {
        keys: row.keys.values().map(name).collect(),
        runs: row.runs,
        input_tokens: row.input_tokens,
        output_tokens: row.output_tokens,
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
    wrong: Wrong,
    /// What the columns of the keys are called.
    titles: Vec<String>,
    rows: Vec<Row>,
    total: Option<Row>,
    /// The addresses of the next page and of the file.
    next: Option<String>,
    file: String,
}

impl UsagePage<'_> {
    fn given(&self, field: &str) -> String {
        self.fields.text(field)
    }

    /// The second thing that is grouped by.
    fn given_second(&self) -> String {
        self.fields.all("by").nth(1).unwrap_or_default().to_owned()
    }

    fn wrong(&self, field: &str) -> Option<&String> {
        self.wrong.get(field)
    }

    /// The fields of the form that filter: name and label.
    fn filters(&self) -> [(&'static str, &'static str); 5] {
        let t = |english, ukrainian| self.v.t(english, ukrainian);
        [
            ("agent_slug", t("Agent", "Агент")),
            ("project", t("Project", "Проєкт")),
            ("worker_id", t("Worker", "Воркер")),
            ("context_id", t("Context", "Контекст")),
            ("label", t("Label (name=value)", "Мітка (назва=значення)")),
        ]
    }

    fn words(&self) -> impl Iterator<Item = &'static str> {
        USAGE_WORDS.into_iter().map(|(word, _)| word)
    }
}

fn title(v: &Layout, key: &str) -> String {
    let known = match key {
        "day" => v.t("Day", "День"),
        "agent_slug" => v.t("Agent", "Агент"),
        "model" => v.t("Model", "Модель"),
        "context_id" => v.t("Context", "Контекст"),
        "project" => v.t("Project", "Проєкт"),
        "worker_id" => v.t("Worker", "Воркер"),
        "created_by" => v.t("Creator", "Хто створив"),
        label => {
            let name = shortened(label.strip_prefix("label:").unwrap_or(label), NAME_CHARS);
            return v.t(format!("Label {name}"), format!("Мітка {name}"));
        }
    };
    known.to_owned()
}

/// The fields of the address, or what a visitor sees first.
fn fields(visit: &Visit) -> Result<Fields, Refused> {
    visit.query().only(&[&FIELDS[..], &["cursor"]].concat())?;
    Ok(if visit.query().is_empty() { Fields::parse(FIRST) } else { visit.query().clone() })
}

pub async fn show(visit: Visit) -> Result<Response, Refused> {
    let (v, fields) = (&visit.layout, fields(&visit)?);
    let own = fields.query_of(&FIELDS);
    let mut page = UsagePage {
        v,
        fields: &fields,
        wrong: Wrong::new(),
        titles: Vec::new(),
        rows: Vec::new(),
        total: None,
        next: None,
        file: format!("/usage.csv?{own}"),
    };
    let found = match Asked::of(&fields, v) {
        Ok(asked) => read(&visit, &asked).await.map(|found| (asked, found)),
        Err(wrong) => Err(Refused::of_fields(wrong)),
    };
    match found {
        Ok((asked, (rows, total, next))) => {
            page.titles = asked.by.iter().map(|key| title(v, key)).collect();
            page.rows = rows;
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
            page.wrong = refused.fields.into_iter().map(|(field, text)| (name(field), text)).collect();
            visit.show(StatusCode::BAD_REQUEST, &page)
        }
        Err(refused) => Err(refused),
    }
}

async fn read(visit: &Visit, asked: &Asked) -> Result<(Vec<Row>, Row, Option<String>), Refused> {
    let v = &visit.layout;
    let path = format!("{}&{}", asked.path(&asked.by.join(","), ROWS), visit.query().query_of(&["cursor"]));
    let mut listed = visit.list(&path, |found| row(v, found)).await?;
    let most = listed.rows.iter().map(|row| row.cost_usd).fold(0.0, f64::max);
    for row in &mut listed.rows {
        row.bar = if most > 0.0 { format!("{:.1}", row.cost_usd / most * 100.0) } else { "0".to_owned() };
    }
    // Days are few, so that the sums of all rows are there beside any page of them.
    let mut total = (0, Usage::default());
    let of_days = |found: UsageRow<'_>| {
        let UsageRow { runs, input_tokens, output_tokens, cost_usd, cost_estimated, .. } = found;
        (runs, Usage { input_tokens, output_tokens, cost_usd, cost_estimated })
    };
    for (runs, used) in all(visit, &asked.path("day", ROWS_OF_CALL), usize::MAX, of_days).await?.unwrap_or_default() {
        total.0 += runs;
        total.1.add(used);
    }
    let (runs, used) = total;
    let total = Row {
        keys: Vec::new(),
        runs,
        input_tokens: used.input_tokens,
        output_tokens: used.output_tokens,
        cost_usd: used.cost_usd,
        cost: cost(v.at.lang, used.cost_usd, used.cost_estimated),
        bar: String::new(),
    };
    Ok((listed.rows, total, listed.next))
}

/// The rows of all pages; `None` if they are more than that.
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

pub async fn file(visit: Visit) -> Result<Response, Refused> {
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
