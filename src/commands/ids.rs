//! Ids of tasks as people type them: a whole id, or its beginning or its end, which the server looks up; or the first digits of a short id
//! in a table.

use serde_json::Value;
use uuid::Uuid;

use super::server_calls::{Server, failed};
use crate::CommandError;
use bloom_api::ids::{IdPart, MIN_DIGITS};
use bloom_client::{Error, part as percent_encoded};

/// The number of digits of an id in tables. With a million tasks, hardly any two have the same last digits.
const SHOWN_DIGITS: usize = 8;

const TASKS: &str = "api/runtime/llm-tasks";

/// The first digits of a short id are sufficient for this many of the newest tasks, which is the usual length of a list.
const NEWEST: usize = 100;

/// The maximum number of tasks that are listed if a part of an id is ambiguous.
const MOST_LISTED: usize = 5;

/// The end of an id, which identifies the task in commands. The beginning of an id is a time, and so is similar for many tasks.
pub(crate) fn short(id: &Uuid) -> String {
    let digits = id.simple().to_string();
    digits.get(digits.len() - SHOWN_DIGITS..).unwrap_or_default().to_owned()
}

/// The path of a task in the API, followed by `tail`.
pub(crate) fn path(id: &str, tail: &str) -> String {
    format!("api/runtime/llm-tasks/{}{tail}", percent_encoded(id))
}

/// The whole id of a task that is named by an id or a part of one. A whole id is not looked up.
///
/// # Errors
/// The text is not a part of an id, or it matches no task or more than one.
pub(crate) async fn task(server: &Server, named: &str) -> Result<String, CommandError> {
    find(server, named).await.map_err(|error| failed(error).about(named))?
}

/// As [`task`], but returns failures of the call separately from errors about the name.
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
    // An older server ignores the filter, and its answer must not be mistaken for the wanted task.
    if !found.0.iter().filter_map(|task| task["id"].as_str()).all(|id| part.fits(id)) {
        return Ok(Err(format!("{named}: this server looks up whole ids only; give the whole id").into()));
    }
    // This is done even if a task was found: the digits may be the end of its id, and at the same time the beginning of what a table shows
    // of another id.
    if part.digits().len() < SHOWN_DIGITS {
        let is_meant = |task: &Value| task["id"].as_str().is_some_and(|id| is_shown_so(id, part.digits()) && !part.fits(id));
        let (newest, _) = server.list(TASKS, &[], NEWEST).await?;
        found.0.extend(newest.into_iter().filter(is_meant));
    }
    Ok(only_one(named, &found))
}

/// Whether the short id in tables begins with these digits.
fn is_shown_so(id: &str, digits: &str) -> bool {
    id.parse().is_ok_and(|id: Uuid| short(&id).starts_with(digits))
}

fn no_id(named: &str) -> CommandError {
    CommandError::usage(format!(
        "'{named}' is no id of a task: give the whole id, or at least {MIN_DIGITS} digits of its beginning or its end"
    ))
}

/// The id, if exactly one task was found.
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

/// The existing tasks among these ids, read by one call. A server without this filter answers with other tasks.
///
/// # Errors
/// The call failed.
pub(crate) async fn list(server: &Server, ids: &[String]) -> Result<Vec<Value>, Error> {
    let (found, _) = server.list(TASKS, &[("ids", ids.join(","))], ids.len()).await?;
    Ok(found)
}

/// The existing tasks among these ids.
///
/// # Errors
/// The call failed, or the server is too old to look up several ids.
pub(crate) async fn existing(server: &Server, ids: &[Uuid]) -> Result<Vec<Value>, CommandError> {
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    let wanted: Vec<String> = ids.iter().map(Uuid::to_string).collect();
    let found = list(server, &wanted).await.map_err(failed)?;
    // Other tasks mean that the server ignores the filter, so nothing is known about the wanted tasks.
    if !found.iter().all(|task| task["id"].as_str().is_some_and(|id| wanted.iter().any(|wanted| wanted == id))) {
        return Err("this server is older than the command line and can't look up several tasks: update it".to_owned().into());
    }
    Ok(found)
}

/// The ids of the tasks that were found, and the failures for the others.
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

/// As [`task`], for several tasks.
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
