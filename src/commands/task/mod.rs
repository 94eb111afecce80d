//! `task`: submit, show, wait for, answer, edit, suspend, resume, cancel, requeue and delete tasks.

mod answer_index;
mod artifacts;
mod batches;
mod bulk;
mod checkout;
mod delete;
mod directory;
mod edit;
pub(crate) mod fields;
mod filters;
pub(crate) mod follow;
mod from_file;
mod line_names;
mod list;
mod logs;
pub(crate) mod prompt;
pub(crate) mod question;
mod reply;
pub(crate) mod result;
mod selection;
mod standard_input;
mod submit;
mod suspend;
mod uploads;
pub(crate) mod wait;
mod watch;
mod wrong_lines;

use super::ids::path;
use super::records::Limit;
use super::server_calls::{Server, failed};
use super::show::{self, Form, Shown};
use super::words::one_of;
use super::{columns, describe, ids, shell_completion, term};
use crate::CommandError;
use artifacts::ArtifactsArgs;
use bloom_core::event::EventKind;
use bulk::RequeueArgs;
use checkout::CheckoutArgs;
use clap::{Args, Subcommand};
use clap_complete::ArgValueCompleter;
use edit::EditArgs;
use filters::Filters;
pub(crate) use filters::label;
use question::{AnswerArgs, Asked, DenyArgs};
use reply::ReplyArgs;
use result::ResultArgs;
use selection::{Changed, Selection};
use serde_json::Value;
use submit::Submit;
use wait::WaitArgs;

