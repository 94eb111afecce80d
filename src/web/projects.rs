//! Projects: the list and its form, a project's page with its clones, and the buttons.

use std::collections::{BTreeMap, BTreeSet};
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
use crate::lang::Lang;
use crate::refused::Refused;
use crate::spent;
use crate::tasks::buttons::Confirm;
use crate::times::shortened;
use crate::visit::{Fields, Layout, Posted, Visit};
use bloom_api::projects::{NodeStatus, Project};
use bloom_api::tasks::Task;
use bloom_api::workers::Worker;
use bloom_core::Ms;
use bloom_core::project::CloneStatus;
use bloom_core::task::{Reason, Status};

const ROWS: usize = 60;
/// The maximum number of clones on the page of a project.
const NODES: usize = 200;
/// The maximum number of workers that are checked for a URL, by which the server can call them.
const WORKERS: usize = 1_000;
/// The newest tasks of a project, which show whether its runs get a clone.
const TASKS: usize = 20;
/// The fields of the form: first the required ones.
const FIELDS: [&str; 5] = ["name", "repo_url", "target_path", "primary_node_id", "branch_prefix"];
/// For how many projects without a clone the list reads the newest run.
const PENDING: usize = 20;
/// How long a browser waits for clones. Cloning continues after that, and the page of the project shows the outcome.
const SHORTLY: Duration = Duration::from_secs(3);

struct Row {
    id: Uuid,
    name: String,
    repo_url: String,
    target_path: String,
    primary: String,
    branch_prefix: String,
    status: String,
    error: String,
    /// The newest run of the project, if it failed because of the repository.
    failed: Option<FailedRun>,
    created_at: Ms,
    updated_at: Ms,
}

impl Row {
    /// Whether no worker has cloned the project. This is also the case if the clone for its first run failed.
    fn is_pending(&self) -> bool {
        self.status == CloneStatus::Pending.as_str()
    }

    /// Whether a worker has cloned the project.
    fn is_cloned(&self) -> bool {
        !self.is_pending() && self.status != CloneStatus::Failed.as_str()
    }

    /// Whether the newest run has failed because of the repository, and the server has not recorded that yet.
    fn has_failed(&self) -> bool {
        self.is_pending() && self.failed.is_some()
    }
}

fn row(project: Project<'_>) -> Row {
    Row {
        id: project.id,
        name: project.name.to_string(),
        repo_url: shortened(&project.repo_url, 200),
        target_path: project.target_path.unwrap_or_default().to_string(),
        primary: project.primary_node_id.unwrap_or_default().to_string(),
        branch_prefix: project.branch_prefix.to_string(),
        status: project.clone_status.to_string(),
        error: shortened(&project.error_message.unwrap_or_default(), 300),
        failed: None,
        created_at: project.created_at,
        updated_at: project.updated_at,
    }
}

#[derive(Template)]
#[template(path = "projects.html")]
struct Projects<'a> {
    v: &'a Layout,
    rows: Vec<Row>,
    next: Option<String>,
    /// What was typed into the form.
    typed: &'a Fields,
    wrong: BTreeMap<String, String>,
    done: bool,
}

impl Projects<'_> {
    /// The fields of the form: name, label, hint, and whether the field is required.
    fn inputs(&self) -> [(&'static str, &'static str, &'static str, bool); 5] {
        let t = |english, ukrainian| self.v.t(english, ukrainian);
        let repo_hint = t(
            "https://…, ssh://…, git@HOST:PATH or file:///PATH, without a password: workers use git credentials of their own.",
            "https://…, ssh://…, git@HOST:PATH або file:///PATH, без пароля: воркери мають власні облікові дані git.",
        );
        let path_hint =
            t("Below the agents' directory of projects; empty: the name.", "Усередині каталогу проєктів агентів; порожньо: назва.");
        let prefix_hint = t(
            "The branches of contexts are PREFIX/CONTEXT; empty: bloom.",
            "Гілки контекстів мають назви ПРЕФІКС/КОНТЕКСТ; порожньо: bloom.",
        );
        let primary_hint = t("It clones the project if none is named.", "Він клонує проєкт, якщо не названо іншого.");
        [
            ("name", t("Name", "Назва"), t("It is the directory of the clones, too.", "Це також каталог клонів."), true),
            ("repo_url", t("Repository", "Репозиторій"), repo_hint, true),
            ("target_path", t("Path of the clones", "Шлях клонів"), path_hint, false),
            ("primary_node_id", t("Primary worker", "Основний воркер"), primary_hint, false),
            ("branch_prefix", t("Prefix of branches", "Префікс гілок"), prefix_hint, false),
        ]
    }

    /// Whether one of the rarely needed fields is in use.
    fn is_more_open(&self) -> bool {
        FIELDS[2..].iter().any(|field| self.typed.get(field).is_some() || self.wrong.contains_key(*field))
    }

    fn has_primary(&self) -> bool {
        self.rows.iter().any(|row| !row.primary.is_empty())
    }

    fn typed(&self, field: &str) -> String {
        self.typed.text(field)
    }

    fn wrong(&self, field: &str) -> Option<&String> {
        self.wrong.get(field)
    }
}

