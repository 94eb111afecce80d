//! Ids of tasks as people give them: whole, or the beginning or the end of one, which the server looks up; or the first digits of one that a
//! table shows.

use serde_json::Value;
use uuid::Uuid;

use super::server_calls::{Server, failed};
use crate::CommandError;
use bloom_api::ids::{IdPart, MIN_DIGITS};
use bloom_client::{Error, part as percent_encoded};

/// How many digits of an id tables show: with a million tasks, hardly two of them end alike.
const SHOWN_DIGITS: usize = 8;

const TASKS: &str = "api/runtime/llm-tasks";

/// Of so many of the newest tasks, as many as a list shows, the first digits of the short id are enough.
const NEWEST: usize = 100;

/// How many tasks are listed if a part of an id names several.
const MOST_LISTED: usize = 5;

/// The end of an id, which names the task in commands. The beginning is the time, so it is alike for many tasks.
pub(crate) fn short(id: &Uuid) -> String {
    let digits = id.simple().to_string();
    digits.get(digits.len() - SHOWN_DIGITS..).unwrap_or_default().to_owned()
}

/// The path of a task in the API, followed by `tail`.
pub(crate) fn path(id: &str, tail: &str) -> String {
    format!("api/runtime/llm-tasks/{}{tail}", percent_encoded(id))
}

/// The whole id of the task that is named. A whole id is not looked up.
///
/// # Errors
/// The text is no part of an id; or no task, or more than one, has such an id.
pub(crate) async fn task(server: &Server, named: &str) -> Result<String, CommandError> {
    find(server, named).await.map_err(|error| failed(error).about(named))?
}

/// As [`task`], with the failures of the call apart from those of the name.
///
/// # Errors
/// The call failed.
pub(crate) async fn find(server: &Server, named: &str) -> Result<Result<String, CommandError>, Error> {
    let part = match IdPart::parse(named) {
        Ok(part) => part,
        Err(_) => return Ok(Err(no_id(named))),
    };
    if let Some(id) = part.whole() {
        return Ok(Ok(id.to_string()));
    }
    let mut found = server.list(TASKS, &[("id", part.digits().to_owned())], MOST_LISTED).await?;
    // An older server ignores the filter, and another task must not be taken for the one that was meant.
    if !found.0.iter().filter_map(|task| task["id"].as_str()).all(|id| part.fits(id)) {
        return Ok(Err(format!("{named}: this server looks up whole ids only; give the whole id").into()));
    }
    // Also if one is found: the task that ends so may be another one than that which a table shows so.
    if part.digits().len() < SHOWN_DIGITS {
        let is_meant = |task: &Value| task["id"].as_str().is_some_and(|id| is_shown_so(id, part.digits()) && !part.fits(id));
        let (newest, _) = server.list(TASKS, &[], NEWEST).await?;
        found.0.extend(newest.into_iter().filter(is_meant));
    }
    Ok(only_one(named, &found))
}

/// Whether what tables show of this id begins with these digits.
fn is_shown_so(id: &str, digits: &str) -> bool {
    id.parse().is_ok_and(|id: Uuid| short(&id).starts_with(digits))
}

fn no_id(named: &str) -> CommandError {
    CommandError::usage(format!(
        "'{named}' is no id of a task: give the whole id, or at least {MIN_DIGITS} digits of its beginning or its end"
    ))
}

/// The id of the one task that was found.
fn only_one(named: &str, (found, more): &(Vec<Value>, bool)) -> Result<String, CommandError> {
    let ids: Vec<&str> = found.iter().filter_map(|task| task["id"].as_str()).collect();
    match ids.as_slice() {
        [id] => Ok((*id).to_owned()),
        [] => {
            Err(format!(
                "no task whose id begins or ends with {named} (the first digits of a short id find only the newest {NEWEST} tasks; a deleted task \
                 needs its whole id: bloom-runtime audit --task ID)"
            )
                .into())
        }
        ids => {
            let and_more = if *more { "\n  and more" } else { "" };
            let ids = ids.join("\n  ");
            Err(format!("the ids of several tasks begin or end with {named}; give more of the one that you mean:\n  {ids}{and_more}")
                .into())
        }
    }
}

/// The tasks with these ids that exist, read by one call. A server that does not know the filter answers with other tasks.
///
/// # Errors
/// The call failed.
pub(crate) async fn list(server: &Server, ids: &[String]) -> Result<Vec<Value>, Error> {
    let (found, _) = server.list(TASKS, &[("ids", ids.join(","))], ids.len()).await?;
    Ok(found)
}

/// Those of the tasks with these ids that exist.
///
/// # Errors
/// The call failed, or the server is too old to look up several ids.
pub(crate) async fn existing(server: &Server, ids: &[Uuid]) -> Result<Vec<Value>, CommandError> {
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    let wanted: Vec<String> = ids.iter().map(Uuid::to_string).collect();
    let found = list(server, &wanted).await.map_err(failed)?;
    // Other tasks say nothing about these.
    if !found.iter().all(|task| task["id"].as_str().is_some_and(|id| wanted.iter().any(|wanted| wanted == id))) {
        return Err("this server is older than the command line and can't look up several tasks: update it".to_owned().into());
    }
    Ok(found)
}

/// The ids of the tasks that were found, and the failures of the others.
pub(crate) async fn each(server: &Server, named: &[String]) -> (Vec<String>, Vec<CommandError>) {
    let (mut ids, mut failures) = (Vec::new(), Vec::new());
    for named in named {
        match task(server, named).await {
            Ok(id) => ids.push(id),
            Err(failure) => failures.push(failure),
        }
    }
    (ids, failures)
}

/// As [`task`], for several.
///
/// # Errors
/// As [`task`].
pub(crate) async fn tasks(server: &Server, named: &[String]) -> Result<Vec<String>, CommandError> {
    let mut ids = Vec::with_capacity(named.len());
    for named in named {
        ids.push(task(server, named).await?);
    }
    Ok(ids)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_digits_of_a_shown_id_are_a_name() {
        let id = "0190a0a0-0000-7000-8000-0000f2e016f0";
        assert!(is_shown_so(id, "f2e0") && is_shown_so(id, "f2e016f"));
        assert!(!is_shown_so(id, "16f0") && !is_shown_so(id, "0000f2") && !is_shown_so("no id", "f2e0"));
    }
}
