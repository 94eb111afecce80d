//! The examples in the API's description: one story of a task, its worker and its lease.

use serde_json::{Value, json};

const AT: i64 = 1_772_000_000_000;
const TASK: &str = "019c936e-3800-7000-8000-000000000001";
const EARLIER_TASK: &str = "019c936e-3800-7000-8000-000000000002";
const LEASE: &str = "019c936e-3800-7000-8000-000000000003";
const RESULT: &str = "019c936e-3800-7000-8000-000000000004";
const ARTIFACT: &str = "019c936e-3800-7000-8000-000000000005";
const UPLOAD: &str = "019c936e-3800-7000-8000-000000000011";
const DIGEST: &str = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";
const ENTRY: &str = "019c936e-3800-7000-8000-000000000006";
const INSTANCE: &str = "019c936e-3800-7000-8000-000000000007";
const QUESTION: &str = "019c936e-3800-7000-8000-000000000008";
const PROJECT: &str = "019c936e-3800-7000-8000-000000000009";
const WORKER: &str = "worker-01";
const PROMPT: &str = "Summarize the open questions in README.md in three sentences.";
const OUTPUT: &str = "Three questions are open: the name of the default branch, the licence of the logo, and who reviews releases.";

/// The example of a call's answer, if it differs from that of its schema.
pub(crate) fn of_answer(operation: &str) -> Option<Value> {
    let changed = |changes: Value| Some(with(task(), &changes));
    match operation {
        "getTask" | "waitForTask" => Some(completed_task()),
        "editTask" => changed(json!({ "priority": 9, "labels": { "team": "docs", "batch": "8" }, "updated_at": AT + 1_000 })),
        "deleteTask" => Some(json!({ "removed": true, "id": TASK })),
        "editProject" => Some(with(project(), &json!({ "branch_prefix": "bots", "former_branch_prefixes": ["bloom"] }))),
        "deleteProject" => Some(json!({ "removed": true, "id": PROJECT })),
        "getNodeStatus" => Some(json!([with(project_node(), &json!({ "worker_status": "online" }))])),
        "revokeKey" => Some(json!({ "removed": true, "id": "ci" })),
        "pauseQueue" => Some(with(queue(), &json!({ "paused": true, "paused_at": AT }))),
        "pauseAllQueues" => Some(with(all_queues(), &json!({ "paused": true, "paused_at": AT }))),
        "resumeAllQueues" => Some(all_queues()),
        "listAccounts" => Some(json!([with(account(), &json!({ "resumed": false }))])),
        "listQueues" => Some(json!([all_queues(), queue()])),
        "enroll" => {
            let about = json!({ "name": "worker-worker-01", "scope": "worker", "worker": WORKER, "created_by": "key:join-eu" });
            Some(with(with(key(), &about), &json!({ "expires_at": null, "key": "bloom_b7Qm0XcVtW2n9yZk4sFhRj6uPdLa8eGi1oTxNwCqUzE" })))
        }
        "suspendTask" => {
            let waiting = json!({ "reason": "suspended", "message": "suspended until it is resumed" });
            changed(json!({ "suspend": true, "updated_at": AT + 1_000, "waiting": waiting }))
        }
        "answerQuestion" => Some(with(leased_task(), &json!({ "status": "running", "updated_at": AT + 90_000 }))),
        "resumeTask" => changed(json!({ "updated_at": AT + 2_000 })),
        "cancelTask" => changed(json!({ "status": "cancelled", "waiting": null, "updated_at": AT + 60_000, "finished_at": AT + 60_000 })),
        "listTasks" | "listRuns" => Some(json!([task(), with(completed_task(), &json!({ "id": EARLIER_TASK }))])),
        "releaseTask" => changed(json!({ "infra_retries": 1, "updated_at": AT + 5_000 })),
        "listArtifacts" => Some(json!([artifact()])),
        "uploadArtifact" => Some(upload()),
        "getMembridgeHealth" => Some(json!({ "status": "ok" })),
        "listMembridgeProjects" => Some(json!([{ "canonical_id": "9f86d081884c7d65", "name": "docs" }])),
        "getLeadership" | "selectLeader" => Some(json!({ "primary_node_id": WORKER, "lease_seconds": 3600 })),
        "listNodes" => Some(json!([{ "node_id": WORKER, "status": "online" }])),
        "listMembridgeJobs" => Some(json!([{ "action": "push", "project": "docs", "agent": WORKER, "status": "completed" }])),
        "readiness" => Some(json!({ "status": "ready" })),
        "updateAgent" => Some(json!({ "status": "updated", "version": "0.1.0" })),
        "restartAgent" => Some(json!({ "status": "restarted" })),
        "uninstallAgent" => Some(json!({ "status": "uninstalled" })),
        _ => None,
    }
}

