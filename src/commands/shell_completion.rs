//! What shells suggest for the values of arguments: the current ids, workers, queues, contexts, projects and labels of the server.
//!
//! The user waits for the suggestions while typing, so there is only one short call. If it fails, nothing is suggested.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::time::Duration;

use clap_complete::CompletionCandidate;
use serde_json::Value;

use super::columns;
use super::connection::Connection;
use super::term;
use bloom_api::ids::IdPart;

const LIMIT: Duration = Duration::from_secs(1);
const TASKS: &str = "api/runtime/llm-tasks?limit=100";
const QUEUES: &str = "api/runtime/queues?limit=100";
const PROJECTS: &str = "api/runtime/projects?limit=100";
const WORKERS: &str = "api/runtime/workers?limit=100";
/// The maximum length of a prompt next to its id.
const PROMPT: usize = 40;

/// The ids that begin with the typed text, or those of the newest tasks if nothing is typed. If no id begins with the text, the id that
/// ends with it, because tables show the ends of ids. If several ids end with it, none is suggested: a shell would replace the text by
/// their common beginning.
pub(crate) fn tasks(typed: &OsStr) -> Vec<CompletionCandidate> {
    let Some(typed) = typed.to_str() else { return Vec::new() };
    let part = IdPart::parse(typed).ok();
    let rows = part.as_ref().map_or_else(|| rows(TASKS), |part| rows(&format!("{TASKS}&id={}", part.digits())));
    let has = |task: &&Value, fits: &dyn Fn(&str) -> bool| task["id"].as_str().is_some_and(fits);
    let begins = |id: &str| match &part {
        Some(part) => id.replace('-', "").starts_with(part.digits()),
        None => id.starts_with(typed),
    };
    let begun: Vec<&Value> = rows.iter().filter(|task| has(task, &begins)).collect();
    let ended: Vec<&Value> = rows.iter().filter(|task| has(task, &|id| part.as_ref().is_some_and(|part| part.fits(id)))).collect();
    let offered = if begun.is_empty() && ended.len() == 1 { ended } else { begun };
    let candidate = |task: &&Value| {
        let about = format!("{}: {}", task["status"].as_str()?, term::short(task["prompt"].as_str()?, PROMPT));
        Some(CompletionCandidate::new(task["id"].as_str()?).help(Some(about.into())))
    };
    offered.iter().filter_map(candidate).collect()
}

/// The agents with a queue: those with tasks, and those whose queues are paused or limited.
pub(crate) fn queues() -> Vec<CompletionCandidate> {
    distinct(rows(QUEUES).iter().filter_map(|queue| Some(queue["agent_slug"].as_str()?.to_owned())))
}

/// The columns by which the list of the current command line can be sorted.
pub(crate) fn columns() -> Vec<CompletionCandidate> {
    let of = |word: String| match word.as_str() {
        "task" => Some(columns::TASKS.titles()),
        "worker" => Some(columns::WORKERS.titles()),
        "queue" => Some(columns::QUEUES.titles()),
        "conversation" => Some(columns::CONVERSATIONS.titles()),
        "lease" => Some(columns::LEASES.titles()),
        "audit" => Some(columns::AUDIT.titles()),
        _ => None,
    };
    distinct(super::given_words().into_iter().skip(1).find_map(of).into_iter().flatten())
}

pub(crate) fn projects() -> Vec<CompletionCandidate> {
    distinct(rows(PROJECTS).iter().filter_map(|project| Some(project["name"].as_str()?.to_owned())))
}

pub(crate) fn workers() -> Vec<CompletionCandidate> {
    rows(WORKERS)
        .iter()
        .filter_map(|worker| {
            let about = worker["status"].as_str()?.to_owned();
            Some(CompletionCandidate::new(worker["id"].as_str()?).help(Some(about.into())))
        })
        .collect()
}

/// The contexts of the newest tasks.
pub(crate) fn conversations() -> Vec<CompletionCandidate> {
    distinct(rows(TASKS).iter().filter_map(|task| Some(task["context_id"].as_str()?.to_owned())))
}

/// The agents of the newest tasks.
pub(crate) fn agents() -> Vec<CompletionCandidate> {
    distinct(rows(TASKS).iter().filter_map(|task| Some(task["agent_slug"].as_str()?.to_owned())))
}

/// The labels of the newest tasks.
pub(crate) fn labels() -> Vec<CompletionCandidate> {
    let rows = rows(TASKS);
    let labels = rows.iter().filter_map(|task| task["labels"].as_object()).flatten();
    distinct(labels.filter_map(|(name, value)| Some(format!("{name}={}", value.as_str()?))))
}

fn distinct(values: impl Iterator<Item = String>) -> Vec<CompletionCandidate> {
    values.collect::<BTreeSet<_>>().into_iter().map(CompletionCandidate::new).collect()
}

fn rows(path: &str) -> Vec<Value> {
    let Ok(server) = Connection::of_words(&super::given_words()).server() else { return Vec::new() };
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else { return Vec::new() };
    let answer = runtime.block_on(async { tokio::time::timeout(LIMIT, server.client.get::<Vec<Value>>(path)).await });
    // Resolving the server's name may take longer than the limit, so it is not awaited.
    runtime.shutdown_background();
    answer.ok().and_then(Result::ok).unwrap_or_default()
}
