//! What the Claude CLI still has to do: the turn in progress, its background tasks, and the wake-up that it waits for. A result only ends a
//! turn.

use std::collections::BTreeMap;

use serde_json::Value;

use super::cut;
use bloom_core::Ms;

/// The maximum number of background tasks that are tracked, because a run can print anything.
const MAX_TASKS: usize = 100;
/// The maximum length of a task's id or description, in bytes.
const MAX_NAME: usize = 100;
/// How late a wake-up may come.
const WAKE_UP_SLACK_MS: Ms = 60_000;

/// What the CLI is doing now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Activity {
    /// It is in a turn: the model is writing, or a tool is working.
    Turn,
    /// It waits for its background tasks, or until it wakes up.
    Waits,
    /// Nothing is left to do, so it should end.
    Idle,
}

#[derive(Debug, Default)]
pub(crate) struct Pending {
    in_turn: bool,
    /// Descriptions by task id.
    tasks: BTreeMap<String, String>,
    wakes_at: Option<Ms>,
    /// Background tasks that were stopped while no turn was in progress, so that the model has not seen their end. Descriptions by task id.
    stopped: BTreeMap<String, String>,
}

impl Pending {
    pub(crate) fn activity(&self, now: Ms) -> Activity {
        let wakes_up = self.wakes_at.is_some_and(|at| now < at.saturating_add(WAKE_UP_SLACK_MS));
        match self {
            Self { in_turn: true, .. } => Activity::Turn,
            _ if wakes_up || !self.tasks.is_empty() => Activity::Waits,
            _ => Activity::Idle,
        }
    }

    /// What the end of the run cut off, for people; `None`: nothing.
    pub(crate) fn unfinished(&self) -> Option<String> {
        let mut parts = Vec::new();
        if self.in_turn {
            parts.push("another turn".to_owned());
        }
        let tasks: Vec<&str> = self.stopped.values().chain(self.tasks.values()).map(String::as_str).collect();
        if !tasks.is_empty() {
            parts.push(format!("in the background: {}", tasks.join(", ")));
        }
        if self.wakes_at.is_some() {
            parts.push("a wake-up that it had scheduled".to_owned());
        }
        (!parts.is_empty()).then(|| parts.join("; "))
    }

    /// Handles a message of the model's own loop.
    pub(crate) fn works(&mut self) {
        self.in_turn = true;
    }

    /// Handles a result. `queued`: how many turns follow at once.
    pub(crate) fn turn_ends(&mut self, result: &Value) {
        self.in_turn = result["queued_turn_count"].as_u64().is_some_and(|queued| queued > 0);
    }

    pub(crate) fn system(&mut self, message: &Value) {
        let id = || message["task_id"].as_str().map(short);
        match message["subtype"].as_str().unwrap_or_default() {
            "init" => self.in_turn = true,
            "status" if message["status"] == "requesting" => self.in_turn = true,
            "background_tasks_changed" => {
                let tasks = message["tasks"].as_array().into_iter().flatten().take(MAX_TASKS);
                self.tasks = tasks.filter_map(|task| Some((task["task_id"].as_str().map(short)?, described(task)))).collect();
            }
            // The turn itself waits for a foreground task.
            "task_started" if message["is_backgrounded"] != false => {
                if let Some(id) = id().filter(|_| self.tasks.len() < MAX_TASKS) {
                    self.tasks.insert(id, described(message));
                }
            }
            "task_updated" => self.task_is(id(), message["patch"]["status"].as_str(), message),
            "task_notification" => self.task_is(id(), message["status"].as_str(), message),
            _ => {}
        }
    }

    /// Handles a change of a prompt that the CLI gives itself.
    pub(crate) fn prompt(&mut self, message: &Value) {
        self.in_turn |= matches!(message["state"].as_str(), Some("queued" | "started"));
        if message["wakeup_source"].is_string() {
            self.wakes_at = self.wakes_at.filter(|at| message["scheduled_for"].as_i64().is_some_and(|was_for| was_for < *at));
        }
    }

    fn task_is(&mut self, id: Option<String>, status: Option<&str>, message: &Value) {
        let (Some(id), Some(status)) = (id, status) else { return };
        let is_stopped = matches!(status, "killed" | "stopped");
        if !is_stopped && !matches!(status, "completed" | "failed") {
            return;
        }
        let known = self.tasks.remove(&id);
        // During a turn, the model itself stopped the task. Some versions no longer list the task at this point, and report its end twice.
        if is_stopped && !self.in_turn && (self.stopped.len() < MAX_TASKS || self.stopped.contains_key(&id)) {
            let description = self.stopped.entry(id).or_default();
            if description.is_empty() {
                *description = known.filter(|known| !known.is_empty()).unwrap_or_else(|| described(message));
            }
        }
    }

