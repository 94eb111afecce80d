//! The rows of leases, results, events, workers, queues, audit entries, keys, files, projects and wake-ups.

use uuid::Uuid;

use crate::error::Error;
use crate::sql::table::{part, row};
use bloom_core::agent_queue::AgentQueue;
use bloom_core::api_key::{ApiKey, FormerKey, Quota};
use bloom_core::audit::AuditEntry;
use bloom_core::event::TaskEvent;
use bloom_core::file::File;
use bloom_core::project::{Project, ProjectNode};
use bloom_core::run_result::{RunResult, StoredObject};
use bloom_core::task::PastLease;
use bloom_core::usage::Usage;
use bloom_core::wakeup::{Subject, Wakeup};
use bloom_core::worker::{Capabilities, Instance, Worker};

row! {
    pub(crate) LEASE: leases as leases_row of lease: PastLease {
        id, task_id, context_id, agent_slug, worker_id, started_at, ttl_ms, expires_at, last_heartbeat, status, ended_at, completed, reason, message,
        model;
        {
            let usage = lease.usage;
            input_tokens: usage.map(|u| u.input_tokens),
            output_tokens: usage.map(|u| u.output_tokens),
            cost_usd: usage.map(|u| u.cost_usd),
            cost_estimated: usage.is_some_and(|u| u.cost_estimated),
        }
    }
    read { usage: part(|| Some(Usage { input_tokens: input_tokens?, output_tokens: output_tokens?, cost_usd: cost_usd?, cost_estimated })) }
}

row! {
    pub(crate) RESULT: results as results_row of result: RunResult {
        id, artifact_id, task_id, lease_id, worker_id, status, output, error_message, duration_ms, tokens_used, completed_at,
        artifact_type, artifact_tags;
        {
            let object = result.object.as_ref();
            object_url: object.map(|object| &*object.url),
            object_bytes: object.map(|object| object.bytes),
            preview: object.map(|object| &*object.preview),
        }
        branch, commit_id, warnings;
    }
    read { object: part(|| Some(StoredObject { url: object_url?, bytes: object_bytes?, preview: preview? })) }
}

row! { pub(crate) EVENT: task_events as task_events_row of event: TaskEvent { task_id, number, lease_id, seq, kind, at, data } }

row! {
    pub(crate) WORKER: workers as workers_row of worker: Worker {
        id, url, status, lost;
        {
            let served = &worker.capabilities;
            capabilities: served,
            namespaces: served.namespaces.as_ref(),
            git: served.git,
            projects: served.projects.as_ref(),
            other_capabilities: &served.other,
        }
        ip_addrs, obs_count, db_sha, registered_at, agent_version, os_info, install_method, dispatch, cordoned, draining, revision, updated_at,
        recount_slots;
        {
            let instance = worker.instance;
            instance: instance.map(|agent| agent.id),
            instance_since: instance.map(|agent| agent.since),
        }
        pauses;
    }
    then { last_seen }
    read {
        capabilities: Capabilities { namespaces, git, projects, other: other_capabilities, ..capabilities },
        instance: part(|| Some(Instance { id: instance?, since: instance_since? })),
    }
}

row! { pub(crate) QUEUE: queues as queues_row of queue: AgentQueue { agent_slug, paused_at, max_concurrency, revision } }

row! {
    pub(crate) AUDIT: audit as audit_row of entry: AuditEntry {
        id, timestamp, action, entity_type, entity_id, actor, detail, request_id, task_id, worker_id,
    }
}

row! {
    pub(crate) API_KEY: api_keys as api_keys_row of key: ApiKey {
        name, digest, scope, worker, push, namespaces, created_at, expires_at, created_by;
        {
            let former = key.former.as_ref();
            former_digest: former.map(|former| &*former.digest),
            former_until: former.map(|former| former.until),
        }
        {
            let quota = key.quota;
            max_open_tasks: quota.max_open_tasks,
            max_tasks_per_minute: quota.max_tasks_per_minute,
            max_stored_bytes: quota.max_stored_bytes,
        }
        team;
    }
    read {
        former: part(|| Some(FormerKey { digest: former_digest?, until: former_until? })),
        quota: Quota { max_open_tasks, max_tasks_per_minute, max_stored_bytes },
    }
}

row! {
    pub(crate) PROJECT: projects as projects_row of project: Project {
        id, name, repo_url, target_path, primary_node_id, clone_status, error_message, created_at, updated_at, branch_prefix,
        former_branch_prefixes
    }
}

row! {
    pub(crate) FILE: files as files_row of file: File {
        id, owner, task_id, lease_id, worker_id, name, content_type, bytes, sha256, kind, created_at, remove_at, object_url, team
    }
}

row! {
    pub(crate) PROJECT_NODE: project_nodes as project_nodes_row of node: ProjectNode {
        project_id, node_id, clone_status, clone_path, error_message, updated_at, last_sync_at
    }
}

row! {
    pub(crate) WAKEUP: wakeups as wakeups_row of wakeup: Wakeup {
        id;
        {
            let flat = FlatSubject::of(&wakeup.subject);
            kind: flat.kind,
            task_id: flat.task_id,
            subject: flat.subject,
        }
        cursor;
    }
    read { subject: read_subject(id, &kind, task_id, subject)? }
}

/// The subject of a wake-up, as its columns store it.
struct FlatSubject<'a> {
    kind: &'static str,
    task_id: Option<Uuid>,
    subject: Option<&'a String>,
}

impl<'a> FlatSubject<'a> {
    fn of(subject: &'a Subject) -> Self {
        let (kind, task_id, subject) = match subject {
            Subject::Dependents(task) => ("dependents", Some(*task), None),
            Subject::Context { context_id, after } => ("context", *after, Some(context_id)),
            Subject::Key(key) => ("key", None, Some(key)),
            Subject::Reservations(worker) => ("reservations", None, Some(worker)),
        };
        Self { kind, task_id, subject }
    }
}

fn read_subject(id: Uuid, kind: &str, task: Option<Uuid>, subject: Option<String>) -> Result<Subject, Error> {
    Ok(match (kind, task, subject) {
        ("dependents", Some(task), None) => Subject::Dependents(task),
        ("context", after, Some(context_id)) => Subject::Context { context_id, after },
        ("key", None, Some(key)) => Subject::Key(key),
        ("reservations", None, Some(worker)) => Subject::Reservations(worker),
        _ => return Err(Error::Corrupt(format!("wake-up {id} lacks a value that the kind '{kind}' needs"))),
    })
}
