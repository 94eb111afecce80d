//! Workers: the list, a worker's page and its buttons.

use askama::Template;
use axum::extract::Path;
use axum::http::Method;
use axum::response::Response;
use serde_json::json;

use crate::answer::see_other;
use crate::call::path_part;
use crate::lang::Lang;
use crate::refused::Refused;
use crate::spent;
use crate::tasks::attempts::outcome;
use crate::tasks::buttons::Confirm;
use crate::tasks::list::Row;
use crate::times::shortened;
use crate::visit::{Layout, Posted, Visit};
use bloom_api::answers::{Audit, Lease, WorkerWithLeases};
use bloom_api::tasks::Task;
use bloom_api::words::Word;
use bloom_api::workers::{Pause, Worker};
use bloom_core::Ms;
use bloom_core::pause::PauseKind;
use bloom_core::worker::WorkerStatus;
use url::{Host, Url};
use uuid::Uuid;

const ROWS: usize = 60;
/// How many workers' names are read to find a name that is not in use.
const NAMES: usize = 1_000;
/// How many of a worker's newest leases are read to see how its runs end.
const LEASES: usize = 50;

struct Shown {
    name: String,
    status: String,
    slots: i64,
    used: i64,
    version: String,
    os: String,
    /// How many percent of its slots are in use.
    bar: i64,
    agents: String,
    /// Empty if its agent does not report them.
    profiles: String,
    labels: String,
    projects: String,
    /// The running agent that uses this worker's name, and since when.
    instance: Option<(Uuid, Ms)>,
    last_seen: Ms,
    registered_at: Ms,
    cordoned: bool,
    draining: bool,
    pauses: Vec<ShownPause>,
}

/// A problem of a worker that needs a person. Pauses are left out, because they have messages of their own.
pub(crate) fn trouble(lang: Lang, worker: &Worker<'_>) -> Option<&'static str> {
    match worker.status {
        _ if !worker.pauses.is_empty() => None,
        Word::Known(WorkerStatus::Error) => {
            Some(lang.t(
                "it is in error: look at the agent's log on its machine",
                "він у стані помилки: перегляньте журнал агента на його машині",
            ))
        }
        Word::Known(WorkerStatus::Offline) if worker.active_leases > 0 => Some(lang.t(
            "it is offline and still holds tasks: bring it back, or remove it",
            "він не на зв’язку й досі тримає завдання: поверніть його або вилучіть",
        )),
        _ => None,
    }
}

/// The same for the worker's own page, which also reports that the worker is offline. Other pages do not, because it may have been stopped
/// for good.
fn to_do(lang: Lang, worker: &Worker<'_>) -> Option<&'static str> {
    let is_away = worker.status != WorkerStatus::Online && worker.pauses.is_empty();
    let away = lang.t(
        "it gets no tasks: see the log of its agent, and whether the agent reaches this server",
        "він не отримує завдань: перегляньте журнал його агента й перевірте, чи агент має зв’язок із цим сервером",
    );
    trouble(lang, worker).or_else(|| is_away.then_some(away))
}

/// Whether the address reaches the server only from its own machine.
pub(crate) fn is_of_this_machine(address: &str) -> bool {
    let host = Url::parse(address).ok().and_then(|url| url.host().map(|host| host.to_owned()));
    match host {
        Some(Host::Domain(name)) => name == "localhost" || name.ends_with(".localhost"),
        Some(Host::Ipv4(ip)) => ip.is_loopback(),
        Some(Host::Ipv6(ip)) => ip.is_loopback(),
        None => false,
    }
}

/// An unused name for a new worker. People copy it from the page, and a worker that is started with an existing name would replace the
/// existing one.
pub(crate) fn free_name(taken: &[String]) -> String {
    (1..=taken.len() + 1).map(|number| format!("worker-{number}")).find(|name| !taken.contains(name)).unwrap_or_default()
}

/// A pause, and the account if an administrator can resume it.
struct ShownPause {
    text: String,
    account: Option<String>,
}

fn shown(lang: Lang, worker: Worker<'_>) -> Shown {
    let agents = worker.capabilities.agents.as_deref();
    Shown {
        name: worker.id.to_string(),
        status: worker.status.to_string(),
        slots: worker.capabilities.max_concurrency,
        used: worker.active_leases,
        bar: (worker.active_leases * 100 / worker.capabilities.max_concurrency.max(1)).clamp(0, 100),
        labels: shortened(&worker.capabilities.labels.join(", "), 200),
        // An agent that does not report its version has the word `unknown` in the API.
        version: if worker.agent_version == "unknown" { lang.word("unknown").into() } else { worker.agent_version.to_string() },
        os: worker.os_info.to_string(),
        agents: agents.map_or_else(|| lang.t("all agents", "усіх агентів").to_owned(), |agents| shortened(&agents.join(", "), 100)),
        profiles: shortened(&worker.capabilities.profiles.as_deref().unwrap_or_default().join(", "), 100),
        projects: match worker.capabilities.projects.as_deref() {
            None if worker.capabilities.git => lang.t("all projects", "усі проєкти").to_owned(),
            None => lang.t("no projects", "жодного проєкту").to_owned(),
            Some(named) => shortened(&named.join(", "), 100),
        },
        instance: worker.instance.zip(worker.instance_since),
        last_seen: worker.last_heartbeat,
        registered_at: worker.registered_at,
        cordoned: worker.cordoned,
        draining: worker.draining,
        pauses: worker.pauses.iter().map(shown_pause).collect(),
    }
}

fn shown_pause(pause: &Pause<'_>) -> ShownPause {
    let account = (pause.kind == PauseKind::Account).then(|| pause.name.to_string());
    ShownPause { text: shortened(&pause.message, 300), account }
}

#[derive(Template)]
#[template(path = "workers.html")]
struct Workers<'a> {
    v: &'a Layout,
    rows: Vec<Shown>,
    next: Option<String>,
    address: &'a str,
    /// A name that no worker has.
    example: String,
}

impl Workers<'_> {
    /// Whether the visitor may see the operating systems.
    fn has_systems(&self) -> bool {
        self.rows.iter().any(|row| !row.os.is_empty())
    }
}

