//! The columns of the tables, by kind of object.

use serde::Deserialize;
use serde_json::Value;

use super::ids::short;
use super::table::{Column, Kind};
use super::term;
use super::when::{self, span_text, time_text};
use bloom_api::accounts::Account;
use bloom_api::answers::{Audit, Lease};
use bloom_api::contexts::{Context, ContextTasks};
pub(crate) use bloom_api::csv::cell_text as text;
use bloom_api::keys::{Key, KeyQuota};
use bloom_api::projects::{Project, ProjectNode};
use bloom_api::queues::Queue;
use bloom_api::reports::{Stats, UsageRow};
use bloom_api::results::{Artifact, TaskResult};
use bloom_api::tasks::{Failure, Task};
use bloom_api::usage::{Usage, in_ten_thousandths};
use bloom_api::workers::{Capabilities, Worker};
use bloom_core::Ms;
use bloom_core::task::LeaseStatus;

/// The widths of texts such as prompts: the usual, the minimum and that of wide tables.
const PROMPT: usize = 40;
pub(crate) const LEAST_TEXT: usize = 10;
const WIDE_TEXT: usize = 120;
/// Wider than any terminal, so that only the terminal limits the width.
pub(crate) const MAX_TEXT: usize = 1000;
const WHOLE: usize = usize::MAX;

pub(crate) static TASKS: Kind<Task> = Kind {
    columns: &[
        Column::short("ID", |task, _| short(&task.id), |task, _| task.id.to_string()),
        Column::new("STATUS", status_of_task),
        Column::new("AGENT", |task: &Task, _| task.agent_slug.to_string()).spare(4),
        Column::new("WORKER", |task: &Task, _| given(&task.worker_id)).spare(3),
        Column::new("ATTEMPTS", |task: &Task, _| format!("{}/{}", task.attempts, task.max_attempts)).spare(5).by(|task| task.attempts),
        Column::new("AGE", |task: &Task, now| age(task.created_at, now)).spare(1).by(|task| -task.created_at),
        Column::new("REASON", reason).spare(2),
        Column::wide("DURATION", |task: &Task, now| task.lasted(now).map(span_text).unwrap_or_default())
            .by(|task| task.lasted(Ms::MAX).unwrap_or(-1)),
        Column::wide("PRIORITY", |task: &Task, _| task.priority.to_string()).by(|task| task.priority),
        Column::wide("CONTEXT", |task, _| task.context_id.to_string()),
        Column::wide("MODEL", |task, _| given(&task.model)),
        Column::wide("PROJECT", |task, _| given(&task.project)),
        Column::wide("OWNER", |task, _| given(&task.owner)),
        Column::wide("COST", |task: &Task, _| task.usage.as_ref().map(cost).unwrap_or_default())
            .by(|task| task.usage.map_or(-1, |usage| millionths(usage.cost_usd))),
        Column::wide("LABELS", |task, _| labels(task)),
        Column::wide("MESSAGE", |task: &Task, _| {
            term::short(task.last_failure().map(|failure| &*failure.message).unwrap_or_default(), MAX_TEXT)
        })
        .cut(LEAST_TEXT, WIDE_TEXT),
        Column::new("PROMPT", |task: &Task, _| term::short(&task.prompt, MAX_TEXT)).cut(LEAST_TEXT, PROMPT),
    ],
    name: |task| task.id.to_string(),
};

/// The branch with the commits of a run, and its last commit; empty if there is none.
pub(crate) fn branch(result: &TaskResult) -> String {
    let commit = result.commit.as_ref().map(|commit| format!(" at {commit}"));
    result.branch.as_ref().map(|branch| format!("{branch}{}", commit.unwrap_or_default())).unwrap_or_default()
}