/// The example of an answer that is not JSON.
pub(crate) fn of_text(operation: &str) -> Option<&'static str> {
    Some(match operation {
        "getArtifactContent" => OUTPUT,
        "listEvents" => {
            "id: 1\ndata: {\"task_id\":\"019c936e-3800-7000-8000-000000000001\",\"number\":1,\"lease_id\":\
             \"019c936e-3800-7000-8000-000000000003\",\"seq\":0,\"kind\":\"text\",\"at\":1772000004200,\"data\":{\"text\":\"Three\"}}\n\n\
             event: end\ndata: {\"status\":\"completed\"}\n\n"
        }
        "watch" => {
            "id: 1\nevent: removed\ndata: {\"kind\":\"task\",\"id\":\"019c936e-3800-7000-8000-000000000001\"}\n\n\
             id: 1\nevent: reset\ndata: {}\n\n"
        }
        "metrics" => "# TYPE bloom_tasks gauge\nbloom_tasks{status=\"queued\"} 3\n",
        "getAgentInstallScript" => "#!/bin/sh\nNODE_ID='worker-01'\nSERVER_URL='http://bloom.internal:5000'\n",
        _ => return None,
    })
}

/// The text of an error answer, if the description of the answer is not this text.
pub(crate) fn of_error(operation: &str, path: &str, status: &str) -> Option<&'static str> {
    Some(match (operation, status) {
        (_, "403") => "This key has the scope join, and this call needs admin",
        ("createTask" | "createTasks", "409") => {
            "Idempotency key 'review-2026-02-25' was used for another task: context_id, agent_slug or prompt differ"
        }
        ("leaseTask" | "dispatchTask", "409") => "Task status is 'leased', expected 'queued'",
        ("leaseTask" | "dispatchTask", "503") => "No available worker with free capacity",
        ("completeTask", "409") => "Task status is 'queued', expected 'leased' or 'running'",
        ("heartbeatTask" | "releaseTask" | "sendEvents" | "askQuestion", "409") => {
            "Lease '019c936e-3800-7000-8000-000000000003' is not the task's active lease"
        }
        ("heartbeatTask", "404") => "Lease not found or already expired",
        ("cancelTask", "409") => "Cannot cancel task with status 'completed'",
        ("suspendTask", "409") => "Cannot suspend task with status 'completed'",
        ("resumeTask", "409") => "Cannot resume task with status 'completed'",
        ("editTask", "409") => "Cannot edit task with status 'running': only a queued task can be edited",
        ("answerQuestion", "409") => "Cannot answer task with status 'running': its question is answered already",
        ("getQuestion", "404") => "The task's run asks nothing now",
        ("deleteTask", "409") => "Cannot delete task with status 'running': cancel it first",
        ("createKey", "409") => "A key 'ci' exists: revoke it first, or choose another name",
        ("requeueTask", "409") => "Cannot requeue task with status 'queued'",
        ("getResult", "404") => "Result not found",
        (_, "404") if path.contains("/llm-tasks/") => "Task not found",
        (_, "404") if path.contains("/workers/") => "Worker not found",
        ("createProject", "409") => "A project 'docs' exists: delete it first, or choose another name",
        ("syncMemory", "502") => "Membridge returned 422: {\"detail\": []}",
        (_, "404") if path.contains("/projects/") => "Project not found",
        (_, "502") if path.contains("/projects/") => "Agent returned 409: {\"error\":\"The target already exists\"}",
        (_, "404") if path.contains("/keys/") => "Key not found",
        (_, "502") if path.ends_with("/dispatch") => "connection refused",
        (_, "502") if path.contains("/workers/") => "Agent returned 500: no update command is configured",
        (_, "default") => "Membridge returned 404",
        _ => return None,
    })
}

