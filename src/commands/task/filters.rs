//! Filters of tasks.

use std::collections::BTreeSet;

use crate::CommandError;
use crate::server_calls::Server;
use crate::words::one_of;
use crate::{ids, shell_completion, when};
use bloom_api::bulk::{Filter, FilterText};
use bloom_api::tasks::Task;
use bloom_api::values::{Id, Int, LabelText};
use bloom_core::Ms;
use bloom_core::task::{Reason, Status, WaitingReason};
use clap::Args;
use clap::builder::{NonEmptyStringValueParser, TypedValueParser as _};
use clap_complete::{ArgValueCandidates, ArgValueCompleter};

#[derive(Args, Clone, Debug, Default, PartialEq)]
#[command(next_help_heading = "Filters")]
pub struct Filters {
    /// Only tasks with this status; several are separated by commas: queued,running
    #[arg(long, value_delimiter = ',', value_parser = one_of(Status::ALL))]
    status: Vec<String>,
    /// Only failed tasks: those with the status failed or dead
    #[arg(long, conflicts_with = "status")]
    failed: bool,
    /// Only tasks whose run waits for the answer of a person
    #[arg(long)]
    asks: bool,
    /// Only tasks for this kind of agent
    #[arg(long, value_name = "SLUG", value_parser = NonEmptyStringValueParser::new(), add = ArgValueCandidates::new(shell_completion::agents))]
    agent: Option<String>,
    /// Only tasks in this context (conversation)
    #[arg(long, value_name = "ID", value_parser = NonEmptyStringValueParser::new(), add = ArgValueCandidates::new(shell_completion::conversations))]
    context: Option<String>,
    /// Only tasks that are leased to this worker, or were last leased to it
    #[arg(long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new(), add = ArgValueCandidates::new(shell_completion::workers))]
    worker: Option<String>,
    /// Only tasks of this project, by the name that it had when they were created
    #[arg(long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new(), add = ArgValueCandidates::new(shell_completion::projects))]
    project: Option<String>,
    /// Only tasks created by the submit or member key with this name: alice, or key:alice as in `audit` and `usage`. Tasks of other keys have
    /// no owner
    #[arg(long, value_name = "KEY", value_parser = owner)]
    owner: Option<String>,
    /// Only tasks created by keys of this team
    #[arg(long, value_name = "TEAM", value_parser = NonEmptyStringValueParser::new())]
    team: Option<String>,
    /// Only tasks whose last failure was for this reason
    #[arg(long, value_parser = one_of(Reason::ALL).map(|word| Reason::parse(&word).expect("one of them")))]
    reason: Option<Reason>,
    /// Only tasks that depend on this one directly: its id, or the beginning or the end of it
    #[arg(long, value_name = "ID", add = ArgValueCompleter::new(shell_completion::tasks))]
    depends_on: Option<String>,
    /// Only tasks with this label; may be repeated
    #[arg(short, long = "label", value_name = "NAME=VALUE", value_parser = label, add = ArgValueCandidates::new(shell_completion::labels))]
    labels: Vec<(String, String)>,
    /// Only tasks created after this time: how long ago (2h), a day (2026-02-25) or a time
    #[arg(long, value_name = "WHEN", value_parser = when::past, allow_hyphen_values = true)]
    since: Option<Ms>,
    /// Only tasks created before this time, in the form of --since
    #[arg(long, value_name = "WHEN", value_parser = when::past, allow_hyphen_values = true)]
    until: Option<Ms>,
    /// Only tasks that ended (completed, failed or cancelled) after this time, in the form of --since
    #[arg(long, value_name = "WHEN", value_parser = when::past, allow_hyphen_values = true)]
    finished_since: Option<Ms>,
}

/// Parses `name=value`.
///
/// # Errors
/// The text is not of this form; the error says what is expected.
pub(crate) fn label(text: &str) -> Result<(String, String), String> {
    // A value may contain a comma. So this text may be one label or, as in other tools, several.
    if text.split(',').skip(1).any(|part| part.contains('=')) {
        return Err("a comma does not separate labels: give each label by a flag of its own, such as --label a=1 --label b=2".into());
    }
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("expected NAME=VALUE".into()),
    }
}

