//! A project of the control plane: its nodes and their leader, the versions of its memory, and its pushes and pulls. Other control planes
//! may answer with fewer fields, so the page leaves out what is missing, and also shows the answers unchanged.

use std::time::Duration;

use askama::Template;
use axum::extract::Path;
use axum::http::{Method, StatusCode};
use axum::response::Response;
use serde_json::{Value, json};
use tokio::time::timeout;
use uuid::Uuid;

use crate::answer::see_other;
use crate::call::path_part;
use crate::files::size;
use crate::lang::Lang;
use crate::membridge::{BASE, CHARS, ask, moment, named, of_control_plane, rows, told, version, workers};
use crate::refused::Refused;
use crate::tasks::buttons::Confirm;
use crate::times::shortened;
use crate::visit::{Layout, Posted, Visit};
use bloom_api::projects::Project;
use bloom_core::Ms;

/// The maximum number of nodes on the page.
const NODES: usize = 200;
/// The maximum number of pushes and pulls on the page.
const JOBS: usize = 20;
/// The maximum number of projects that a server can have.
const PROJECTS: usize = 1_000;
/// The beginning of a digest, long enough to distinguish versions.
const DIGEST_CHARS: usize = 12;
/// How long a browser waits for a push or a pull. It goes on after that, and the list of them shows how it ends.
const SHORTLY: Duration = Duration::from_secs(3);

#[derive(Template)]
#[template(path = "membridge_project.html")]
struct ProjectPage<'a> {
    v: &'a Layout,
    id: &'a str,
    name: String,
    /// The project of this server with the same canonical id. Its memory is pushed and pulled through this project.
    own: Option<Uuid>,
    /// The node that leads; empty if none does.
    leader: String,
    leads_until: Option<Ms>,
    term: String,
    memory_version: String,
    nodes: Vec<Node>,
    versions: Vec<Version>,
    jobs: Vec<Job>,
    /// The two answers, unchanged.
    answers: [String; 2],
    done: Option<&'static str>,
    refusal: Option<Refusal>,
}

struct Node {
    name: String,
    is_worker: bool,
    role: String,
    observations: String,
    last_seen: Option<Ms>,
}

impl Node {
    /// `None` if the node has no name.
    fn of(lang: Lang, node: &Value, is_worker: impl Fn(&str) -> bool) -> Option<Self> {
        let name = node.as_str().or_else(|| node["node_id"].as_str())?.to_owned();
        let role = match node["role"].as_str() {
            Some("primary") => lang.t("leads", "лідер").to_owned(),
            Some("secondary") => lang.t("follows", "не лідер").to_owned(),
            // No node leads, and the page says so once for all nodes.
            Some("unknown") => String::new(),
            _ => told(&node["role"]),
        };
        let is_worker = is_worker(&name);
        Some(Self { name, is_worker, role, observations: told(&node["obs_count"]), last_seen: moment(&node["last_seen"]) })
    }
}

/// A version of the memory.
struct Version {
    number: String,
    node: String,
    size: String,
    digest: String,
    at: Option<Ms>,
}

impl Version {
    fn of(lang: Lang, version: &Value) -> Self {
        Self {
            number: told(&version["version"]),
            node: told(&version["node_id"]),
            size: version["size"].as_i64().map(|bytes| size(lang, bytes)).unwrap_or_default(),
            digest: version["sha256"].as_str().unwrap_or_default().chars().take(DIGEST_CHARS).collect(),
            at: moment(&version["created_at"]),
        }
    }
}

/// A push or a pull.
struct Job {
    what: String,
    node: String,
    status: String,
    detail: String,
    at: Option<Ms>,
}

impl Job {
    fn of(lang: Lang, job: &Value) -> Self {
        let what = match job["action"].as_str() {
            Some("push") => lang.t("push", "надсилання").to_owned(),
            Some("pull") => lang.t("pull", "отримання").to_owned(),
            _ => told(&job["action"]),
        };
        let detail = shortened(job["detail"].as_str().unwrap_or_default(), CHARS);
        Self { what, node: told(&job["agent"]), status: told(&job["status"]), detail, at: moment(&job["finished_at"]) }
    }
}

/// Why a button did nothing, and what to do next.
struct Refusal {
    text: String,
    lang: Lang,
    advice: &'static str,
    /// The setting or the flag that the advice names; may be empty.
    about: &'static str,
}

impl Refusal {
    fn of(visit: &Visit, refused: &Refused) -> Self {
        let at = &visit.layout.at;
        let said = refused.text.text(at);
        let text = shortened(detail(said).as_deref().unwrap_or(said), CHARS);
        let (advice, about) = advice(at.lang, &text);
        Self { text, lang: refused.text.lang(at), advice, about }
    }
}

/// The text of an error of the control plane, which answers with JSON; `None` if the answer has no such text.
fn detail(said: &str) -> Option<String> {
    let body: Value = serde_json::from_str(said.get(said.find('{')?..)?).ok()?;
    body["detail"].as_str().map(str::to_owned)
}

