//! Logs go to standard error, as text or as one JSON object per line.

use std::io::{IsTerminal, stderr};

use tracing_subscriber::EnvFilter;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    Text,
    Json,
}

/// Libraries whose debug levels log network traffic, which may contain secrets, instead of events of tasks.
const CHATTY: &str = "hyper=info,hyper_util=info,h2=info,reqwest=info,rustls=info,sqlx=info,tower=info";

/// The driver of PostgreSQL logs parameters of the URL that it does not know, with their values, which may be passwords.
const SECRET: &str = "sqlx_postgres::options=off";

/// Starts logging for the process. `level` is one level, or levels by target (`info,sqlx=warn`).
///
/// # Errors
/// `level` is not understood, or logging was started before. The text is for users.
pub fn init_logging(format: LogFormat, level: &str) -> Result<(), String> {
    let log = tracing_subscriber::fmt()
        .with_writer(stderr)
        .with_ansi(stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none())
        .with_env_filter(filter(level)?);
    let started = match format {
        LogFormat::Text => log.with_target(false).try_init(),
        LogFormat::Json => log.json().flatten_event(true).with_current_span(true).with_span_list(false).try_init(),
    };
    started.map_err(|error| format!("logging can't start: {error}"))
}

fn filter(level: &str) -> Result<EnvFilter, String> {
    let fine = level.split(',').any(|part| matches!(part.trim().to_lowercase().as_str(), "debug" | "trace"));
    let directives = if fine { format!("{CHATTY},{level}") } else { level.to_owned() };
    let directives = format!("{directives},{SECRET}");
    EnvFilter::try_new(directives).map_err(|error| format!("log level {level:?} is not understood: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fine_levels_leave_the_libraries_out_unless_they_are_named() {
        let shown = |level| filter(level).map(|filter| filter.to_string()).unwrap_or_default();
        assert!(shown("info").contains("info") && !shown("info").contains("hyper"));
        assert!(shown("trace,sqlx=trace").contains("sqlx_postgres::options=off"));
        assert!(shown("debug").contains("hyper=info"));
        assert!(shown("debug,hyper=trace").contains("hyper=trace"));
    }
}
