//! `audit`: lists the audit trail, and follows it.

use std::collections::HashMap;
use std::time::Duration;

use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use clap_complete::{ArgValueCandidates, ArgValueCompleter};
use serde_json::Value;
use tokio::time::sleep;
use uuid::Uuid;

use super::records::{self, Limit, MAX_ROWS};
use super::retry::Retry;
use super::server_calls::{Server, read};
use super::show::{Feed, Form, Shown};
use super::words::one_of;
use super::{columns, ids, key, shell_completion, term, when};
use crate::CommandError;
use bloom_api::answers::Audit;
use bloom_client::Error;
use bloom_core::Ms;
use bloom_core::audit::{Action, COMMIT_WITHIN_MS, is_name_of_another_actor};

pub(crate) const EXAMPLES: &str = "Examples:
  bloom-runtime audit --task 7c0d9e21
  bloom-runtime audit --worker gpu-1 --action task_dead,lease_expired --since 1d
  bloom-runtime audit --people --since 7d
  bloom-runtime audit -f --actor admin";

const PATH: &str = "api/runtime/audit";
/// How often new entries are asked for.
const EVERY: Duration = Duration::from_secs(1);

#[derive(Args, Debug)]
pub struct AuditArgs {
    /// Continue to print entries as they come, oldest first, until Ctrl-C
    #[arg(short, long)]
    follow: bool,
    #[command(flatten)]
    limit: Limit,
    #[command(flatten)]
    filters: AuditFilters,
}

#[derive(Args, Debug)]
#[command(next_help_heading = "Filters")]
struct AuditFilters {
    /// Only entries about this task and its leases: its id, or the beginning or the end of the id
    #[arg(long, value_name = "ID", add = ArgValueCompleter::new(shell_completion::tasks))]
    task: Option<String>,
    /// Only entries about this worker and its leases, and about changes that it made
    #[arg(long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new(), add = ArgValueCandidates::new(shell_completion::workers))]
    worker: Option<String>,
    /// Only changes made by this actor: admin, api, router, reconciler, a worker's name, or key: and the name of a key
    #[arg(long, value_name = "ACTOR", value_parser = NonEmptyStringValueParser::new())]
    actor: Option<String>,
    /// Only changes made by this request: the X-Request-Id of its answer, which is `request_id` in the log
    #[arg(long, value_name = "ID", value_parser = NonEmptyStringValueParser::new())]
    request: Option<String>,
    /// Only entries with this action; several are separated by commas: task_dead,lease_expired
    #[arg(
        long,
        value_name = "ACTION",
        value_delimiter = ',',
        value_parser = one_of(Action::ALL)
    )]
    action: Vec<String>,
    /// Only changes that people decided on, not what runs, workers and the server do by themselves
    #[arg(long)]
    people: bool,
    /// Only entries made after this time: how long ago (2h), a day (2026-02-25) or a time
    #[arg(long, value_name = "WHEN", value_parser = when::past, allow_hyphen_values = true)]
    since: Option<Ms>,
    /// Only entries made before this time, in the form of --since
    #[arg(long, value_name = "WHEN", value_parser = when::past, allow_hyphen_values = true, conflicts_with = "follow")]
    until: Option<Ms>,
}

impl AuditFilters {
    fn query(&self) -> Vec<(&'static str, String)> {
        let actions = Some(self.action.join(",")).filter(|actions| !actions.is_empty());
        let people = self.people.then(|| "true".to_owned());
        let texts = [
            ("task_id", &self.task),
            ("worker_id", &self.worker),
            ("actor", &self.actor),
            ("request_id", &self.request),
            ("action", &actions),
            ("people", &people),
        ];
        let times = [("created_after", self.since), ("created_before", self.until)];
        let texts = texts.into_iter().filter_map(|(name, text)| Some((name, text.clone()?)));
        texts.chain(times.into_iter().filter_map(|(name, at)| Some((name, at?.to_string())))).collect()
    }
}

pub(crate) async fn run(args: AuditArgs, server: &Server, shown: Shown) -> Result<(), CommandError> {
    let AuditArgs { follow, limit, mut filters } = args;
    when::in_order(filters.since, filters.until)?;
    if let Some(task) = &mut filters.task {
        *task = ids::task(server, task).await.map_err(|failure| failure.about("--task"))?;
    }
    if !follow {
        records::pages(server, PATH, &filters.query(), limit, shown, &columns::AUDIT).await?;
        if let Some(actor) = &filters.actor {
            tell_of_key(server, actor).await;
        }
        return Ok(());
    }
    go_on(&filters, &limit, server, shown.form_or(Form::Table)).await
}

