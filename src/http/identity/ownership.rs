//! Limits a named key to what belongs to it: a submit key to the tasks that it created, a member key to the tasks of its team, and a
//! worker's key to what its worker holds and to the namespaces that it may serve.
//!
//! Handlers check this before they send a command. That is safe: the owner and the team of a task or an upload and the worker of a lease
//! never change, and ids are never reused. A context that belongs to one team alone stops doing so only if a key that was just given to
//! others creates a task in it.

use std::collections::{BTreeSet, HashMap, HashSet};

use uuid::Uuid;

use crate::AppState;
use crate::messages::error::Error;
use crate::middleware::Caller;
use bloom_api::error::OTHER_WORKER;
use bloom_api::values::text_problem;
use bloom_core::api_key::{Owner, Scope};
use bloom_core::command::{Holder, Rejection, WorkerChange};
use bloom_core::file::{File, FileId};
use bloom_core::ids::{LeaseId, TaskId};
use bloom_core::task::{TaskSpec, TaskState};
use bloom_core::worker::DispatchMode;
use bloom_store::TaskFilter;

/// The longest name after the prefix was added: the same limit as for the names that other keys choose.
const MAX_NAME: usize = 255;
/// The most ids in one query.
const MAX_IDS: usize = 1_000;
const NO_PUSH: &str = "This key does not allow its worker a url or dispatch 'push', because the server would send tasks and the agents' key \
    there: leave both out (start the agent without --listen), or create the worker's key or join token with --push";

/// Puts the prefix and a `/` in front of the text, unless they are there already. Names of keys and teams contain no `/`, so no caller can
/// reach the names of another one.
fn qualified(prefix: &str, text: &str) -> String {
    match text.strip_prefix(prefix) {
        Some(rest) if rest.starts_with('/') => text.to_owned(),
        _ => format!("{prefix}/{text}"),
    }
}

/// Narrows the filter to the tasks that the caller sees.
///
/// # Errors
/// If the database fails.
pub(crate) async fn filter(app: &AppState, caller: &Caller, filter: TaskFilter) -> Result<TaskFilter, Error> {
    let context_id = context_wanted(app, caller, filter.context_id).await?;
    Ok(TaskFilter { owner: caller.sees(), context_id, ..filter })
}

/// Calls [`context`] if the caller names a context.
///
/// # Errors
/// If the database fails.
pub(crate) async fn context_wanted(app: &AppState, caller: &Caller, named: Option<String>) -> Result<Option<String>, Error> {
    match named {
        None => Ok(None),
        Some(id) => context(app, caller, id).await.map(Some),
    }
}

/// The id of the context that the caller names. A submit or member key may leave out the prefix of its own names.
///
/// # Errors
/// If the database fails.
pub(crate) async fn context(app: &AppState, caller: &Caller, id: String) -> Result<String, Error> {
    let Some(owner) = caller.sees() else { return Ok(id) };
    let is_known = !of_team(app, &owner, vec![id.clone()]).await?.is_empty();
    Ok(if is_known { id } else { qualified(&owner.prefix(), &id) })
}

/// The contexts in which the team has tasks, each with whether all of its tasks are the team's. A member key may name such a context by its
/// full id, because the contexts of the team's submit keys do not have the prefix of the team.
async fn of_team(app: &AppState, owner: &Owner, ids: Vec<String>) -> Result<HashMap<String, bool>, Error> {
    match owner {
        Owner::Key(_) => Ok(HashMap::new()),
        Owner::Team(team) => Ok(app.store.contexts_of_team(&ids, team).await?.into_iter().collect()),
    }
}

/// The contexts that the caller's team shares with keys outside the team. That happens if a key was in another team before, or in none. The
/// team sees its own tasks in such a context, but can't continue the conversation.
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

/// The tasks that exist and that the caller may see.
///
/// # Errors
/// If the database fails.
pub(crate) async fn tasks(app: &AppState, caller: &Caller, ids: Vec<TaskId>) -> Result<Vec<TaskId>, Error> {
    if let Some(owner) = caller.sees() {
        return Ok(app.store.owned(&ids, &owner).await?);
    }
    let Some((worker, namespaces)) = caller.worker().zip(namespaces_of(caller)) else { return Ok(ids) };
    // The key may also end a run of the worker in another namespace, so it sees the tasks that its worker holds or held last.
    let is_seen = |task: &TaskState| {
        let holder = task.lease.as_ref().map(|lease| &lease.worker_id).or(task.last_lease.as_ref().map(|last| &last.worker_id));
        task.namespace.as_ref().is_some_and(|namespace| namespaces.contains(namespace)) || holder.is_some_and(|holder| holder == worker)
    };
    Ok(app.store.task_states(&ids).await?.iter().filter(|task| is_seen(task)).map(|task| task.id).collect())
}

/// Whether the caller may see the file. A caller that may write may then also remove it if no task uses it.
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

/// Makes the new tasks the caller's own. Their contexts and keys get the name of the caller's key as a prefix, or the name of its team if
/// the caller sees the team's tasks. Without the prefix, a run could read an earlier conversation of others in the same context, and an
/// equal key would reveal a task of others.
///
/// # Errors
/// A name is too long, a context also has tasks of others, or a task depends on a task or uses an input that is not the caller's.
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

/// The holder that the call acts for. A worker's key always acts for its own worker.
///
/// # Errors
/// The call names another worker or a lease of another worker, or the database fails.
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

/// Refuses to let a worker's key choose a URL that the server calls, unless the key allows push: the server sends tasks and the agents' key
/// to that URL.
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

/// The Kubernetes namespaces whose tasks the worker of the key may serve; `None` for callers without that limit.
fn namespaces_of(caller: &Caller) -> Option<&[String]> {
    caller.worker().and(caller.key.as_ref()?.namespaces.as_deref())
}

/// Checks the namespaces in a registration against those of the worker's key. If the registration names none, the worker gets all
/// namespaces of its key.
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
        text: format!("{OTHER_WORKER} '{own}' only: each worker has a key of its own; start the agent with --name {own}").into(),
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