/// The name of a key, without the prefix that it has as an actor: no key's name has a colon.
fn owner(text: &str) -> Result<String, String> {
    match text.strip_prefix("key:").unwrap_or(text) {
        "" => Err("expected the name of a key".into()),
        name => Ok(name.to_owned()),
    }
}

impl Filters {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    pub fn agent(&self) -> Option<&str> {
        self.agent.as_deref()
    }

    pub fn project(&self) -> Option<&str> {
        self.project.as_deref()
    }

    pub fn owner(&self) -> Option<&str> {
        self.owner.as_deref()
    }

    pub fn team(&self) -> Option<&str> {
        self.team.as_deref()
    }

    /// The filters with the whole id of the task that others depend on.
    ///
    /// # Errors
    /// The times leave nothing that could match, or there is no such task.
    pub async fn resolved(mut self, server: &Server) -> Result<Self, CommandError> {
        when::in_order(self.since, self.until)?;
        if let Some(named) = &mut self.depends_on {
            *named = ids::task(server, named).await.map_err(|failure| failure.about("--depends-on"))?;
        }
        Ok(self)
    }

    /// A call of the API takes one status at most: those for which to call it; `None` is any status.
    pub fn statuses(&self) -> Vec<Option<&str>> {
        if self.failed {
            return vec![Some(Status::Dead.as_str()), Some(Status::Failed.as_str())];
        }
        let statuses: BTreeSet<&str> = self.status.iter().map(String::as_str).collect();
        if statuses.is_empty() { vec![None] } else { statuses.into_iter().map(Some).collect() }
    }

    /// Whether tasks with this status can match.
    pub fn allows(&self, status: &str) -> bool {
        self.statuses().into_iter().any(|wanted| wanted.is_none_or(|wanted| wanted == status))
    }

    /// Whether only tasks with this status can match.
    pub fn is_only(&self, status: Status) -> bool {
        self.statuses() == [Some(status.as_str())]
    }

    /// The filters with this status as a query of a list.
    pub fn query(&self, status: Option<&str>) -> Vec<(&'static str, String)> {
        let texts = [
            ("status", status),
            ("agent_slug", self.agent.as_deref()),
            ("context_id", self.context.as_deref()),
            ("worker_id", self.worker.as_deref()),
            ("project", self.project.as_deref()),
            ("owner", self.owner.as_deref()),
            ("team", self.team.as_deref()),
            ("reason", self.reason.map(Reason::as_str)),
            ("depends_on", self.depends_on.as_deref()),
        ];
        let texts = texts.into_iter().filter_map(|(name, text)| Some((name, text?.to_owned())));
        let labels = self.labels.iter().map(|(name, value)| ("label", format!("{name}={value}")));
        let times = [("created_after", self.since), ("created_before", self.until), ("finished_after", self.finished_since)];
        let times = times.into_iter().filter_map(|(name, at)| Some((name, at?.to_string())));
        let asks = self.asks.then(|| ("asks", true.to_string()));
        texts.chain(labels).chain(times).chain(asks).collect()
    }

    /// The filters as the body of a bulk call.
    pub fn body(&self) -> Filter {
        let statuses: Vec<&str> = self.statuses().into_iter().flatten().collect();
        let text = |text: &Option<String>| FilterText(text.clone());
        let labels = self.labels.iter().cloned().map(|(name, value)| LabelText { name, value });
        Filter {
            status: statuses.join(",").as_str().into(),
            agent_slug: text(&self.agent),
            context_id: text(&self.context),
            worker_id: text(&self.worker),
            project: text(&self.project),
            owner: text(&self.owner),
            team: text(&self.team),
            reason: self.reason,
            depends_on: self.depends_on.as_deref().and_then(|id| id.parse().ok()).map(Id),
            labels: None,
            label: Some(labels.collect()),
            created_after: self.since.map(Int),
            created_before: self.until.map(Int),
            finished_after: self.finished_since.map(Int),
            asks: self.asks,
        }
    }

