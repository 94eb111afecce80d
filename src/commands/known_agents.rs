//! Agents that are mentioned by tasks, queues or workers. A name that none of them mentions may be misspelt.

use std::borrow::Cow;
use std::collections::BTreeSet;

use serde_json::Value;

use super::server_calls::Server;
use super::{show, term};
use bloom_api::queues::Queue;
use bloom_client::Error;
use bloom_core::similar::did_you_mean;

/// How many workers are searched for the name of an agent. If there are more, the name counts as known.
const MAX_WORKERS: usize = 10_000;
/// How many queues are searched for paused or limited ones.
const MAX_QUEUES: usize = 10_000;

/// The queues, for notices. The command has made its change, so it does not fail if the list can't be read.
pub(crate) async fn queues(server: &Server) -> Vec<Queue<'static>> {
    let (rows, _) = server.list("api/runtime/queues", &[], MAX_QUEUES).await.unwrap_or_default();
    show::read_all(&rows).unwrap_or_default()
}

/// Prints a notice if nobody has mentioned the agent yet, followed by the text `then`.
pub(crate) async fn tell_if_unknown(server: &Server, agent: &str, then: &str) {
    // The command has done its work, so it does not fail if the look-up does.
    if let Ok(Some(known)) = others(server, agent).await {
        let meant = did_you_mean(agent, known.iter().map(String::as_str));
        term::info(&format!("No task is for agent {agent} yet, and no worker knows it{meant}: check the spelling.{then}"));
    }
}

/// The agents that a worker mentions: those that it serves by name, and those for which it has profiles.
fn agents_of(worker: &Value) -> impl Iterator<Item = &str> {
    ["agents", "profiles"].into_iter().filter_map(|field| worker["capabilities"][field].as_array()).flatten().filter_map(Value::as_str)
}

/// The agents that have queues or that workers mention; `None` if `agent` is among them.
async fn others(server: &Server, agent: &str) -> Result<Option<BTreeSet<String>>, Error> {
    let (tasks, _) = server.list("api/runtime/llm-tasks", &[("agent_slug", agent.to_owned())], 1).await?;
    if !tasks.is_empty() {
        return Ok(None);
    }
    let (workers, more) = server.list("api/runtime/workers", &[], MAX_WORKERS).await?;
    let named = workers.iter().flat_map(agents_of);
    let queued = queues(server).await.into_iter().filter_map(|queue| queue.agent_slug.map(Cow::into_owned));
    let known: BTreeSet<String> = named.map(str::to_owned).chain(queued.filter(|slug| slug != agent)).collect();
    Ok((!more && !known.contains(agent)).then_some(known))
}