/// The columns for an edited task: its editable fields, with their current values.
pub(crate) static EDITED: Kind<Task> = Kind {
    columns: &[
        Column::short("ID", |task, _| short(&task.id), |task, _| task.id.to_string()),
        Column::new("STATUS", status_of_task),
        Column::new("PRIORITY", |task, _| task.priority.to_string()),
        Column::new("NOT_BEFORE", |task: &Task, _| task.not_before.map(time_text).unwrap_or_default()).spare(1),
        Column::new("TIMEOUT", |task: &Task, _| when::limit_text(task.policy.timeout_sec)),
        Column::new("LABELS", |task: &Task, _| labels(task)).spare(2),
        Column::new("PROMPT", |task: &Task, _| term::short(&task.prompt, MAX_TEXT)).cut(LEAST_TEXT, PROMPT).spare(3),
    ],
    name: |task| task.id.to_string(),
};

pub(crate) static WORKERS: Kind<Worker> = Kind {
    columns: &[
        Column::new("NAME", |worker, _| worker.id.to_string()),
        Column::new("STATUS", status_of_worker),
        Column::new("LEASES", |worker: &Worker, _| format!("{}/{}", worker.active_leases, worker.capabilities.max_concurrency))
            .spare(1)
            .by(|worker| worker.active_leases),
        Column::new("AGENTS", |worker: &Worker, _| agents_of_worker(worker)).cut(LEAST_TEXT, WHOLE).spare(2),
        Column::new("SEEN", |worker: &Worker, now| age(worker.last_heartbeat, now)).spare(3).by(|worker| -worker.last_heartbeat),
        Column::new("VERSION", |worker: &Worker, _| worker.agent_version.to_string()).spare(4),
        Column::wide("DISPATCH", |worker, _| worker.dispatch.to_string()),
        Column::wide("URL", |worker, _| worker.url.to_string()),
        Column::wide("OS", |worker, _| term::short(&worker.os_info, PROMPT)),
        Column::wide("ADDRESSES", |worker, _| worker.ip_addrs.join(",")),
        Column::wide("LABELS", |worker, _| worker.capabilities.labels.join(",")),
        Column::wide("NAMESPACES", |worker, _| {
            worker.capabilities.namespaces.as_ref().map_or_else(|| "all".to_owned(), |namespaces| namespaces.join(","))
        }),
        Column::wide("PROJECTS", |worker, _| match &worker.capabilities.projects {
            None => if worker.capabilities.git { "all" } else { "none" }.to_owned(),
            Some(projects) => projects.join(","),
        }),
        Column::wide("AGE", |worker: &Worker, now| age(worker.registered_at, now)).by(|worker| -worker.registered_at),
    ],
    name: |worker| worker.id.to_string(),
};

/// The agents that the worker serves. A worker that serves all agents has profiles for some, and uses `default` for the others.
pub(crate) fn agents_of_worker(worker: &Worker) -> String {
    let Capabilities { agents, profiles, .. } = &worker.capabilities;
    match (agents, profiles.as_deref().unwrap_or_default()) {
        (Some(agents), _) => agents.join(", "),
        (None, []) => "all".to_owned(),
        (None, profiles) => format!("all (profiles {})", profiles.join(", ")),
    }
}

pub(crate) static QUEUES: Kind<Queue> = Kind {
    columns: &[
        Column::new("AGENT", |queue, _| agent_of_queue(queue)),
        Column::new("PAUSED", |queue, now| queue.paused_at.map_or_else(|| "no".to_owned(), |at| format!("for {}", age(at, now)))),
        Column::new("LIMIT", |queue: &Queue, _| given(&queue.max_concurrency)).spare(2),
        Column::new("ACTIVE", |queue: &Queue, _| queue.active_leases.to_string()).spare(1),
        Column::new("QUEUED", |queue, _| queue.queued.to_string()),
        Column::new("WORKERS", |queue: &Queue, _| queue.workers.to_string()),
    ],
    // The names are values of --agent, so the row of all queues together has none.
    name: |queue| queue.agent_slug.as_deref().unwrap_or_default().to_owned(),
};

