//! `task edit`: changes queued tasks.

use std::collections::BTreeMap;

use clap::Args;
use clap_complete::ArgValueCandidates;

use super::fields::{OtherLimits, named_twice};
use super::filters::label;
use super::selection::{Act, Changed};
use crate::CommandError;
use crate::ids::path;
use crate::number::within;
use crate::server_calls::Server;
use crate::show::{self, Form, Shown};
use crate::{columns, shell_completion, when};
use bloom_api::edit::EditTask;
use bloom_core::Ms;
use bloom_core::task::Status;

const EDIT: Act = Act { verb: "edit", done: "edited", statuses: &[Status::Queued], fits: |_| true, usual: "queued" };

/// `--label` is the new label here, so that the filter by label is only `-l`.
#[derive(Args, Debug)]
#[command(mut_arg("labels", |arg| arg.long(None)))]
pub struct EditArgs {
    /// Their new priority, 0 to 9; 9 is the most urgent
    #[arg(long, value_name = "N", value_parser = within(0..=9_u8), help_heading = "Changes")]
    priority: Option<u8>,
    /// Do not run them before this time: +10m from now, 2026-02-25T10:00:00Z, milliseconds since the epoch; or now: run them at once
    #[arg(long, value_name = "WHEN", value_parser = start, allow_hyphen_values = true, help_heading = "Changes")]
    not_before: Option<Start>,
    #[command(flatten)]
    limits: OtherLimits,
    /// Add or change a label; may be repeated
    #[arg(long = "label", value_name = "NAME=VALUE", value_parser = label, add = ArgValueCandidates::new(shell_completion::labels), help_heading = "Changes")]
    new_labels: Vec<(String, String)>,
    /// Remove a label; may be repeated
    #[arg(long = "remove-label", value_name = "NAME", help_heading = "Changes")]
    removed_labels: Vec<String>,
    #[command(flatten)]
    changed: Changed,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Start {
    Now,
    At(Ms),
}

/// # Errors
/// The text is no time; the error says what is expected.
fn start(text: &str) -> Result<Start, String> {
    if text == "now" { Ok(Start::Now) } else { when::future(text).map(Start::At).map_err(|wrong| format!("{wrong}, or now")) }
}

impl EditArgs {
    fn body(&self) -> Result<EditTask, CommandError> {
        let mut labels: BTreeMap<String, Option<String>> = BTreeMap::new();
        let removed = self.removed_labels.iter().map(|name| (name.clone(), None));
        for (name, value) in self.new_labels.iter().map(|(name, value)| (name.clone(), Some(value.clone()))).chain(removed) {
            if labels.insert(name.clone(), value).is_some() {
                return Err(named_twice(&name));
            }
        }
        let edit = EditTask {
            priority: self.priority.map(i64::from),
            not_before: self.not_before.map(|start| if let Start::At(at) = start { Some(at) } else { None }),
            policy: self.limits.change(),
            labels,
        };
        if edit == EditTask::default() {
            return Err(CommandError::usage(
                "nothing to edit: give at least one of --priority, --not-before, --timeout, --budget, --label, --remove-label",
            ));
        }
        Ok(edit)
    }
}

/// # Errors
/// A task could not be edited; the others are.
pub(crate) async fn run(args: EditArgs, server: &Server, shown: Shown) -> Result<(), CommandError> {
    let body = &args.body()?;
    let Some(chosen) = args.changed.chosen(&EDIT, false, server).await? else { return Ok(()) };
    let call = |id| async move { server.patch(&path(id, ""), body).await };
    let (tasks, all) = chosen.change(&EDIT, call).await?;
    if !tasks.is_empty() {
        show::some(shown.form_or(Form::Table), &columns::EDITED, &tasks)?;
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use serde_json::json;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        edit: EditArgs,
    }

    #[test]
    fn flags_become_an_edit() {
        let body = |flags: &[&str]| {
            let line = Line::try_parse_from([&["x", "id"], flags].concat()).map_err(|error| error.to_string())?;
            line.edit.body().map(|body| serde_json::to_value(body).unwrap()).map_err(|failure| failure.to_string())
        };
        let flags =
            ["--priority", "9", "--not-before", "now", "--timeout", "2h", "--budget", "none", "--label", "a=b=c", "--remove-label", "d"];
        assert_eq!(
            body(&flags),
            Ok(
                json!({ "priority": 9, "not_before": null, "policy": { "timeout_sec": 7200, "budget": 0.0 }, "labels": { "a": "b=c", "d": null } })
            )
        );
        assert_eq!(body(&["--not-before", "1772013600000"]), Ok(json!({ "not_before": 1_772_013_600_000_i64 })));
        assert!(body(&[]).unwrap_err().contains("--remove-label"));
        assert!(body(&["--label", "a=b", "--remove-label", "a"]).unwrap_err().contains("named twice"));
        assert!(body(&["--not-before", "soon"]).unwrap_err().contains("or now"));
        assert!(body(&["--priority", "10"]).is_err());
    }
}
