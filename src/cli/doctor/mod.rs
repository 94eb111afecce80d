//! `doctor`: looks at everything that a server needs, and says what is fine and what to do about the rest.

mod backups;
mod database;
mod objects;
mod server;

use std::path::PathBuf;

use serde_json::json;

use super::Output;
use bloom_commands::{CommandError, term};
use bloom_config::{self as config, Flags, Report};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Fine,
    /// It works, but somebody should look at it.
    Warning,
    /// The server can't do its work.
    Wrong,
}

impl State {
    fn as_str(self) -> &'static str {
        match self {
            Self::Fine => "fine",
            Self::Warning => "warning",
            Self::Wrong => "wrong",
        }
    }
}

/// A result about one subject. If it is not fine, the text says what to do.
struct Finding {
    subject: &'static str,
    state: State,
    text: String,
}

impl Finding {
    fn new(subject: &'static str, state: State, text: impl Into<String>) -> Self {
        Self { subject, state, text: text.into() }
    }
}

/// `authority`: a file with authorities to trust in addition to those of the operating system. `strict`: fail also if there are only
/// warnings.
pub async fn run(flags: &Flags, authority: Option<PathBuf>, strict: bool, output: Output) -> Result<(), CommandError> {
    let report = config::load(flags);
    let mut findings = of_settings(&report);
    if let Ok(settings) = report.into_serve() {
        let (of_database, database_id) = database::look(&settings).await;
        findings.extend(of_database);
        findings.extend(backups::look(&settings).await);
        findings.extend(objects::look(&settings, database_id.as_deref()).await);
        findings.extend(server::look(&settings, authority.as_deref()).await);
    }
    match output {
        Output::Json => {
            let all = findings.iter().map(|one| json!({ "subject": one.subject, "state": one.state.as_str(), "text": one.text }));
            term::print(&format!("{:#}\n", serde_json::Value::from_iter(all)))?;
        }
        Output::Text => {
            for Finding { subject, state, text } in &findings {
                // Text that others have written, such as the name of a worker, must not control the terminal.
                term::print(&format!("{:8} {subject:14} {}\n", state.as_str(), term::line(text)))?;
            }
        }
    }
    let count = |state| findings.iter().filter(|one| one.state == state).count();
    match (count(State::Wrong), count(State::Warning)) {
        (0, 0) => Ok(()),
        (0, warnings) if strict => Err(format!("{warnings} of {} findings are warnings", findings.len()).into()),
        (0, _) => Ok(()),
        (wrong, _) => Err(format!("the server can't do its work: {wrong} of {} findings are wrong", findings.len()).into()),
    }
}

fn of_settings(report: &Report) -> Vec<Finding> {
    let finding = |state, text: String| Finding::new("settings", state, text);
    let mistakes = report.mistakes.iter().map(|mistake| finding(State::Wrong, mistake.to_string()));
    let warnings = report.warnings.iter().map(|warning| finding(State::Warning, warning.clone()));
    let found: Vec<Finding> = mistakes.chain(warnings).collect();
    if found.is_empty() { vec![finding(State::Fine, "they can be used; bloom-runtime config check shows them".into())] } else { found }
}