    /// Handles the result of a tool. If it schedules a wake-up, it contains the time.
    pub(crate) fn tool_result(&mut self, message: &Value) {
        if let Some(at) = message["tool_use_result"]["scheduledFor"].as_i64() {
            self.wakes_at = Some(at);
        }
    }
}

fn described(task: &Value) -> String {
    ["description", "summary"].iter().find_map(|name| task[name].as_str()).map(short).unwrap_or_default()
}

fn short(name: &str) -> String {
    cut(name, MAX_NAME).to_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn after(lines: &[Value]) -> Pending {
        let mut pending = Pending::default();
        lines.iter().for_each(|line| pending.system(line));
        pending
    }

    #[test]
    fn background_tasks_are_waited_for_until_they_end() {
        let begun = json!({"subtype": "task_started", "task_id": "a", "description": "the build"});
        let listed = json!({"subtype": "background_tasks_changed", "tasks": [{"task_id": "a", "description": "the build"}]});
        let foreground = json!({"subtype": "task_started", "task_id": "b", "is_backgrounded": false});
        for begins in [&begun, &listed] {
            let pending = after(&[begins.clone(), foreground.clone()]);
            assert_eq!(pending.activity(0), Activity::Waits);
            assert_eq!(pending.unfinished().as_deref(), Some("in the background: the build"));
            for status in ["completed", "failed"] {
                let ends = json!({"subtype": "task_notification", "task_id": "a", "status": status});
                let pending = after(&[begins.clone(), ends]);
                assert_eq!((pending.activity(0), pending.unfinished()), (Activity::Idle, None));
            }
        }
        assert_eq!(after(&[listed, json!({"subtype": "background_tasks_changed", "tasks": []})]).activity(0), Activity::Idle);
    }

    #[test]
    fn what_the_cli_stops_by_itself_is_unfinished_and_what_the_model_stops_is_not() {
        let begins = json!({"subtype": "task_started", "task_id": "a", "description": "the build"});
        let stops = json!({"subtype": "task_updated", "task_id": "a", "patch": {"status": "killed"}});
        let none_left = json!({"subtype": "background_tasks_changed", "tasks": []});
        let notified = json!({"subtype": "task_notification", "task_id": "a", "status": "stopped", "summary": "the build"});
        for ends in [vec![stops.clone()], vec![none_left, stops.clone(), notified]] {
            let pending = after(&[vec![begins.clone()], ends].concat());
            assert_eq!((pending.activity(0), pending.unfinished()), (Activity::Idle, Some("in the background: the build".into())));
        }
        let mut pending = after(&[json!({"subtype": "init"}), begins, stops]);
        pending.turn_ends(&json!({}));
        assert_eq!((pending.activity(0), pending.unfinished()), (Activity::Idle, None));
    }

    #[test]
    fn a_wake_up_is_waited_for_and_not_for_ever() {
        let mut pending = Pending::default();
        pending.tool_result(&json!({"tool_use_result": {"scheduledFor": 1_000}}));
        assert_eq!((pending.activity(999), pending.activity(1_000 + WAKE_UP_SLACK_MS)), (Activity::Waits, Activity::Idle));
        for (was_for, after) in [(999, Activity::Waits), (1_000, Activity::Idle)] {
            pending.prompt(&json!({"state": "started", "wakeup_source": "loop_wakeup", "scheduled_for": was_for}));
            assert_eq!(pending.activity(0), Activity::Turn);
            pending.turn_ends(&json!({}));
            assert_eq!(pending.activity(0), after, "{was_for}");
        }
        assert_eq!(pending.unfinished(), None);
    }

    #[test]
    fn a_run_that_begins_tasks_without_end_takes_no_memory_without_end() {
        let begun: Vec<Value> =
            (0..1_000).map(|n| json!({"subtype": "task_started", "task_id": format!("{n}{}", "x".repeat(1_000))})).collect();
        let pending = after(&begun);
        assert!(pending.tasks.len() <= MAX_TASKS && pending.tasks.keys().all(|id| id.len() <= MAX_NAME));
    }
}