pub(crate) static ACCOUNTS: Kind<Account> = Kind {
    columns: &[
        Column::new("KIND", |account, _| account.kind.to_string()),
        Column::new("NAME", |account: &Account, _| account.name.to_string()),
        Column::new("CAUSE", |account, _| account.cause.to_string()),
        Column::new("PAUSED", |account, now| if account.resumed { "resumed".into() } else { format!("for {}", age(account.since, now)) }),
        Column::new("LOOKS IN", |account: &Account, now| age(now, account.until)).spare(1),
        Column::new("FOUND BY", |account: &Account, _| account.found_by.join(",")).spare(2),
        Column::new("WORKERS", |account: &Account, _| account.workers.join(",")).spare(3),
    ],
    name: |account| account.name.to_string(),
};

/// A context, as a row of a table.
#[derive(Deserialize)]
pub(crate) struct Conversation {
    #[serde(flatten)]
    context: Context<'static>,
    /// The prompt of its newest task; empty if it was not looked up. The API returns only the id of this task.
    #[serde(default)]
    prompt: String,
}

pub(crate) static CONVERSATIONS: Kind<Conversation> = Kind {
    columns: &[
        Column::new("CONTEXT", |row, _| row.context.context_id.to_string()),
        Column::new("TASKS", |row: &Conversation, _| tasks_of(&row.context.tasks)),
        Column::new("LAST", |row: &Conversation, now| {
            format!("{} {} ago", row.context.last_task.status, age(row.context.last_task.updated_at, now))
        })
        .spare(1)
        .by(|row| -row.context.last_task.updated_at),
        Column::new("PROJECT", |row: &Conversation, _| given(&row.context.project)).spare(3),
        Column::new("WORKER", |row: &Conversation, _| given(&row.context.worker_id)).spare(4),
        Column::new("COST", |row: &Conversation, _| cost(&row.context.usage)).spare(5).by(|row| millionths(row.context.usage.cost_usd)),
        Column::new("RESET", |row: &Conversation, now| row.context.reset_at.map(|at| format!("{} ago", age(at, now))).unwrap_or_default())
            .spare(2),
        Column::new("PROMPT", |row: &Conversation, _| term::short(&row.prompt, MAX_TEXT)).cut(LEAST_TEXT, PROMPT).spare(1),
        Column::wide("SESSION", |row: &Conversation, _| given(&row.context.session_id)),
        Column::wide("TASK", |row, _| row.context.last_task.id.to_string()),
    ],
    name: |row| row.context.context_id.to_string(),
};

/// "1 queued, 7 finished".
pub(crate) fn tasks_of(tasks: &ContextTasks) -> String {
    let counts = [(tasks.queued, "queued"), (tasks.running, "running"), (tasks.finished, "finished")];
    let counts = counts.iter().filter(|(count, _)| *count > 0).map(|(count, of)| format!("{count} {of}")).collect::<Vec<_>>().join(", ");
    if tasks.more { format!("{counts} of the newest") } else { counts }
}

pub(crate) static PROJECTS: Kind<Project> = Kind {
    columns: &[
        Column::short("ID", |project: &Project, _| short(&project.id), |project, _| project.id.to_string()).spare(3),
        Column::new("NAME", |project, _| project.name.to_string()),
        Column::new("STATUS", |project, _| project.clone_status.to_string()),
        Column::new("REPOSITORY", |project: &Project, _| project.repo_url.to_string()).spare(1),
        Column::new("WORKER", |project: &Project, _| given(&project.primary_node_id)).spare(2),
        Column::new("PREFIX", |project: &Project, _| project.branch_prefix.to_string()).spare(5),
        Column::new("AGE", |project: &Project, now| age(project.created_at, now)).spare(4).by(|project| -project.created_at),
        Column::wide("PATH", |project: &Project, _| given(&project.target_path)),
        Column::wide("ERROR", |project: &Project, _| given(&project.error_message)),
    ],
    name: |project| project.id.to_string(),
};

