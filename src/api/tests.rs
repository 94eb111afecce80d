//! Reading the answers of newer servers, and making requests as clients do.

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::agents::{AgentHealth, Dispatched, NotDispatched, OrderDone, PushedTask};
use crate::answers::{
    Audit, BulkResult, Claimed, Completed, Event, Gone, Lease, Leased, Recorded, Removed, Renewed, RenewedLeases, RunResult, RunResults,
    WorkerWithLeases,
};
use crate::complete::{Completion, NewCompletions, WorkerCompletion};
use crate::error::ErrorText;
use crate::json::Json;
use crate::keys::CreatedKey;
use crate::reports::{Config, ConnectionTest, Health, Probe, Stats, UsageRow};
use crate::requests::{EventBody, NewEvents, NewWorker};
use crate::results::{Artifact, TaskResult};
use crate::tasks::{CreatedTasks, Task};
use crate::values::{Id, Int, List};
use crate::workers::Worker;
use bloom_core::event::EventKind;
use bloom_core::task::Outcome;

const ID: &str = "0190a0a0-0000-7000-8000-000000000000";
/// An enum value that the reader does not know.
const NEW: &str = "a_new_word";

fn with(mut object: Value, more: Value) -> Value {
    object.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    object
}

/// The same value with an unknown field in each object, except in objects whose keys are data.
fn newer(value: &Value) -> Value {
    match value {
        Value::Object(members) => {
            let members = members.iter().map(|(name, value)| {
                let is_foreign = matches!(
                    name.as_str(),
                    "labels" | "keys" | "by_status" | "fieldErrors" | "data" | "execution" | "health" | "capabilities"
                );
                (name.clone(), if is_foreign { value.clone() } else { newer(value) })
            });
            Value::Object(members.chain([("a_new_field".to_owned(), json!({"of": ["any", "kind"]}))]).collect())
        }
        Value::Array(items) => Value::Array(items.iter().map(newer).collect()),
        other => other.clone(),
    }
}

/// Reading the answer of a newer server keeps all known fields, and unknown enum values as they were sent.
fn is_read<T: DeserializeOwned + Serialize>(answer: Value) {
    let read: T = serde_json::from_str(&newer(&answer).to_string()).unwrap_or_else(|error| panic!("{error}: {answer}"));
    assert_eq!(serde_json::to_value(&read).unwrap(), answer);
    // The same must hold if the answer was parsed to a `Value` first.
    assert_eq!(serde_json::to_value(T::deserialize(&answer).unwrap()).unwrap(), answer);
}

fn task() -> Value {
    let task = json!({
        "id": ID, "context_id": "c", "agent_slug": "a", "prompt": "p", "context_hints": ["h"], "policy": {"timeout_sec": 60, "timeout_is_default": true, "budget": 0.5},
        "desired_format": NEW, "status": NEW, "created_at": 1, "updated_at": 2, "started_at": 1, "finished_at": 2, "lease_id": ID, "worker_id": "w", "attempts": 1,
        "max_attempts": 3, "priority": 5, "not_before": 4, "depends_on": [ID], "exclusive_key": "k", "idempotency_key": "i",
        "labels": {"l": "1"}, "session": NEW, "model": "m", "ttl_after_finished_sec": 9, "infra_retries": 0, "cancel_requested": false, "suspend": true,
        "session_id": "s", "failure": {"reason": NEW, "message": "why", "at": 3},
        "usage": {"input_tokens": 1, "output_tokens": 2, "cost_usd": 0.25}, "waiting": {"reason": NEW, "message": "for what"}, "owner": "ci", "team": "web",
    });
    with(
        task,
        json!({
            "project": "docs", "ref": "main", "push": NEW,
            "inputs": [{"artifact_id": ID, "path": "a/b", "content_type": "text/plain", "bytes": 3, "sha256": "00"}], "outputs": ["out/*"],
        }),
    )
}

fn lease() -> Value {
    json!({
        "id": ID, "task_id": ID, "worker_id": "w", "started_at": 1, "expires_at": 9, "ttl_seconds": 8, "status": NEW, "last_heartbeat": 2,
        "context_id": "c", "ended_at": 8, "outcome": NEW, "reason": NEW, "message": "t", "model": "m", "usage": {"input_tokens": 1, "output_tokens": 2, "cost_usd": 0.25, "cost_estimated": true},
        "budget_left": 0.5, "repository": {
            "project_id": ID, "project": "docs", "url": "https://git.example.com/docs.git", "branch_prefix": "bots", "former_branch_prefixes": ["bloom"],
        },
    })
}