/// What to do after the control plane or an agent has refused something, and the setting or the flag for it.
fn advice(lang: Lang, said: &str) -> (&'static str, &'static str) {
    let known = [
        (
            "Agent returned 401",
            lang.t(
                "The control plane lacks the agent's key. Where it runs, set the key that the agent was started with, and restart it:",
                "Площина керування не має ключа агента. На її машині задайте ключ, з яким запущено агента, і перезапустіть її:",
            ),
            "MEMBRIDGE_AGENT_KEY",
        ),
        (
            "has no URL",
            lang.t(
                "The control plane can't call the agent. Start the agent with",
                "Площина керування не може викликати агента. Запустіть агента з",
            ),
            "--listen ADDRESS --agent-key-file FILE",
        ),
        (
            "keeps no memory",
            lang.t("The agent does not have this project. Start it with", "Агент не має цього проєкту. Запустіть його з"),
            "--memory NAME=DIR",
        ),
        (
            "Agent not found",
            lang.t(
                "No agent of this name is registered at the control plane. Start it with",
                "Агента з такою назвою немає на площині керування. Запустіть його з",
            ),
            "--membridge URL",
        ),
        (
            "No memory of this project",
            lang.t(
                "Nothing was pushed yet. Push the memory of the leader first.",
                "Ще нічого не надіслано. Спершу надішліть пам’ять лідера.",
            ),
            "",
        ),
        (
            "does not lead",
            lang.t(
                "Only the leader may push. Make this node the leader, then push again.",
                "Надсилати може лише лідер. Призначте лідером цей вузол і повторіть.",
            ),
            "",
        ),
    ];
    let usual = lang.t(
        "Check that the agent runs, and that the control plane reaches it at its URL. Then try again.",
        "Перевірте, чи працює агент і чи доступний він площині керування за своєю адресою. Потім спробуйте ще раз.",
    );
    known.into_iter().find(|(words, ..)| said.contains(*words)).map_or((usual, ""), |(_, advice, about)| (advice, about))
}

async fn page<'a>(visit: &'a Visit, id: &'a str) -> Result<ProjectPage<'a>, Refused> {
    let (v, lang) = (&visit.layout, visit.layout.at.lang);
    let [nodes, leadership] = ["nodes", "leadership"].map(|part| format!("{BASE}/{}/{part}", path_part(id)));
    // The calls run concurrently, so a control plane that does not answer delays the page only once.
    let (nodes, leadership, projects, jobs, workers) =
        tokio::join!(ask(visit, &nodes), ask(visit, &leadership), ask(visit, BASE), ask(visit, "/api/membridge/jobs"), workers(visit));
    let (nodes, leadership, workers) = (nodes?, leadership?, workers?);
    // The page is useful even without the name and the jobs, which other control planes may not provide.
    let (projects, jobs) = (projects.unwrap_or_default(), jobs.unwrap_or_default());
    let pretty = |value: &Value| shortened(&serde_json::to_string_pretty(value).unwrap_or_default(), CHARS);
    let of_project = |job: &&Value| job["canonical_id"] == id;
    Ok(ProjectPage {
        v,
        id,
        name: named(&projects).into_iter().find(|project| project.id == id).map_or_else(|| id.to_owned(), |project| project.name),
        own: if v.is_admin() { own(visit, id).await? } else { None },
        leader: ["preferred_primary", "primary_node_id"].map(|name| told(&leadership[name])).concat(),
        leads_until: moment(&leadership["lease_expires_at"]),
        term: told(&leadership["term"]),
        memory_version: version(&leadership["memory_version"]),
        nodes: rows(&nodes, "nodes").filter_map(|node| Node::of(lang, node, |name| workers.contains(name))).take(NODES).collect(),
        versions: rows(&leadership["memory_versions"], "versions").map(|version| Version::of(lang, version)).take(NODES).collect(),
        jobs: rows(&jobs, "jobs").filter(of_project).map(|job| Job::of(lang, job)).take(JOBS).collect(),
        answers: [pretty(&leadership), pretty(&nodes)],
        done: visit.query().get("done").and_then(|word| done(lang, word)),
        refusal: None,
    })
}

/// The project of this server to which this memory belongs.
async fn own(visit: &Visit, id: &str) -> Result<Option<Uuid>, Refused> {
    let of_name = |project: Project<'_>| (project.canonical_id == id).then_some(project.id);
    Ok(visit.list(&format!("projects?limit={PROJECTS}"), of_name).await?.rows.into_iter().flatten().next())
}

fn done(lang: Lang, word: &str) -> Option<&'static str> {
    Some(match word {
        "leader" => lang.t("The control plane has taken the new leader.", "Площина керування прийняла нового лідера."),
        "push" => lang.t("The memory of the leader is stored.", "Пам’ять лідера збережено."),
        "pull" => lang.t("The node has the newest version.", "Вузол має найновішу версію."),
        "asked" => lang.t(
            "It has begun. The list of pushes and pulls shows how it ends.",
            "Розпочато. Список надсилань і отримань покаже, чим усе завершиться.",
        ),
        _ => return None,
    })
}

