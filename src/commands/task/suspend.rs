//! `task suspend` and `task resume`.

use clap::Args;
use clap_complete::ArgValueCompleter;
use serde_json::Value;

use super::super::connect::{Server, read};
use super::super::ids::path;
use super::super::show::{self, Shown};
use super::super::{columns, ids, shell_completion, term};
use crate::CommandError;
use bloom_api::tasks::Task;
use bloom_core::task::Status;

#[derive(Args, Debug)]
pub struct SuspendArgs {
    /// Ids of tasks
    #[arg(required = true, value_name = "ID", add = ArgValueCompleter::new(shell_completion::tasks))]
    ids: Vec<String>,
}

/// Suspends or resumes each of the tasks.
///
/// # Errors
/// One of them could not be; the others are.
pub async fn run(suspend: bool, args: SuspendArgs, server: &Server, shown: Shown) -> Result<(), CommandError> {
    let verb = if suspend { "suspend" } else { "resume" };
    let ids = ids::tasks(server, &args.ids).await?;
    let (tasks, all) = server.post_each(&ids, |id| path(id, &format!("/{verb}"))).await;
    match shown.form() {
        Some(_) if tasks.is_empty() => {}
        Some(form) => show::some(form, &columns::TASKS, &tasks)?,
        None => tasks.iter().try_for_each(tell)?,
    }
    all
}

fn tell(task: &Value) -> Result<(), CommandError> {
    let task: Task = read(task)?;
    let state = match (task.suspend, task.status == Status::Queued) {
        (true, true) => "suspended",
        (true, false) => "still running; it is suspended if it is queued again",
        (false, _) => "resumed",
    };
    term::info(&format!("task {}: {state}", task.id));
    Ok(())
}
