//! The creation of tasks.

use std::collections::HashMap;
use std::sync::Arc;

use super::quotas::{self, Added, Used};
use super::readiness::{apply, evaluate, newest_in_context};
use crate::audit::{Action, Actor, EntityType};
use crate::file::{Input, path_clash};
use crate::namespace::{RESERVED, unqualified};
use crate::operation::{Operation, Urgency, Weight};
use crate::project::TaskProject;
use crate::rejection::Rejection;
use crate::reply::CreatedTask;
use crate::row_keys::{AFTER_ALL, RowKeys};
use crate::task::{Session, Status, TaskSpec, TaskState};
use crate::working_set::{Halt, WorkingSet, need};

/// Creates all of these tasks or none. Ids are assigned here, and those in the specs are ignored. Projects are looked up by their names or
/// ids. A task that already exists, by its Kubernetes object or by its idempotency key, is not created again.
#[derive(Clone, Debug)]
pub struct Create {
    /// The tasks that the clients ask for. The reply has one task for each, in this order.
    pub tasks: Vec<TaskSpec>,
}

impl Operation for Create {
    type Reply = Vec<CreatedTask>;

    fn weight(&self) -> Weight {
        Weight {
            rows: self.tasks.iter().map(|task| 3 + task.inputs.len() * 2).sum(),
            bytes: self.tasks.iter().map(|task| 512 + task.prompt.len() + task.context_hints.iter().map(String::len).sum::<usize>()).sum(),
        }
    }

    fn urgency(&self) -> Urgency {
        if self.tasks.len() > 1 { Urgency::Bulk } else { Urgency::New }
    }

    fn add_keys(&self, keys: &mut RowKeys) {
        for task in &self.tasks {
            keys.named_projects.extend(task.project.iter().map(|project| project.name.clone()));
            keys.files.extend(task.inputs.iter().map(|input| input.artifact_id));
            keys.tasks.extend(task.depends_on.iter().copied());
            keys.idempotency.extend(task.idempotency_key.iter().cloned());
            keys.objects.extend(task.object.iter().map(|object| object.uid));
            keys.exclusive.extend(task.exclusive_key.iter().cloned());
            if task.session == Session::Context {
                keys.contexts.insert(task.context_id.clone());
                keys.predecessors.insert((task.context_id.clone(), AFTER_ALL));
            }
        }
    }

    fn decide(&self, set: &mut WorkingSet) -> Result<Vec<CreatedTask>, Halt> {
        let wanted = &self.tasks[..];
        let used = check(set, wanted)?;
        quotas::take(set, used);
        let mut created = Vec::with_capacity(wanted.len());
        for spec in wanted {
            created.push(match earlier(set, spec)? {
                Some(earlier) => CreatedTask { state: set.task(earlier.id)?.clone(), spec: earlier, existed: true },
                None => insert(set, spec)?,
            });
        }
        Ok(created)
    }
}

/// Checks everything that could reject the call, before anything is changed. Returns how much the call uses of its key's quota.
fn check(set: &WorkingSet, wanted: &[TaskSpec]) -> Result<Option<Used>, Halt> {
    let mut added = Added::default();
    let mut keys: HashMap<&str, &TaskSpec> = HashMap::new();
    for spec in wanted {
        check_names(spec)?;
        if let Some(earlier) = earlier(set, spec)? {
            if set.find_task(earlier.id)?.is_none() {
                // The task was removed after the look-up, so the key is free again.
                return Err(need(|keys| {
                    keys.idempotency.extend(spec.idempotency_key.clone());
                    keys.objects.extend(spec.object.iter().map(|object| object.uid));
                }));
            }
            // An object stands for its task, even if the object was edited since.
            if !is_of_same_object(&earlier, spec) && !is_same_spec(&earlier, spec) {
                return Err(conflict(spec));
            }
            continue;
        }
        if let Some(key) = &spec.idempotency_key
            && let Some(first) = keys.insert(key, spec)
        {
            if is_same_spec(first, spec) {
                continue;
            }
            return Err(conflict(spec));
        }
        let spec = &with_inputs(set, with_project(set, spec)?)?;
        let mut unknown = Vec::new();
        for id in &spec.depends_on {
            if set.find_task(*id)?.is_none() {
                unknown.push(*id);
            }
        }
        if !unknown.is_empty() {
            return Err(Rejection::UnknownDependencies(unknown).into());
        }
        evaluate(set, &mut TaskState::new(spec), &spec.depends_on, AFTER_ALL)?;
        added.tasks += 1;
        added.bytes = added.bytes.saturating_add(spec.bytes());
    }
    if added.tasks == 0 { Ok(None) } else { quotas::check(set, added) }
}

/// The task, with a copy of the fields that it keeps of its project.
fn with_project(set: &WorkingSet, spec: &TaskSpec) -> Result<TaskSpec, Halt> {
    let Some(named) = &spec.project else { return Ok(spec.clone()) };
    let known = set.named_project(&named.name)?.ok_or_else(|| Rejection::UnknownProject(named.name.clone()))?;
    let project = TaskProject { id: known.id, name: known.name.clone(), repo_url: known.repo_url.clone(), ..named.clone() };
    Ok(TaskSpec { project: Some(project), ..spec.clone() })
}

