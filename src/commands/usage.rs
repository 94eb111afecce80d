//! `usage`: what runs have used.

use clap::Args;
use clap::builder::{NonEmptyStringValueParser, TypedValueParser as _};
use clap_complete::ArgValueCandidates;

use super::records::MAX_ROWS;
use super::server_calls::{Server, failed};
use super::show::{self, Form, Shown};
use super::task::label;
use super::{columns, key, project, shell_completion, term, when};
use crate::CommandError;
use bloom_api::reports::UsageRow;
use bloom_api::usage::usage_key;
use bloom_core::audit::{Actor, is_name_of_another_actor};
use bloom_core::{DAY_MS, Ms};

const PATH: &str = "api/runtime/usage";

pub(crate) const EXAMPLES: &str = "Examples:
  bloom-runtime usage --since 30d --by model
  bloom-runtime usage --by label:team,day --project docs
  bloom-runtime usage --by creator -o csv > usage.csv";

#[derive(Args, Debug)]
pub struct UsageArgs {
    /// Group the runs by one or two of day, week, agent, model, context, project, worker, team, creator or person (who created the task) and label:NAME
    #[arg(long, value_name = "KEY", value_delimiter = ',', default_value = "day", value_parser = usage_key)]
    by: Vec<String>,
    #[command(flatten)]
    filters: UsageFilters,
}

#[derive(Args, Debug)]
#[command(next_help_heading = "Filters")]
struct UsageFilters {
    /// Only runs that ended after this time: how long ago (30d), a day (2026-02-25) or a time
    #[arg(long, alias = "from", value_name = "WHEN", value_parser = when::past, allow_hyphen_values = true)]
    since: Option<Ms>,
    /// Only runs that ended before this time, in the form of --since
    #[arg(long, alias = "to", value_name = "WHEN", value_parser = when::past, allow_hyphen_values = true)]
    until: Option<Ms>,
    /// Only tasks for this kind of agent
    #[arg(long, value_name = "SLUG", value_parser = NonEmptyStringValueParser::new(), add = ArgValueCandidates::new(shell_completion::agents))]
    agent: Option<String>,
    /// Only tasks in this context (conversation)
    #[arg(long, value_name = "ID", value_parser = NonEmptyStringValueParser::new(), add = ArgValueCandidates::new(shell_completion::conversations))]
    context: Option<String>,
    /// Only tasks in the project with this name
    #[arg(long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new(), add = ArgValueCandidates::new(shell_completion::projects))]
    project: Option<String>,
    /// Only runs of this worker
    #[arg(long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new(), add = ArgValueCandidates::new(shell_completion::workers))]
    worker: Option<String>,
    /// Only tasks that keys of this team created
    #[arg(long, value_name = "TEAM", value_parser = NonEmptyStringValueParser::new())]
    team: Option<String>,
    /// Only tasks created by this actor: the key with this name (alice, or key:alice as in `audit`), or api: a key without a name
    #[arg(long, value_name = "CREATOR", value_parser = NonEmptyStringValueParser::new().map(actor))]
    creator: Option<String>,
    /// Only tasks with this label; may be repeated
    #[arg(short, long = "label", value_name = "NAME=VALUE", value_parser = label, add = ArgValueCandidates::new(shell_completion::labels))]
    labels: Vec<(String, String)>,
}

/// The creator of a task as the audit trail names it. No worker creates tasks, so a name alone is that of a key.
fn actor(creator: String) -> String {
    if creator.contains(':') || is_name_of_another_actor(&creator) { creator } else { format!("key:{creator}") }
}

impl UsageFilters {
    fn query(self) -> Vec<(&'static str, String)> {
        let texts = [
            ("agent_slug", self.agent),
            ("context_id", self.context),
            ("project", self.project),
            ("worker_id", self.worker),
            ("team", self.team),
            ("created_by", self.creator),
        ];
        let times = [("from", self.since), ("to", self.until)].map(|(name, at)| (name, at.map(|at| at.to_string())));
        let given = texts.into_iter().chain(times).filter_map(|(name, value)| Some((name, value?)));
        given.chain(self.labels.into_iter().map(|(name, value)| ("label", format!("{name}={value}")))).collect()
    }
}

pub(crate) async fn run(UsageArgs { by, filters }: UsageArgs, server: &Server, shown: Shown) -> Result<(), CommandError> {
    when::in_order(filters.since, filters.until)?;
    let is_within_days = [filters.since, filters.until].into_iter().flatten().any(|at| at % DAY_MS != 0);
    let (creator, project, team) = (filters.creator.clone(), filters.project.clone(), filters.team.clone());
    let mut query = filters.query();
    query.push(("by", by.join(",")));
    let (rows, more) = server.list(PATH, &query, MAX_ROWS as usize).await.map_err(failed)?;
    let form = shown.form_or(Form::Table);
    if form.is_data() || form == Form::Name {
        show::list(form, &columns::USAGE, &rows)?;
    } else {
        let mut rows: Vec<UsageRow> = show::read_all(&rows)?;
        if rows.len() > 1 && !more {
            rows.push(UsageRow::total(&rows));
        }
        show::table(form, &columns::USAGE, &rows)?;
        if is_within_days {
            term::info("Runs of tasks that were removed since count by whole days (UTC).");
        }
    }
    if more {
        term::info(&format!("There are more than these {}: use filters.", rows.len()));
    }
    if rows.is_empty() {
        if let Some(project) = project {
            project::tell_if_unknown(server, &project).await;
        }
        match creator.as_deref() {
            // The audit trail names a key without a name `admin` in calls that only admins make, but submit keys create tasks, too.
            Some(creator) if creator == Actor::Admin.to_string() => {
                term::info("Tasks of a key without a name are created by api: --creator api");
            }
            Some(creator) => {
                if let Some(name) = creator.strip_prefix("key:") {
                    key::tell_if_unknown(server, name).await;
                }
            }
            None => {}
        }
        if let Some(team) = team {
            key::tell_if_team_is_unknown(server, &team, None).await;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::actor;

    #[test]
    fn a_name_alone_is_that_of_a_key() {
        for (given, meant) in [("alice", "key:alice"), ("key:alice", "key:alice"), ("admin", "admin"), ("kubernetes:web", "kubernetes:web")]
        {
            assert_eq!(actor(given.to_owned()), meant);
        }
    }
}