/// The example of a schema, by its name.
pub(crate) fn of_schema(name: &str) -> Option<Value> {
    Some(match name {
        "NewTask" => new_task(),
        "NewTasks" => json!({ "tasks": [new_task(), with(new_task(), &json!({ "prompt": "Translate README.md into French." }))] }),
        "EditTask" => json!({ "priority": 9, "not_before": null, "labels": { "batch": "8" } }),
        "Requeue" => json!({ "policy": { "timeout_sec": 7200, "budget": 5 } }),
        "PolicyChange" => json!({ "timeout_sec": 7200, "budget": 5 }),
        "Ask" => {
            json!({ "lease_id": LEASE, "id": QUESTION, "question": { "tool": "Bash", "input": { "command": "git push" }, "limit_sec": 3600 } })
        }
        "NewAnswer" => json!({ "question_id": QUESTION, "allow": true }),
        "Question" => json!({
            "id": QUESTION, "task_id": TASK, "tool": "Bash", "input": { "command": "git push" }, "questions": [], "asked_at": AT + 5_000,
            "until": AT + 3_605_000, "answer": null,
        }),
        "Asked" => json!({ "answer": { "allow": false, "message": "not on a Friday", "answers": [] } }),
        "KeyRotation" => json!({ "overlap_sec": 86_400 }),
        "NewQueueLimit" => json!({ "max_concurrency": 2 }),
        "NewProject" => json!({ "name": "docs", "repo_url": REPOSITORY, "primary_node_id": WORKER }),
        "ProjectEdit" => json!({ "branch_prefix": "bots" }),
        "NewClone" => json!({ "node_id": WORKER }),
        "Propagation" => json!({ "node_ids": [WORKER] }),
        "NewMemorySync" => json!({ "direction": "push", "node_id": WORKER }),
        "Project" => project(),
        "ProjectNode" => project_node(),
        "ProjectWithNodes" => with(project(), &json!({ "nodes": [project_node()] })),
        "Cloned" => json!({ "status": "cloned", "node": WORKER, "result": { "status": "cloned", "path": CLONE_PATH } }),
        "Propagated" => json!({ "status": "synced", "results": [{ "node_id": WORKER, "status": "cloned" }] }),
        "MemorySynced" => json!({ "status": "ok", "direction": "push", "node": WORKER, "result": { "ok": true } }),
        "NewKey" => json!({ "name": "ci", "scope": "submit", "expires_in_sec": 2_592_000 }),
        "NewQuota" => json!({ "max_open_tasks": 200, "max_tasks_per_minute": 60, "max_stored_bytes": 2_147_483_648_i64 }),
        "NewEnrollment" => json!({ "worker": WORKER, "instance": INSTANCE }),
        "Bulk" => json!({ "filter": { "status": "queued", "labels": { "team": "docs" } }, "dry_run": true }),
        "BulkRequeue" => {
            json!({ "filter": { "status": "failed", "agent_slug": "writer" }, "dry_run": false, "policy": { "timeout_sec": 7200 } })
        }
        "NewLease" => json!({ "worker_id": WORKER, "ttl_seconds": 300 }),
        "NewDispatch" => json!({ "worker_id": WORKER, "wait_sec": 25 }),
        "Heartbeat" => json!({ "lease_id": LEASE }),
        "Completion" => completion(),
        "Release" => json!({ "lease_id": LEASE, "reason": "the machine is shutting down" }),
        "NewEvents" => {
            json!({ "lease_id": LEASE, "events": [{ "seq": 0, "kind": "text", "at": AT + 4_200, "data": { "text": "Three" } }] })
        }
        "WorkerEvents" => {
            let events = json!([{ "seq": 1, "kind": "text", "at": AT + 4_300, "data": { "text": " files" } }]);
            json!({ "runs": [{ "task_id": TASK, "lease_id": LEASE, "events": events }] })
        }
        "Claim" => json!({ "max": 2, "wait_sec": 30, "held": [LEASE], "instance": INSTANCE, "accounts": ["team"] }),
        "WorkerHeartbeat" => json!({ "leases": [LEASE], "instance": INSTANCE, "accounts": ["team"] }),
        "WorkerContexts" => json!({ "context_ids": ["docs-review", "old-review"] }),
        "GoneContexts" => json!({ "gone": ["old-review"] }),
        "NewCompletions" => json!({ "completions": [with(completion(), &json!({ "task_id": TASK }))] }),
        "NewConfig" => json!({ "membridge_server_url": "http://control-plane.internal:8000", "admin_key": "a-long-random-key" }),
        "LeaderSelection" => json!({ "primary_node_id": WORKER, "lease_seconds": 3600 }),
        "NewWorker" => json!({
            "name": WORKER, "agent_version": "0.1.0",
            "capabilities": {
                "max_concurrency": 4, "labels": ["eu"], "agents": ["writer"], "profiles": ["writer"], "namespaces": ["team-a"], "git": true, "projects": ["docs"],
            },
            "os_info": "Debian GNU/Linux 13", "instance": INSTANCE, "pauses": [pause()],
        }),
        "Task" => task(),
        "CreatedTasks" => {
            json!({ "tasks": [task(), with(task(), &json!({ "id": EARLIER_TASK, "prompt": "Translate README.md into French." }))], "existed": 0 })
        }
        "TaskResult" => result(),
        "Artifact" => artifact(),
        "FileContent" => json!("hello"),
        "Lease" => lease(),
        "Queue" => queue(),
        "Reconciler" => reconciler(),
        "Account" => account(),
        "Context" => context(),
        "ResumedAccount" => json!({ "account": "team", "since": AT }),
        "Key" => key(),
        "WhoAmI" => json!({ "scope": "submit", "key": key(), "open": false }),
        "CreatedKey" => with(key(), &json!({ "key": "bloom_Zt0yXW4mS9c2kQbGf7VhLd1uRnJa6eEi3oPxTwCqUz8" })),
        "Worker" => worker(),
        "WorkerWithLeases" => with(worker(), &json!({ "leases": [lease()] })),
        "Leased" => json!({ "lease": lease(), "worker": worker() }),
        "Renewed" => json!({ "lease": lease_to_run(), "expires_at": AT + 302_000 }),
        "Completed" => json!({ "task": completed_task(), "artifact": artifact(), "result": result() }),
        "Claimed" => json!({ "leases": [{ "lease": lease_to_run(), "task": leased_task() }], "directives": directives() }),
        "RenewedLeases" => json!({ "renewed": [LEASE], "lost": [], "directives": directives() }),
        "RunResults" => json!({ "results": [
            { "task_id": TASK, "status": 200 },
            { "task_id": EARLIER_TASK, "status": 404, "error": "Task not found", "code": "not_found" },
        ] }),
        "Recorded" => json!({ "newest": 1 }),
        "Event" => json!({
            "task_id": TASK, "number": 1, "lease_id": LEASE, "seq": 0, "kind": "text", "at": AT + 4_200, "data": { "text": "Three" },
        }),
        "BulkResult" => json!({ "matched": 12, "changed": 0, "more": false }),
        "Removed" => json!({ "removed": true, "id": WORKER }),
        "Dispatched" => json!({
            "dispatched": true, "task_id": TASK, "worker_id": WORKER, "lease_id": LEASE, "execution": { "accepted": true },
        }),
        "NotDispatched" => json!({
            "dispatched": false, "task_id": TASK, "worker_id": WORKER, "error": "connection refused", "code": "unavailable",
        }),
        "AgentHealth" => json!({ "reachable": true, "status": "ok", "version": "0.1.0" }),
        "Audit" => json!({
            "id": ENTRY, "timestamp": AT + 2_000, "action": "task_leased", "entity_type": "lease", "entity_id": LEASE, "actor": "router",
            "detail": "task 019c936e-3800-7000-8000-000000000001 leased to worker-01", "request_id": "5f1c9a0e42d7b368-1f",
            "task_id": TASK, "worker_id": WORKER,
        }),
        "Stats" => json!({
            "tasks": { "total": 128, "by_status": { "queued": 3, "running": 4, "completed": 121 } }, "leases": { "total": 130, "active": 4 },
            "workers": { "total": 2, "online": 2 },
        }),
        "UsageRow" => {
            json!({ "key": "2026-02-25", "keys": { "day": "2026-02-25" }, "runs": 121, "input_tokens": 904_312, "output_tokens": 88_020, "cost_usd": 4.02, "cost_estimated": false })
        }
        "Config" => json!({
            "membridge_server_url": "http://control-plane.internal:8000", "admin_key_masked": "a-lo****-key", "connected": true, "last_test": AT,
        }),
        "ConnectionTest" => json!({ "connected": true, "health": { "status": "ok" } }),
        "Health" => json!({
            "status": "ok", "service": "bloom-runtime", "uptime": 86_400.5, "storage": "postgresql",
            "membridge": { "consecutiveFailures": 0, "lastSuccess": AT, "lastError": null, "connected": true },
        }),
        "Probe" => json!({ "status": "ok" }),
        _ => return None,
    })
}

