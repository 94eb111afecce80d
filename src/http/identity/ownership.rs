//! What a named key is limited to: a submit key to the tasks that it created, a member key to those of its team, a worker's key to what its
//! worker holds, and to the namespaces that it may serve.
//!
//! Handlers check this before they send a command. That is safe: the owner and the team of a task or an upload and the worker of a lease never change,
//! and ids are never used again. A context that a team has alone stops being that only when a key that was just given to others creates a task in it.

use std::collections::{BTreeSet, HashMap, HashSet};

use uuid::Uuid;

use crate::AppState;
use crate::messages::error::Error;
use crate::middleware::Caller;
use bloom_api::values::text_problem;
use bloom_core::api_key::{Owner, Scope};
use bloom_core::command::{Holder, Rejection, WorkerChange};
use bloom_core::file::{File, FileId};
use bloom_core::ids::{LeaseId, TaskId};
use bloom_core::task::{TaskSpec, TaskState};
use bloom_core::worker::DispatchMode;
use bloom_store::TaskFilter;

/// As for the names that other keys choose.
const MAX_NAME: usize = 255;
/// Ids in one query.
const MAX_IDS: usize = 1_000;
const NO_PUSH: &str = "This key does not allow its worker a url or dispatch 'push', because the server would send tasks and the agents' key \
    there: leave both out (start the agent without --listen), or create the worker's key or join token with --push";

/// The text below this prefix, unless it is there already. Neither keys nor teams have a `/` in their names, so none reaches the names of
/// another.
fn qualified(prefix: &str, text: &str) -> String {
    match text.strip_prefix(prefix) {
        Some(rest) if rest.starts_with('/') => text.to_owned(),
        _ => format!("{prefix}/{text}"),
    }
}

/// Only tasks that the caller sees match the filter that is returned.
///
/// # Errors
/// If the database fails.
pub(crate) async fn filter(app: &AppState, caller: &Caller, filter: TaskFilter) -> Result<TaskFilter, Error> {
    let context_id = context_wanted(app, caller, filter.context_id).await?;
    Ok(TaskFilter { owner: caller.sees(), context_id, ..filter })
}

/// As [`context`], if one is named.
///
/// # Errors
/// If the database fails.
pub(crate) async fn context_wanted(app: &AppState, caller: &Caller, named: Option<String>) -> Result<Option<String>, Error> {
    match named {
        None => Ok(None),
        Some(id) => context(app, caller, id).await.map(Some),
    }
}

/// The id of a context that the caller names: a submit or member key may leave out what is in front of its own names.
///
/// # Errors
/// If the database fails.
pub(crate) async fn context(app: &AppState, caller: &Caller, id: String) -> Result<String, Error> {
    let Some(owner) = caller.sees() else { return Ok(id) };
    let is_known = !of_team(app, &owner, vec![id.clone()]).await?.is_empty();
    Ok(if is_known { id } else { qualified(&owner.prefix(), &id) })
}

/// Those of these contexts in which the team has tasks, and whether it has all. A member key may name them as they are, because those of the
/// team's submit keys are not below the name of the team.
async fn of_team(app: &AppState, owner: &Owner, ids: Vec<String>) -> Result<HashMap<String, bool>, Error> {
    match owner {
        Owner::Key(_) => Ok(HashMap::new()),
        Owner::Team(team) => Ok(app.store.contexts_of_team(&ids, team).await?.into_iter().collect()),
    }
}

/// Those of these contexts with tasks of the caller's team in which other keys have tasks too, because a key had another team before, or
/// none. The team sees its own tasks there, and does not go on with the conversation.
///
/// # Errors
/// If the database fails.
pub(crate) async fn shared(app: &AppState, caller: &Caller, contexts: BTreeSet<String>) -> Result<HashSet<String>, Error> {
    let Some(owner) = caller.sees() else { return Ok(HashSet::new()) };
    let found = of_team(app, &owner, contexts.into_iter().collect()).await?;
    Ok(found.into_iter().filter(|(_, is_whole)| !is_whole).map(|(id, _)| id).collect())
}

/// # Errors
/// The context is [`shared`], or the database fails.
pub(crate) async fn goes_on(app: &AppState, caller: &Caller, context: &str) -> Result<(), Error> {
    let shared = shared(app, caller, BTreeSet::from([context.to_owned()])).await?;
    if shared.is_empty() { Ok(()) } else { Err(not_alone(caller, context)) }
}

fn not_alone(caller: &Caller, context: &str) -> Error {
    let team = caller.team().unwrap_or_default();
    let text = format!(
        "In the context '{context}' are tasks of keys outside the team '{team}', so the team does not go on with its conversation: begin another \
         context, or ask an administrator"
    );
    Error::Text { status: 409, text: text.into() }
}

