//! `conversation`: shows the contexts of tasks, and resets them. The command `context` is about stored servers.

use clap::Subcommand;
use clap::builder::NonEmptyStringValueParser;
use clap_complete::ArgValueCandidates;

use super::connect::Server;
use super::records::{self, Limit};
use super::show::{self, Form, Shown};
use super::{columns, describe, shell_completion};
use crate::CommandError;
use bloom_api::contexts::RECENT;
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
    /// Have the next run of each context begin a new session
    ///
    /// For a conversation that is full, or whose history is refused. A run that goes on now ends in its session, and the run after it begins
    /// anew. Only the conversation is new: the files of the context stay, with the worktree and the branch of its project.
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
            records::pages(server, "api/runtime/contexts", &query, limit, shown, &columns::CONVERSATIONS).await
        }
        ConversationCommand::Describe { context } => describe::conversation(&context, server, shown).await,
        ConversationCommand::Reset { contexts } => {
            let path = |context: &str| format!("api/runtime/contexts/{}/reset", part(context));
            show::found(shown.form_or(Form::Table), &columns::CONVERSATIONS, server.post_each(&contexts, path).await)
        }
    }
}