const REPOSITORY: &str = "https://git.example.com/team/docs.git";
const BRANCH: &str = "bloom/docs-review";
const COMMIT: &str = "9fceb02d0ae598e95dc970b74767f19372d61af8";
const CLONE_PATH: &str = "/var/lib/bloom-runtime/agent/projects/docs";

fn project() -> Value {
    json!({
        "id": PROJECT, "name": "docs", "repo_url": REPOSITORY, "canonical_id": "46b42b4229cd7a39", "target_path": null, "primary_node_id": WORKER, "branch_prefix": "bloom", "former_branch_prefixes": [],
        "clone_status": "cloned", "error_message": null, "created_at": AT, "updated_at": AT + 20_000,
    })
}

fn project_node() -> Value {
    json!({
        "id": "3a7c1a4e-55d0-8e2f-9b1c-2f0c64a1b7d3", "project_id": PROJECT, "node_id": WORKER, "clone_status": "cloned",
        "repo_path": CLONE_PATH, "clone_path": CLONE_PATH, "error_message": null, "last_sync_at": AT + 20_000, "updated_at": AT + 20_000,
    })
}

fn new_task() -> Value {
    json!({
        "context_id": "docs-review", "agent_slug": "writer", "prompt": PROMPT, "policy": { "timeout_sec": 300, "budget": 0.5 },
        "labels": { "team": "docs" }, "project": "docs", "ref": "main", "push": "branch",
    })
}

