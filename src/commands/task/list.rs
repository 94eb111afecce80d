//! Lists of tasks by filters, with one or several statuses.

use serde_json::Value;

use super::super::connect::Server;
use super::filters::Filters;
use bloom_client::Error;

/// The newest tasks that match, and that have this text if there is one, at most `limit`, and whether there are more.
///
/// # Errors
/// A call failed.
pub async fn newest(server: &Server, filters: &Filters, search: Option<&str>, limit: usize) -> Result<(Vec<Value>, bool), Error> {
    let (mut all, mut more) = (Vec::new(), false);
    for status in filters.statuses() {
        let mut query = filters.query(status);
        query.extend(search.map(|text| ("search", text.to_owned())));
        let (tasks, has_more) = server.list("api/runtime/llm-tasks", &query, limit).await?;
        more |= has_more;
        all.extend(tasks);
    }
    // The order of ids is the order of creation.
    all.sort_by(|a, b| b["id"].as_str().cmp(&a["id"].as_str()));
    // A task whose status changes between two calls is in both answers.
    all.dedup_by(|a, b| a["id"] == b["id"]);
    more |= all.len() > limit;
    all.truncate(limit);
    Ok((all, more))
}