pub(crate) static PROJECT_NODES: Kind<ProjectNode> = Kind {
    columns: &[
        Column::new("WORKER", |node, _| node.node_id.to_string()),
        Column::new("STATUS", |node, _| node.clone_status.to_string()),
        Column::new("PATH", |node: &ProjectNode, _| given(&node.clone_path)).spare(1),
        Column::new("ERROR", |node: &ProjectNode, _| given(&node.error_message)).spare(2),
    ],
    name: |node| node.node_id.to_string(),
};

pub(crate) static LEASES: Kind<Lease> = Kind {
    columns: &[
        Column::short("ID", |lease: &Lease, _| short(&lease.id), |lease, _| lease.id.to_string()).spare(2),
        Column::short("TASK", |lease, _| short(&lease.task_id), |lease, _| lease.task_id.to_string()),
        Column::new("WORKER", |lease, _| lease.worker_id.to_string()),
        Column::new("STATUS", |lease: &Lease, _| lease.status.to_string()).spare(1),
        Column::new("OUTCOME", |lease: &Lease, _| {
            given(&lease.reason.as_ref().map_or_else(|| lease.outcome.as_ref().map(ToString::to_string), |reason| Some(reason.to_string())))
        })
        .spare(1),
        Column::new("AGE", |lease: &Lease, now| age(lease.started_at, now)).spare(4).by(|lease| -lease.started_at),
        Column::new("EXPIRES", |lease: &Lease, now| match lease.expires_at {
            _ if lease.status != LeaseStatus::Active => String::new(),
            at if at > now => format!("in {}", span_text(at - now)),
            _ => "now".to_owned(),
        })
        .spare(3)
        .by(|lease| lease.expires_at),
        Column::wide("MESSAGE", |lease: &Lease, _| term::short(lease.message.as_deref().unwrap_or_default(), MAX_TEXT))
            .cut(LEAST_TEXT, WIDE_TEXT),
        Column::wide("SEEN", |lease: &Lease, now| age(lease.last_heartbeat, now)).by(|lease| -lease.last_heartbeat),
        Column::wide("TTL", |lease: &Lease, _| when::limit_text(lease.ttl_seconds)).by(|lease| lease.ttl_seconds),
        Column::wide("CONTEXT", |lease, _| lease.context_id.to_string()),
    ],
    name: |lease| lease.id.to_string(),
};

