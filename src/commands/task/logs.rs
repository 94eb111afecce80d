//! `task logs`, for one task or several.

use futures_util::future::join_all;
use serde_json::Value;

use super::LogsArgs;
use super::follow::{Log, logs};
use super::selection::Act;
use crate::CommandError;
use crate::ids::short;
use crate::interrupt::or_interrupted;
use crate::server_calls::Server;
use crate::show::{self, Form};

const LOGS: Act = Act::reading("logs", "running");
/// The maximum number of tasks that are followed. Each needs a connection.
const MAX_FOLLOWED: usize = 20;

/// # Errors
/// A task does not exist, or its events can't be read. The events of the others are printed.
pub(crate) async fn run(args: LogsArgs, server: &Server, form: Form) -> Result<(), CommandError> {
    let LogsArgs { events, selection } = args;
    let chosen = selection.find_all(&LOGS, server).await?;
    if let ([id], true) = (chosen.ids.as_slice(), chosen.is_one) {
        return logs(id, &events, server, form).await;
    }
    if events.follow && chosen.ids.len() > MAX_FOLLOWED {
        let count = chosen.ids.len();
        return Err(CommandError::usage(format!(
            "--follow follows at most {MAX_FOLLOWED} tasks at a time, but there are {count}: choose fewer"
        )));
    }
    let mut failures = chosen.failures;
    let log = |id: &str| Log::of(id.parse().map(|id| short(&id)).unwrap_or_default(), &events, form);
    if events.follow {
        let all = join_all(chosen.ids.iter().map(|id| async { log(id).follow(id, server).await }));
        let done = or_interrupted(async { Ok(all.await) }, || "interrupted; the tasks go on".to_owned()).await?;
        failures.extend(done.into_iter().filter_map(Result::err));
        return CommandError::all(&failures);
    }
    // In formats for programs, the events of all tasks form one array.
    let mut all: Vec<Value> = Vec::new();
    for id in &chosen.ids {
        match log(id).print(id, server).await {
            Ok(events) => all.extend(events),
            Err(failure) => failures.push(failure),
        }
    }
    if form.is_data() {
        show::as_it_came(form, &all)?;
    }
    CommandError::all(&failures)
}
