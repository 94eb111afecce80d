//! `conversation`: shows the contexts of tasks, and resets them. The command `context` is about stored servers.

use std::collections::HashMap;

use clap::Subcommand;
use clap::builder::NonEmptyStringValueParser;
use clap_complete::ArgValueCandidates;
use serde_json::{Value, json};

use super::records::Limit;
use super::server_calls::{Server, failed};
use super::show::{self, Form, Shown};
use super::{columns, describe, ids, shell_completion};
use crate::CommandError;
use bloom_api::contexts::RECENT;
use bloom_api::lists::MAX_IDS;
use bloom_client::part;

#[derive(Debug, Subcommand)]
pub enum ConversationCommand {
    /// List contexts, those with the newest tasks first
    #[command(alias = "ls")]
    List {
        /// All contexts, by id; otherwise, those of the newest tasks
        #[arg(long)]
        all: bool,
        /// Only contexts with tasks in this project
        #[arg(long, value_name = "NAME", add = ArgValueCandidates::new(shell_completion::projects))]
        project: Option<String>,
        #[command(flatten)]
        limit: Limit,
    },
    /// Show a context and its newest tasks
    #[command(visible_aliases = ["show", "get"])]
    Describe {
        /// The context, as --context of `task submit` names it
        #[arg(value_name = "CONTEXT", value_parser = NonEmptyStringValueParser::new(), add = ArgValueCandidates::new(shell_completion::conversations))]
        context: String,
    },
    /// Reset contexts: the next run of each begins a new session
    ///
    /// Use it for a conversation that is full, or whose history the model refuses. A current run ends in its old session, and the run after
    /// it begins a new one. The files of the context stay, with the worktree and the branch of its project.
    Reset {
        /// Contexts, as --context of `task submit` names them
        #[arg(required = true, value_name = "CONTEXT", value_parser = NonEmptyStringValueParser::new(), add = ArgValueCandidates::new(shell_completion::conversations))]
        contexts: Vec<String>,
    },
}

pub(crate) async fn run(command: ConversationCommand, server: &Server, shown: Shown) -> Result<(), CommandError> {
    match command {
        ConversationCommand::List { all, project, limit } => {
            let order = (!all).then(|| ("order", RECENT.to_owned()));
            let query: Vec<_> = project.map(|project| ("project", project)).into_iter().chain(order).collect();
            let (mut rows, more) = server.list("api/runtime/contexts", &query, limit.read_rows()).await.map_err(failed)?;
            add_prompts(server, shown.form_or(Form::Table), &mut rows).await;
            limit.show((rows, more), shown, &columns::CONVERSATIONS)
        }
        ConversationCommand::Describe { context } => describe::conversation(&context, server, shown).await,
        ConversationCommand::Reset { contexts } => {
            let path = |context: &str| format!("api/runtime/contexts/{}/reset", part(context));
            let (mut rows, all) = server.post_each(&contexts, path).await;
            let form = shown.form_or(Form::Table);
            add_prompts(server, form, &mut rows).await;
            show::found(form, &columns::CONVERSATIONS, (rows, all))
        }
    }
}

/// Adds the prompts of their newest tasks, by which people know contexts that have no name. What programs read is as the server sent it.
async fn add_prompts(server: &Server, form: Form, rows: &mut [Value]) {
    if form.is_data() || form == Form::Name {
        return;
    }
    for some in rows.chunks_mut(MAX_IDS) {
        let ids: Vec<String> = some.iter().filter_map(newest).map(str::to_owned).collect();
        // A table without prompts is better than none.
        let Ok(tasks) = ids::list(server, &ids).await else { return };
        let prompts: HashMap<&str, &str> = tasks.iter().filter_map(|task| Some((task["id"].as_str()?, task["prompt"].as_str()?))).collect();
        for row in some {
            if let Some(prompt) = newest(row).and_then(|id| prompts.get(id)) {
                row["prompt"] = json!(prompt);
            }
        }
    }
}

/// The id of the newest task of a context.
fn newest(row: &Value) -> Option<&str> {
    row["last_task"]["id"].as_str()
}