fn worker() -> Value {
    json!({
        "id": "w", "node_id": "w", "url": "", "status": NEW,
        "capabilities": {"claude_cli": true, "max_concurrency": 2, "labels": ["gpu"], "agents": ["coder"], "profiles": ["coder"], "git": true, "projects": ["docs"]},
        "last_heartbeat": 1,
        "ip_addrs": ["10.0.0.1"], "obs_count": 0, "db_sha": "", "registered_at": 1, "active_leases": 1, "agent_version": "1",
        "os_info": "Linux", "install_method": "", "dispatch": NEW, "cordoned": false, "draining": true,
    })
}

fn artifact() -> Value {
    json!({
        "id": ID, "task_id": ID, "job_id": null, "type": "LLM_RESULT", "created_at": 1, "finalized": true, "url": null, "entity_refs": [],
        "tags": ["t"], "content": "done", "name": "out/a", "content_type": "text/plain", "bytes": 4, "sha256": "00",
    })
}

fn result() -> Value {
    json!({
        "id": ID, "task_id": ID, "worker_id": "w", "artifact_id": ID, "status": NEW, "output": "done", "error_message": null, "warnings": ["w"],
        "metrics": {"duration_ms": 1, "tokens_used": 2}, "completed_at": 3, "branch": "bloom/c", "commit": null,
    })
}

#[test]
fn tasks_and_their_runs() {
    is_read::<Task>(task());
    is_read::<CreatedTasks>(json!({"tasks": [task()], "existed": 3}));
    is_read::<TaskResult>(result());
    is_read::<Artifact>(artifact());
    is_read::<Completed>(json!({"task": task(), "artifact": artifact(), "result": result()}));
    let event = json!({"task_id": ID, "number": 1, "lease_id": ID, "seq": 1, "kind": NEW, "at": 1, "data": {"text": [1, null]}});
    is_read::<Event>(event);
    is_read::<Recorded>(json!({"newest": 5}));
    is_read::<BulkResult>(json!({"matched": 2, "changed": 1, "more": true}));
    is_read::<Gone>(json!({"kind": "task", "id": ID}));
    is_read::<PushedTask>(json!({
        "task_id": ID, "prompt": "p", "context_id": "c", "agent_slug": "a", "desired_format": NEW, "context_hints": ["h"],
        "policy": {"timeout_sec": 60, "timeout_is_default": true, "budget": 0.5}, "runtime_url": "http://s", "lease_id": ID, "worker_id": "w", "ttl_seconds": 8,
        "session": NEW, "session_id": null, "model": "m",
    }));
}

#[test]
fn leases_and_workers() {
    let directives = json!({"cancel": [ID], "drain": true});
    is_read::<Lease>(lease());
    is_read::<Worker>(worker());
    is_read::<WorkerWithLeases>(with(worker(), json!({"leases": [lease()]})));
    is_read::<Leased>(json!({"lease": lease(), "worker": worker()}));
    is_read::<Renewed>(json!({"lease": lease(), "expires_at": 9}));
    is_read::<CreatedKey>(json!({
        "name": "k", "scope": NEW, "worker": "w", "push": true, "namespaces": ["n"], "created_at": 1, "expires_at": 2, "created_by": "admin",
        "last_used_at": 3, "former_until": 4, "team": "t", "quota": {"max_open_tasks": 1, "max_tasks_per_minute": 2, "max_stored_bytes": 3, "open_tasks": 4, "stored_bytes": 5}, "key": "bloom_x",
    }));
    is_read::<Removed>(json!({"removed": true, "id": "w"}));
    is_read::<Claimed>(json!({"leases": [{"lease": lease(), "task": task()}], "directives": directives}));
    is_read::<RenewedLeases>(json!({"renewed": [ID], "lost": [ID], "directives": directives}));
    is_read::<RunResult>(json!({"task_id": null, "status": 299}));
    is_read::<RunResults>(json!({"results": [{"task_id": ID, "status": 409, "error": "why", "code": NEW}]}));
    is_read::<Dispatched>(json!({"dispatched": true, "task_id": ID, "worker_id": "w", "lease_id": ID, "execution": {"any": "thing"}}));
    is_read::<NotDispatched>(json!({"dispatched": false, "task_id": ID, "worker_id": "w", "error": "why", "code": NEW}));
}