    /// Whether a list with these filters would contain the task.
    pub fn fits(&self, task: &Task) -> bool {
        let is = |wanted: &Option<String>, is: Option<&str>| wanted.is_none() || wanted.as_deref() == is;
        self.allows(&task.status.to_string())
            && is(&self.agent, Some(&task.agent_slug))
            && is(&self.context, Some(&task.context_id))
            && is(&self.worker, task.worker_id.as_deref())
            && is(&self.project, task.project.as_deref())
            && is(&self.owner, task.owner.as_deref())
            && is(&self.team, task.team.as_deref())
            && self.reason.is_none_or(|reason| task.last_failure().is_some_and(|failure| failure.reason == reason))
            && self.depends_on.as_ref().is_none_or(|id| task.depends_on.iter().any(|on| on.to_string() == *id))
            && self.labels.iter().all(|(name, value)| task.labels.get(name) == Some(value))
            && self.since.is_none_or(|since| task.created_at > since)
            && self.until.is_none_or(|until| task.created_at < until)
            && self.finished_since.is_none_or(|since| task.finished_at.is_some_and(|at| at > since))
            && (!self.asks || task.waiting.as_ref().is_some_and(|waiting| waiting.reason == WaitingReason::NeedsHuman))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn filters() -> Filters {
        Filters { status: vec!["queued".into()], labels: vec![("a".into(), "1=2".into())], since: Some(5), ..Filters::default() }
    }

    #[test]
    fn they_say_the_same_in_a_query_and_a_body() {
        assert!(Filters::default().is_empty());
        assert_eq!(
            filters().query(Some("queued")),
            [("status", "queued".into()), ("label", "a=1=2".into()), ("created_after", "5".into())]
        );
        let body = json!({ "status": "queued", "label": ["a=1=2"], "created_after": 5 });
        assert_eq!(serde_json::to_value(filters().body()).unwrap(), body);
    }

    #[test]
    fn they_fit_what_a_list_would_show() {
        let task = |status: &str, value: &str, at: Ms| -> Task<'static> {
            serde_json::from_value(json!({
                "id": uuid::Uuid::nil(), "context_id": "c", "agent_slug": "a", "prompt": "p", "policy": { "timeout_sec": 60, "timeout_is_default": false, "budget": 0.0 },
                "desired_format": "text", "context_hints": [], "session": "context", "suspend": false, "push": "never", "inputs": [], "outputs": [],
            "status": status, "created_at": at, "updated_at": at, "attempts": 0, "max_attempts": 1,
                "priority": 5, "depends_on": [], "labels": { "a": value }, "infra_retries": 0, "cancel_requested": false,
            }))
            .unwrap()
        };
        assert!(filters().fits(&task("queued", "1=2", 6)));
        assert!(!filters().fits(&task("running", "1=2", 6)));
        assert!(!filters().fits(&task("queued", "2", 6)));
        assert!(!filters().fits(&task("queued", "1=2", 5)));
        let ended = |at| Task { finished_at: at, ..task("failed", "", 1) };
        let lately = Filters { finished_since: Some(5), ..Filters::default() };
        assert!(lately.fits(&ended(Some(6))) && !lately.fits(&ended(Some(5))) && !lately.fits(&ended(None)));
    }

    #[test]
    fn an_owner_may_be_written_as_an_actor() {
        assert_eq!((owner("alice"), owner("key:alice")), (Ok("alice".into()), Ok("alice".into())));
        assert!(owner("").is_err() && owner("key:").is_err());
    }

    #[test]
    fn labels_are_pairs() {
        assert_eq!(label("a=b=c"), Ok(("a".into(), "b=c".into())));
        assert!(label("a").is_err() && label("=a").is_err());
        assert_eq!(label("a=b,c"), Ok(("a".into(), "b,c".into())), "a value may have a comma");
        assert!(label("a=1,b=2").unwrap_err().contains("a flag of its own"));
    }
}