/// Those of these tasks that the caller may see, if they exist.
///
/// # Errors
/// If the database fails.
pub(crate) async fn tasks(app: &AppState, caller: &Caller, ids: Vec<TaskId>) -> Result<Vec<TaskId>, Error> {
    if let Some(owner) = caller.sees() {
        return Ok(app.store.owned(&ids, &owner).await?);
    }
    let Some((worker, namespaces)) = caller.worker().zip(namespaces_of(caller)) else { return Ok(ids) };
    // What its worker has, or had last, it may end.
    let is_seen = |task: &TaskState| {
        let holder = task.lease.as_ref().map(|lease| &lease.worker_id).or(task.last_lease.as_ref().map(|last| &last.worker_id));
        task.namespace.as_ref().is_some_and(|namespace| namespaces.contains(namespace)) || holder.is_some_and(|holder| holder == worker)
    };
    Ok(app.store.task_states(&ids).await?.iter().filter(|task| is_seen(task)).map(|task| task.id).collect())
}

/// Whether the caller may see the file, and remove it if it may write and no task uses it.
///
/// # Errors
/// If the database fails.
pub(crate) async fn file(app: &AppState, caller: &Caller, file: &File) -> Result<bool, Error> {
    match (caller.scope, caller.owner(), file.task_id) {
        (Scope::Worker, ..) => Ok(app.store.is_held_input(file.id, caller.worker()).await?),
        (_, None, _) => Ok(true),
        (_, Some(key), None) => Ok(!app.store.readable_uploads(&[file.id], key).await?.is_empty()),
        (_, Some(_), Some(task)) => Ok(!tasks(app, caller, vec![task]).await?.is_empty()),
    }
}

/// The tasks to create, as the caller's own: their contexts and keys are below the name of its key, or of its team if it sees the tasks of
/// the team, because a context shows a run what was said in it before, and a key tells of another task with the same key.
///
/// # Errors
/// A name is too long, a context has tasks of others too, or a task depends on one that is not the caller's, or has
/// such an input.
pub(crate) async fn specs(app: &AppState, caller: &Caller, mut specs: Vec<TaskSpec>) -> Result<Vec<TaskSpec>, Error> {
    let (Some(key), Some(owner)) = (caller.owner(), caller.sees()) else { return Ok(specs) };
    let prefix = owner.prefix();
    let contexts: BTreeSet<String> = specs.iter().map(|spec| spec.context_id.clone()).collect();
    let known = of_team(app, &owner, contexts.into_iter().collect()).await?;
    for spec in &mut specs {
        spec.owner = Some(key.name.clone());
        spec.team.clone_from(&key.team);
        match known.get(&spec.context_id) {
            Some(true) => {}
            Some(false) => return Err(not_alone(caller, &spec.context_id)),
            None => spec.context_id = checked("context_id", &prefix, &spec.context_id)?,
        }
        spec.exclusive_key = spec.exclusive_key.as_deref().map(|key| checked("exclusive_key", &prefix, key)).transpose()?;
        spec.idempotency_key = spec.idempotency_key.as_deref().map(|key| checked("idempotency_key", &prefix, key)).transpose()?;
    }
    let wanted: Vec<TaskId> = distinct(specs.iter().flat_map(|spec| &spec.depends_on).copied());
    let mut own = HashSet::new();
    for ids in wanted.chunks(MAX_IDS) {
        own.extend(app.store.owned(ids, &owner).await?);
    }
    for spec in &specs {
        let unknown: Vec<TaskId> = spec.depends_on.iter().filter(|id| !own.contains(*id)).copied().collect();
        if !unknown.is_empty() {
            return Err(Rejection::UnknownDependencies(unknown).into());
        }
    }
    let wanted: Vec<FileId> = distinct(specs.iter().flat_map(|spec| &spec.inputs).map(|input| input.artifact_id));
    let mut readable = HashSet::new();
    for ids in wanted.chunks(MAX_IDS) {
        readable.extend(app.store.readable_uploads(ids, key).await?);
    }
    let unknown: Vec<FileId> = wanted.into_iter().filter(|id| !readable.contains(id)).collect();
    if unknown.is_empty() { Ok(specs) } else { Err(Rejection::UnknownInputs(unknown).into()) }
}

fn distinct(ids: impl Iterator<Item = Uuid>) -> Vec<Uuid> {
    ids.collect::<BTreeSet<_>>().into_iter().collect()
}

