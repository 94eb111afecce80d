//! The fields of a task, as flags.

use std::collections::BTreeSet;
use std::time::Duration;

use clap::Args;
use clap_complete::{ArgValueCandidates, ArgValueCompleter};
use serde::{Serialize, Serializer};
use serde_json::{Map, Value, json};

use super::filters::label;
use crate::CommandError;
use crate::local_repository::LocalRepository;
use crate::number::within;
use crate::server_calls::Server;
use crate::{ids, shell_completion, when};
use bloom_api::time_limit::{self, PolicyChange};
use bloom_api::values::{Int, Usd};
use bloom_core::Ms;
use bloom_core::project::PushMode;

/// Each field is written under its name in the API; what was not given is null, empty or false.
#[derive(Args, Debug, Default, Serialize)]
#[command(next_help_heading = "Task")]
pub(crate) struct Fields {
    /// The conversation that it belongs to; the tasks of one context continue it one after the other [default: a new one]
    #[arg(long, value_name = "ID", add = ArgValueCandidates::new(shell_completion::conversations))]
    #[serde(rename = "context_id")]
    context: Option<String>,
    /// The kind of agent that runs it [default: default]
    #[arg(long, value_name = "SLUG", add = ArgValueCandidates::new(shell_completion::agents))]
    #[serde(rename = "agent_slug")]
    agent: Option<String>,
    /// Priority, 0 to 9; 9 is the most urgent [default: 5]
    #[arg(long, value_name = "N", value_parser = within(0..=9_u8))]
    priority: Option<u8>,
    /// Do not run it before this time: +10m from now, tomorrow (UTC), 2026-02-25T10:00:00Z, or milliseconds since the epoch
    #[arg(long, value_name = "WHEN", value_parser = when::future, allow_hyphen_values = true)]
    not_before: Option<Ms>,
    /// Tasks that must be completed first
    #[arg(long, value_name = "ID", value_delimiter = ',', add = ArgValueCompleter::new(shell_completion::tasks))]
    depends_on: Vec<String>,
    /// A label, by which lists can be filtered; may be repeated
    #[arg(short, long = "label", value_name = "NAME=VALUE", value_parser = label, add = ArgValueCandidates::new(shell_completion::labels))]
    #[serde(serialize_with = "labels")]
    labels: Vec<(String, String)>,
    /// The model to use [default: the one of the agent's profile]
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    #[command(flatten)]
    #[serde(rename = "policy", serialize_with = "limits")]
    limits: Limits,
    /// The format of the answer [default: text]
    #[arg(long, value_parser = ["json", "text"])]
    #[serde(rename = "desired_format")]
    format: Option<String>,
    /// Maximum number of attempts, 1 to 10 [default: 3]
    #[arg(long, value_name = "N", value_parser = within(1..=10_u8))]
    max_attempts: Option<u8>,
    /// context: continue the conversation of its context; none: run on its own [default: context]
    #[arg(long, value_parser = ["context", "none"])]
    session: Option<String>,
    /// At most one task with this key runs at a time
    #[arg(long, value_name = "KEY")]
    exclusive_key: Option<String>,
    /// A context hint for the agent, such as a file in the context's directory; may be repeated
    #[arg(long = "hint", value_name = "TEXT")]
    #[serde(rename = "context_hints")]
    hints: Vec<String>,
    /// Keep the files of the run that match as artifacts when it ends: out/*.txt, **/*.log; may be repeated
    #[arg(long, value_name = "GLOB")]
    #[serde(rename = "outputs", serialize_with = "globs")]
    keep: Vec<String>,
    /// Remove the task this long after it is finished, such as 1h or 7d; a number alone is seconds
    #[arg(long, value_name = "TIME", value_parser = when::duration, allow_hyphen_values = true)]
    #[serde(rename = "ttl_after_finished_sec", serialize_with = "seconds")]
    ttl: Option<Duration>,
    /// Submit it suspended: no worker gets it until task resume
    #[arg(long)]
    suspend: bool,
    /// Run it in a checkout of this project's repository: its name or id
    #[arg(long, value_name = "NAME", add = ArgValueCandidates::new(shell_completion::projects))]
    project: Option<String>,
    /// With a project: the branch, tag or commit to begin with [default: the default branch of the repository]
    #[arg(long = "ref", value_name = "REF")]
    #[serde(rename = "ref")]
    git_ref: Option<String>,
    /// With a project: push the branch with the commits of the run to the repository
    #[arg(long)]
    #[serde(serialize_with = "mode")]
    push: bool,
}