/// The task, with a copy of the fields that it keeps of its inputs. An input without a path gets the name of its file. Files of runs are
/// refused, because they are removed with their own tasks. Whether the caller may use an upload is checked before the command.
fn with_inputs(set: &WorkingSet, mut spec: TaskSpec) -> Result<TaskSpec, Halt> {
    let mut unknown = Vec::new();
    for input in &mut spec.inputs {
        let known = set.find_file(input.artifact_id)?.map(|known| &known.file);
        let Some(file) = known.filter(|file| file.task_id.is_none()) else {
            unknown.push(input.artifact_id);
            continue;
        };
        let path = if input.path.is_empty() { file.name.clone() } else { std::mem::take(&mut input.path) };
        let (content_type, sha256) = (file.content_type.clone(), file.sha256.clone());
        *input = Input { artifact_id: file.id, path, content_type, bytes: file.bytes, sha256 };
    }
    if !unknown.is_empty() {
        return Err(Rejection::UnknownInputs(unknown).into());
    }
    if let Some((one, other)) = path_clash(spec.inputs.iter().map(|input| input.path.as_str())) {
        return Err(Rejection::InputsClash(one.to_owned(), other.to_owned()).into());
    }
    Ok(spec)
}

fn conflict(spec: &TaskSpec) -> Halt {
    Rejection::IdempotencyConflict(spec.idempotency_key.clone().unwrap_or_default()).into()
}

/// Rejects names that would give a task access to contexts and keys of a namespace that is not its own.
fn check_names(spec: &TaskSpec) -> Result<(), Rejection> {
    let names = [
        ("context_id", Some(&spec.context_id)),
        ("exclusive_key", spec.exclusive_key.as_ref()),
        ("idempotency_key", spec.idempotency_key.as_ref()),
    ];
    for (field, name) in names {
        let Some(name) = name else { continue };
        let is_its_own = match &spec.object {
            None => !name.starts_with(RESERVED),
            Some(object) => unqualified(&object.namespace, name).is_some(),
        };
        if !is_its_own {
            return Err(Rejection::ReservedName(field));
        }
    }
    Ok(())
}

/// The task that was created earlier for this object, or with this idempotency key.
fn earlier(set: &WorkingSet, spec: &TaskSpec) -> Result<Option<Arc<TaskSpec>>, Halt> {
    if let Some(uid) = spec.object.as_ref().map(|object| object.uid) {
        let of_object = set.loaded.objects.get(&uid).ok_or_else(|| need(|keys| keys.objects.insert(uid)))?;
        if of_object.is_some() {
            return Ok(of_object.clone());
        }
    }
    let Some(key) = &spec.idempotency_key else { return Ok(None) };
    set.loaded.idempotency.get(key).cloned().ok_or_else(|| need(|keys| keys.idempotency.insert(key.clone())))
}

fn is_of_same_object(a: &TaskSpec, b: &TaskSpec) -> bool {
    a.object.is_some() && a.object == b.object
}

fn is_same_spec(a: &TaskSpec, b: &TaskSpec) -> bool {
    // A submit key must not see the task of another owner, and a member key must not see the task of another team.
    let is_of_same_owner = a.owner == b.owner || (a.team.is_some() && a.team == b.team);
    a.context_id == b.context_id && a.agent_slug == b.agent_slug && a.prompt == b.prompt && is_of_same_owner
}

fn insert(set: &mut WorkingSet, wanted: &TaskSpec) -> Result<CreatedTask, Halt> {
    let before =
        if wanted.session == Session::Context { Some(newest_in_context(set, &wanted.context_id)?.unwrap_or_default()) } else { None };
    // The id sorts after the ids of all tasks that it may wait for. Because tasks wait only for earlier tasks, they never wait in a cycle.
    before.iter().chain(&wanted.depends_on).for_each(|id| set.ids.rise_above(*id));
    let id = set.ids.next_id();
    let spec = Arc::new(TaskSpec { id, ..with_inputs(set, with_project(set, wanted)?)? });
    let mut state = TaskState { created_after: before, ..TaskState::new(&spec) };
    let readiness = evaluate(set, &mut state, &spec.depends_on, AFTER_ALL)?;
    set.audit(Action::TaskCreated, EntityType::Task, id, &Actor::Api, spec.agent_slug.clone());
    spec.inputs.iter().for_each(|input| set.use_file(input.artifact_id));
    set.dirty.specs.push(spec.clone());
    if let Some(key) = &spec.idempotency_key {
        set.loaded.idempotency.insert(key.clone(), Some(spec.clone()));
    }
    if let Some(object) = &spec.object {
        set.loaded.objects.insert(object.uid, Some(spec.clone()));
    }
    apply(set, &mut state, readiness);
    if spec.session == Session::Context && state.status == Status::Queued {
        set.newest_in_context.insert(spec.context_id.clone(), id);
    }
    state.revision = set.put_task(state.clone());
    Ok(CreatedTask { spec, state, existed: false })
}
