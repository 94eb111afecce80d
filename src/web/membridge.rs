//! The control plane: the connection, and its projects. Other control planes may answer with more or fewer fields, so the page leaves out
//! what is missing.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use askama::Template;
use axum::http::{Method, StatusCode};
use axum::response::Response;
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::answer::see_other;
use crate::refused::{Refused, Said};
use crate::times::shortened;
use crate::visit::{Layout, Posted, Visit};
use bloom_api::reports::{Config, ConnectionTest, Health};
use bloom_api::workers::Worker;
use bloom_core::Ms;

pub(crate) const BASE: &str = "/api/membridge/projects";
/// The maximum number of projects on the page.
const MOST: usize = 200;
/// The maximum number of workers that are read. The name of a node links to the page of the worker with that name.
const WORKERS: usize = 1_000;
/// The maximum length of a name from an answer.
const NAME_CHARS: usize = 128;
/// The maximum length of an answer of the control plane.
pub(crate) const CHARS: usize = 6_000;
/// How long a page waits for the control plane. The page has the form that changes the address, so it must be shown before a browser gives
/// up.
const WAIT_SEC: u64 = 5;

/// A project in the list. Fields that the control plane does not send are empty.
pub(crate) struct Project {
    pub id: String,
    pub name: String,
    pub nodes: String,
    pub leader: String,
    pub version: String,
    pub stored_at: Option<Ms>,
    pub last_seen: Option<Ms>,
}

#[derive(Template)]
#[template(path = "membridge.html")]
struct Membridge<'a> {
    v: &'a Layout,
    config: Config,
    last_success: Option<Ms>,
    last_error: String,
    failures: u32,
    /// How often the last calls failed, in words.
    failed: String,
    projects: Vec<Project>,
    /// Why the control plane did not list its projects.
    unlisted: Option<Said>,
    workers: BTreeSet<String>,
    typed_url: String,
    wrong: BTreeMap<String, String>,
    /// How the test of the connection ended.
    tested: Option<ConnectionTest>,
    done: Option<&'static str>,
}

impl Membridge<'_> {
    fn wrong(&self, field: &str) -> Option<&String> {
        self.wrong.get(field)
    }

    fn is_worker(&self, name: &str) -> bool {
        self.workers.contains(name)
    }
}

async fn page(visit: &Visit) -> Result<Membridge<'_>, Refused> {
    let config: Config = visit.get("config").await?;
    let health: Health = visit.get("health").await?;
    let (lang, failures) = (visit.layout.at.lang, health.membridge.consecutive_failures);
    let times = lang.count(failures.into(), ["time", "times"], ["раз", "рази", "разів"]);
    // If the last call failed, another one would only delay this page.
    let listed = async { if config.connected { ask(visit, BASE).await } else { Ok(Value::Null) } };
    let (listed, workers) = tokio::join!(listed, workers(visit));
    let (mut projects, unlisted) = match listed {
        Ok(listed) => (named(&listed), None),
        Err(refused) => (Vec::new(), Some(refused.text)),
    };
    projects.truncate(MOST);
    Ok(Membridge {
        v: &visit.layout,
        // A masked password must not be stored as part of the address. The address of the server's own control plane must not be stored
        // either, because only this process can reach it.
        typed_url: Some(&config.membridge_server_url)
            .filter(|url| !url.contains("****") && config.built_in_url.is_none())
            .cloned()
            .unwrap_or_default(),
        config,
        last_success: health.membridge.last_success,
        last_error: shortened(health.membridge.last_error.as_deref().unwrap_or_default(), CHARS),
        failures,
        failed: lang.t(format!("{times} in a row"), format!("{times} поспіль")),
        projects,
        unlisted,
        workers: workers?,
        wrong: BTreeMap::new(),
        tested: None,
        done: None,
    })
}

/// The answer of the control plane. Any other status is reported as a failure of the control plane: if a 401 were passed on, the page would
/// tell the visitor that the session has ended.
///
/// # Errors
/// The key may not ask the control plane, the control plane does not have the object, or its answer is not as expected.
pub(crate) async fn ask(visit: &Visit, path: &str) -> Result<Value, Refused> {
    match timeout(Duration::from_secs(WAIT_SEC), visit.get::<Value>(path)).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(refused)) => Err(of_control_plane(visit, refused).await),
        Err(_) => {
            let english = format!("it did not answer within {WAIT_SEC} s");
            Err(fault(visit, english, format!("вона не відповіла за {WAIT_SEC} с")).await)
        }
    }
}

/// The same for a call that the API or the control plane refused.
pub(crate) async fn of_control_plane(visit: &Visit, refused: Refused) -> Refused {
    let status = refused.status;
    if !visit.layout.uses_membridge || !visit.layout.sees_all() || status == 404 {
        return refused;
    }
    let (english, ukrainian) = match refused.text {
        Said::Page(..) => ("its answer is not the JSON of a control plane".to_owned(), "її відповідь — не очікуваний JSON".to_owned()),
        Said::Api(text) if status == 502 => (shortened(&text, CHARS), "виклик не вдався".to_owned()),
        Said::Api(_) => (format!("it answered with status {status}"), format!("вона відповіла статусом {status}")),
    };
    fault(visit, english, ukrainian).await
}