/// What a task may take.
#[derive(Args, Debug, Default, Serialize)]
pub(crate) struct Limits {
    /// US dollars that all attempts together may cost, or `none` [default: none, no limit by the task]
    #[arg(long, value_name = "USD", value_parser = dollars)]
    budget: Option<f64>,
    /// How long a run may take, such as 30m or 2h; a number alone is seconds. The server has a maximum, a day by default [default: that of the agent's profile, or 30m]
    #[arg(long, value_name = "TIME", value_parser = when::duration, allow_hyphen_values = true)]
    #[serde(rename = "timeout_sec", serialize_with = "seconds")]
    timeout: Option<Duration>,
}

impl Limits {
    /// The policy of a task with what was given.
    pub(crate) fn policy(&self) -> Value {
        Value::Object(given(self))
    }
}

/// Other limits of tasks that exist.
#[derive(Args, Debug, Default)]
pub(crate) struct OtherLimits {
    /// How long their runs may take from now on, such as 30m or 2h; a number alone is seconds
    #[arg(long, value_name = "TIME", value_parser = when::duration, allow_hyphen_values = true, help_heading = "Changes")]
    timeout: Option<Duration>,
    /// US dollars that all attempts together may cost, or `none`; of a task that is queued again, only the attempts from then on count
    #[arg(long, value_name = "USD", value_parser = dollars, help_heading = "Changes")]
    budget: Option<f64>,
}

impl OtherLimits {
    /// `None` if no limit is given.
    pub(crate) fn change(&self) -> Option<PolicyChange> {
        // A time limit out of range is sent anyway, so that the API says what is wrong.
        let timeout_sec = self.timeout.map(|time| Int(i64::try_from(time.as_secs()).unwrap_or(i64::MAX)));
        let change = PolicyChange { timeout_sec, budget: self.budget.map(Usd) };
        Some(change).filter(|change| *change != PolicyChange::default())
    }
}

fn dollars(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        // In the API, 0 means no limit.
        Err(_) if text == "none" => Ok(0.0),
        Ok(0.0) => Err("a task with 0 could not run; without a limit: --budget none".to_owned()),
        Ok(usd) if usd.is_finite() && usd > 0.0 => Ok(usd),
        _ => Err("expected US dollars, like 0.50, or none".to_owned()),
    }
}

impl Fields {
    /// Looks up the ids of which only a part was given.
    ///
    /// # Errors
    /// A part belongs to no task, or to several.
    pub(crate) async fn find_dependencies(&mut self, server: &Server) -> Result<(), CommandError> {
        self.depends_on = ids::tasks(server, &self.depends_on).await.map_err(|failure| failure.about("--depends-on"))?;
        Ok(())
    }

    /// Names the project of this repository, and the branch that is checked out there, unless they were given.
    ///
    /// # Errors
    /// The server has no such project, or the project's repository not what is checked out, or not the ref that was given.
    pub(crate) async fn of_repository(&mut self, repository: &LocalRepository, server: &Server) -> Result<(), CommandError> {
        let found = repository.project(server, self.project.as_deref()).await?;
        match &self.git_ref {
            Some(given) => repository.must_have(given, &found.place).await?,
            None => self.git_ref = Some(repository.begin(&found.place).await?),
        }
        self.project = Some(found.project);
        Ok(())
    }

    /// Whether they name the directory in which it runs: that of a project, or of a context that may have one.
    pub(crate) fn says_where(&self) -> bool {
        self.project.is_some() || self.context.is_some()
    }

    /// The fields that were given, and those of another task that were not. What it begins with in its repository is not taken over to a project
    /// that is given.
    ///
    /// # Errors
    /// A label was given twice.
    pub(crate) fn given_beside(&self, mut other: Map<String, Value>) -> Result<Map<String, Value>, CommandError> {
        let mut fields = self.given()?;
        if self.agent.is_none() {
            fields.remove("agent_slug");
        }
        if self.project.is_some() {
            other.remove("ref");
        }
        fill(&mut fields, &other);
        Ok(fields)
    }

    /// The fields that were given, by their names in the API, and always the agent.
    ///
    /// # Errors
    /// A label was given twice.
    pub(crate) fn given(&self) -> Result<Map<String, Value>, CommandError> {
        let mut names = BTreeSet::new();
        if let Some((name, _)) = self.labels.iter().find(|(name, _)| !names.insert(name)) {
            return Err(named_twice(name));
        }
        let mut fields = given(self);
        fields.entry("agent_slug").or_insert_with(|| json!("default"));
        Ok(fields)
    }
}