fn task() -> Value {
    json!({
        "id": TASK, "context_id": "docs-review", "agent_slug": "writer", "prompt": PROMPT, "context_hints": [],
        "policy": { "timeout_sec": 300, "timeout_is_default": false, "budget": 0.5 }, "desired_format": "text", "status": "queued", "created_at": AT, "updated_at": AT, "started_at": null, "finished_at": null,
        "lease_id": null, "worker_id": null, "attempts": 0, "max_attempts": 3, "priority": 5, "not_before": null, "depends_on": [],
        "exclusive_key": null, "idempotency_key": null, "labels": { "team": "docs" }, "session": "context", "model": null,
        "ttl_after_finished_sec": null, "infra_retries": 0, "cancel_requested": false, "suspend": false, "session_id": null, "failure": null, "usage": null,
        "inputs": [], "outputs": [],
        "project": "docs", "ref": "main", "push": "branch",
        "waiting": { "reason": "no_capacity", "message": "every worker that serves agent 'writer' is full" },
    })
}

fn leased_task() -> Value {
    let changes = json!({
        "status": "leased", "lease_id": LEASE, "worker_id": WORKER, "attempts": 1, "updated_at": AT + 2_000, "started_at": AT + 2_000, "waiting": null,
    });
    with(task(), &changes)
}

fn completed_task() -> Value {
    let (end, usage) = (AT + 9_000, json!({ "input_tokens": 7_412, "output_tokens": 96, "cost_usd": 0.03 }));
    with(leased_task(), &json!({ "status": "completed", "updated_at": end, "finished_at": end, "usage": usage, "session_id": "8c1d6a52" }))
}

fn lease() -> Value {
    json!({
        "id": LEASE, "task_id": TASK, "worker_id": WORKER, "started_at": AT + 2_000, "expires_at": AT + 302_000, "ttl_seconds": 300,
        "status": "active", "last_heartbeat": AT + 2_000, "context_id": "docs-review",
    })
}

/// The same lease as the worker that is to run the task gets it.
fn lease_to_run() -> Value {
    let of = json!({ "project_id": PROJECT, "project": "docs", "url": REPOSITORY, "branch_prefix": "bloom", "former_branch_prefixes": [] });
    with(lease(), &json!({ "budget_left": 0.5, "repository": of, "context_reset_at": AT - 60_000, "conversation": "8c1d6a52" }))
}

fn queue() -> Value {
    json!({ "agent_slug": "writer", "paused": false, "paused_at": null, "max_concurrency": 2, "queued": 3, "active_leases": 2, "workers": 2 })
}

fn account() -> Value {
    json!({
        "kind": "account", "name": "team", "cause": "quota", "since": AT, "until": AT + 300_000, "found_by": [WORKER],
        "workers": [WORKER, "worker-02"], "resumed": true,
    })
}