async fn fault(visit: &Visit, english: String, ukrainian: String) -> Refused {
    let config: Config = match visit.get("config").await {
        Ok(config) => config,
        Err(refused) => return refused,
    };
    let address = shortened(&config.built_in_url.unwrap_or(config.membridge_server_url), CHARS);
    Refused::new(
        502,
        format!("The control plane at {address} does not work: {english}"),
        format!("Площина керування за адресою {address} не працює: {ukrainian}"),
    )
}

/// The names of this server's workers. The agents of the control plane are among them if the server has taken them over.
pub(crate) async fn workers(visit: &Visit) -> Result<BTreeSet<String>, Refused> {
    let listed = visit.list(&format!("workers?limit={WORKERS}"), |worker: Worker<'_>| worker.id.into_owned()).await?;
    Ok(listed.rows.into_iter().collect())
}

/// The projects in an answer. The answer is a list or an object with a list; each entry is an id or an object with an id.
pub(crate) fn named(answer: &Value) -> Vec<Project> {
    let one = |project: &Value| {
        let text = |name: &str| project[name].as_str().map(str::to_owned);
        let id = project.as_str().map(str::to_owned).or_else(|| ["canonical_id", "id", "cid"].iter().find_map(|name| text(name)))?;
        Some(Project {
            name: text("name").unwrap_or_else(|| id.clone()),
            id,
            nodes: told(&project["nodes_count"]),
            leader: told(&project["preferred_primary"]),
            version: version(&project["memory_version"]),
            stored_at: moment(&project["memory_stored_at"]),
            last_seen: moment(&project["last_seen"]),
        })
    };
    rows(answer, "projects").filter_map(one).collect()
}

/// The rows of an answer that is a list, or an object with a list of this name.
pub(crate) fn rows<'a>(answer: &'a Value, name: &str) -> impl Iterator<Item = &'a Value> {
    answer.as_array().or_else(|| answer[name].as_array()).into_iter().flatten()
}

/// The number of a version of a memory; empty if there is no version yet.
pub(crate) fn version(value: &Value) -> String {
    Some(told(value)).filter(|version| version != "0").unwrap_or_default()
}

pub(crate) async fn show(visit: Visit) -> Result<Response, Refused> {
    let stored = visit.layout.t(
        "The connection was stored, and counts from now on, on every replica.",
        "З’єднання збережено; відтепер воно діє на кожній репліці.",
    );
    let done = visit.query().get("done").map(|_| stored);
    visit.ok(&Membridge { done, ..page(&visit).await? })
}

pub(crate) async fn set(Posted { visit, fields, .. }: Posted) -> Result<Response, Refused> {
    let body = json!({ "membridge_server_url": fields.text("membridge_server_url"), "admin_key": fields.text("admin_key") });
    match visit.act(Method::POST, "config", &body).await {
        Ok(_) => Ok(see_other("/membridge?done=1")),
        Err(refused) if refused.status == 400 && !refused.fields.is_empty() => {
            let typed_url = fields.text("membridge_server_url");
            visit.show(StatusCode::BAD_REQUEST, &Membridge { typed_url, wrong: refused.fields, ..page(&visit).await? })
        }
        Err(refused) => Err(refused),
    }
}

pub(crate) async fn test(Posted { visit, .. }: Posted) -> Result<Response, Refused> {
    if !visit.layout.is_admin() {
        return Err(Refused::new(
            403,
            "Testing the connection needs an admin key here",
            "Для перевірки з’єднання тут потрібен ключ адміністратора",
        ));
    }
    let tested = visit.post("test-connection", &json!({})).await?;
    visit.ok(&Membridge { tested: Some(tested), ..page(&visit).await? })
}

/// A text or a number as text; empty if the value is neither.
pub(crate) fn told(value: &Value) -> String {
    match value {
        Value::String(text) => shortened(text, NAME_CHARS),
        Value::Number(number) => number.to_string(),
        _ => String::new(),
    }
}

/// Parses a time, which is in seconds with a fraction or in whole milliseconds.
pub(crate) fn moment(value: &Value) -> Option<Ms> {
    /// As milliseconds, this is a time in 1973; as seconds, in the year 5138.
    const LEAST_MS: f64 = 1e11;
    let number = value.as_f64().filter(|number| (0.0..1e15).contains(number))?;
    Some((if number < LEAST_MS { number * 1000.0 } else { number }) as Ms)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn projects_are_found_in_each_form() {
        let ids = |answer: Value| named(&answer).into_iter().map(|project| format!("{} {}", project.id, project.name)).collect::<Vec<_>>();
        assert_eq!(ids(json!(["a"])), ["a a"]);
        assert_eq!(ids(json!({ "projects": [{ "canonical_id": "c", "name": "n" }, 5] })), ["c n"]);
        assert!(ids(json!("x")).is_empty());
        let listed = json!([{ "canonical_id": "c", "nodes_count": 2, "preferred_primary": null, "memory_version": 0, "last_seen": 1_772_000_000.5 }]);
        let project = named(&listed).remove(0);
        let shown = (project.nodes.as_str(), project.leader.as_str(), project.version.as_str(), project.last_seen);
        assert_eq!(shown, ("2", "", "", Some(1_772_000_000_500)), "there is no version 0");
    }

    #[test]
    fn a_time_is_in_seconds_or_milliseconds() {
        let times = [json!(1_772_000_000.5), json!(1_772_000_000_500_i64), json!(null), json!("soon"), json!(-1), json!(1e300)];
        assert_eq!(times.map(|time| moment(&time)), [Some(1_772_000_000_500), Some(1_772_000_000_500), None, None, None, None]);
    }
}