#[test]
fn the_whole_server() {
    let audit = json!({
        "id": ID, "timestamp": 1, "action": NEW, "entity_type": NEW, "entity_id": "e", "actor": "api", "detail": "d", "request_id": "r",
        "task_id": ID, "worker_id": "w",
    });
    is_read::<Audit>(audit);
    let figures = json!({"total": 3, "active": 1, "online": 1, "by_status": {NEW: 3}});
    let some = |names: &[&str]| Value::Object(names.iter().map(|name| ((*name).to_owned(), figures[name].clone())).collect());
    let (tasks, leases, workers) = (some(&["total", "by_status"]), some(&["total", "active"]), some(&["total", "online"]));
    is_read::<Stats>(json!({"tasks": tasks, "leases": leases, "workers": workers}));
    is_read::<UsageRow>(
        json!({"key": "2026-02-25", "keys": {"day": "2026-02-25"}, "runs": 1, "input_tokens": 2, "output_tokens": 3, "cost_usd": 0.5, "cost_estimated": true}),
    );
    is_read::<Config>(json!({"membridge_server_url": "", "admin_key_masked": "", "connected": true, "last_test": 1, "built_in_url": "u"}));
    is_read::<ConnectionTest>(json!({"connected": true, "health": {"any": "thing"}}));
    let membridge = json!({"consecutiveFailures": 0, "lastSuccess": 1, "lastError": null, "connected": true});
    is_read::<Health>(json!({"status": NEW, "service": "s", "uptime": 1.5, "storage": NEW, "membridge": membridge}));
    is_read::<Probe>(json!({"status": NEW}));
    is_read::<ErrorText>(json!({"error": "why", "code": NEW}));
    is_read::<ErrorText>(json!({"error": {"formErrors": ["f"], "fieldErrors": {"name": ["g"]}}, "code": "validation"}));
}

/// These types pass on all fields of an agent's answer, also unknown ones.
#[test]
fn what_agents_say_is_kept() {
    fn is_kept<T: DeserializeOwned + Serialize>(answer: Value) {
        assert_eq!(serde_json::to_value(serde_json::from_value::<T>(answer.clone()).unwrap()).unwrap(), answer);
    }
    is_kept::<AgentHealth>(json!({"reachable": true, "status": "ok", "capabilities": {"claude_cli": true}}));
    is_kept::<OrderDone>(json!({"status": NEW, "output": "new"}));
}

#[test]
fn requests_say_what_was_given_and_no_more() {
    fn is_sent<T: DeserializeOwned + Serialize + PartialEq + std::fmt::Debug>(request: &T, expected: Value) {
        let sent = serde_json::to_string(request).unwrap();
        assert_eq!(serde_json::from_str::<Value>(&sent).unwrap(), expected);
        assert_eq!(serde_json::from_str::<T>(&sent).unwrap(), *request);
    }
    let id: uuid::Uuid = ID.parse().unwrap();
    let worker: NewWorker = serde_json::from_value(json!({"name": "w", "capabilities": {"labels": []}, "url": null})).unwrap();
    is_sent(&worker, json!({"name": "w", "capabilities": {"labels": []}}));
    let event = EventBody { seq: Int(1), kind: EventKind::Text, at: Int(5), data: Json(r#"{"b":1,"a":[]}"#.into()) };
    let events = NewEvents { lease_id: Id(id), events: List(vec![event]) };
    is_sent(&events, json!({"lease_id": ID, "events": [{"seq": 1, "kind": "text", "at": 5, "data": {"b": 1, "a": []}}]}));
    let completion = Completion { model: Some("m".into()), ..Completion::new(Outcome::Success, 7, None) };
    let expected = json!({"status": "success", "metrics": {"duration_ms": 7}, "model": "m"});
    is_sent(&completion, expected.clone());
    let many = NewCompletions { completions: List(vec![WorkerCompletion::new(id, id, completion)]) };
    let sent = serde_json::to_value(&many).unwrap();
    assert_eq!(sent, json!({"completions": [with(expected, json!({"task_id": ID, "lease_id": ID}))]}));
    let read: NewCompletions = serde_json::from_value(sent).unwrap();
    assert_eq!(
        (read.completions.0[0].task_id.as_deref(), &read.completions.0[0].completion),
        (Some(ID), &many.completions.0[0].completion)
    );
    let wrong = serde_json::from_value::<EventBody>(json!({"seq": -1, "at": 5})).unwrap_err();
    assert_eq!(wrong.to_string(), "kind: Required; seq: Number must be greater than or equal to 0");
}
