//! `task reply`: a new task that goes on with the conversation of another one.

use clap::Args;
use clap_complete::ArgValueCompleter;
use serde_json::Map;

use super::fields::{Limits, fill};
use super::prompt::PromptArgs;
use super::submit::{Waits, create};
use super::uploads::{FileOfTask, file_of_task};
use crate::CommandError;
use crate::ids::path;
use crate::server_calls::{Server, read};
use crate::show::Shown;
use crate::{ids, shell_completion};
use bloom_api::inherited;
use bloom_api::tasks::Task;
use bloom_core::task::{Session, WaitingReason};

#[derive(Args, Debug)]
pub struct ReplyArgs {
    /// The task to reply to
    #[arg(value_name = "ID", add = ArgValueCompleter::new(shell_completion::tasks))]
    id: String,
    #[command(flatten)]
    prompt: PromptArgs,
    #[command(flatten)]
    waits: Waits,
    /// A file that the run gets, by its name in the directory of the run: PATH, or NAME=PATH; may be repeated
    #[arg(long = "file", value_name = "PATH", value_parser = file_of_task)]
    files: Vec<FileOfTask>,
    #[command(flatten)]
    limits: Limits,
}

/// # Errors
/// There is no such task or no prompt, or the new task is refused; or it was waited for, and did not complete.
pub(crate) async fn run(args: ReplyArgs, server: &Server, shown: Shown) -> Result<(), CommandError> {
    args.prompt.must_be_one(&format!("bloom-runtime task reply {}", args.id))?;
    args.waits.check()?;
    let id = ids::task(server, &args.id).await?;
    let first = server.get(&path(&id, "")).await.map_err(|failure| failure.about(&args.id))?;
    let task = read::<Task>(&first)?;
    if task.waiting.is_some_and(|waiting| waiting.reason == WaitingReason::NeedsHuman) {
        let short = ids::short(&task.id);
        return Err(CommandError::usage(format!(
            "its run asks a person, and waits for the answer, not for a new task: bloom-runtime task describe {short} shows what it asks, and how \
             to answer"
        )));
    }
    if task.session == Session::None {
        return Err(CommandError::usage(format!("{id} runs on its own (--session none), so it has no conversation that could go on")));
    }
    let mut body = Map::from_iter([("policy".to_owned(), args.limits.policy())]);
    fill(&mut body, &inherited::for_reply(&first));
    let task = create(body, &args.prompt, &args.files, None, server).await?;
    args.waits.finish(&task, server, shown).await
}
