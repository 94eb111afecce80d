//! `task result`: the answer of a task, or of several as lines of JSON or as files.

use std::path::PathBuf;
use std::pin::pin;

use clap::Args;
use futures_util::StreamExt;
use serde::Serialize;

use super::answer_index::{End, Ends};
use super::directory::Directory;
use super::selection::{Act, Selection};
use super::wait;
use crate::CommandError;
use crate::ids::path;
use crate::interrupt::or_interrupted;
use crate::progress::tasks;
use crate::server_calls::{Server, read};
use crate::show::{self, Form, Shown};
use crate::{columns, for_each, term};
use bloom_api::results::TaskResult;
use bloom_api::tasks::Task;
use bloom_core::task::{Outcome, Status};

const RESULT: Act = Act::reading("result", "completed");

#[derive(Args, Debug)]
pub struct ResultArgs {
    #[command(flatten)]
    files: Files,
    #[command(flatten)]
    selection: Selection,
}

/// Where several answers go.
#[derive(Args, Debug)]
pub(crate) struct Files {
    /// Write each answer into a file of this directory, named by the whole id of its task; nothing is overwritten. With submit --from,
    /// index.jsonl beside them says which file belongs to which line
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// With --out: replace files that exist
    #[arg(long, requires = "out")]
    pub force: bool,
}

/// # Errors
/// A task is not completed, or its answer can't be read or written; the others are.
pub(crate) async fn run(args: ResultArgs, server: &Server, shown: Shown) -> Result<(), CommandError> {
    let chosen = args.selection.find_all(&RESULT, server).await?;
    if let ([id], true, None) = (chosen.ids.as_slice(), chosen.is_one, &args.files.out) {
        return answer(server, id, shown).await;
    }
    let told = || "interrupted; the tasks go on. Give the same command again to see all their answers.".to_owned();
    or_interrupted(several(server, &chosen.ids, &args.files, shown, (chosen.failures, &mut Ends::new())), told).await
}

/// An answer among several.
#[derive(Serialize)]
struct Line {
    id: String,
    status: String,
    /// None if there is no answer, or not yet.
    output: Option<String>,
    /// Why the task is not completed.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    /// What the run could not do, such as tools that were denied.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
    #[serde(skip)]
    is_json: bool,
    #[serde(skip)]
    failure: Option<CommandError>,
}

/// Prints a line of JSON for each task, in this order, or writes its answer into a file, prints the path of that, and adds it to these ends.
///
/// # Errors
/// These failures, tasks that are not completed, and answers that can't be read or written.
pub(crate) async fn several(
    server: &Server,
    ids: &[String],
    files: &Files,
    shown: Shown,
    (mut failures, ends): (Vec<CommandError>, &mut Ends),
) -> Result<(), CommandError> {
    let directory = files.out.as_deref().map(Directory::open).transpose()?;
    let form = shown.form().filter(|form| form.is_data());
    let (mut all, mut warned) = (Vec::new(), 0);
    let mut lines = pin!(for_each::outcomes(ids, |id| line(server, id)));
    while let Some(line) = lines.next().await {
        let mut line = match line {
            Ok(line) => line,
            Err(failure) => {
                failures.push(failure);
                continue;
            }
        };
        failures.extend(line.failure.take());
        warned += i64::from(!line.warnings.is_empty());
        match (&directory, form) {
            (Some(directory), _) => {
                let written = write(directory, &line, files.force);
                let file = line.file().filter(|_| written.is_ok());
                ends.insert(line.id.clone(), End { status: line.status.clone(), file, warnings: line.warnings.clone() });
                failures.extend(written.err().map(|failure| failure.about(&line.id)));
            }
            (None, None) => {
                let line = serde_json::to_value(&line).map_err(|error| error.to_string())?;
                show::one_of_many(Form::Jsonl, &line)?;
            }
            (None, Some(_)) => all.push(line),
        }
    }
    if let (None, Some(form)) = (&directory, form) {
        show::as_it_came(form, &all)?;
    }
    if warned > 0 {
        let several = if warned == 1 { "has" } else { "have" };
        term::info(&format!("Warning: {} {several} warnings; bloom-runtime task result ID tells them", tasks(warned)));
    }
    CommandError::all(&failures)
}

impl Line {
    /// The name of the file with the answer, if there is one.
    fn file(&self) -> Option<String> {
        self.output.as_ref().map(|_| format!("{}.{}", self.id, if self.is_json { "json" } else { "txt" }))
    }
}

fn write(directory: &Directory, line: &Line, force: bool) -> Result<(), CommandError> {
    let (Some(output), Some(name)) = (&line.output, line.file()) else { return Ok(()) };
    directory.store(&name, output, force)?;
    term::print_foreign(&format!("{}\n", directory.shown(&name)))
}

async fn line(server: &Server, id: &str) -> Result<Line, CommandError> {
    let about = |failure: CommandError| failure.about(id);
    let answer = server.get(&path(id, "")).await.map_err(about)?;
    let task: Task = read(&answer)?;
    let failure = wait::must_be_over(&task).and_then(|()| wait::must_be_completed(&task)).err();
    let (mut output, mut warnings) = (None, Vec::new());
    if failure.is_none() {
        let answer = server.get(&path(id, "/result")).await.map_err(about)?;
        let result: TaskResult = read(&answer)?;
        output = result.output.map(|output| output.to_string());
        warnings = result.warnings.to_vec();
    }
    Ok(Line {
        id: id.to_owned(),
        status: task.status.to_string(),
        output,
        warnings,
        error: failure.as_ref().and(task.failure.as_ref()).map(columns::failure),
        is_json: task.desired_format.to_string() == "json",
        failure,
    })
}

/// Prints the task's newest result: only the answer, unless -o is given.
///
/// # Errors
/// The task is not finished, has no result, or its newest run failed.
pub(crate) async fn answer(server: &Server, id: &str, shown: Shown) -> Result<(), CommandError> {
    let task = server.get(&path(id, "")).await.map_err(|failure| failure.about(id))?;
    wait::must_be_over(&read(&task)?)?;
    let end = wait::must_be_completed_or_advise(&read(&task)?);
    let answer = server.get(&path(id, "/result")).await.map_err(|failure| match &end {
        Err(end) => CommandError { message: format!("{}: {end}", failure.message), ..failure },
        Ok(()) => failure.about(id),
    })?;
    let result: TaskResult = read(&answer)?;
    match shown.form() {
        Some(form) if form.is_data() => show::as_it_came(form, &answer)?,
        _ => {
            print_answer(result.output.as_deref().unwrap_or_default())?;
            let branch = columns::branch(&result);
            if !branch.is_empty() {
                term::info(&format!("Its branch: {}", term::line(&branch)));
            }
            for warning in &*result.warnings {
                term::info(&format!("Warning: {}", term::line(warning)));
            }
        }
    }
    if result.status == Outcome::Success {
        return Ok(());
    }
    if read::<Task>(&task)?.status == Status::Cancelled {
        return end;
    }
    let why = term::indented(result.error_message.as_deref().unwrap_or("it gave no reason"));
    Err(format!("the run of {id} on {} failed: {why}", result.worker_id).into())
}

/// Adds a line break at the end if the output has none.
fn print_answer(output: &str) -> Result<(), CommandError> {
    let end = if output.is_empty() || output.ends_with('\n') { "" } else { "\n" };
    term::print_foreign(&format!("{output}{end}"))
}
