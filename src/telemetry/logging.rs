//! Logs go to standard error or to a file, as text or as one JSON object per line.

use std::fs::File;
use std::io::{self, IsTerminal, Write, stderr};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::RwLock;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, Registry, reload};

use super::line_queue::{Flush, LineQueue};

/// The format of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// For people: a line of text for each event.
    Text,
    /// For programs: one JSON object per event and line.
    Json,
}

/// Libraries whose debug levels log network traffic instead of events of tasks. The traffic may contain secrets.
const CHATTY: &str = "hyper=info,hyper_util=info,h2=info,reqwest=info,sqlx=info,tower=info";

/// rustls logs warnings that any client can cause with a handshake, and that name no address.
const NOISY: &str = "rustls=error";

/// The database driver logs every failed connection. The server logs the outage once, with its reason.
const REPEATED: &str = "sqlx_core::pool=off";

/// The PostgreSQL driver logs unknown parameters of the URL with their values, which may be passwords.
const SECRET: &str = "sqlx_postgres::options=off";

/// Users in the group of a service may read its log. Others may not, because it contains addresses of clients.
const MODE: u32 = 0o640;

/// How a process logs.
#[derive(Clone, Debug)]
pub struct LogSettings {
    /// The format of the lines.
    pub format: LogFormat,
    /// One level, or levels by target (`info,sqlx=warn`).
    pub level: String,
    /// The log file; `None`: standard error.
    pub file: Option<PathBuf>,
}

/// The log of the process. Its file and level can be changed while the process runs.
pub struct Log {
    file: Option<(PathBuf, OpenFile)>,
    level: reload::Handle<EnvFilter, Registry>,
}

type OpenFile = Arc<RwLock<Arc<File>>>;

/// Where the lines go.
enum Target {
    Stderr,
    File(OpenFile),
}

impl Write for Target {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        match self {
            Self::Stderr => stderr().write(line),
            Self::File(file) => {
                // The lock is not held during the write, so the file may be reopened meanwhile.
                let file = Arc::clone(&file.read());
                (&*file).write(line)
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Log {
    /// Starts the log of the process. A thread of its own writes the lines.
    ///
    /// # Errors
    /// The level is invalid, the file can't be opened, or logging was started before. The text is for users.
    pub fn start(settings: &LogSettings) -> Result<(Self, Flush), String> {
        let filter = filter(&settings.level)?;
        let file = match &settings.file {
            Some(path) => Some((path.clone(), Arc::new(RwLock::new(Arc::new(open(path)?))))),
            None => None,
        };
        let target = file.as_ref().map_or(Target::Stderr, |(_, file)| Target::File(file.clone()));
        let queue = LineQueue::start(target).map_err(|error| format!("logging can't start: {error}"))?;
        let writer = move || queue.clone();
        let has_colors = settings.file.is_none() && stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
        let lines = tracing_subscriber::fmt::layer().with_writer(writer).with_ansi(has_colors);
        let lines = match settings.format {
            LogFormat::Text => lines.with_target(false).boxed(),
            LogFormat::Json => lines.json().flatten_event(true).with_current_span(true).with_span_list(false).boxed(),
        };
        let (filter, level) = reload::Layer::new(filter);
        let started = tracing_subscriber::registry().with(filter).with(lines).try_init();
        started.map_err(|error| format!("logging can't start: {error}"))?;
        Ok((Self { file, level }, Flush::at_the_end()))
    }

    /// Reopens the log file after it was renamed. Otherwise the log would continue in the renamed file.
    ///
    /// # Errors
    /// The file can't be opened. The log then continues in the open file.
    pub fn reopen(&self) -> Result<(), String> {
        let Some((path, file)) = &self.file else {
            tracing::info!("reloaded: there is no log file to open anew");
            return Ok(());
        };
        *file.write() = Arc::new(open(path)?);
        tracing::info!("reloaded: the log file was opened anew");
        Ok(())
    }

    /// # Errors
    /// The level is invalid.
    pub fn set_level(&self, level: &str) -> Result<(), String> {
        self.level.reload(filter(level)?).map_err(|error| format!("the log level can't be changed: {error}"))
    }
}

fn open(path: &Path) -> Result<File, String> {
    if path.metadata().is_ok_and(|found| found.file_type().is_fifo()) {
        // Opening a pipe would wait for a reader, perhaps for ever.
        return Err(format!("the log file {} is a pipe: name a regular file with --log-file or LOG_FILE", path.display()));
    }
    let opened = File::options().append(true).create(true).mode(MODE).open(path);
    opened.map_err(|error| format!("the log file {} can't be opened: {error}; correct --log-file or LOG_FILE", path.display()))
}

fn filter(level: &str) -> Result<EnvFilter, String> {
    let fine = level.split(',').any(|part| matches!(part.trim().to_lowercase().as_str(), "debug" | "trace"));
    let libraries = match level {
        _ if fine => CHATTY,
        _ if level.contains("sqlx") => NOISY,
        _ => REPEATED,
    };
    let directives = format!("{NOISY},{libraries},{level},{SECRET}");
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
        assert!(shown("warn").contains(REPEATED) && !shown("info,sqlx=warn").contains(REPEATED) && !shown("debug").contains(REPEATED));
        assert!(shown("debug,hyper=trace").contains("hyper=trace"));
        assert!(shown("info").contains("rustls=error") && shown("debug,rustls=debug").contains("rustls=debug"));
    }
}
