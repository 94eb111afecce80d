//! `task suspend` and `task resume`.

use serde_json::{Value, json};

use super::selection::{Act, Changed};
use crate::CommandError;
use crate::ids::path;
use crate::server_calls::{Server, read};
use crate::show::{self, Shown};
use crate::{columns, term};
use bloom_api::tasks::Task;
use bloom_core::task::Status;

const OPEN: &[Status] = &[Status::Queued, Status::Leased, Status::Running];
const SUSPEND: Act = Act { verb: "suspend", done: "suspended", statuses: OPEN, fits: |task| !task.suspend, usual: "queued" };
const RESUME: Act = Act { verb: "resume", done: "resumed", statuses: OPEN, fits: |task| task.suspend, usual: "queued" };

/// Suspends or resumes each of the tasks.
///
/// # Errors
/// A task could not be suspended or resumed. The others were.
pub(crate) async fn run(suspend: bool, args: Changed, server: &Server, shown: Shown) -> Result<(), CommandError> {
    let act = if suspend { &SUSPEND } else { &RESUME };
    let Some(chosen) = args.chosen(act, false, server).await? else { return Ok(()) };
    let tail = format!("/{}", act.verb);
    let call = |id| {
        let path = path(id, &tail);
        async move { server.post(&path, &json!({})).await }
    };
    let (tasks, all) = chosen.change(act, call).await?;
    match shown.form() {
        Some(_) if tasks.is_empty() => {}
        Some(form) => show::some(form, &columns::TASKS, &tasks)?,
        None if chosen.is_by_filter => {}
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