pub(crate) const EXAMPLES: &str = "Examples:
  bloom-runtime task submit --wait \"Say hello\"
  git diff | bloom-runtime task submit --follow --agent reviewer
  ID=$(bloom-runtime task submit --context docs \"Go on\")
  bloom-runtime task logs -f $ID
  bloom-runtime task list --failed --since 2h -o wide
  bloom-runtime task list --watch
  bloom-runtime task cancel --status queued --label batch=7

Exit status: 0 done; 1 the call failed, or a task that was waited for did not complete; 2 the command
line is wrong; 3 the time limit of waiting was reached; 130 interrupted, the task goes on.";

#[derive(Debug, Subcommand)]
pub enum TaskCommand {
    Submit(Box<Submit>),
    /// Go on with the conversation of a task: submit a new task in the same context
    ///
    /// The new task has the context, agent, project, ref, push, labels, model, format and exclusive key of the other one. That one need not be
    /// finished: the tasks of a context run one after the other.
    #[command(after_help = "Examples:\n  bloom-runtime task reply 7c0d9e21 --wait \"And in French?\"\n  \
        git diff | bloom-runtime task reply 7c0d9e21 --follow \"This is what I changed\"")]
    Reply(Box<ReplyArgs>),
    /// Show tasks
    Get {
        /// Their ids
        #[arg(required = true, value_name = "ID", add = ArgValueCompleter::new(shell_completion::tasks))]
        ids: Vec<String>,
    },
    /// Show all about a task: why it waits or failed, its attempts, dependencies, events and history
    ///
    /// Also says what to do if the task waits or failed. -o json prints the answers of the server on which this is based.
    #[command(visible_alias = "show")]
    Describe {
        /// Its id
        #[arg(value_name = "ID", add = ArgValueCompleter::new(shell_completion::tasks))]
        id: String,
    },
    /// List tasks, newest first
    ///
    /// With --watch, a matching task is shown again whenever it changes, until Ctrl-C; -o json then prints one line per change.
    #[command(alias = "ls")]
    List {
        /// Continue to show changes
        #[arg(short, long, conflicts_with = "sort")]
        watch: bool,
        #[command(flatten)]
        limit: Limit,
        #[command(flatten)]
        filters: Filters,
    },
    /// Find tasks by a text in them, newest first
    ///
    /// Searches the prompt, the answer, the failure, the context, the labels (name=value) and the id, in upper and lower case. All tasks
    /// that match the filters are read until enough have the text, so filters such as --since make it fast.
    #[command(
        after_help = "Examples:\n  bloom-runtime task search spelling --since 7d\n  bloom-runtime task search team=docs --status failed -o name"
    )]
    Search {
        /// The text, of 2 to 200 characters; % and _ are ordinary characters
        text: String,
        #[command(flatten)]
        limit: Limit,
        #[command(flatten)]
        filters: Filters,
    },
    Logs(LogsArgs),
    /// Print the answers of tasks
    ///
    /// For one id, prints only the answer, as the run gave it. Exits with 1 if the task is not finished yet or its newest run failed; -o
    /// json shows the whole result. For several ids, or with filters, prints a line of JSON for each task with its id, status and output,
    /// or with --out writes a file for each; exits with 1 if one is not completed.
    #[command(after_help = "Examples:\n  bloom-runtime task result 7c0d9e21\n  \
        bloom-runtime task result -l batch=7 | jq -r .output\n  bloom-runtime task result -l batch=7 --out answers")]
    Result(ResultArgs),
    /// List the files that the runs of a task left, or download them
    ///
    /// Files are those that matched --keep, and the changes of a run in its repository. The list also has the answers of runs; `task
    /// result` prints the newest. A download never writes outside of the directory, and checks the digest of each file.
    #[command(after_help = "Examples:\n  bloom-runtime task artifacts 7c0d9e21\n  \
        bloom-runtime task artifacts 7c0d9e21 --download results")]
    Artifacts(ArtifactsArgs),
    /// Print what a task's newest run changed in its repository, as a patch
    #[command(after_help = "Examples:\n  bloom-runtime task diff 7c0d9e21\n  bloom-runtime task diff 7c0d9e21 | git apply")]
    Diff {
        /// The task's id
        #[arg(value_name = "ID", add = ArgValueCompleter::new(shell_completion::tasks))]
        id: String,
    },
    /// Check out what a task's run changed, as a new branch of a local repository
    ///
    /// Changes that the run pushed are fetched. Other changes are applied as a patch, and are then in the index of the new branch. No local
    /// file is overwritten: the command refuses to start if files have changes that are not committed.
    #[command(after_help = "Examples:\n  bloom-runtime task submit --here --push --wait \"Fix the tests\"\n  \
        bloom-runtime task checkout 7c0d9e21\n  bloom-runtime task checkout 7c0d9e21 --dir ~/src/site --branch fix-tests")]
    Checkout(CheckoutArgs),
    /// Cancel tasks
    ///
    /// Queued tasks are cancelled at once. For a running task, the worker is asked to stop the run. With filters, the command first shows
    /// how many tasks match, and asks.
    #[command(after_help = "Examples:\n  bloom-runtime task cancel 0190a0a0-0000-7000-8000-000000000000\n  \
        bloom-runtime task cancel --status queued --label batch=7\n  bloom-runtime task cancel --agent reviewer --yes")]
    #[command(alias = "stop")]
    Cancel(Changed),
    /// Change queued tasks: their priority, when they may run and how long, their labels
    ///
    /// Here, --label sets a label, and -l chooses tasks by a label.
    #[command(after_help = "Examples:\n  bloom-runtime task edit 7c0d9e21 --priority 9\n  \
        bloom-runtime task edit 7c0d9e21 --not-before +2h --label batch=8 --remove-label draft\n  \
        bloom-runtime task edit 7c0d9e21 --not-before now\n  bloom-runtime task edit -l batch=8 --priority 9 --yes")]
    Edit(EditArgs),
    /// Allow what the run of a task asks a person to allow
    ///
    /// Runs ask if the profile of their agent sets ask_human. `task list` shows needs_human for such a task, and `task describe` shows the
    /// question.
    #[command(
        after_help = "Examples:\n  bloom-runtime task approve 7c0d9e21\n  bloom-runtime task deny 7c0d9e21 --message \"not on a Friday\""
    )]
    Approve(Asked),
    /// Deny what the run of a task asks a person; the run goes on without it
    Deny(DenyArgs),
    /// Answer the questions that the run of a task asks a person
    #[command(
        after_help = "Examples:\n  bloom-runtime task answer 7c0d9e21 \"the second one\"\n  bloom-runtime task answer 7c0d9e21 yes \"next week\""
    )]
    Answer(AnswerArgs),
    /// Suspend tasks: while they are queued, no worker gets them until they are resumed
    ///
    /// Later tasks of their contexts wait behind them. A run that has begun goes on; if its task is queued again, it is suspended then.
    #[command(after_help = "Examples:\n  bloom-runtime task suspend 7c0d9e21 0b5f1a33\n  bloom-runtime task resume 7c0d9e21 0b5f1a33\n  \
        ID=$(bloom-runtime task submit --suspend \"Clean up\")")]
    Suspend(Changed),
    /// Resume suspended tasks
    Resume(Changed),
    /// Delete finished tasks, with their results and events
    ///
    /// Their usage and their audit entries are kept. Tasks that still wait for one of them are cancelled. A task that is not finished must
    /// be cancelled first. The command asks, unless --yes is set.
    #[command(after_help = "Examples:\n  bloom-runtime task delete 7c0d9e21 0b5f1a33\n  \
        bloom-runtime task delete --status completed --until 30d --dry-run")]
    #[command(aliases = ["rm", "remove"])]
    Delete(Changed),
    /// Queue failed, dead or cancelled tasks again, with all their attempts
    ///
    /// They may run at once: a time for which they were scheduled (--not-before) no longer counts.
    ///
    /// With filters, the command first shows how many tasks match, and asks.
    #[command(after_help = "Examples:\n  bloom-runtime task requeue 0190a0a0-0000-7000-8000-000000000000\n  \
        bloom-runtime task retry 7c0d9e21 --timeout 2h\n  \
        bloom-runtime task requeue --failed --since 1h --yes")]
    #[command(visible_alias = "retry")]
    Requeue(RequeueArgs),
    /// Wait until tasks are finished, and show them
    ///
    /// With filters, it waits for all tasks that match when the command begins. Exits with 0 if all are completed, with 1 if one is not,
    /// and with 3 if the time limit was reached.
    #[command(after_help = "Examples:\n  bloom-runtime task wait 7c0d9e21 0b5f1a33\n  bloom-runtime task wait -l batch=7 --timeout 2h")]
    Wait(WaitArgs),
}

