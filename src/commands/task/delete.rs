//! `task delete`: removes finished tasks.

use clap::Args;
use clap_complete::ArgValueCompleter;

use super::super::confirm::confirm;
use super::super::connect::Server;
use super::super::ids::path;
use super::super::{ids, shell_completion, term};
use super::bulk::tasks;
use crate::CommandError;

#[derive(Args, Debug)]
pub struct DeleteArgs {
    /// Ids of finished tasks
    #[arg(required = true, value_name = "ID", add = ArgValueCompleter::new(shell_completion::tasks))]
    ids: Vec<String>,
    /// Do not ask
    #[arg(short, long)]
    yes: bool,
}

/// # Errors
/// A task could not be deleted; the others are.
pub async fn run(args: DeleteArgs, server: &Server) -> Result<(), CommandError> {
    let ids = ids::tasks(server, &args.ids).await?;
    if !args.yes && !confirm("delete", &tasks(ids.len() as i64)).await? {
        term::info("Nothing was changed.");
        return Ok(());
    }
    server.delete_each(&ids, |id| path(id, ""), |id| format!("task {id} is deleted")).await
}