fn checked(field: &'static str, prefix: &str, text: &str) -> Result<String, Error> {
    let text = qualified(prefix, text);
    match text_problem(&text, 1, MAX_NAME) {
        None => Ok(text),
        Some(wrong) => Err(Error::field(field, format!("{wrong}, with '{prefix}/' in front, which is added for this key"))),
    }
}

/// Refuses the lease of another worker to a worker's key.
///
/// # Errors
/// The lease is another worker's, or the database fails.
pub(crate) async fn lease(app: &AppState, caller: &Caller, task: Option<TaskId>, lease: LeaseId) -> Result<(), Error> {
    let (Some(own), Some(task)) = (caller.worker(), task) else { return Ok(()) };
    let state = app.store.task_states(&[task]).await?.into_iter().next();
    let active = state.as_ref().and_then(|state| state.lease.as_ref()).filter(|active| active.id == lease).map(|active| &active.worker_id);
    let is_own = match active {
        Some(worker) => worker == own,
        // An unknown lease is refused by the command.
        None => app.store.past_leases(&[lease]).await?.first().is_none_or(|past| past.worker_id == own),
    };
    if is_own { Ok(()) } else { Err(refused(app, own)) }
}

/// Whom the call acts for. A worker's key acts for its own worker.
///
/// # Errors
/// Another worker or its lease is named, or the database fails.
pub(crate) async fn holder(app: &AppState, caller: &Caller, task: Option<TaskId>, holder: Holder) -> Result<Holder, Error> {
    let Some(own) = caller.worker() else { return Ok(holder) };
    if let Some(named) = &holder.worker {
        worker(app, caller, named)?;
    }
    if let Some(named) = holder.lease {
        lease(app, caller, task, named).await?;
    }
    Ok(Holder { worker: Some(own.to_owned()), ..holder })
}

/// Refuses to let a worker's key speak for another worker.
///
/// # Errors
/// The key is that of another worker.
pub(crate) fn worker(app: &AppState, caller: &Caller, named: &str) -> Result<(), Error> {
    match caller.worker().filter(|own| *own != named) {
        None => Ok(()),
        Some(own) => Err(refused(app, own)),
    }
}

/// Refuses to let a worker's key choose a URL that the server calls, unless it may be pushed to: the server sends tasks and the key of the
/// agents there.
///
/// # Errors
/// The key does not allow the URL, or the dispatch mode.
pub(crate) fn url(app: &AppState, caller: &Caller, change: &WorkerChange) -> Result<(), Error> {
    let is_limited = caller.worker().is_some() && caller.key.as_ref().is_some_and(|key| !key.push);
    let names_url = change.url.as_deref().is_some_and(|url| !url.is_empty());
    if is_limited && (names_url || change.dispatch == Some(DispatchMode::Push)) {
        app.metrics.http_refused("push");
        return Err(Error::Text { status: 403, text: NO_PUSH.into() });
    }
    Ok(())
}

/// The Kubernetes namespaces whose tasks the only worker of the key may serve; `None` for callers without that limit.
fn namespaces_of(caller: &Caller) -> Option<&[String]> {
    caller.worker().and(caller.key.as_ref()?.namespaces.as_deref())
}

/// Lets a worker's key with a limit of namespaces register only within that limit; if the registration names no namespaces, the key's are
/// taken.
///
/// # Errors
/// The registration names a namespace that the key does not allow.
pub(crate) fn namespaces(app: &AppState, caller: &Caller, change: &mut WorkerChange) -> Result<(), Error> {
    let Some(allowed) = namespaces_of(caller) else { return Ok(()) };
    let wanted = change.namespaces.get_or_insert_with(|| allowed.to_vec());
    match wanted.iter().find(|namespace| !allowed.contains(namespace)) {
        None => Ok(()),
        Some(other) => {
            app.metrics.http_refused("namespace");
            let text = format!(
                "This key allows its worker only the namespaces {}, not '{other}': name only these (start the agent with --namespaces), or \
                 create the worker's key or join token with --namespace {other}",
                allowed.join(", ")
            );
            Err(Error::Text { status: 403, text: text.into() })
        }
    }
}

fn refused(app: &AppState, own: &str) -> Error {
    app.metrics.http_refused("other_worker");
    Error::Text {
        status: 403,
        text: format!("This key is for the worker '{own}' only: each worker has a key of its own; start the agent with --name {own}")
            .into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_below_the_key() {
        assert_eq!(qualified("team", "repo"), "team/repo");
        assert_eq!(qualified("team", "team/repo"), "team/repo");
        assert_eq!(qualified("team", "team"), "team/team");
        assert_eq!(qualified("team", "teams/repo"), "team/teams/repo");
        assert_eq!(qualified("team", "other/repo"), "team/other/repo");
        assert_eq!(qualified("team", ""), "team/");
    }
}