/// Print the events of the runs of tasks
///
/// The text of a run is printed unchanged, every other event as a line in brackets. --follow prints from the start until the task is
/// finished. For several tasks, or with filters, each line begins with the end of its task's id.
#[derive(Args, Debug)]
pub struct LogsArgs {
    #[command(flatten)]
    events: EventArgs,
    #[command(flatten)]
    selection: Selection,
}

/// Which events to print.
#[derive(Args, Debug)]
pub(crate) struct EventArgs {
    /// Continue to print events until the task is finished; standard error says why it waits
    #[arg(short, long)]
    follow: bool,
    /// Show only events of these kinds
    #[arg(long, value_name = "KIND", value_delimiter = ',', value_parser = one_of(EventKind::ALL))]
    kind: Vec<String>,
    /// Only the newest events, at most this many
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    tail: Option<u64>,
    /// Begin each line with the time of its event, in UTC
    #[arg(long)]
    timestamps: bool,
}

pub(crate) async fn run(command: TaskCommand, server: &Server, shown: Shown) -> Result<(), CommandError> {
    match command {
        TaskCommand::Submit(submit) => submit::run(*submit, server, shown).await,
        TaskCommand::Reply(args) => reply::run(*args, server, shown).await,
        TaskCommand::Get { ids } => {
            let (ids, mut failures) = ids::each(server, &ids).await;
            let (tasks, all) = server.get_each(&ids, |id| path(id, "")).await?;
            failures.extend(all.err());
            show::found(shown.form_or(Form::Table), &columns::TASKS, (tasks, CommandError::all(&failures)))
        }
        TaskCommand::Describe { id } => describe::task(&id, server, shown).await,
        TaskCommand::List { filters, limit, watch: true } => {
            let filters = filters.resolved(server).await?;
            watch::run(&filters, &limit, server, shown.form_or(Form::Table)).await
        }
        TaskCommand::List { filters, limit, watch: false } => {
            let filters = filters.resolved(server).await?;
            let found = list::newest(server, &filters, None, limit.read_rows()).await.map_err(failed)?;
            if found.0.is_empty() {
                list::hint(server, &filters).await;
            }
            limit.show(found, shown, &columns::TASKS)
        }
        TaskCommand::Search { text, filters, limit } => {
            let filters = filters.resolved(server).await?;
            let found = list::newest(server, &filters, Some(&text), limit.read_rows()).await;
            limit.show(found.map_err(failed)?, shown, &columns::TASKS)
        }
        TaskCommand::Logs(args) => logs::run(args, server, shown.form_or(Form::Table)).await,
        TaskCommand::Result(args) => result::run(args, server, shown).await,
        TaskCommand::Artifacts(args) => artifacts::run(args, server, shown).await,
        TaskCommand::Checkout(args) => checkout::run(args, server).await,
        TaskCommand::Diff { id } => artifacts::diff(&id, server).await,
        TaskCommand::Cancel(args) => bulk::cancel(args, server, shown).await,
        TaskCommand::Edit(args) => edit::run(args, server, shown).await,
        TaskCommand::Approve(args) => question::approve(args, server, shown).await,
        TaskCommand::Deny(args) => question::deny(args, server, shown).await,
        TaskCommand::Answer(args) => question::in_words(args, server, shown).await,
        TaskCommand::Suspend(args) => suspend::run(true, args, server, shown).await,
        TaskCommand::Resume(args) => suspend::run(false, args, server, shown).await,
        TaskCommand::Delete(args) => delete::run(args, server).await,
        TaskCommand::Requeue(args) => bulk::requeue(args, server, shown).await,
        TaskCommand::Wait(args) => wait::run(args, server, shown).await,
    }
}

/// What the server warns of in its answer to the creation of a task.
pub(crate) fn warnings(created: &Value) -> impl Iterator<Item = String> {
    let warnings = created["warnings"].as_array().into_iter().flatten().filter_map(Value::as_str);
    warnings.map(|warning| format!("Warning: {}", term::line(warning)))
}

/// The id of a created task. The rest of the answer is not parsed, because the task exists even if the rest is unexpected.
fn id_of(task: &Value) -> Result<String, CommandError> {
    let id = task["id"].as_str().ok_or_else(|| "the server's answer has no id, which its API promises".to_owned())?;
    Ok(id.to_owned())
}