pub(crate) async fn list(visit: Visit) -> Result<Response, Refused> {
    let lang = visit.layout.at.lang;
    visit.query().only(&["cursor"])?;
    let listed = visit.list(&format!("workers?limit={ROWS}&{}", visit.query().query_of(&["cursor"])), |worker| shown(lang, worker)).await?;
    let next = listed.next.map(|cursor| format!("/workers?cursor={}", path_part(&cursor)));
    // The rows of this page may be only some of all workers.
    let taken = visit.list(&format!("workers?limit={NAMES}"), |worker: Worker| worker.id.to_string()).await?.rows;
    visit.ok(&Workers { v: &visit.layout, rows: listed.rows, next, address: &visit.address, example: free_name(&taken) })
}

struct Held {
    task_id: Uuid,
    prompt: String,
    since: Ms,
    expires_at: Ms,
}

#[derive(Template)]
#[template(path = "worker.html")]
struct WorkerPage<'a> {
    v: &'a Layout,
    worker: Shown,
    addresses: String,
    url: String,
    held: Vec<Held>,
    recent: Vec<Row>,
    /// Who cordoned or drained it; `None` if nobody did, or if the visitor may not see it.
    closed: Option<Closed>,
    /// What a person has to do about it. Its pauses are shown separately.
    to_do: Option<&'static str>,
    /// How its newest runs ended; `None` if none has ended, or if the visitor may not see it.
    ends: Option<Ends>,
    /// The recent cost of its runs.
    spent: String,
    done: Option<&'static str>,
}

struct Closed {
    by: String,
    at: Ms,
}

/// Who cordoned or drained the worker last.
async fn closed(visit: &Visit, name: &str) -> Result<Option<Closed>, Refused> {
    let path = format!("audit?limit=1&action=worker_cordoned,worker_draining&worker_id={}", path_part(name));
    let entry = |entry: Audit<'_>| Closed { by: shortened(&entry.actor, 100), at: entry.timestamp };
    Ok(visit.list_if_allowed(&path, entry).await?.and_then(|listed| listed.rows.into_iter().next()))
}

struct Ends {
    told: String,
    has_failed: bool,
}

/// How the newest runs of the worker ended.
async fn ends(visit: &Visit, name: &str) -> Result<Option<Ends>, Refused> {
    let lang = visit.layout.at.lang;
    let path = format!("leases?limit={LEASES}&worker_id={}", path_part(name));
    let ends = visit.list(&path, |lease: Lease| outcome(lang, &lease).0).await?.rows;
    let [succeeded, failed] = ["completed", "failed"].map(|class| ends.iter().filter(|end| **end == class).count());
    let told = lang.t(format!("{succeeded} succeeded, {failed} failed"), format!("успішних: {succeeded}, з помилкою: {failed}"));
    Ok((succeeded + failed > 0).then_some(Ends { told, has_failed: failed > 0 }))
}

