//! Ids of tasks as people give them: whole, or the beginning or the end of one, which the server looks up.

use uuid::Uuid;

use super::connect::{Server, failed};
use crate::CommandError;
use bloom_api::ids::{IdPart, MIN_DIGITS};
use bloom_client::part as percent_encoded;

/// How many digits of an id tables show: with a million tasks, hardly two of them end alike.
const SHOWN_DIGITS: usize = 8;

/// How many tasks are listed if a part of an id names several.
const MOST_LISTED: usize = 5;

/// The end of an id, which names the task in commands. The beginning is the time, so it is alike for many tasks.
pub fn short(id: &Uuid) -> String {
    let digits = id.simple().to_string();
    digits.get(digits.len() - SHOWN_DIGITS..).unwrap_or_default().to_owned()
}

/// The path of a task in the API, followed by `tail`.
pub fn path(id: &str, tail: &str) -> String {
    format!("api/runtime/llm-tasks/{}{tail}", percent_encoded(id))
}

/// The whole id of the task that is named. A whole id is not looked up, and a text that is no part of an id is left to the call that uses
/// it, which refuses it.
///
/// # Errors
/// No task, or more than one, has such an id.
pub async fn task(server: &Server, named: &str) -> Result<String, CommandError> {
    let Ok(part) = IdPart::parse(named) else {
        let is_short = !named.is_empty() && named.chars().all(|c| c.is_ascii_hexdigit());
        return if is_short && named.len() < MIN_DIGITS {
            Err(format!("{named}: give at least {MIN_DIGITS} digits of the beginning or the end of the task's id").into())
        } else {
            Ok(named.to_owned())
        };
    };
    if let Some(id) = part.whole() {
        return Ok(id.to_string());
    }
    let found = server.list("api/runtime/llm-tasks", &[("id", part.digits().to_owned())], MOST_LISTED).await;
    let (found, more) = found.map_err(|error| failed(error).about(named))?;
    let ids: Vec<&str> = found.iter().filter_map(|task| task["id"].as_str()).collect();
    // An older server ignores the filter, and another task must not be taken for the one that was meant.
    if !ids.iter().all(|id| part.fits(id)) {
        return Err(format!("{named}: this server looks up whole ids only; give the whole id").into());
    }
    match ids.as_slice() {
        [id] => Ok((*id).to_owned()),
        [] => Err(format!("no task whose id begins or ends with {named}").into()),
        ids => {
            let and_more = if more { "\n  and more" } else { "" };
            let ids = ids.join("\n  ");
            Err(format!("the ids of several tasks begin or end with {named}; give more of the one that you mean:\n  {ids}{and_more}")
                .into())
        }
    }
}

/// As [`task`], for several.
///
/// # Errors
/// As [`task`].
pub async fn tasks(server: &Server, named: &[String]) -> Result<Vec<String>, CommandError> {
    let mut ids = Vec::with_capacity(named.len());
    for named in named {
        ids.push(task(server, named).await?);
    }
    Ok(ids)
}
