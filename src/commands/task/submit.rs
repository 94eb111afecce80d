//! `task submit`: submits one task, or many from a file. With --wait or --follow it also prints the outcome.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use clap_complete::ArgValueCompleter;
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};
use uuid::Uuid;

use super::answer_index::{self, Ends, Submitted};
use super::fields::{Fields, add_usual};
use super::from_file::{self, Scope};
use super::prompt::PromptArgs;
use super::result::{self, Files, answer};
use super::uploads::{self, FileOfTask, file_of_task};
use super::wait::{SAME_AGAIN, WaitOptions, interruptible, must_be_completed_or_advise};
use super::{follow, id_of, warnings};
use crate::CommandError;
use crate::ids::path;
use crate::local_repository::LocalRepository;
use crate::server_calls::{Server, read, with_query};
use crate::show::{self, Form, Shown};
use crate::{columns, ids, project, quota, shell_completion, start_event, term, when};
use bloom_api::inherited;
use bloom_api::tasks::Task;
use bloom_core::file::{ArtifactKind, FileKind, MAX_OUTPUTS};
use bloom_core::task::Status;

/// How many events of a finished task are searched for the start of its run, besides the first ones.
const NEWEST_EVENTS: usize = 10;

/// How long a hint may be looked for beside the call that submits the task.
const HINT_LIMIT: Duration = Duration::from_secs(1);

/// Submit a task
///
/// Prints the task's id; with --wait only its answer, when it is finished; with --follow the text of
/// the run while it is written. If the server's answer gets lost, the call is repeated; this
/// creates no second task.
///
/// The prompt is the argument, a file, or standard input. If there are two, they are joined: the
/// argument first, standard input last. A pipe from which nothing comes within 3 s is ignored;
/// `< /dev/null` means that there is no input, and --prompt-file - waits without limit.
///
/// With --from, each line of a file is a task: a JSON object with the fields of the API, of which
/// only `prompt` is required. Flags are the defaults for fields that a line does not have. All lines
/// are checked first. They are submitted in batches of at most 1000, each batch completely or not at
/// all, and the ids are printed in the order of the lines. If the quota of the key has no room for a
/// batch, smaller ones are sent, as far as there is room. If you submit the same file again, its
/// lines create no second task, unless --again is set or --idempotency-key is different.
///
/// A line may have a "name", and later lines may depend on it by that name: "depends_on": ["build"].
/// The name exists only in the file. Such a line is sent in a later batch than the line on which it
/// depends.
///
/// With --plain, each line of the file that is not empty is the whole prompt of a task.
///
/// With --from and --wait, the answers are printed as lines of JSON in the order of the lines, or
/// written into files (--out), with an index.jsonl beside them that says which file belongs to which
/// line; the exit status is 1 if one task did not complete, and 3 if one is not finished when
/// --wait-timeout is over.
#[derive(Args, Debug)]
#[command(
    verbatim_doc_comment,
    after_help = "Examples:
  bloom-runtime task submit --wait \"Say hello\"
  bloom-runtime task submit --context docs --agent writer --prompt-file chapter.md --follow
  git diff | bloom-runtime task submit --wait --timeout 10m \"Review this\"
  bloom-runtime task submit --not-before +2h --label batch=7 \"Clean up\"
  bloom-runtime task submit --file plan.md --keep 'out/**' --wait \"Write what plan.md asks for into out\"
  bloom-runtime task submit --like 7c0d9e21 --agent reviewer --model opus --timeout 2h
  bloom-runtime task submit --here --push --follow \"Fix the failing tests\"
  bloom-runtime task submit --from tasks.jsonl --label batch=7
  bloom-runtime task submit --from tasks.jsonl --wait --out answers
  bloom-runtime task submit --from prompts.txt --plain

