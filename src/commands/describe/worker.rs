//! `worker describe`.

use serde_json::Value;

use super::{ENTRIES, LEASES, NEWEST, OF_WORKER, closed, document, facts, more, permitted, section};
use crate::CommandError;
use crate::server_calls::{Server, read};
use crate::show::{Form, Shown, read_all};
use crate::when::time_text;
use crate::{columns, ids, term, when};
use bloom_api::answers::{Audit, Lease, WorkerWithLeases};
use bloom_api::tasks::Task;
use bloom_api::workers::Worker;
use bloom_client::part;
use bloom_core::worker::{DispatchMode, WorkerStatus};

/// # Errors
/// The worker does not exist, or a call failed.
pub(crate) async fn worker(name: &str, server: &Server, shown: Shown) -> Result<(), CommandError> {
    let answer = server.get(&format!("api/runtime/workers/{}", part(name))).await.map_err(|failure| failure.about(name))?;
    let WorkerWithLeases { worker, leases: held } = read(&answer)?;
    let of_worker = [("worker_id", name.to_owned())];
    let leases = permitted(server, "api/runtime/leases", &of_worker, LEASES).await?;
    let trail = permitted(server, "api/runtime/audit", &of_worker, ENTRIES).await?;
    let trail = trail.map(|newest_first| newest_first.into_iter().rev().collect::<Vec<_>>());
    // Leaves out tasks that were removed at once after their runs ended meanwhile.
    let running = ids::existing(server, &held.iter().map(|lease| lease.task_id).collect::<Vec<_>>()).await?;
    match shown.form_or(Form::Table) {
        Form::Name => term::print(&format!("{}\n", term::line(name))),
        form if form.is_data() => document(
            form,
            vec![
                ("worker", answer),
                ("tasks", Value::Array(running)),
                ("leases", Value::Array(leases.unwrap_or_default())),
                ("audit", Value::Array(trail.unwrap_or_default())),
            ],
        ),
        form => {
            facts(&of(&worker))?;
            section("Runs now", form, &columns::TASKS, &read_all::<Task>(&running)?)?;
            match leases {
                Some(leases) => {
                    let newest = &leases[..leases.len().min(NEWEST)];
                    section("Last leases", form, &OF_WORKER, &read_all::<Lease>(newest)?)?;
                    more(leases.len() > NEWEST, &format!("bloom-runtime lease list --worker {name}"))?;
                }
                None => closed("Last leases")?,
            }
            let Some(trail) = trail else { return closed("History") };
            let entries: Vec<Audit> = read_all(&trail)?;
            section("History", form, &columns::AUDIT, &entries[entries.len().saturating_sub(NEWEST)..])?;
            more(entries.len() > NEWEST, &format!("bloom-runtime audit --worker {name}"))
        }
    }
}

/// How the worker gets tasks. Claiming tasks and waiting for calls are not settings of a worker, so these two can't be distinguished: every
/// worker that claims gets tasks.
fn way(worker: &Worker) -> String {
    let is_pushed_to = worker.dispatch == DispatchMode::Push && !worker.url.is_empty();
    let way =
        if is_pushed_to { "the server pushes them to its URL" } else { "it claims them by itself, or calls lease or dispatch them to it" };
    way.to_owned()
}

fn of(worker: &Worker) -> Vec<(&'static str, String)> {
    let now = when::now();
    let capabilities = &worker.capabilities;
    let paused =
        worker.pauses.iter().map(|pause| format!("{} (since {})", pause.message, time_text(pause.since))).collect::<Vec<_>>().join("; ");
    let advice = match (worker.draining || worker.cordoned, worker.status == WorkerStatus::Online || !paused.is_empty()) {
        (true, _) => format!("it gets no new tasks; put it back into service: bloom-runtime worker uncordon {}", worker.id),
        (false, false) => "it gets no tasks: see the log of its agent, and whether the agent reaches this server".into(),
        (false, true) => String::new(),
    };
    let namespaces = match capabilities.namespaces.as_deref() {
        None => "all, and tasks without one".to_owned(),
        Some([]) => "none: it gets no tasks".to_owned(),
        Some(namespaces) => format!("only {}", namespaces.join(", ")),
    };
    let projects = match capabilities.projects.as_deref() {
        None => if capabilities.git { "all, and tasks without one" } else { "only tasks without one" }.to_owned(),
        Some([]) => "only tasks without one".to_owned(),
        Some(projects) => format!("only {}, and tasks without one", projects.join(", ")),
    };
    let instance = worker.instance.zip(worker.instance_since);
    let instance = instance.map_or_else(String::new, |(id, since)| format!("{id}, since {}", time_text(since)));
    let seen = format!("{} ({} ago)", time_text(worker.last_heartbeat), columns::age(worker.last_heartbeat, now));
    vec![
        ("Worker", worker.id.to_string()),
        ("Status", columns::status_of_worker(worker, now)),
        ("Paused", paused),
        ("What to do", advice),
        ("Slots", format!("{} of {} in use", worker.active_leases, capabilities.max_concurrency)),
        ("Agents", columns::agents_of_worker(worker)),
        ("Namespaces", namespaces),
        ("Projects", projects),
        ("Labels", capabilities.labels.join(", ")),
        ("Claude CLI", if capabilities.claude_cli { "yes" } else { "no" }.to_owned()),
        ("Last seen", seen),
        ("Instance", instance),
        ("Gets tasks", way(worker)),
        ("URL", worker.url.to_string()),
        ("Version", worker.agent_version.to_string()),
        ("OS", worker.os_info.to_string()),
        ("Addresses", worker.ip_addrs.join(", ")),
        ("Registered", format!("{} ({} ago)", time_text(worker.registered_at), columns::age(worker.registered_at, now))),
    ]
}
