//! What the revocation of a key means for the tasks that it created, or for its worker. `key revoke` says it before and after.

use serde_json::{Value, json};

use super::ids;
use super::progress::{number, tasks};
use super::server_calls::{Server, read};
use bloom_api::answers::{BulkResult, Lease};
use bloom_core::api_key::Scope;
use bloom_core::task::LeaseStatus;

/// The maximum number of active leases that are read: more than any worker has.
const MAX_LEASES: usize = 100;
/// The maximum number of running tasks that are named.
const MAX_NAMED: usize = 5;

/// What happens to the tasks or to the worker of this key; empty if it has neither. It is in the present tense, so that it is true before
/// the revocation as well as afterwards.
pub(crate) async fn effects(server: &Server, key: &Value) -> String {
    let text = |field: &str| key[field].as_str().unwrap_or_default();
    let (name, worker) = (text("name"), text("worker"));
    match Scope::parse(text("scope")) {
        Some(scope) if scope.owns_tasks() => of_tasks(server, name).await,
        Some(Scope::Admin) => format!(
            "Tasks that it created stay, and run as before; to see which: bloom-runtime audit --actor key:{name} --action task_created"
        ),
        Some(Scope::Worker) if !worker.is_empty() => of_worker(server, worker, key["push"] == true).await,
        Some(Scope::Join) => "Nobody can enroll a worker with it; a worker that has enrolled keeps the key that it got.".to_owned(),
        _ => String::new(),
    }
}

async fn of_tasks(server: &Server, name: &str) -> String {
    let goes_on = format!("stay, and run as before; to cancel them: bloom-runtime task cancel --owner {name}");
    // The counts are needed only for this text, so the command does not fail if they can't be read.
    let (Some(queued), Some(active)) = tokio::join!(open(server, name, "queued"), open(server, name, "leased,running")) else {
        return format!("Tasks that it created {goes_on}");
    };
    let (waiting, running) = (queued.matched, active.matched);
    if waiting + running == 0 {
        return "No task that it created is waiting or running.".to_owned();
    }
    let or_more = if queued.more { " or more" } else { "" };
    format!("{}{or_more} waiting and {} running tasks that it created {goes_on}", number(waiting), number(running))
}

/// How many tasks of the owner have one of these statuses. A dry run counts them, because a list would send all their prompts.
async fn open(server: &Server, owner: &str, statuses: &str) -> Option<BulkResult> {
    let body = json!({ "filter": { "owner": owner, "status": statuses }, "dry_run": true });
    read(&server.post("api/runtime/llm-tasks:cancel", &body).await.ok()?).ok()
}

async fn of_worker(server: &Server, worker: &str, may_push: bool) -> String {
    let pushes = if may_push { " It also forgets the URL of the worker, and pushes no tasks there." } else { "" };
    format!(
        "The server refuses the agent of {worker} that uses it.{pushes}{} To let the agent go on, put another key into the file of its \
         --key-file: bloom-runtime key create NAME --scope worker --worker {worker} --out FILE",
        of_runs(server, worker).await
    )
}

/// What happens to the runs of the worker; empty if that is not known.
pub(crate) async fn of_runs(server: &Server, worker: &str) -> String {
    let query = [("worker_id", worker.to_owned()), ("status", LeaseStatus::Active.as_str().to_owned())];
    let Ok((found, more)) = server.list("api/runtime/leases", &query, MAX_LEASES).await else { return String::new() };
    let leases: Vec<Lease<'_>> = found.iter().filter_map(|lease| read(lease).ok()).collect();
    if leases.is_empty() {
        return " It runs no task now.".to_owned();
    }
    let named: Vec<String> = leases.iter().take(MAX_NAMED).map(|lease| ids::short(&lease.task_id)).collect();
    let and_more = if leases.len() > MAX_NAMED || more { ", and more" } else { "" };
    let or_more = if more { " or more" } else { "" };
    format!(
        " It runs {}{or_more} ({}{and_more}): without a key that is valid, the runs are ended before their leases expire, and the tasks go back to \
         the queue then.",
        tasks(leases.len() as i64),
        named.join(", ")
    )
}