pub(crate) static ARTIFACTS: Kind<Artifact> = Kind {
    columns: &[
        Column::short("ID", |artifact, _| short(&artifact.id), |artifact, _| artifact.id.to_string()),
        Column::new("TYPE", |artifact: &Artifact, _| artifact.r#type.to_string()).spare(3),
        Column::new("NAME", |artifact: &Artifact, _| given(&artifact.name)).spare(4),
        Column::new("BYTES", |artifact: &Artifact, _| given(&artifact.bytes)).by(|artifact| artifact.bytes.unwrap_or(-1)),
        Column::new("AGE", |artifact: &Artifact, now| age(artifact.created_at, now)).spare(1).by(|artifact| -artifact.created_at),
        Column::wide("CONTENT_TYPE", |artifact, _| given(&artifact.content_type)),
        Column::wide("SHA256", |artifact, _| given(&artifact.sha256)),
    ],
    name: |artifact| artifact.id.to_string(),
};

pub(crate) static AUDIT: Kind<Audit> = Kind {
    columns: &[
        Column::new("TIME", |entry: &Audit, _| time_text(entry.timestamp)).spare(2),
        Column::new("ACTION", |entry, _| entry.action.to_string()),
        Column::new("ACTOR", |entry: &Audit, _| entry.actor.to_string()).spare(1),
        Column::short(
            "ENTITY",
            |entry: &Audit, _| format!("{}/{}", entry.entity_type, short_text(&entry.entity_id)),
            |entry, _| format!("{}/{}", entry.entity_type, entry.entity_id),
        ),
        Column::wide("REQUEST", |entry, _| given(&entry.request_id)),
        Column::new("DETAIL", |entry: &Audit, _| term::short(&entry.detail, MAX_TEXT)).cut(LEAST_TEXT, WIDE_TEXT).spare(3),
    ],
    name: |entry| entry.id.to_string(),
};

pub(crate) static USAGE: Kind<UsageRow> = Kind {
    columns: &[
        Column::new("KEY", |row: &UsageRow, _| row.all_keys()),
        Column::new("RUNS", |row: &UsageRow, _| row.runs.to_string()).spare(1).by(|row| row.runs),
        Column::new("INPUT_TOKENS", |row: &UsageRow, _| row.input_tokens.to_string()).spare(2).by(|row| row.input_tokens),
        Column::new("OUTPUT_TOKENS", |row: &UsageRow, _| row.output_tokens.to_string()).spare(3).by(|row| row.output_tokens),
        Column::new("COST", |row: &UsageRow, _| spent(row.cost_usd, row.cost_estimated)).by(|row| millionths(row.cost_usd)),
    ],
    name: |row| row.key.to_string(),
};

pub(crate) static KEYS: Kind<Key> = Kind {
    columns: &[
        Column::new("NAME", |key, _| key.name.to_string()),
        Column::new("SCOPE", |key, _| key.scope.to_string()),
        Column::new("TEAM", |key: &Key, _| given(&key.team)).spare(2),
        Column::new("WORKER", |key: &Key, _| given(&key.worker)).spare(2),
        Column::wide("PUSH", |key: &Key, _| if key.push { "yes".to_owned() } else { String::new() }),
        Column::wide("NAMESPACES", |key: &Key, _| key.namespaces.as_ref().map(|namespaces| namespaces.join(",")).unwrap_or_default()),
        Column::new("AGE", |key: &Key, now| age(key.created_at, now)).spare(3),
        Column::new("USED", |key: &Key, now| key.last_used_at.map_or_else(|| "never".to_owned(), |at| age(at, now)))
            .spare(3)
            .by(|key| -key.last_used_at.unwrap_or_default()),
        Column::new("EXPIRES", |key: &Key, now| {
            let until = |at| if at > now { format!("in {}", span_text(at - now)) } else { "expired".to_owned() };
            key.expires_at.map_or_else(|| "never".to_owned(), until)
        })
        .spare(1),
        Column::wide("FORMER UNTIL", |key: &Key, _| key.former_until.map(time_text).unwrap_or_default()),
        Column::new("QUOTA", |key: &Key, _| key.quota.as_ref().map(quota).unwrap_or_default()).spare(2),
        Column::wide("CREATED_BY", |key, _| key.created_by.to_string()),
    ],
    name: |key| key.name.to_string(),
};

/// One count of `stats`.
pub(crate) struct StatsRow {
    what: &'static str,
    status: String,
    count: i64,
}

pub(crate) static STATS: Kind<StatsRow> = Kind {
    columns: &[
        Column::new("WHAT", |row, _| row.what.to_owned()),
        Column::new("STATUS", |row, _| row.status.clone()),
        Column::new("COUNT", |row, _| row.count.to_string()),
    ],
    name: |row| row.what.to_owned(),
};

/// Contexts do not come from the server; `context list` makes these objects.
pub(crate) static CONTEXTS: Kind<Value> = Kind {
    columns: &[
        Column::new("CURRENT", |context, _| if context["current"] == true { "*".into() } else { " ".into() }),
        Column::new("NAME", |context, _| text(&context["name"])),
        Column::new("SERVER", |context, _| text(&context["server"])),
        Column::new("KEY", |context: &Value, _| text(&context["key"])).spare(1),
    ],
    name: |context| text(&context["name"]),
};

/// The counts of `stats`, one per row.
pub(crate) fn stats_rows(stats: &Stats) -> Vec<StatsRow> {
    let row = |what, status: &str, count| StatsRow { what, status: status.to_owned(), count };
    let Stats { tasks, leases, workers } = stats;
    let mut rows = vec![row("tasks", "total", tasks.total)];
    rows.extend(tasks.by_status.iter().map(|(status, count)| row("tasks", status, *count)));
    rows.extend([row("leases", "total", leases.total), row("leases", "active", leases.active)]);
    rows.extend([row("workers", "total", workers.total), row("workers", "online", workers.online)]);
    rows
}

/// The limits of a quota, and how much of them is used.
pub(crate) fn quota(quota: &KeyQuota) -> String {
    let of = |used: Option<String>, most: i64| used.map_or_else(|| most.to_string(), |used| format!("{used}/{most}"));
    // With whole numbers, a quota could look used up although a part is still free.
    let mib = |bytes: i64| format!("{}.{}", bytes >> 20, ((bytes & 0xF_FFFF) * 10) >> 20);
    let parts = [
        quota.max_open_tasks.map(|most| format!("{} open", of(quota.open_tasks.map(|open| open.to_string()), most))),
        quota.max_tasks_per_minute.map(|most| format!("{most} a minute")),
        quota.max_stored_bytes.map(|most| format!("{} MiB", of(quota.stored_bytes.map(mib), most >> 20))),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

pub(crate) fn given(text: &Option<impl ToString>) -> String {
    text.as_ref().map(ToString::to_string).unwrap_or_default()
}

/// The name in tables for all queues together. The parentheses distinguish it from the name of an agent.
pub(crate) const ALL_QUEUES: &str = "(all)";

fn agent_of_queue(queue: &Queue) -> String {
    queue.agent_slug.as_ref().map_or_else(|| ALL_QUEUES.to_owned(), ToString::to_string)
}

fn labels(task: &Task) -> String {
    task.labels.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(",")
}

pub(crate) fn status_of_task(task: &Task, _: Ms) -> String {
    if task.cancel_requested && task.is_leased() { format!("{},stopping", task.status) } else { task.status.to_string() }
}

pub(crate) fn status_of_worker(worker: &Worker, _: Ms) -> String {
    let mut status = worker.status.to_string();
    if worker.draining {
        // A drained worker without leases can be switched off.
        status.push_str(if worker.active_leases == 0 { ",drained" } else { ",draining" });
    } else if worker.cordoned {
        status.push_str(",cordoned");
    }
    let mut causes: Vec<String> = worker.pauses.iter().map(|pause| pause.cause.to_string()).collect();
    causes.sort();
    causes.dedup();
    for cause in causes {
        status.push(',');
        status.push_str(&cause);
    }
    status
}

/// Why the task waits, and for how long if that is known; or why it did not succeed.
fn reason(task: &Task, now: Ms) -> String {
    let Some(waiting) = &task.waiting else { return given(&task.last_failure().map(|failure| &failure.reason)) };
    let left = waiting.until.filter(|until| *until > now).map(|until| format!(" ({} left)", age(now, until)));
    format!("{}{}", waiting.reason, left.unwrap_or_default())
}

/// The reason and the message of a failure; only the message if it begins with the reason, as "cancelled on request" does.
pub(crate) fn failure(failure: &Failure) -> String {
    let (reason, message) = (failure.reason.to_string(), &failure.message);
    if message.starts_with(&reason) { message.to_string() } else { format!("{reason}: {message}") }
}

/// The end of an id. Any other name is returned unchanged.
fn short_text(name: &str) -> String {
    name.parse().map_or_else(|_| name.to_owned(), |id| short(&id))
}

pub(crate) fn age(at: Ms, now: Ms) -> String {
    span_text((now - at).max(0))
}

fn millionths(usd: f64) -> i64 {
    (usd * 1e6) as i64
}

/// The cost of runs, with `~` if a part of it is estimated.
pub(crate) fn cost(usage: &Usage) -> String {
    spent(usage.cost_usd, usage.cost_estimated)
}

/// "1200 input and 340 output tokens, $0.05".
pub(crate) fn used(usage: &Usage) -> String {
    format!("{} input and {} output tokens, {}", usage.input_tokens, usage.output_tokens, cost(usage))
}

fn spent(usd: f64, is_estimated: bool) -> String {
    format!("{}{}", if is_estimated { "~" } else { "" }, dollars(usd))
}

pub(crate) fn dollars(usd: f64) -> String {
    format!("${:.4}", in_ten_thousandths(usd))
}