async fn page<'a>(visit: &'a Visit, typed: &'a Fields) -> Result<Projects<'a>, Refused> {
    let mut listed = visit.list(&format!("projects?limit={ROWS}&{}", visit.query().query_of(&["cursor"])), row).await?;
    for row in listed.rows.iter_mut().filter(|row| !row.is_cloned()).take(PENDING) {
        row.failed = FailedRun::newest(visit, &row.name).await?;
    }
    let next = listed.next.map(|cursor| format!("/projects?cursor={}", path_part(&cursor)));
    let done = visit.query().get("done").is_some();
    Ok(Projects { v: &visit.layout, rows: listed.rows, next, typed, wrong: BTreeMap::new(), done })
}

pub(crate) async fn list(visit: Visit) -> Result<Response, Refused> {
    visit.query().only(&["cursor", "done"])?;
    visit.ok(&page(&visit, &Fields::default()).await?)
}

pub(crate) async fn create(Posted { visit, fields, .. }: Posted) -> Result<Response, Refused> {
    let given: BTreeMap<&str, &str> = FIELDS.iter().filter_map(|name| Some((*name, fields.get(name)?))).collect();
    match visit.act(Method::POST, "projects", &json!(given)).await {
        Ok(created) => Ok(see_other(&format!("/projects/{}", created["id"].as_str().unwrap_or_default()))),
        Err(refused) if refused.status == 400 && !refused.fields.is_empty() => {
            visit.show(StatusCode::BAD_REQUEST, &Projects { wrong: refused.fields, ..page(&visit, &fields).await? })
        }
        // The name is taken, or there are too many.
        Err(refused) if refused.status == 409 => {
            let wrong = BTreeMap::from([("name".to_owned(), refused.text.text(&visit.layout.at).to_owned())]);
            visit.show(StatusCode::CONFLICT, &Projects { wrong, ..page(&visit, &fields).await? })
        }
        Err(refused) => Err(refused),
    }
}

struct Node {
    name: String,
    /// Whether the worker still exists.
    is_worker: bool,
    /// Whether the server can ask the worker for a clone.
    may_clone: bool,
    worker_status: String,
    status: String,
    path: String,
    error: String,
    since: Option<Ms>,
}

fn node(found: NodeStatus<'_>, without_url: &BTreeSet<String>) -> Node {
    let worker_status = found.worker_status.map(|status| status.to_string());
    Node {
        may_clone: worker_status.is_some() && !without_url.contains(&*found.node.node_id),
        name: found.node.node_id.to_string(),
        is_worker: worker_status.is_some(),
        worker_status: worker_status.unwrap_or_else(|| "removed".to_owned()),
        status: found.node.clone_status.to_string(),
        path: shortened(&found.node.clone_path.unwrap_or_default(), 200),
        error: shortened(&found.node.error_message.unwrap_or_default(), 600),
        since: found.node.updated_at,
    }
}

#[derive(Template)]
#[template(path = "project.html")]
struct ProjectPage<'a> {
    v: &'a Layout,
    project: Row,
    nodes: Vec<Node>,
    /// The recent cost of its runs.
    spent: String,
    done: Option<&'static str>,
}

struct FailedRun {
    task: Uuid,
    text: String,
}

impl FailedRun {
    /// The newest run that failed because of the repository; `None` if a run has completed since. Runs that failed for other reasons are
    /// ignored.
    async fn newest(visit: &Visit, project: &str) -> Result<Option<Self>, Refused> {
        let row = |task: Task<'_>| {
            let failure = task.failure.as_ref().filter(|failure| failure.reason == Reason::Project);
            let failed = failure.map(|failure| (failure.at, Some(Self { task: task.id, text: shortened(&failure.message, 600) })));
            failed.or_else(|| (task.status == Status::Completed).then_some((task.finished_at.unwrap_or(task.updated_at), None)))
        };
        let listed = visit.list(&format!("llm-tasks?limit={TASKS}&project={}", path_part(project)), row).await?;
        Ok(listed.rows.into_iter().flatten().max_by_key(|(at, _)| *at).and_then(|(_, failed)| failed))
    }
}

