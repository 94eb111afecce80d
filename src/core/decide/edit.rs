//! Changes a queued task: its priority, the time before which it does not run, the limits of its runs, and its labels.

use std::collections::BTreeMap;

use super::readiness::{apply, evaluate};
use super::reevaluate::dependencies;
use crate::Ms;
use crate::audit::{Action, Actor, EntityType};
use crate::ids::TaskId;
use crate::limits::TASK_LABELS;
use crate::operation::{Operation, Urgency};
use crate::rejection::Rejection;
use crate::row_keys::RowKeys;
use crate::task::{Parked, Status, TaskState};
use crate::task_limits::LimitChange;
use crate::working_set::{Halt, WorkingSet};

/// Changes a queued task. Fields that are `None` stay as they are.
#[derive(Clone, Debug)]
pub struct Edit {
    /// The task to change.
    pub task: TaskId,
    /// The new priority, 0..=9; 9 is the most urgent.
    pub priority: Option<i64>,
    /// The new earliest time of its run; `Some(None)`: it may run at once.
    pub not_before: Option<Option<Ms>>,
    /// New limits of its runs.
    pub limits: LimitChange,
    /// New values of labels by name; `None` removes the label. Other labels stay.
    pub labels: BTreeMap<String, Option<String>>,
    /// The labels of the task's spec, which apply until the labels are edited for the first time. A spec never changes, so the caller may
    /// read it before the commit.
    pub first_labels: BTreeMap<String, String>,
}

impl Operation for Edit {
    type Reply = TaskState;

    fn urgency(&self) -> Urgency {
        Urgency::New
    }

    fn add_keys(&self, keys: &mut RowKeys) {
        keys.tasks.insert(self.task);
    }

    fn decide(&self, set: &mut WorkingSet) -> Result<TaskState, Halt> {
        let id = self.task;
        let before = set.task(id)?;
        if before.status != Status::Queued {
            return Err(Rejection::CannotEdit(before.status).into());
        }
        let mut task = before.clone();
        let mut changes = Vec::new();
        if let Some(priority) = self.priority.filter(|priority| *priority != before.priority) {
            task.priority = priority;
            changes.push(format!("priority {} to {priority}", before.priority));
        }
        if let Some(not_before) = self.not_before.filter(|at| *at != before.not_before) {
            task.not_before = not_before;
            changes.push(format!("not_before {} to {}", time(before.not_before), time(not_before)));
        }
        changes.extend(task.limit_to(self.limits));
        // Without any budget left, its next run could not do anything, and would end the task.
        if self.limits.budget.is_some()
            && let Some((_, spent)) = task.budget_after(task.usage.unwrap_or_default()).filter(|(left, _)| *left <= 0.0)
        {
            return Err(Rejection::BudgetIsSpent(spent).into());
        }
        let old = before.labels.as_ref().unwrap_or(&self.first_labels);
        let labels = self.edited(old)?;
        if labels != *old {
            let names: Vec<&str> = self.labels.keys().filter(|name| labels.get(*name) != old.get(*name)).map(String::as_str).collect();
            changes.push(format!("labels {}", names.join(" ")));
            task.labels = Some(labels);
        }
        if changes.is_empty() {
            return Ok(task);
        }
        let is_later = task.not_before.is_some_and(|at| at > set.now());
        let readiness = if task.not_before != before.not_before && (is_later || before.parked == Some(Parked::NotBefore)) {
            let dependencies = dependencies(set, &task)?;
            Some(evaluate(set, &mut task, &dependencies, id)?)
        } else {
            None
        };
        task.updated_at = set.stamp();
        set.audit(Action::TaskEdited, EntityType::Task, id, &Actor::Admin, changes.join(", "));
        if task.labels != set.task(id)?.labels {
            set.dirty.relabeled.insert(id);
        }
        if let Some(readiness) = readiness {
            apply(set, &mut task, readiness);
        }
        task.revision = set.put_task(task.clone());
        Ok(task)
    }
}

impl Edit {
    fn edited(&self, old: &BTreeMap<String, String>) -> Result<BTreeMap<String, String>, Rejection> {
        let mut labels = old.clone();
        for (name, value) in &self.labels {
            match value {
                Some(value) => labels.insert(name.clone(), value.clone()),
                None => labels.remove(name),
            };
        }
        if labels.len() > TASK_LABELS && labels != *old { Err(Rejection::TooManyLabels(labels.len())) } else { Ok(labels) }
    }
}

fn time(at: Option<Ms>) -> String {
    at.map_or_else(|| "none".to_owned(), |at| at.to_string())
}
