//! The columns of the tables, by kind of object.

use serde_json::Value;

use super::ids::short;
use super::show::{Column, Kind};
use super::term;
use super::when::{span_text, time_text};
use bloom_api::answers::{Audit, Lease, Worker};
use bloom_api::reports::{Stats, UsageRow};
use bloom_api::tasks::Task;
use bloom_api::words::Word;
use bloom_core::Ms;
use bloom_core::task::{LeaseStatus, Status};

const PROMPT: usize = 40;
const WIDE_TEXT: usize = 120;

pub static TASKS: Kind<Task> = Kind {
    columns: &[
        Column::short("ID", |task, _| short(&task.id), |task, _| task.id.to_string()),
        Column::new("STATUS", status_of_task),
        Column::new("AGENT", |task, _| task.agent_slug.to_string()),
        Column::new("WORKER", |task, _| given(&task.worker_id)),
        Column::new("ATTEMPTS", |task, _| format!("{}/{}", task.attempts, task.max_attempts)),
        Column::new("AGE", |task, now| age(task.created_at, now)),
        Column::new("REASON", |task, _| reason(task)),
        Column::wide("PRIORITY", |task, _| task.priority.to_string()),
        Column::wide("CONTEXT", |task, _| task.context_id.to_string()),
        Column::wide("MODEL", |task, _| given(&task.model)),
        Column::wide("COST", |task, _| task.usage.map(|usage| dollars(usage.cost_usd)).unwrap_or_default()),
        Column::wide("LABELS", |task, _| task.labels.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(",")),
        Column::new("PROMPT", |task, _| term::short(&task.prompt, PROMPT)),
    ],
    name: |task| task.id.to_string(),
};

pub static WORKERS: Kind<Worker> = Kind {
    columns: &[
        Column::new("NAME", |worker, _| worker.id.to_string()),
        Column::new("STATUS", status_of_worker),
        Column::new("LEASES", |worker, _| format!("{}/{}", worker.active_leases, worker.capabilities.max_concurrency)),
        Column::new("AGENTS", |worker, _| worker.capabilities.agents.as_ref().map_or_else(|| "all".to_owned(), |agents| agents.join(","))),
        Column::new("SEEN", |worker, now| age(worker.last_heartbeat, now)),
        Column::new("VERSION", |worker, _| worker.agent_version.to_string()),
        Column::wide("DISPATCH", |worker, _| worker.dispatch.to_string()),
        Column::wide("URL", |worker, _| worker.url.to_string()),
        Column::wide("OS", |worker, _| term::short(&worker.os_info, PROMPT)),
        Column::wide("ADDRESSES", |worker, _| worker.ip_addrs.join(",")),
        Column::wide("LABELS", |worker, _| worker.capabilities.labels.join(",")),
        Column::wide("AGE", |worker, now| age(worker.registered_at, now)),
    ],
    name: |worker| worker.id.to_string(),
};

pub static LEASES: Kind<Lease> = Kind {
    columns: &[
        Column::short("ID", |lease, _| short(&lease.id), |lease, _| lease.id.to_string()),
        Column::short("TASK", |lease, _| short(&lease.task_id), |lease, _| lease.task_id.to_string()),
        Column::new("WORKER", |lease, _| lease.worker_id.to_string()),
        Column::new("STATUS", |lease, _| lease.status.to_string()),
        Column::new("AGE", |lease, now| age(lease.started_at, now)),
        Column::new("EXPIRES", |lease, now| match lease.expires_at {
            _ if lease.status != LeaseStatus::Active => String::new(),
            at if at > now => format!("in {}", span_text(at - now)),
            _ => "now".to_owned(),
        }),
        Column::wide("SEEN", |lease, now| age(lease.last_heartbeat, now)),
        Column::wide("TTL", |lease, _| format!("{}s", lease.ttl_seconds)),
        Column::wide("CONTEXT", |lease, _| lease.context_id.to_string()),
    ],
    name: |lease| lease.id.to_string(),
};

