//! What tables show of each kind of thing.

use serde_json::Value;

use super::show::{Column, Kind};
use super::term;
use super::when::{span_text, time_text};
use bloom_core::Ms;

const PROMPT: usize = 40;
const WIDE_TEXT: usize = 120;

pub static TASKS: Kind = Kind {
    columns: &[
        Column::new("ID", |task, _| text(&task["id"])),
        Column::new("STATUS", status_of_task),
        Column::new("AGENT", |task, _| text(&task["agent_slug"])),
        Column::new("WORKER", |task, _| text(&task["worker_id"])),
        Column::new("ATTEMPTS", |task, _| format!("{}/{}", task["attempts"], task["max_attempts"])),
        Column::new("AGE", |task, now| age(&task["created_at"], now)),
        Column::new("REASON", |task, _| reason(task)),
        Column::wide("PRIORITY", |task, _| text(&task["priority"])),
        Column::wide("CONTEXT", |task, _| text(&task["context_id"])),
        Column::wide("MODEL", |task, _| text(&task["model"])),
        Column::wide("COST", |task, _| dollars(&task["usage"]["cost_usd"])),
        Column::wide("LABELS", |task, _| pairs(&task["labels"])),
        Column::new("PROMPT", |task, _| term::short(task["prompt"].as_str().unwrap_or_default(), PROMPT)),
    ],
    name: |task| text(&task["id"]),
};

pub static WORKERS: Kind = Kind {
    columns: &[
        Column::new("NAME", |worker, _| text(&worker["id"])),
        Column::new("STATUS", status_of_worker),
        Column::new("LEASES", |worker, _| format!("{}/{}", worker["active_leases"], worker["capabilities"]["max_concurrency"])),
        Column::new("AGENTS", |worker, _| match &worker["capabilities"]["agents"] {
            Value::Null => "all".to_owned(),
            agents => list(agents),
        }),
        Column::new("SEEN", |worker, now| age(&worker["last_heartbeat"], now)),
        Column::new("VERSION", |worker, _| text(&worker["agent_version"])),
        Column::wide("DISPATCH", |worker, _| text(&worker["dispatch"])),
        Column::wide("URL", |worker, _| text(&worker["url"])),
        Column::wide("OS", |worker, _| term::short(worker["os_info"].as_str().unwrap_or_default(), PROMPT)),
        Column::wide("ADDRESSES", |worker, _| list(&worker["ip_addrs"])),
        Column::wide("LABELS", |worker, _| list(&worker["capabilities"]["labels"])),
        Column::wide("AGE", |worker, now| age(&worker["registered_at"], now)),
    ],
    name: |worker| text(&worker["id"]),
};

pub static LEASES: Kind = Kind {
    columns: &[
        Column::new("ID", |lease, _| text(&lease["id"])),
        Column::new("TASK", |lease, _| text(&lease["task_id"])),
        Column::new("WORKER", |lease, _| text(&lease["worker_id"])),
        Column::new("STATUS", |lease, _| text(&lease["status"])),
        Column::new("AGE", |lease, now| age(&lease["started_at"], now)),
        Column::new("EXPIRES", |lease, now| match lease["expires_at"].as_i64().filter(|_| lease["status"] == "active") {
            Some(at) if at > now => format!("in {}", span_text(at - now)),
            Some(_) => "now".to_owned(),
            None => String::new(),
        }),
        Column::wide("SEEN", |lease, now| age(&lease["last_heartbeat"], now)),
        Column::wide("TTL", |lease, _| format!("{}s", lease["ttl_seconds"])),
        Column::wide("CONTEXT", |lease, _| text(&lease["context_id"])),
    ],
    name: |lease| text(&lease["id"]),
};

