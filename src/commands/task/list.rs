//! Lists of tasks by filters, for one or several statuses.

use serde_json::Value;

use super::filters::Filters;
use crate::progress::number;
use crate::server_calls::Server;
use crate::{key, known_agents, project, term};
use bloom_client::Error;
use bloom_core::task::Status;

/// The maximum number of dead tasks that are counted.
const MAX_COUNTED: usize = 1000;

/// The newest tasks that match, at most `limit`, and whether there are more. `search`: a text that they must contain.
///
/// # Errors
/// A call failed.
pub(crate) async fn newest(server: &Server, filters: &Filters, search: Option<&str>, limit: usize) -> Result<(Vec<Value>, bool), Error> {
    let (mut all, mut more) = (Vec::new(), false);
    for status in filters.statuses() {
        let mut query = filters.query(status);
        query.extend(search.map(|text| ("search", text.to_owned())));
        let (tasks, has_more) = server.list("api/runtime/llm-tasks", &query, limit).await?;
        more |= has_more;
        all.extend(tasks);
    }
    // Ids are in the order of creation.
    all.sort_by(|a, b| b["id"].as_str().cmp(&a["id"].as_str()));
    // A task whose status changes between two calls is in both answers.
    all.dedup_by(|a, b| a["id"] == b["id"]);
    more |= all.len() > limit;
    all.truncate(limit);
    Ok((all, more))
}

/// Says why the filters may find nothing: a name in them is unknown, or there are only dead tasks.
pub(crate) async fn hint(server: &Server, filters: &Filters) {
    if filters.is_only(Status::Failed) {
        tell_of_dead(server, filters).await;
    }
    if let Some(agent) = filters.agent() {
        known_agents::tell_if_unknown(server, agent, "").await;
    }
    if let Some(project) = filters.project() {
        project::tell_if_unknown(server, project).await;
    }
    if let Some(owner) = filters.owner() {
        key::tell_of_owner(server, owner).await;
    }
    if let Some(team) = filters.team() {
        key::tell_if_team_is_unknown(server, team, None).await;
    }
}

/// If `--status failed` finds nothing although there are dead tasks, says so: these have failed, too, and have no attempts left.
async fn tell_of_dead(server: &Server, filters: &Filters) {
    // The call is needed only for a hint, so the command does not fail if it does.
    let query = filters.query(Some(Status::Dead.as_str()));
    let Ok((dead, more)) = server.list("api/runtime/llm-tasks", &query, MAX_COUNTED).await else { return };
    let or_more = if more { " or more" } else { "" };
    match dead.len() {
        0 => {}
        1 => term::info("1 dead task: --failed"),
        count => term::info(&format!("{}{or_more} dead tasks: --failed", number(count as u64))),
    }
}