pub static AUDIT: Kind<Audit> = Kind {
    columns: &[
        Column::new("TIME", |entry, _| time_text(entry.timestamp)),
        Column::new("ACTION", |entry, _| entry.action.to_string()),
        Column::new("ACTOR", |entry, _| entry.actor.to_string()),
        Column::short(
            "ENTITY",
            |entry, _| format!("{}/{}", entry.entity_type, short_text(&entry.entity_id)),
            |entry, _| format!("{}/{}", entry.entity_type, entry.entity_id),
        ),
        Column::wide("REQUEST", |entry, _| given(&entry.request_id)),
        Column::new("DETAIL", |entry, _| term::short(&entry.detail, WIDE_TEXT)),
    ],
    name: |entry| entry.id.to_string(),
};

pub static USAGE: Kind<UsageRow> = Kind {
    columns: &[
        Column::new("KEY", |row, _| row.key.to_string()),
        Column::new("RUNS", |row, _| row.runs.to_string()),
        Column::new("INPUT_TOKENS", |row, _| row.input_tokens.to_string()),
        Column::new("OUTPUT_TOKENS", |row, _| row.output_tokens.to_string()),
        Column::new("COST", |row, _| dollars(row.cost_usd)),
    ],
    name: |row| row.key.to_string(),
};

/// One count of `stats`.
pub struct StatsRow {
    what: &'static str,
    status: String,
    count: i64,
}

pub static STATS: Kind<StatsRow> = Kind {
    columns: &[
        Column::new("WHAT", |row, _| row.what.to_owned()),
        Column::new("STATUS", |row, _| row.status.clone()),
        Column::new("COUNT", |row, _| row.count.to_string()),
    ],
    name: |row| row.what.to_owned(),
};

/// Contexts do not come from the server; `context list` makes these objects.
pub static CONTEXTS: Kind<Value> = Kind {
    columns: &[
        Column::new("CURRENT", |context, _| if context["current"] == true { "*".into() } else { " ".into() }),
        Column::new("NAME", |context, _| text(&context["name"])),
        Column::new("SERVER", |context, _| text(&context["server"])),
        Column::new("KEY", |context, _| text(&context["key"])),
    ],
    name: |context| text(&context["name"]),
};

/// The counts of `stats`, one per row.
pub fn stats_rows(stats: &Stats) -> Vec<StatsRow> {
    let row = |what, status: &str, count| StatsRow { what, status: status.to_owned(), count };
    let Stats { tasks, leases, workers } = stats;
    let mut rows = vec![row("tasks", "total", tasks.total)];
    rows.extend(tasks.by_status.iter().map(|(status, count)| row("tasks", status, *count)));
    rows.extend([row("leases", "total", leases.total), row("leases", "active", leases.active)]);
    rows.extend([row("workers", "total", workers.total), row("workers", "online", workers.online)]);
    rows
}

/// A cell's text: strings without quotes, numbers in digits, and the empty text for null.
pub fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

fn given(text: &Option<impl ToString>) -> String {
    text.as_ref().map(ToString::to_string).unwrap_or_default()
}

pub fn status_of_task(task: &Task, _: Ms) -> String {
    let stops = task.cancel_requested && matches!(task.status, Word::Known(Status::Leased | Status::Running));
    if stops { format!("{},stopping", task.status) } else { task.status.to_string() }
}

pub fn status_of_worker(worker: &Worker, _: Ms) -> String {
    let mut status = worker.status.to_string();
    if worker.draining {
        status.push_str(",draining");
    } else if worker.cordoned {
        status.push_str(",cordoned");
    }
    status
}

/// Why the task waits, or why it did not succeed.
fn reason(task: &Task) -> String {
    let waiting = task.waiting.as_ref().map(|waiting| waiting.reason.to_string());
    waiting.unwrap_or_else(|| given(&task.failure.as_ref().map(|failure| &failure.reason)))
}

/// The end of an id; any other name as it is.
fn short_text(name: &str) -> String {
    name.parse().map_or_else(|_| name.to_owned(), |id| short(&id))
}

pub fn age(at: Ms, now: Ms) -> String {
    span_text((now - at).max(0))
}

pub fn dollars(usd: f64) -> String {
    format!("${usd:.4}")
}