Lines of tasks.jsonl:
  {\"prompt\": \"Say hello\", \"context_id\": \"demo\", \"priority\": 7, \"labels\": {\"team\": \"a\"}}
  {\"name\": \"build\", \"prompt\": \"Build it\"}
  {\"prompt\": \"Test it\", \"depends_on\": [\"build\"]}"
)]
pub struct Submit {
    #[command(flatten)]
    prompt: PromptArgs,
    /// Submit a task for each line of this JSON Lines file; - is standard input
    #[arg(long, value_name = "FILE", conflicts_with_all = ["prompt", "further_words", "prompt_file", "follow"])]
    from: Option<PathBuf>,
    /// With --from: each line that is not empty is a prompt, not JSON
    #[arg(long)]
    plain: bool,
    #[command(flatten)]
    waits: Waits,
    #[command(flatten)]
    answers: Files,
    /// Submitting again with this key returns the same task [default: a new key per task; with --from derived from the user, the file and
    /// the line's content]
    #[arg(long, value_name = "KEY")]
    idempotency_key: Option<String>,
    /// With --from: submit all lines as new tasks, even if they were submitted before
    #[arg(long, conflicts_with = "idempotency_key")]
    again: bool,
    /// A file that the run gets, by its name in the directory of the run: PATH, or NAME=PATH; may be repeated
    #[arg(long = "file", value_name = "PATH", value_parser = file_of_task)]
    files: Vec<FileOfTask>,
    /// Copy this task: its prompt, its files and all its fields that are not set here, except --not-before and --depends-on. The new task
    /// continues in the same context, unless --context is set
    #[arg(long, value_name = "ID", conflicts_with = "from", add = ArgValueCompleter::new(shell_completion::tasks))]
    like: Option<String>,
    /// Run it on the repository of the current directory: in the project with this repository or one of its remotes, beginning with the
    /// branch that is checked out. --project and --ref override this
    #[arg(long, conflicts_with = "dir")]
    here: bool,
    /// Like --here, but for the repository of this directory
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    #[command(flatten)]
    fields: Fields,
}

/// What to do after a task was submitted.
#[derive(Args, Debug)]
pub(crate) struct Waits {
    /// Wait for the answer and print it; with --from for all of them, printed as `task result` does for several tasks
    #[arg(long)]
    pub wait: bool,
    /// Print the text of the run while it is written; with -o json its events, one per line
    #[arg(long)]
    pub follow: bool,
    /// Wait at most this long, such as 5m or 2h; a number alone is seconds. The task goes on after that
    #[arg(long, value_name = "TIME", value_parser = when::duration, allow_hyphen_values = true)]
    pub wait_timeout: Option<Duration>,
}

impl Waits {
    /// # Errors
    /// There is a time limit of waiting, but nothing is waited for.
    pub(crate) fn check(&self) -> Result<(), CommandError> {
        if self.wait_timeout.is_some() && !self.wait && !self.follow {
            return Err(CommandError::usage("--wait-timeout needs --wait or --follow"));
        }
        Ok(())
    }

    /// Prints the id of the task that was submitted, or its answer or its text when that is there.
    ///
    /// # Errors
    /// The task was waited for, and did not complete.
    pub(crate) async fn finish(&self, task: &Value, server: &Server, shown: Shown) -> Result<(), CommandError> {
        let id = id_of(task)?;
        if !self.wait && !self.follow {
            let printed = match shown.form_or(Form::Name) {
                Form::Name => term::print(&format!("{}\n", term::line(&id))),
                form => show::one(form, &columns::TASKS, task),
            };
            // The error says that the task is submitted. Otherwise, the user would submit it again.
            printed.map_err(|error| CommandError::from(format!("task {id} is submitted and goes on, but {error}")))?;
            if task["status"] == Status::Cancelled.as_str() {
                let why = task["failure"]["message"].as_str().map_or_else(String::new, |why| format!(": {}", term::line(why)));
                term::info(&format!("It is cancelled already, and will not run{why}"));
            } else if term::is_err_terminal() && term::is_out_terminal() {
                term::info(&format!("Follow it with: bloom-runtime task logs -f {id}"));
            }
            return Ok(());
        }
        let mut waiting = WaitOptions::new(self.wait_timeout, true);
        if self.follow {
            return interruptible(&id, follow::to_the_end(server, &id, waiting, shown)).await;
        }
        let task = interruptible(&id, waiting.until_finished(server, &id)).await?;
        let task: Task = read(&task)?;
        tell_other_profile(server, &id, &task).await;
        must_be_completed_or_advise(&task)?;
        answer(server, &id, shown).await?;
        if task.project.is_some() && has_changes(server, &id).await {
            term::info(&format!("What it changed: bloom-runtime task diff {id}, or bloom-runtime task checkout {id}"));
        }
        Ok(())
    }
}

pub(crate) async fn run(mut submit: Submit, server: &Server, shown: Shown) -> Result<(), CommandError> {
    submit.prompt.must_be_one("bloom-runtime task submit")?;
    submit.fields.find_dependencies(server).await?;
    if let Some(dir) = submit.dir.clone().or_else(|| submit.here.then(|| PathBuf::from("."))) {
        submit.fields.of_repository(&LocalRepository::of(&dir).await?, server).await?;
    }
    if !submit.files.is_empty() && submit.from.is_some() {
        return Err(CommandError::usage(
            "--file can't be used with --from: upload the files with the API, and name them in the lines (inputs)",
        ));
    }
    submit.waits.check()?;
    if submit.answers.out.is_some() && (submit.from.is_none() || !submit.waits.wait) {
        return Err(CommandError::usage("--out needs --from and --wait"));
    }
    if let Some(out) = &submit.answers.out {
        answer_index::check(out, submit.answers.force)?;
    }
    if let Some(file) = &submit.from {
        let scope = match submit.idempotency_key.clone() {
            Some(name) => Scope::Named(name),
            None if submit.again => Scope::Again,
            None => Scope::File(file.clone()),
        };
        let is_again = matches!(scope, Scope::Again);
        let form = if submit.waits.wait { None } else { Some(shown.form_or(Form::Name)) };
        let submitted = from_file::submit(server, (file, submit.plain), &submit.fields, scope, form).await?;
        return if submit.waits.wait { answers(&submit, &submitted, is_again, server, shown).await } else { Ok(()) };
    }
    if submit.again {
        return Err(CommandError::usage("--again needs --from: without it, each call submits a new task"));
    }
    if submit.plain {
        return Err(CommandError::usage("--plain needs --from: it says that each line of that file is a prompt"));
    }
    let body = match &submit.like {
        Some(id) => submit.fields.given_beside(like(id, server).await?)?,
        None => submit.fields.given()?,
    };
    // Both run concurrently, so that nobody waits for the hint. A failure of the creation ends both at once, so that it is reported before
    // Ctrl-C can end the command.
    let (task, unseen) = tokio::try_join!(create(body, &submit.prompt, &submit.files, submit.idempotency_key.as_deref(), server), async {
        Ok(unseen_project(&submit, server).await)
    })?;
    if let Some(project) = unseen {
        term::info(&format!("The run does not see this repository, which is the project {project}: --here runs it there."));
    }
    submit.waits.finish(&task, server, shown).await
}

/// The project whose repository the person is in, if the task says nothing of where it runs. It is only for a hint: what fails or takes long
/// is no reason to tell anything.
async fn unseen_project(submit: &Submit, server: &Server) -> Option<String> {
    if submit.here || submit.dir.is_some() || submit.like.is_some() || submit.fields.says_where() {
        return None;
    }
    let found = async { LocalRepository::of(Path::new(".")).await.ok()?.known_as(server).await };
    tokio::time::timeout(HINT_LIMIT, found).await.ok().flatten()
}

/// Whether the task has a diff to show. If that can't be told, it may have one.
async fn has_changes(server: &Server, id: &str) -> bool {
    let query = [("task_id", id.to_owned()), ("kind", ArtifactKind::File.as_str().to_owned())];
    let files = server.list("api/runtime/artifacts", &query, MAX_OUTPUTS + 1).await;
    files.map_or(true, |(files, more)| more || files.iter().any(|file| file["type"] == FileKind::GitDiff.as_str()))
}

/// The fields of a task that asks for the same as this one.
async fn like(id: &str, server: &Server) -> Result<Map<String, Value>, CommandError> {
    let found = ids::task(server, id).await?;
    Ok(inherited::for_the_same(&server.get(&path(&found, "")).await.map_err(|failure| failure.about(id))?))
}

/// `--from` with `--wait`: the answers of all tasks, in the order of the lines.
async fn answers(submit: &Submit, submitted: &[Submitted], is_again: bool, server: &Server, shown: Shown) -> Result<(), CommandError> {
    let mut waiting = WaitOptions::new(submit.waits.wait_timeout, true);
    let how = if is_again { "See it with: bloom-runtime task list" } else { SAME_AGAIN };
    let ids: Vec<String> = submitted.iter().map(|one| one.id.clone()).collect();
    let (tasks, failures) = waiting.for_all(server, &ids, how).await?;
    let finished = tasks.iter().map(id_of).collect::<Result<Vec<_>, _>>()?;
    let (files, mut ends) = (&submit.answers, Ends::new());
    let told = result::several(server, &finished, files, shown, (failures, &mut ends)).await;
    let Some(out) = &files.out else { return told };
    let indexed = answer_index::write(out, files.force, submitted, &mut ends, server).await;
    CommandError::all(&[told, indexed].into_iter().filter_map(Result::err).collect::<Vec<_>>())
}

/// Says so if the task ran by the profile of other agents: the name of its agent may be misspelt, or its account is paused.
async fn tell_other_profile(server: &Server, id: &str, task: &Task<'_>) {
    // The task is finished, so the command does not fail if its events can't be read.
    let Ok((events, _)) = server.page(&with_query(&path(id, "/events"), &[("last", NEWEST_EVENTS.to_string())])).await else { return };
    if let Ok(Some(started)) = start_event::newest(server, id, &events).await
        && let Some(profile) = started.other_profile(&task.agent_slug)
    {
        term::info(&format!("worker {} ran it with the profile {profile}", started.worker));
    }
}

/// Creates a task with these fields, this prompt and these files. Without a prompt or files, those of the fields stay.
///
/// # Errors
/// There is no prompt, a file can't be uploaded, or the task is refused.
pub(crate) async fn create(
    mut body: Map<String, Value>,
    prompt: &PromptArgs,
    files: &[FileOfTask],
    key: Option<&str>,
    server: &Server,
) -> Result<Value, CommandError> {
    add_usual(&mut body);
    if prompt.is_given() || !body.contains_key("prompt") {
        body.insert("prompt".into(), json!(prompt.read().await?));
    }
    if !files.is_empty() {
        body.insert("inputs".into(), json!(uploads::upload(server, files).await?));
    }
    // The same key must always use the same context. With another one, a repetition would be a different task.
    let context = key.map(|key| format!("key-{}", hex::encode(&Sha256::digest(key)[..16])));
    body.entry("context_id").or_insert_with(|| json!(context.unwrap_or_else(|| Uuid::now_v7().to_string())));
    // With a key, the server creates the task only once, even if the call is repeated.
    body.insert("idempotency_key".into(), json!(key.map_or_else(|| Uuid::now_v7().to_string(), str::to_owned)));
    let created = match server.post_surely("api/runtime/llm-tasks", &Value::Object(body)).await {
        Ok(created) => created,
        Err(failure) => return Err(project::with_meant(quota::with_what_to_do(failure, server).await, server).await),
    };
    warnings(&created).for_each(|warning| term::info(&warning));
    Ok(created)
}