pub static AUDIT: Kind = Kind {
    columns: &[
        Column::new("TIME", |entry, _| entry["timestamp"].as_i64().map(time_text).unwrap_or_default()),
        Column::new("ACTION", |entry, _| text(&entry["action"])),
        Column::new("ACTOR", |entry, _| text(&entry["actor"])),
        Column::new("ENTITY", |entry, _| format!("{}/{}", text(&entry["entity_type"]), text(&entry["entity_id"]))),
        Column::wide("REQUEST", |entry, _| text(&entry["request_id"])),
        Column::new("DETAIL", |entry, _| term::short(entry["detail"].as_str().unwrap_or_default(), WIDE_TEXT)),
    ],
    name: |entry| text(&entry["id"]),
};

pub static USAGE: Kind = Kind {
    columns: &[
        Column::new("KEY", |row, _| text(&row["key"])),
        Column::new("RUNS", |row, _| text(&row["runs"])),
        Column::new("INPUT_TOKENS", |row, _| text(&row["input_tokens"])),
        Column::new("OUTPUT_TOKENS", |row, _| text(&row["output_tokens"])),
        Column::new("COST", |row, _| dollars(&row["cost_usd"])),
    ],
    name: |row| text(&row["key"]),
};

/// Of rows made by [`stats_rows`].
pub static STATS: Kind = Kind {
    columns: &[
        Column::new("WHAT", |row, _| text(&row["what"])),
        Column::new("STATUS", |row, _| text(&row["status"])),
        Column::new("COUNT", |row, _| text(&row["count"])),
    ],
    name: |row| text(&row["what"]),
};

pub static CONTEXTS: Kind = Kind {
    columns: &[
        Column::new("CURRENT", |context, _| if context["current"] == true { "*".into() } else { " ".into() }),
        Column::new("NAME", |context, _| text(&context["name"])),
        Column::new("SERVER", |context, _| text(&context["server"])),
        Column::new("KEY", |context, _| text(&context["key"])),
    ],
    name: |context| text(&context["name"]),
};

/// The counts of `stats`, a row each.
pub fn stats_rows(stats: &Value) -> Vec<Value> {
    let row = |what: &str, status: &str, count: &Value| serde_json::json!({ "what": what, "status": status, "count": count });
    let mut rows = vec![row("tasks", "total", &stats["tasks"]["total"])];
    let by_status = stats["tasks"]["by_status"].as_object();
    rows.extend(by_status.into_iter().flatten().map(|(status, count)| row("tasks", status, count)));
    for (what, status) in [("leases", "total"), ("leases", "active"), ("workers", "total"), ("workers", "online")] {
        rows.push(row(what, status, &stats[what][status]));
    }
    rows
}

/// A text as it is, a number in digits, nothing for nothing.
pub fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

fn status_of_task(task: &Value, _: Ms) -> String {
    let stops = task["cancel_requested"] == true && matches!(task["status"].as_str(), Some("leased" | "running"));
    if stops { format!("{},stopping", text(&task["status"])) } else { text(&task["status"]) }
}

fn status_of_worker(worker: &Value, _: Ms) -> String {
    let mut status = text(&worker["status"]);
    if worker["draining"] == true {
        status.push_str(",draining");
    } else if worker["cordoned"] == true {
        status.push_str(",cordoned");
    }
    status
}

/// What it waits for, or why it did not succeed.
fn reason(task: &Value) -> String {
    let waiting = &task["waiting"]["reason"];
    text(if waiting.is_null() { &task["failure"]["reason"] } else { waiting })
}

fn age(at: &Value, now: Ms) -> String {
    at.as_i64().map(|at| span_text((now - at).max(0))).unwrap_or_default()
}

fn dollars(value: &Value) -> String {
    value.as_f64().map(|usd| format!("${usd:.4}")).unwrap_or_default()
}

fn list(value: &Value) -> String {
    value.as_array().map(|items| items.iter().map(text).collect::<Vec<_>>().join(",")).unwrap_or_default()
}

fn pairs(value: &Value) -> String {
    let pairs = value.as_object().into_iter().flatten().map(|(name, value)| format!("{name}={}", text(value)));
    pairs.collect::<Vec<_>>().join(",")
}