fn labels<S: Serializer>(labels: &[(String, String)], to: S) -> Result<S::Ok, S::Error> {
    to.collect_map(labels.iter().map(|(name, value)| (name, value)))
}

fn limits<S: Serializer>(limits: &Limits, to: S) -> Result<S::Ok, S::Error> {
    limits.policy().serialize(to)
}

/// A directory may be named with a slash at its end.
fn globs<S: Serializer>(globs: &[String], to: S) -> Result<S::Ok, S::Error> {
    to.collect_seq(globs.iter().map(|glob| glob.strip_suffix('/').unwrap_or(glob)))
}

fn seconds<S: Serializer>(time: &Option<Duration>, to: S) -> Result<S::Ok, S::Error> {
    time.map(|time| time.as_secs()).serialize(to)
}

fn mode<S: Serializer>(push: &bool, to: S) -> Result<S::Ok, S::Error> {
    push.then_some(PushMode::Branch.as_str()).serialize(to)
}

/// Adds what a task has that neither its flags nor its line name, and that the API would set to another value.
pub(crate) fn add_usual(task: &mut Map<String, Value>) {
    let policy = task.entry("policy").or_insert(Value::Null);
    if policy.is_null() {
        *policy = json!({});
    }
    // A policy that is not an object is sent unchanged, so that the API refuses it.
    if let Value::Object(policy) = policy {
        time_limit::add_usual(policy);
    }
}

/// Adds missing fields, also in nested objects.
pub(crate) fn fill(task: &mut Map<String, Value>, defaults: &Map<String, Value>) {
    for (name, default) in defaults {
        match (task.get_mut(name), default) {
            (None | Some(Value::Null), _) => {
                task.insert(name.clone(), default.clone());
            }
            (Some(Value::Object(members)), Value::Object(defaults)) => fill(members, defaults),
            (Some(_), _) => {}
        }
    }
}

pub(crate) fn named_twice(label: &str) -> CommandError {
    CommandError::usage(format!("--label: the label {label} is named twice; a task has one value for each label"))
}

/// The fields that were given: not those that are null, empty or false.
fn given(flags: &impl Serialize) -> Map<String, Value> {
    let says = |value: &Value| match value {
        Value::Null | Value::Bool(false) => false,
        Value::Array(items) => !items.is_empty(),
        Value::Object(members) => !members.is_empty(),
        _ => true,
    };
    match json!(flags) {
        Value::Object(fields) => fields.into_iter().filter(|(_, value)| says(value)).collect(),
        _ => Map::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bloom_api::new_tasks::NewTask;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        fields: Fields,
    }

    fn given(flags: &[&str]) -> Value {
        Value::Object(Line::try_parse_from([&["x"], flags].concat()).map_err(|error| error.to_string()).unwrap().fields.given().unwrap())
    }

    #[test]
    fn only_what_is_given_is_sent() {
        assert_eq!(given(&[]), json!({ "agent_slug": "default" }));
        let flags = ["--context", "c", "--agent", "a", "--priority", "9", "--depends-on", "x,y", "--label", "k=v", "--budget", "0.5"];
        let more = [
            "--timeout",
            "5m",
            "--format",
            "json",
            "--max-attempts",
            "1",
            "--session",
            "none",
            "--hint",
            "h",
            "--keep",
            "out/*",
            "--ttl",
            "1h",
            "--suspend",
        ];
        let of_project = ["--project", "docs", "--ref", "v1", "--push"];
        let expected = json!({
            "context_id": "c", "agent_slug": "a", "priority": 9, "depends_on": ["x", "y"], "labels": { "k": "v" },
            "policy": { "timeout_sec": 300, "budget": 0.5 }, "desired_format": "json", "max_attempts": 1, "session": "none",
            "context_hints": ["h"], "outputs": ["out/*"], "ttl_after_finished_sec": 3600, "suspend": true,
            "project": "docs", "ref": "v1", "push": "branch",
        });
        assert_eq!(given(&[&flags[..], &more[..], &of_project[..]].concat()), expected);
        assert!(expected.as_object().unwrap().keys().all(|field| NewTask::FIELDS.contains(&field.as_str())));
    }

    #[test]
    fn values_that_make_no_sense_are_refused() {
        for flags in [
            ["--priority", "10"],
            ["--max-attempts", "0"],
            ["--budget", "-1"],
            ["--budget", "0"],
            ["--budget", "NaN"],
            ["--label", "x"],
            ["--timeout", "x"],
        ] {
            let flag = format!("{}={}", flags[0], flags[1]);
            assert!(Line::try_parse_from(["x", flag.as_str()]).is_err(), "{flags:?}");
        }
    }
}