/// If nothing is found of an actor: says that no key has its name, or how a key is named, because a name alone could be a worker's.
async fn tell_of_key(server: &Server, actor: &str) {
    // The call is needed only for a hint, so the command does not fail if it does.
    let is_there = async |name: &str| server.list(PATH, &[("actor", name.to_owned())], 1).await.is_ok_and(|(rows, _)| !rows.is_empty());
    if let Some(name) = actor.strip_prefix("key:") {
        // A key that was revoked is in the trail, so only a name without entries may be misspelt.
        if !is_there(actor).await {
            key::tell_if_unknown(server, name).await;
        }
        return;
    }
    let key = format!("key:{actor}");
    if !is_name_of_another_actor(actor) && !is_there(actor).await && is_there(&key).await {
        term::info(&format!("Nothing is by {actor}; the key of that name is written {key}: --actor {key}"));
    }
}

/// How many entries are read first, also if fewer are printed: an older entry that is not among them was committed later, and is printed.
const FIRST_ROWS: usize = 1_000;

/// # Errors
/// The server can't be reached for long, or the output can't be written.
async fn go_on(filters: &AuditFilters, limit: &Limit, server: &Server, form: Form) -> Result<(), CommandError> {
    let mut feed = Feed::new(form, &columns::AUDIT);
    let mut seen = Seen::default();
    let mut retry = Retry::new(true, false);
    let mut is_first = true;
    loop {
        let most = if is_first { limit.rows().max(FIRST_ROWS) } else { MAX_ROWS as usize };
        match new_entries(filters, &mut seen, server, most).await {
            Ok(rows) => {
                retry.is_over();
                let mut rows = seen.unseen(rows)?;
                if std::mem::take(&mut is_first) {
                    rows.drain(..rows.len().saturating_sub(limit.rows()));
                }
                if !rows.is_empty() {
                    feed.print(&rows)?;
                }
                sleep(EVERY).await;
            }
            Err(error) => retry.pause(error).await?,
        }
    }
}

async fn new_entries(filters: &AuditFilters, seen: &mut Seen, server: &Server, most: usize) -> Result<Vec<Value>, Error> {
    let since = seen.since().max(filters.since);
    let mut query = filters.query();
    query.retain(|(name, _)| *name != "created_after");
    query.extend(since.map(|at| ("created_after", at.max(0).to_string())));
    let (rows, more) = server.list(PATH, &query, most).await?;
    seen.is_cut = more && seen.newest.is_none();
    Ok(rows)
}

/// The entries that were printed and may be listed again.
#[derive(Default)]
struct Seen {
    newest: Option<Ms>,
    entries: HashMap<Uuid, Ms>,
    /// Older entries than this one were left out at the start, and stay out.
    first: Uuid,
    /// The first list did not contain all entries.
    is_cut: bool,
}

impl Seen {
    /// Entries that commit from now on are not older. An entry may commit after one with a later time.
    fn since(&self) -> Option<Ms> {
        self.newest.map(|at| at.saturating_sub(COMMIT_WITHIN_MS))
    }

    /// Those of these entries that were not printed yet, oldest first.
    fn unseen(&mut self, rows: Vec<Value>) -> Result<Vec<Value>, CommandError> {
        let mut news = Vec::new();
        for row in rows.into_iter().rev() {
            let entry: Audit = read(&row)?;
            if std::mem::take(&mut self.is_cut) {
                self.first = entry.id;
            }
            self.newest = self.newest.max(Some(entry.timestamp));
            if entry.id >= self.first && self.entries.insert(entry.id, entry.timestamp).is_none() {
                news.push(row);
            }
        }
        let kept = self.newest.unwrap_or_default() - 2 * COMMIT_WITHIN_MS;
        self.entries.retain(|_, at| *at >= kept);
        Ok(news)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn entry(n: u128, at: Ms) -> Value {
        json!({
            "id": Uuid::from_u128(n), "timestamp": at, "action": "task_created", "entity_type": "llm_task", "entity_id": "x",
            "actor": "api", "detail": "", "request_id": null, "task_id": null, "worker_id": null,
        })
    }

    #[test]
    fn each_entry_is_printed_once_and_a_late_one_too() {
        let mut seen = Seen { is_cut: true, ..Seen::default() };
        assert_eq!(seen.unseen(vec![entry(9, 9_000), entry(8, 8_000)]).unwrap(), [entry(8, 8_000), entry(9, 9_000)]);
        assert_eq!(seen.unseen(vec![entry(9, 9_000), entry(8, 8_000), entry(5, 5_000)]).unwrap(), [] as [Value; 0], "5 was left out");
        let late = vec![entry(12, 12_000), entry(10, 8_500), entry(9, 9_000)];
        assert_eq!(seen.unseen(late).unwrap(), [entry(10, 8_500), entry(12, 12_000)]);
        assert!(seen.since() < Some(0), "whatever may still commit is asked for again");
        seen.unseen(vec![entry(40, 40_000)]).unwrap();
        assert_eq!(seen.unseen(vec![entry(41, 21_000)]).unwrap(), [entry(41, 21_000)], "it committed 19 s after its time");
        assert!(seen.since() <= Some(21_000));
        seen.unseen(vec![entry(90, 90_000)]).unwrap();
        assert_eq!(seen.entries.len(), 1, "old entries are forgotten");
    }
}
