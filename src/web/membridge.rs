//! The control plane: the connection, projects, their nodes, and who leads them. Control planes of others answer with more or with less, so what
//! is not known is left out, and the answers stand there as they came, too.

use std::collections::BTreeMap;

use askama::Template;
use axum::extract::Path;
use axum::http::{Method, StatusCode};
use axum::response::Response;
use serde_json::{Value, json};

use crate::answer::see_other;
use crate::call::path_part;
use crate::lang::Lang;
use crate::refused::Refused;
use crate::times::shortened;
use crate::visit::{Layout, Posted, Visit};
use bloom_api::reports::{Config, ConnectionTest, Health};
use bloom_core::Ms;

const BASE: &str = "/api/membridge/projects";
/// Projects on the page.
const MOST: usize = 200;
/// Characters of a name in an answer.
const NAME_CHARS: usize = 128;
/// Characters of an answer of the control plane.
const CHARS: usize = 6_000;

struct Project {
    id: String,
    name: String,
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
}

async fn page(visit: &Visit) -> Result<Membridge<'_>, Refused> {
    let config: Config = visit.get("config").await?;
    let health: Health = visit.get("health").await?;
    let (lang, failures) = (visit.layout.at.lang, health.membridge.consecutive_failures);
    let times = lang.count(failures.into(), ["time", "times"], ["раз", "рази", "разів"]);
    // A control plane that does not answer would keep this page waiting.
    let projects = if config.connected { visit.get::<Value>(BASE).await.ok() } else { None };
    Ok(Membridge {
        v: &visit.layout,
        // An address with a password is masked, and must not be stored so.
        // Nor that of the server's own control plane, which only this process reaches.
        typed_url: Some(&config.membridge_server_url)
            .filter(|url| !url.contains("****") && config.built_in_url.is_none())
            .cloned()
            .unwrap_or_default(),
        config,
        last_success: health.membridge.last_success,
        last_error: shortened(health.membridge.last_error.as_deref().unwrap_or_default(), CHARS),
        failures,
        failed: lang.t(format!("{times} in a row"), format!("{times} поспіль")),
        projects: projects.as_ref().map(named).unwrap_or_default(),
        wrong: BTreeMap::new(),
        tested: None,
        done: None,
    })
}

/// The projects in an answer, which is a list or has one; each is an id, or an object with one.
fn named(answer: &Value) -> Vec<Project> {
    let list = answer.as_array().or_else(|| answer["projects"].as_array());
    let one = |project: &Value| {
        let text = |name: &str| project[name].as_str().map(str::to_owned);
        let id = project.as_str().map(str::to_owned).or_else(|| ["canonical_id", "id", "cid"].iter().find_map(|name| text(name)))?;
        Some(Project { name: text("name").unwrap_or_else(|| id.clone()), id })
    };
    list.into_iter().flatten().filter_map(one).take(MOST).collect()
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
    let tested = visit.act(Method::POST, "test-connection", &json!({})).await?;
    let tested = serde_json::from_value(tested)
        .map_err(|_| Refused::internal("The answer of the test could not be read", "Відповідь перевірки не вдалося прочитати"))?;
    visit.ok(&Membridge { tested: Some(tested), ..page(&visit).await? })
}

#[derive(Template)]
#[template(path = "membridge_project.html")]
struct ProjectPage<'a> {
    v: &'a Layout,
    id: &'a str,
    /// Empty: nobody leads.
    leader: String,
    leads_until: Option<Ms>,
    term: String,
    memory_version: String,
    nodes: Vec<Node>,
    /// Both answers as they came.
    answers: [String; 2],
    done: Option<&'static str>,
}

struct Node {
    name: String,
    role: String,
    observations: String,
    last_seen: Option<Ms>,
}

impl Node {
    /// `None`: it has no name.
    fn of(lang: Lang, node: &Value) -> Option<Self> {
        let name = node.as_str().or_else(|| node["node_id"].as_str())?.to_owned();
        let role = match node["role"].as_str() {
            Some("primary") => lang.t("leads", "лідер").to_owned(),
            Some("secondary") => lang.t("follows", "не лідер").to_owned(),
            _ => told(&node["role"]),
        };
        Some(Self { name, role, observations: told(&node["obs_count"]), last_seen: moment(&node["last_seen"]) })
    }
}

/// A text or a number, for people; empty if it is neither.
fn told(value: &Value) -> String {
    match value {
        Value::String(text) => shortened(text, NAME_CHARS),
        Value::Number(number) => number.to_string(),
        _ => String::new(),
    }
}

/// A time, which is in seconds with a fraction, or in whole milliseconds.
fn moment(value: &Value) -> Option<Ms> {
    /// As milliseconds this is in 1973, and as seconds in the year 5138.
    const LEAST_MS: f64 = 1e11;
    let number = value.as_f64().filter(|number| (0.0..1e15).contains(number))?;
    Some((if number < LEAST_MS { number * 1000.0 } else { number }) as Ms)
}

pub(crate) async fn project(Path(id): Path<String>, visit: Visit) -> Result<Response, Refused> {
    let path = format!("{BASE}/{}", path_part(&id));
    let nodes: Value = visit.get(&format!("{path}/nodes")).await?;
    let leadership: Value = visit.get(&format!("{path}/leadership")).await?;
    let list = nodes.as_array().or_else(|| nodes["nodes"].as_array());
    let lang = visit.layout.at.lang;
    let pretty = |value: &Value| shortened(&serde_json::to_string_pretty(value).unwrap_or_default(), CHARS);
    let taken = visit.layout.t("The control plane has taken the new leader.", "Площина керування прийняла нового лідера.");
    visit.ok(&ProjectPage {
        v: &visit.layout,
        id: &id,
        leader: ["preferred_primary", "primary_node_id"].map(|name| told(&leadership[name])).concat(),
        leads_until: moment(&leadership["lease_expires_at"]),
        term: told(&leadership["term"]),
        memory_version: told(&leadership["memory_version"]),
        nodes: list.into_iter().flatten().filter_map(|node| Node::of(lang, node)).take(MOST).collect(),
        answers: [pretty(&leadership), pretty(&nodes)],
        done: visit.query().get("done").map(|_| taken),
    })
}

pub(crate) async fn promote(Path(id): Path<String>, Posted { visit, fields, .. }: Posted) -> Result<Response, Refused> {
    let path = path_part(&id);
    visit.act(Method::POST, &format!("{BASE}/{path}/leadership/select"), &json!({ "primary_node_id": fields.text("node") })).await?;
    Ok(see_other(&format!("/membridge/projects/{path}?done=1")))
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
    }

    #[test]
    fn a_time_is_in_seconds_or_milliseconds() {
        let times = [json!(1_772_000_000.5), json!(1_772_000_000_500_i64), json!(null), json!("soon"), json!(-1), json!(1e300)];
        assert_eq!(times.map(|time| moment(&time)), [Some(1_772_000_000_500), Some(1_772_000_000_500), None, None, None, None]);
    }
}