fn context() -> Value {
    json!({
        "context_id": "docs-review", "namespace": null, "project": "docs",
        "tasks": { "queued": 1, "running": 0, "finished": 7, "more": false },
        "last_task": { "id": TASK, "status": "queued", "agent_slug": "writer", "updated_at": AT }, "session_id": INSTANCE,
        "worker_id": WORKER, "usage": { "input_tokens": 1200, "output_tokens": 340, "cost_usd": 0.05 }, "reset_at": AT,
    })
}

fn all_queues() -> Value {
    with(queue(), &json!({ "agent_slug": null, "max_concurrency": null, "queued": 5, "active_leases": 4 }))
}

fn reconciler() -> Value {
    json!({
        "name": "retention", "state": "ok", "every_ms": 5_000, "started_at": AT, "running_since": null, "duration_ms": 12, "items": 200, "runs": 86_400,
        "failures": 1, "succeeded_at": AT + 12, "failed_at": AT - 3_600_000, "error": "too many commands wait, or conflicts persisted",
        "recorded_at": AT + 3_000,
    })
}

fn key() -> Value {
    json!({
        "name": "ci", "scope": "submit", "worker": null, "push": false, "created_at": AT, "expires_at": AT + 2_592_000_000_i64, "created_by": "admin",
        "last_used_at": AT + 60_000, "former_until": null,
    })
}

fn worker() -> Value {
    json!({
        "id": WORKER, "node_id": WORKER, "url": "", "status": "online",
        "capabilities": {
            "claude_cli": true, "max_concurrency": 4, "labels": ["eu"], "agents": ["writer"], "profiles": ["writer"], "namespaces": ["team-a"], "git": true,
            "projects": ["docs"],
        },
        "last_heartbeat": AT + 2_000,
        "ip_addrs": [], "obs_count": 0, "db_sha": "", "registered_at": AT - 3_600_000, "active_leases": 1, "agent_version": "0.1.0",
        "os_info": "Debian GNU/Linux 13", "install_method": "manual", "dispatch": "manual", "cordoned": false, "draining": false,
        "instance": INSTANCE, "instance_since": AT - 3_600_000, "pauses": [pause()],
    })
}

fn directives() -> Value {
    let paused = json!([{ "account": "team", "until": AT + 3_600_000, "worker": "worker-02" }]);
    json!({ "cancel": [], "answered": [], "drain": false, "paused_accounts": paused })
}

fn pause() -> Value {
    json!({
        "kind": "account", "name": "second", "cause": "credentials", "since": AT, "until": AT + 60_000, "agents": ["reviewer"],
        "message": "the account second was refused (API Error: 401): sign in with claude as the user of the agent",
    })
}

fn completion() -> Value {
    json!({
        "status": "success", "output": OUTPUT, "metrics": { "duration_ms": 6_800, "tokens_used": 7_508 }, "lease_id": LEASE,
        "usage": { "input_tokens": 7_412, "output_tokens": 96, "cost_usd": 0.03 }, "session_id": "8c1d6a52",
        "branch": BRANCH, "commit": COMMIT,
    })
}

fn result() -> Value {
    json!({
        "id": RESULT, "task_id": TASK, "worker_id": WORKER, "artifact_id": ARTIFACT, "status": "success", "output": OUTPUT,
        "error_message": null, "warnings": [], "metrics": { "duration_ms": 6_800, "tokens_used": 7_508 }, "completed_at": AT + 9_000,
        "branch": BRANCH, "commit": COMMIT,
    })
}

fn artifact() -> Value {
    json!({
        "id": ARTIFACT, "task_id": TASK, "job_id": null, "type": "LLM_RESULT", "created_at": AT + 9_000, "finalized": true, "url": null,
        "entity_refs": [], "tags": [], "content": OUTPUT, "name": null, "content_type": null, "bytes": null, "sha256": null,
    })
}

fn upload() -> Value {
    let about = json!({ "name": "notes/plan.md", "content_type": "text/markdown", "bytes": 5, "sha256": DIGEST });
    with(with(artifact(), &json!({ "id": UPLOAD, "task_id": null, "type": "INPUT", "content": null })), &about)
}

/// The object with other values of some members.
fn with(mut object: Value, changes: &Value) -> Value {
    if let (Some(members), Some(changes)) = (object.as_object_mut(), changes.as_object()) {
        members.extend(changes.iter().map(|(name, value)| (name.clone(), value.clone())));
    }
    object
}
