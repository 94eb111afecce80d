//! What shells offer for the values of arguments: ids, workers, contexts and labels, as the server has them now.
//!
//! A shell waits for the answer while its user types, so there is one short call, and without an answer there is nothing to offer.

use std::collections::BTreeSet;
use std::time::Duration;

use clap_complete::CompletionCandidate;
use serde_json::Value;

use super::connect::Connection;
use super::term;

const LIMIT: Duration = Duration::from_secs(1);
const TASKS: &str = "api/runtime/llm-tasks?limit=100";
const WORKERS: &str = "api/runtime/workers?limit=100";
/// The maximum number of characters of a prompt beside its id.
const PROMPT: usize = 40;

/// The ids of the newest tasks.
pub fn tasks() -> Vec<CompletionCandidate> {
    rows(TASKS)
        .iter()
        .filter_map(|task| {
            let about = format!("{}: {}", task["status"].as_str()?, term::short(task["prompt"].as_str()?, PROMPT));
            Some(CompletionCandidate::new(task["id"].as_str()?).help(Some(about.into())))
        })
        .collect()
}

pub fn workers() -> Vec<CompletionCandidate> {
    rows(WORKERS)
        .iter()
        .filter_map(|worker| {
            let about = worker["status"].as_str()?.to_owned();
            Some(CompletionCandidate::new(worker["id"].as_str()?).help(Some(about.into())))
        })
        .collect()
}

/// The conversations of the newest tasks.
pub fn conversations() -> Vec<CompletionCandidate> {
    distinct(rows(TASKS).iter().filter_map(|task| Some(task["context_id"].as_str()?.to_owned())))
}

/// The kinds of agents of the newest tasks.
pub fn agents() -> Vec<CompletionCandidate> {
    distinct(rows(TASKS).iter().filter_map(|task| Some(task["agent_slug"].as_str()?.to_owned())))
}

/// The labels of the newest tasks.
pub fn labels() -> Vec<CompletionCandidate> {
    let rows = rows(TASKS);
    let labels = rows.iter().filter_map(|task| task["labels"].as_object()).flatten();
    distinct(labels.filter_map(|(name, value)| Some(format!("{name}={}", value.as_str()?))))
}

fn distinct(values: impl Iterator<Item = String>) -> Vec<CompletionCandidate> {
    values.collect::<BTreeSet<_>>().into_iter().map(CompletionCandidate::new).collect()
}

fn rows(path: &str) -> Vec<Value> {
    let words: Vec<String> = std::env::args().collect();
    let Ok(server) = Connection::of_words(&words).server() else { return Vec::new() };
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else { return Vec::new() };
    let answer = runtime.block_on(async { tokio::time::timeout(LIMIT, server.client.get::<Vec<Value>>(path)).await });
    // A look-up of the server's name may take longer than the limit.
    runtime.shutdown_background();
    answer.ok().and_then(Result::ok).unwrap_or_default()
}