impl ProjectPage<'_> {
    /// Whether the path of any clone is known.
    fn has_paths(&self) -> bool {
        self.nodes.iter().any(|node| !node.path.is_empty())
    }

    /// Whether a worker that the server can call has no clone.
    fn is_lacking(&self) -> bool {
        self.nodes.iter().any(|node| node.may_clone && node.status != "cloned")
    }
}

pub(crate) async fn show(Path(id): Path<String>, visit: Visit) -> Result<Response, Refused> {
    let path = format!("projects/{}", path_part(&id));
    let mut project = row(visit.get(&path).await?);
    // A key that sees only the tasks of its team may not see clones.
    let mut nodes = match visit.layout.sees_all() {
        true => {
            let by_itself = |worker: Worker<'_>| worker.url.is_empty().then(|| worker.id.into_owned());
            let without_url = visit.list(&format!("workers?limit={WORKERS}"), by_itself).await?.rows.into_iter().flatten().collect();
            visit.list(&format!("{path}/node-status"), |found| node(found, &without_url)).await?.rows
        }
        false => Vec::new(),
    };
    nodes.truncate(NODES);
    project.failed = FailedRun::newest(&visit, &project.name).await?;
    let spent = spent::lately(&visit, "project", &project.name).await?;
    visit.ok(&ProjectPage {
        v: &visit.layout,
        project,
        nodes,
        spent,
        done: visit.query().get("done").and_then(|word| done(visit.layout.at.lang, word)),
    })
}

fn done(lang: Lang, word: &str) -> Option<&'static str> {
    Some(match word {
        "clone" => lang.t("The worker has a clone.", "Воркер має клон."),
        "propagate" => lang.t(
            "The workers were asked. Below is how it ended at each.",
            "Запит надіслано воркерам. Нижче — чим він завершився на кожному.",
        ),
        "nobody" => lang.t(
            "Nobody was asked: all workers that the server can call have a clone.",
            "Запитів не було: усі воркери, які сервер може викликати, мають клон.",
        ),
        "edit" => lang.t(
            "The branches of contexts get the prefix. Those that were pushed keep their names.",
            "Гілки контекстів отримають цей префікс. Уже надіслані гілки збережуть назви.",
        ),
        "asked" => {
            lang.t("The clone has begun. This page shows how it ends.", "Клонування почалося. Ця сторінка покаже, чим воно завершиться.")
        }
        _ => return None,
    })
}

pub(crate) async fn act(Path((id, action)): Path<(String, String)>, Posted { visit, fields, .. }: Posted) -> Result<Response, Refused> {
    let path = format!("projects/{}", path_part(&id));
    let body = match action.as_str() {
        "clone" => json!({ "node_id": fields.get("node") }),
        "propagate" => json!({}),
        "edit" => {
            let edit = json!({ "branch_prefix": fields.text("branch_prefix") });
            visit.act(Method::PATCH, &path, &edit).await?;
            return Ok(see_other(&format!("/{path}?done=edit")));
        }
        "delete" => {
            visit.act(Method::DELETE, &path, &json!({})).await?;
            return Ok(see_other("/projects?done=1"));
        }
        _ => return Err(Refused::new(404, "There is no such button", "Такої кнопки немає")),
    };
    let back = format!("/{path}?done=");
    let target = format!("{path}/{action}");
    let call = tokio::spawn(async move { visit.act(Method::POST, &target, &body).await });
    match timeout(SHORTLY, call).await {
        Ok(Ok(Ok(answer))) if answer["status"] == "nothing_to_propagate" => Ok(see_other(&format!("{back}nobody"))),
        Ok(Ok(Ok(_))) => Ok(see_other(&format!("{back}{action}"))),
        Ok(Ok(Err(refused))) => Err(refused),
        Ok(Err(_)) => Err(Refused::internal("The call was not finished", "Виклик не завершено")),
        Err(_) => Ok(see_other(&format!("{back}asked"))),
    }
}

pub(crate) async fn confirm_delete(Path(id): Path<String>, visit: Visit) -> Result<Response, Refused> {
    visit.must_be_admin()?;
    let path = format!("projects/{}", path_part(&id));
    let project: Value = visit.get(&path).await?;
    let (v, name) = (&visit.layout, project["name"].as_str().unwrap_or_default());
    visit.ok(&Confirm {
        v,
        title: &v.t(format!("Delete the project {name}?"), format!("Видалити проєкт {name}?")),
        text: v.t(
            "What is known of its clones goes with it. The clones stay on the machines of the workers.",
            "Разом із ним зникнуть відомості про його клони. Самі клони залишаться на машинах воркерів.",
        ),
        target: format!("/{path}/delete"),
        button: v.t("Delete it", "Видалити"),
        back: format!("/{path}"),
    })
}
