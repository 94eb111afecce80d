//! `kubectl bloom`: the plugin of kubectl, which is this program under the name `kubectl-bloom`.
//!
//! It calls kubectl for everything that concerns the cluster, so it uses the same cluster, with the same rights, as kubectl does.

mod advice;
mod cluster;
mod forward;
mod object;
mod server;
mod taken;

use std::time::Duration;

use clap::{Arg, Parser, Subcommand};

use super::interrupt::{always, or_interrupted};
use super::show::{self, Form, Shown};
use super::task::prompt::PromptArgs;
use super::task::wait::{WaitOptions, interruptible, must_be_completed};
use super::task::{EventArgs, fields::Fields, follow, result::answer};
use super::{server_calls, term, when};
use crate::CommandError;
use advice::Advice;
use bloom_api::kubernetes::is_object_name;
use cluster::{Cluster, ClusterArgs};
use object::Object;
use server::ServerArgs;
use taken::Taken;

/// The name of the program by which kubectl finds the plugin.
pub const NAME: &str = "kubectl-bloom";

/// Submit LLM tasks as objects of Kubernetes, and read what their runs say
///
/// `submit` creates an LLMTask in the current namespace, with your rights in the cluster. `logs` and `result` read the run's output
/// from the server: by a port-forward to its Service, with the key from its Secret, unless --server and --key-file are set.
#[derive(Debug, Parser)]
#[command(
    name = NAME,
    bin_name = "kubectl bloom",
    version,
    after_help = "Examples:
  kubectl bloom submit --agent writer --follow \"Say hello\"
  git diff | kubectl bloom submit --agent reviewer --wait
  NAME=$(kubectl bloom submit --context docs \"Go on\"); kubectl wait --for=condition=Complete lt/$NAME
  kubectl bloom logs -f $NAME
  kubectl bloom result $NAME

Exit status: 0 done; 1 a call failed, or a task that was waited for did not complete; 2 the command line
is wrong; 3 the time limit of waiting was reached; 130 interrupted, the task goes on."
)]
pub struct Plugin {
    #[command(subcommand)]
    action: Action,
    #[command(flatten)]
    cluster: ClusterArgs,
    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    shown: Shown,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Create an LLMTask
    ///
    /// Prints its name; with --wait only its answer, when it is finished; with --follow the text of the run while it is written.
    Submit(Box<Submit>),
    /// Print the events of a task's runs
    ///
    /// The text of a run is printed unchanged, every other event as a line in brackets.
    Logs {
        /// The name of the LLMTask
        name: String,
        #[command(flatten)]
        events: EventArgs,
    },
    /// Print a task's answer
    ///
    /// Exits with 1 if the task is not finished yet or its newest run failed; -o json shows the whole result.
    Result {
        /// The name of the LLMTask
        name: String,
    },
}

#[derive(clap::Args, Debug)]
#[command(mut_arg("depends_on", of_llmtasks), mut_arg("suspend", of_llmtask_suspended))]
struct Submit {
    #[command(flatten)]
    prompt: PromptArgs,
    /// The name of the LLMTask; if it exists already, the command fails [default: the cluster makes one]
    #[arg(long)]
    name: Option<String>,
    /// Wait for the answer and print it
    #[arg(long)]
    wait: bool,
    /// Print the text of the run while it is written; with -o json its events, one per line
    #[arg(long)]
    follow: bool,
    /// Wait at most this long, such as 5m or 2h; a number alone is seconds. The task goes on after that
    #[arg(long, value_name = "TIME", value_parser = when::duration, allow_hyphen_values = true)]
    wait_timeout: Option<Duration>,
    #[command(flatten)]
    fields: Fields,
}

fn of_llmtasks(arg: Arg) -> Arg {
    arg.value_name("NAME").value_parser(name_of_llmtask).help("LLMTasks of the same namespace that must be completed first, by their names")
}

fn of_llmtask_suspended(arg: Arg) -> Arg {
    arg.help("Create it suspended: no worker gets it until its spec.suspend is false")
}

fn name_of_llmtask(text: &str) -> Result<String, String> {
    if is_object_name(text) {
        return Ok(text.to_owned());
    }
    Err("names are those of LLMTasks of the same namespace, such as task-x7k2p, without the namespace or the kind in front".to_owned())
}

/// Runs the plugin.
///
/// # Errors
/// The command failed, or its flags contradict each other.
pub async fn run(plugin: Plugin) -> Result<(), CommandError> {
    always(run_action(plugin)).await
}

async fn run_action(plugin: Plugin) -> Result<(), CommandError> {
    let Plugin { action, cluster, server, shown } = plugin;
    server.check()?;
    let cluster = Cluster::new(cluster);
    match action {
        Action::Submit(args) => submit(*args, &cluster, &server, shown).await,
        Action::Logs { name, events } => {
            let taken = Taken::find(&cluster, &name).await?;
            let reached = server.reach(&cluster, &taken).await?;
            let done = follow::logs(&taken.id, &events, &reached.server, shown.form_or(Form::Table)).await;
            done.map_err(|failure| Advice::new(&cluster, &name).translated(&taken.id, failure))
        }
        Action::Result { name } => {
            let taken = Taken::find(&cluster, &name).await?;
            let reached = server.reach(&cluster, &taken).await?;
            let done = answer(&reached.server, &taken.id, shown).await;
            done.map_err(|failure| Advice::new(&cluster, &name).translated(&taken.id, failure))
        }
    }
}

async fn submit(args: Submit, cluster: &Cluster, server: &ServerArgs, shown: Shown) -> Result<(), CommandError> {
    args.prompt.must_be_one("kubectl bloom submit")?;
    let is_waiting = args.wait || args.follow;
    if args.wait_timeout.is_some() && !is_waiting {
        return Err(CommandError::usage("--wait-timeout needs --wait or --follow"));
    }
    let object = Object::new(args.name.as_deref(), args.fields.given()?, args.prompt.read().await?);
    let created = cluster.create(&object).await?;
    let name = cluster::name_of(&created)?;
    if !is_waiting {
        return match shown.form_or(Form::Name) {
            form if form.is_data() => show::as_it_came(form, &created),
            _ => term::print(&format!("{}\n", term::line(&name))),
        };
    }
    let advice = Advice::new(cluster, &name);
    let finished = until_finished(&args, cluster, server, &name, &advice, shown).await;
    finished.map_err(|failure| advice.with_what_was_created(failure))
}

/// `submit --wait` and `--follow`, after the LLMTask was created.
async fn until_finished(
    args: &Submit,
    cluster: &Cluster,
    server: &ServerArgs,
    name: &str,
    advice: &Advice,
    shown: Shown,
) -> Result<(), CommandError> {
    let told = || format!("interrupted; the LLMTask {name} goes on. Follow it with: {}", advice.follow());
    let limit = args.wait_timeout;
    let taken = or_interrupted(Taken::wait(cluster, name, limit), told).await?;
    let reached = or_interrupted(server.reach(cluster, &taken), told).await?;
    let (server, id) = (&reached.server, &taken.id);
    let mut waiting = WaitOptions::new(limit, true);
    let ended = async {
        if args.follow {
            return interruptible(id, follow::to_the_end(server, id, waiting, shown)).await;
        }
        let task = interruptible(id, waiting.until_finished(server, id)).await?;
        must_be_completed(&server_calls::read(&task)?)?;
        answer(server, id, shown).await
    };
    ended.await.map_err(|failure| advice.translated(id, failure))
}
