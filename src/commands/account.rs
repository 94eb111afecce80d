//! `account`: shows the accounts and profiles that are paused, and ends the pause of an account.

use clap::Subcommand;
use serde_json::json;

use super::columns;
use super::records::{self, Limit};
use super::server_calls::Server;
use super::show::{self, Form, Shown};
use crate::CommandError;
use bloom_client::part;

#[derive(Debug, Subcommand)]
pub enum AccountCommand {
    /// List accounts and profiles that are paused on at least one worker
    #[command(alias = "ls")]
    List {
        #[command(flatten)]
        limit: Limit,
    },
    /// End the pause of an account on all workers
    ///
    /// Each worker takes tasks for the account again when it next calls the server. If a run shows that the account still does not work,
    /// the worker pauses it again.
    Resume {
        /// The name of the account
        #[arg(value_name = "NAME")]
        name: String,
    },
}

pub(crate) async fn run(command: AccountCommand, server: &Server, shown: Shown) -> Result<(), CommandError> {
    match command {
        AccountCommand::List { limit } => records::pages(server, "api/runtime/accounts", &[], limit, shown, &columns::ACCOUNTS).await,
        AccountCommand::Resume { name } => {
            let changed = server.post(&format!("api/runtime/accounts/{}/resume", part(&name)), &json!({})).await?;
            show::one(shown.form_or(Form::Table), &columns::ACCOUNTS, &changed)
        }
    }
}
