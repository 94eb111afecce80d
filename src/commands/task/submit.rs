//! `task submit`: submits one task, or many from a file. With --wait or --follow it also prints the outcome.

use std::fs::File;
use std::io::{Read, stdin};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};
use uuid::Uuid;

use super::super::connect::{Server, read};
use super::super::show::{self, Form, Shown};
use super::super::{columns, term, when};
use super::fields::Fields;
use super::wait::{WaitOptions, interruptible, must_be_completed};
use super::{answer, follow, from_file, id_of};
use crate::CommandError;

/// Longer than any prompt that a server accepts.
const MAX_PROMPT_BYTES: u64 = 64 * 1024 * 1024;

/// Submit a task
///
/// Prints the task's id; with --wait only its answer, when it is finished; with --follow the text of
/// the run while it is written. The prompt is the argument, a file, or standard input. If the
/// server's answer gets lost, the call is repeated; this creates no second task.
///
/// With --from, each line of a file is a task: a JSON object with the fields of the API, of which
/// only `prompt` is required. Flags are the defaults for fields that a line does not have. All lines
/// are checked first. They are submitted in batches of at most 1000, each batch completely or not at
/// all, and the ids are printed in the order of the lines. Submitting the file again creates no
/// second task for a line, unless --idempotency-key is different.
#[derive(Args, Debug)]
#[command(
    verbatim_doc_comment,
    after_help = "Examples:
  bloom-runtime task submit --wait \"Say hello\"
  bloom-runtime task submit --context docs --agent writer --prompt-file chapter.md --follow
  git diff | bloom-runtime task submit --wait --format json --timeout 10m
  bloom-runtime task submit --not-before +2h --label batch=7 \"Clean up\"
  bloom-runtime task submit --from tasks.jsonl --label batch=7

A line of tasks.jsonl:
  {\"prompt\": \"Say hello\", \"context_id\": \"demo\", \"priority\": 7, \"labels\": {\"team\": \"a\"}}"
)]
pub struct Submit {
    /// The prompt; - or no prompt: standard input
    #[arg(value_name = "PROMPT", conflicts_with_all = ["prompt_file", "from"])]
    prompt: Option<String>,
    /// Take the prompt from this file
    #[arg(long, value_name = "FILE", conflicts_with = "from")]
    prompt_file: Option<PathBuf>,
    /// Submit a task for each line of this JSON Lines file; - is standard input
    #[arg(long, value_name = "FILE", conflicts_with_all = ["wait", "follow"])]
    from: Option<PathBuf>,
    /// Wait for the answer and print it
    #[arg(long)]
    wait: bool,
    /// Print the text of the run while it is written; with -o json its events, one per line
    #[arg(long)]
    follow: bool,
    /// Wait at most this long: 90, 5m, 2h; the task goes on
    #[arg(long, value_name = "TIME", value_parser = when::duration, conflicts_with = "from")]
    wait_timeout: Option<Duration>,
    /// Submitting again with this key returns the same task [default: a new key per task; with --from derived from the line's content]
    #[arg(long, value_name = "KEY")]
    idempotency_key: Option<String>,
    #[command(flatten)]
    fields: Fields,
}

pub async fn run(mut submit: Submit, server: &Server, shown: Shown) -> Result<(), CommandError> {
    submit.fields.find_dependencies(server).await?;
    if let Some(file) = &submit.from {
        let text = if file == Path::new("-") { from_file::read("standard input", stdin().lock())? } else { from_file::open(file)? };
        return from_file::submit(server, &text, &submit.fields, submit.idempotency_key.as_deref(), shown).await;
    }
    let is_waiting = submit.wait || submit.follow;
    if submit.wait_timeout.is_some() && !is_waiting {
        return Err(CommandError::usage("--wait-timeout needs --wait or --follow"));
    }
    let task = create(&submit, server).await?;
    let id = id_of(&task)?;
    if !is_waiting {
        match shown.form_or(Form::Name) {
            Form::Name => term::print(&format!("{}\n", term::line(&id)))?,
            form => show::one(form, &columns::TASKS, &task)?,
        }
        if term::is_err_terminal() && term::is_out_terminal() {
            term::note(&format!("Follow it with: bloom-runtime task logs -f {id}"));
        }
        return Ok(());
    }
    let mut waiting = WaitOptions::new(submit.wait_timeout, true);
    if submit.follow {
        return interruptible(&id, follow::to_the_end(server, &id, waiting, shown)).await;
    }
    let task = interruptible(&id, waiting.until_finished(server, &id)).await?;
    must_be_completed(&read(&task)?)?;
    answer(server, &id, shown).await
}

async fn create(submit: &Submit, server: &Server) -> Result<Value, CommandError> {
    let mut body = submit.fields.given();
    body.insert("prompt".into(), json!(prompt(submit)?));
    body.entry("context_id").or_insert_with(|| json!(Uuid::now_v7()));
    // With a key, the server creates the task only once, even if the call is repeated.
    let key = submit.idempotency_key.clone().unwrap_or_else(|| Uuid::now_v7().to_string());
    body.insert("idempotency_key".into(), json!(key));
    server.post_surely("api/runtime/llm-tasks", &Value::Object(body)).await
}

fn prompt(submit: &Submit) -> Result<String, CommandError> {
    let text = match (&submit.prompt, &submit.prompt_file) {
        (Some(prompt), _) if prompt != "-" => prompt.clone(),
        (None, Some(file)) if file != Path::new("-") => {
            let name = file.display().to_string();
            let open = File::open(file).map_err(|error| CommandError::usage(format!("{name} can't be opened: {error}")))?;
            read_prompt(&name, open)?
        }
        (None, None) if term::is_in_terminal() => {
            return Err(CommandError::usage("there is no prompt: give it as an argument, with --prompt-file, or on standard input"));
        }
        _ => read_prompt("standard input", stdin().lock())?,
    };
    if text.is_empty() { Err(CommandError::usage("the prompt is empty")) } else { Ok(text) }
}

fn read_prompt(name: &str, source: impl Read) -> Result<String, CommandError> {
    let mut text = String::new();
    let read = source.take(MAX_PROMPT_BYTES + 1).read_to_string(&mut text);
    match read.map_err(|error| CommandError::usage(format!("{name} can't be read as UTF-8 text: {error}")))? as u64 {
        0..=MAX_PROMPT_BYTES => Ok(text),
        _ => Err(CommandError::usage(format!("{name} is longer than {MAX_PROMPT_BYTES} bytes, which no server accepts"))),
    }
}