pub(crate) async fn show(Path(id): Path<String>, visit: Visit) -> Result<Response, Refused> {
    visit.ok(&page(&visit, &id).await?)
}

/// Shows the page of the project with the reason of the refusal. Refusals that do not concern the project become error pages, as elsewhere.
async fn told_there(visit: &Visit, id: &str, refused: Refused) -> Result<Response, Refused> {
    // A key without the right, or a missing project, gets the usual error page.
    if !visit.layout.is_admin() || refused.status == 404 {
        return Err(refused);
    }
    let is_told = matches!(refused.status, 400 | 409 | 422 | 502 | 503);
    let refused = if is_told { refused } else { of_control_plane(visit, refused).await };
    let status = StatusCode::from_u16(refused.status).unwrap_or(StatusCode::BAD_GATEWAY);
    let refusal = Some(Refusal::of(visit, &refused));
    visit.show(status, &ProjectPage { refusal, ..page(visit, id).await? })
}

pub(crate) async fn promote(Path(id): Path<String>, Posted { visit, fields, .. }: Posted) -> Result<Response, Refused> {
    let path = path_part(&id);
    let body = json!({ "primary_node_id": fields.text("node") });
    match visit.act(Method::POST, &format!("{BASE}/{path}/leadership/select"), &body).await {
        Ok(_) => Ok(see_other(&format!("/membridge/projects/{path}?done=leader"))),
        Err(refused) => told_there(&visit, &id, refused).await,
    }
}

pub(crate) async fn act(Path((id, action)): Path<(String, String)>, Posted { visit, fields, .. }: Posted) -> Result<Response, Refused> {
    if !matches!(action.as_str(), "push" | "pull") {
        return Err(Refused::new(404, "There is no such button", "Такої кнопки немає"));
    }
    visit.must_be_admin()?;
    let no_project = || {
        Refused::new(
            404,
            "This server has no project of this name, by which memories are pushed and pulled",
            "Цей сервер не має проєкту з такою назвою, а пам’ять надсилають і отримують за ним",
        )
    };
    let project = own(&visit, &id).await?.ok_or_else(no_project)?;
    // The confirmation page of a pull has the node in the address of its form.
    let node = fields.get("node").or_else(|| visit.query().get("node")).unwrap_or_default();
    let body = json!({ "direction": action, "node_id": node });
    let back = format!("/membridge/projects/{}?done=", path_part(&id));
    let call = tokio::spawn(async move {
        let answer = visit.act(Method::POST, &format!("projects/{project}/sync-memory"), &body).await;
        (visit, answer)
    });
    match timeout(SHORTLY, call).await {
        Ok(Ok((_, Ok(_)))) => Ok(see_other(&format!("{back}{action}"))),
        Ok(Ok((visit, Err(refused)))) => told_there(&visit, &id, refused).await,
        Ok(Err(_)) => Err(Refused::internal("The call was not finished", "Виклик не завершено")),
        Err(_) => Ok(see_other(&format!("{back}asked"))),
    }
}

pub(crate) async fn confirm_pull(Path(id): Path<String>, visit: Visit) -> Result<Response, Refused> {
    visit.must_be_admin()?;
    let (v, path, node) = (&visit.layout, path_part(&id), visit.query().text("node"));
    visit.ok(&Confirm {
        v,
        title: &v.t(format!("Replace the memory on {node}?"), format!("Замінити пам’ять на {node}?")),
        text: v.t(
            "The newest version takes the place of the directory there. Files that the version lacks are lost. This can't be undone.",
            "Найновіша версія замінить тамтешній каталог. Файли, яких у версії немає, буде втрачено. Цього не можна скасувати.",
        ),
        target: format!("/membridge/projects/{path}/pull?node={}", path_part(&node)),
        button: v.t("Replace it", "Замінити"),
        back: format!("/membridge/projects/{path}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_of_the_control_plane_is_told_by_its_text() {
        assert_eq!(detail("Membridge returned 502: {\"detail\":\"it {is} stopped\"}").as_deref(), Some("it {is} stopped"));
        for other in ["can't connect", "Membridge returned 422: {\"detail\":[]}", "{ no JSON"] {
            assert_eq!(detail(other), None, "{other}");
        }
    }

    #[test]
    fn a_refusal_is_told_with_what_to_do_next() {
        let about = |said: &str| advice(Lang::English, said).1;
        assert_eq!(about("Membridge returned 502: {\"detail\":\"Agent returned 401: {}\"}"), "MEMBRIDGE_AGENT_KEY");
        assert_eq!(about("Agent \"a\" has no URL: start it with --listen"), "--listen ADDRESS --agent-key-file FILE");
        assert_eq!(about("Agent not found"), "--membridge URL");
        let (leads, _) = advice(Lang::English, "Node 'a' does not lead this project, and nobody does now");
        assert!(leads.starts_with("Only the leader"), "{leads}");
        let (usual, none) = advice(Lang::English, "can't connect");
        assert!(usual.starts_with("Check that the agent runs") && none.is_empty(), "{usual}");
    }
}