pub(crate) async fn show(Path(name): Path<String>, visit: Visit) -> Result<Response, Refused> {
    let (lang, now) = (visit.layout.at.lang, visit.layout.now);
    let found: WorkerWithLeases = visit.get(&format!("workers/{}", path_part(&name))).await?;
    let ids: Vec<_> = found.leases.iter().map(|lease| lease.task_id.to_string()).collect();
    let tasks = if ids.is_empty() {
        Vec::new()
    } else {
        visit.list(&format!("llm-tasks?ids={}", ids.join(",")), |task: Task| Row::of(lang, now, task)).await?.rows
    };
    let held = |lease: &Lease| Held {
        task_id: lease.task_id,
        prompt: tasks.iter().find(|row| row.id == lease.task_id).map(|row| row.prompt.clone()).unwrap_or_default(),
        since: lease.started_at,
        expires_at: lease.expires_at,
    };
    let held = found.leases.iter().map(held).collect();
    let recent =
        visit.list(&format!("llm-tasks?worker_id={}&limit=15", path_part(&name)), |task: Task| Row::of(lang, now, task)).await?.rows;
    let to_do = to_do(lang, &found.worker);
    let addresses = shortened(&found.worker.ip_addrs.join(", "), 300);
    let url = found.worker.url.to_string();
    let closed = if found.worker.cordoned || found.worker.draining { closed(&visit, &name).await? } else { None };
    let ends = if visit.layout.sees_all() { ends(&visit, &name).await? } else { None };
    let spent = spent::lately(&visit, "worker_id", &name).await?;
    visit.ok(&WorkerPage {
        v: &visit.layout,
        worker: shown(lang, found.worker),
        addresses,
        url,
        held,
        recent,
        closed,
        to_do,
        ends,
        spent,
        done: visit.query().get("done").and_then(|word| done(lang, word)),
    })
}

fn done(lang: Lang, word: &str) -> Option<&'static str> {
    Some(match word {
        "cordon" => lang.t("It is cordoned: it gets no new tasks.", "Його закрито: він не отримує нових завдань."),
        "uncordon" => lang.t("It takes tasks again.", "Він знову бере завдання."),
        "resume" => lang.t("The pause of the account is over on all workers.", "Паузу облікового запису завершено на всіх воркерах."),
        "drain" => lang.t(
            "It is draining: it gets no new tasks, and finishes or hands back those that it has.",
            "Його виводять з роботи: він не отримує нових завдань, а наявні закінчує або повертає.",
        ),
        _ => return None,
    })
}

pub(crate) async fn act(Path((name, action)): Path<(String, String)>, Posted { visit, fields, .. }: Posted) -> Result<Response, Refused> {
    let path = format!("workers/{}", path_part(&name));
    match action.as_str() {
        "cordon" | "uncordon" | "drain" => {
            visit.act(Method::POST, &format!("{path}/{action}"), &json!({})).await?;
            Ok(see_other(&format!("/{path}?done={action}")))
        }
        "resume" => {
            let account = fields.get("account").unwrap_or_default();
            visit.act(Method::POST, &format!("accounts/{}/resume", path_part(account)), &json!({})).await?;
            Ok(see_other(&format!("/{path}?done=resume")))
        }
        "remove" => {
            visit.act(Method::DELETE, &path, &json!({})).await?;
            Ok(see_other("/workers"))
        }
        _ => Err(Refused::new(404, "There is no such button", "Такої кнопки немає")),
    }
}

pub(crate) async fn confirm_remove(Path(name): Path<String>, visit: Visit) -> Result<Response, Refused> {
    visit.must_be_admin()?;
    let path = format!("workers/{}", path_part(&name));
    let found: WorkerWithLeases = visit.get(&path).await?;
    let v = &visit.layout;
    let held = v.at.lang.count(found.leases.len() as i64, ["task", "tasks"], ["завдання", "завдання", "завдань"]);
    visit.ok(&Confirm {
        v,
        title: &v.t(format!("Remove the worker {name}?"), format!("Вилучити воркер {name}?")),
        text: &v.t(
            format!("It holds {held} now; what it holds goes back to the queue. If its agent still runs, it registers itself again."),
            format!(
                "Зараз він тримає {held}; усе, що він тримає, повернеться в чергу. Якщо його агент досі працює, він зареєструється знову."
            ),
        ),
        target: format!("/{path}/remove"),
        button: v.t("Remove it", "Вилучити"),
        back: format!("/{path}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_worker_gets_the_first_name_that_is_free() {
        let free = |taken: &[&str]| free_name(&taken.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>());
        assert_eq!([free(&[]), free(&["build-01"]), free(&["worker-2"])], ["worker-1", "worker-1", "worker-1"]);
        assert_eq!([free(&["worker-2", "worker-1"]), free(&["worker-1", "worker-3"])], ["worker-3", "worker-2"]);
    }

    #[test]
    fn which_addresses_lead_no_further_than_the_machine() {
        for local in ["http://127.0.0.1:5000", "http://localhost:5000/bloom", "http://[::1]:1", "http://a.localhost"] {
            assert!(is_of_this_machine(local), "{local}");
        }
        for other in ["https://bloom.example", "http://10.0.0.1:5000", "http://localhost.example", "no address"] {
            assert!(!is_of_this_machine(other), "{other}");
        }
    }
}
