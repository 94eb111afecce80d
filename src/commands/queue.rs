//! `queue`: shows the queues of agents, pauses and resumes them, and limits how many of their tasks run at a time.

use clap::{Arg, ArgGroup, Subcommand};
use clap_complete::ArgValueCandidates;
use serde_json::json;

use super::known_agents::{queues, tell_if_unknown};
use super::records::{self, Limit};
use super::server_calls::Server;
use super::show::{self, Form, Shown};
use super::{columns, shell_completion, term};
use crate::CommandError;
use bloom_api::queues::{NewQueueLimit, Queue};
use bloom_api::values::{Int, text_problem};
use bloom_client::part;
use bloom_core::agent_queue::MAX_QUEUE_LIMIT;
use bloom_core::limits::NAME_CHARS;

#[derive(Debug, Subcommand)]
pub enum QueueCommand {
    /// List queues: all together, then those that are paused or limited or have queued or active tasks
    #[command(alias = "ls")]
    List {
        #[command(flatten)]
        limit: Limit,
    },
    /// Give out no new tasks; running tasks go on
    #[command(arg = misplaced(), group = ArgGroup::new("which").args(["agent", "all"]).required(true))]
    Pause {
        /// Only tasks for this agent (slug)
        #[arg(long, value_name = "SLUG", value_parser = slug, add = ArgValueCandidates::new(shell_completion::queues))]
        agent: Option<String>,
        /// All queues: the tasks of all agents
        #[arg(long)]
        all: bool,
    },
    /// Give out tasks again, after pause
    ///
    /// Without --agent, this ends the pause of all queues; those that were paused one by one stay paused.
    #[command(arg = misplaced())]
    Resume {
        /// Only tasks for this agent (slug). Default: end the pause of all queues
        #[arg(long, value_name = "SLUG", value_parser = slug, add = ArgValueCandidates::new(shell_completion::queues))]
        agent: Option<String>,
        /// End the pause of all queues, as without --agent
        #[arg(long, conflicts_with = "agent")]
        all: bool,
    },
    /// Limit how many tasks for an agent run at a time, over all workers
    ///
    /// Tasks that run go on, also if they are more than a new limit.
    #[command(arg = misplaced().index(2))]
    Limit {
        /// The agent (slug)
        #[arg(long, value_name = "SLUG", value_parser = slug, add = ArgValueCandidates::new(shell_completion::queues))]
        agent: String,
        /// 1 to 10000, or none to remove the limit
        #[arg(value_name = "N|none", value_parser = limit, allow_negative_numbers = true)]
        limit: NewQueueLimit,
    },
}

/// Takes the slug of an agent that is given without its flag, to say how it is given.
fn misplaced() -> Arg {
    let refused = |text: &str| Err::<String, _>(format!("the queue of an agent is named by a flag: --agent {text}"));
    Arg::new("misplaced").value_name("AGENT").hide(true).value_parser(refused)
}

/// A slug that a URL can name.
fn slug(text: &str) -> Result<String, String> {
    if let Some(wrong) = text_problem(text, 1, NAME_CHARS) {
        return Err(wrong);
    }
    if text == columns::ALL_QUEUES {
        return Err(format!("{text} stands for all queues together: give --all to pause or resume them; they have no limit together"));
    }
    if matches!(text, "." | "..") {
        return Err(format!("no URL can name the queue of an agent '{text}'; pause all queues, or use another slug for its tasks"));
    }
    Ok(text.to_owned())
}

fn limit(text: &str) -> Result<NewQueueLimit, String> {
    if text == "none" {
        return Ok(NewQueueLimit { max_concurrency: None });
    }
    let limit = text.parse::<i64>().ok().and_then(|number| Int::try_from(number).ok());
    let wrong = || format!("expected a number from 1 to {MAX_QUEUE_LIMIT}, or none; the agent is named by --agent SLUG");
    limit.map(|limit| NewQueueLimit { max_concurrency: Some(limit) }).ok_or_else(wrong)
}

pub(crate) async fn run(command: QueueCommand, server: &Server, shown: Shown) -> Result<(), CommandError> {
    let changed = match command {
        QueueCommand::List { limit } => return records::pages(server, "api/runtime/queues", &[], limit, shown, &columns::QUEUES).await,
        QueueCommand::Pause { agent, all: _ } => {
            let changed = server.post(&path(agent.as_deref(), "pause"), &json!({})).await?;
            if let Some(agent) = agent {
                tell_if_unknown(server, &agent, CHANGED).await;
            }
            changed
        }
        QueueCommand::Resume { agent: None, all: _ } => {
            let before = queues(server).await;
            let changed = server.post(&path(None, "resume"), &json!({})).await?;
            let own: Vec<&str> = before.iter().filter(|queue| queue.paused).filter_map(|queue| queue.agent_slug.as_deref()).collect();
            if !own.is_empty() {
                let paused = own.join(", ");
                term::info(&format!("Still paused by themselves: {paused}. To resume one: bloom-runtime queue resume --agent {}", own[0]));
            }
            changed
        }
        QueueCommand::Resume { agent: Some(agent), all: _ } => {
            let before = queues(server).await;
            let changed = server.post(&path(Some(&agent), "resume"), &json!({})).await?;
            tell_if_nothing_was_set(server, &agent, &before).await;
            if before.iter().any(|queue| queue.agent_slug.is_none() && queue.paused) {
                term::info("All queues are paused, so this queue still gives out no tasks: bloom-runtime queue resume");
            }
            changed
        }
        QueueCommand::Limit { agent, limit } => {
            let before = if limit.max_concurrency.is_none() { queues(server).await } else { Vec::new() };
            let changed = server.post(&path(Some(&agent), "limit"), &limit).await?;
            match limit.max_concurrency {
                Some(_) => tell_if_unknown(server, &agent, CHANGED).await,
                None => tell_if_nothing_was_set(server, &agent, &before).await,
            }
            changed
        }
    };
    show::one(shown.form_or(Form::Table), &columns::QUEUES, &changed)
}

/// A queue that was paused or limited before has the name of the one that was meant.
async fn tell_if_nothing_was_set(server: &Server, agent: &str, before: &[Queue<'_>]) {
    if !before.iter().any(|queue| queue.agent_slug.as_deref() == Some(agent) && (queue.paused || queue.max_concurrency.is_some())) {
        tell_if_unknown(server, agent, "").await;
    }
}

const CHANGED: &str = " The queue is changed all the same.";

fn path(agent: Option<&str>, verb: &str) -> String {
    match agent {
        Some(agent) => format!("api/runtime/queues/{}/{verb}", part(agent)),
        None => format!("api/runtime/queues:{verb}"),
    }
}
