//! Errors of the database, as far as callers distinguish them.

use crate::outage::OutageReason;

/// Why a call of the database failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Another transaction was first (unique violation, deadlock, serialization failure). The batch must be loaded and decided again.
    #[error("conflict with another transaction: {0}")]
    Conflict(String),
    /// Another transaction keeps rows locked that this one needs.
    #[error("locked by another transaction: {0}")]
    Locked(String),
    /// The leadership that the batch requires has ended; nothing was written.
    #[error("this replica is no longer the leader")]
    NotLeader,
    /// The connection was lost at COMMIT. [`Writer::resolve_commit`](bloom_database::Writer::resolve_commit) finds out the outcome.
    #[error("the connection was lost during the commit: {0}")]
    CommitUnknown(String),
    /// The database can't be reached or can't serve for now.
    #[error("the database is not available: {1}")]
    Unavailable(OutageReason, String),
    /// The disk is full or fails for now. After a failed commit, a part of it may have been written.
    #[error("the database's disk is full or fails: {0}")]
    Disk(String),
    /// SQLite found that its file is damaged.
    #[error("the database file is damaged: {0}")]
    Damaged(String),
    /// The database as a whole can't be used; see [`Fault`].
    #[error("{}", .0.text())]
    Unusable(Fault),
    /// The database contains data that this program does not write.
    #[error("unexpected data in the database: {0}")]
    Corrupt(String),
    /// The installation must be changed first; the text says what.
    #[error("{0}")]
    Setup(String),
    /// Any other error of the database or its driver.
    #[error("database error: {}", told(.0))]
    Other(sqlx::Error),
}

/// What is wrong with the database as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The path leads to another file or to none. Lasts until the next start.
    Moved,
    /// The file is damaged. Lasts until the next start.
    Damaged,
    /// PostgreSQL: an import has begun since this server started. Lasts until the next start.
    Imported,
    /// Lasts until the disk works and has free space.
    Failing,
}

impl Fault {
    /// What happened and what to do about it, for users.
    pub fn text(self) -> &'static str {
        match self {
            Self::Moved => {
                "The database file was removed, moved or replaced while the server ran, so nothing can be stored: stop the server, put the file \
                 back (or restore a backup with `bloom-runtime restore --force`), and start the server again"
            }
            Self::Damaged => {
                "The database file is damaged: stop the server, restore a backup with `bloom-runtime restore --force`, and start the server \
                 again"
            }
            Self::Imported => {
                "An import into this database has begun since this server started, so the server no longer knows what is stored, and stops: start it \
                 again when the import has finished"
            }
            Self::Failing => {
                "The database can't be written to because its disk is full or fails: make room on it, or check the system's log; the \
                 server continues by itself"
            }
        }
    }
}

impl Error {
    /// Whether the batch must be loaded and decided again.
    pub fn is_conflict(&self) -> bool {
        matches!(self, Self::Conflict(_))
    }

    /// Whether the reason is the database and not the call: it can't be reached or used, rows are locked, or the outcome of a commit is
    /// unknown.
    pub fn is_unavailable(&self) -> bool {
        matches!(self, Self::Unavailable(..) | Self::Locked(_) | Self::CommitUnknown(_)) || self.fault().is_some()
    }

    /// Whether the content of the database, or its handling of a statement, is wrong. Another try would fail as well.
    pub fn is_fault(&self) -> bool {
        matches!(self, Self::Corrupt(_) | Self::Other(_))
    }

    /// What is wrong with the database as a whole, if this error shows it.
    pub fn fault(&self) -> Option<Fault> {
        match self {
            Self::Disk(_) => Some(Fault::Failing),
            Self::Damaged(_) => Some(Fault::Damaged),
            Self::Unusable(fault) => Some(*fault),
            _ => None,
        }
    }

    /// Whether the transaction can be rolled back and its connection used again.
    pub(crate) fn keeps_connection(&self) -> bool {
        matches!(self, Self::Conflict(_) | Self::Locked(_) | Self::NotLeader)
    }
}

impl From<Error> for bloom_database::Error {
    fn from(error: Error) -> Self {
        match error {
            Error::Conflict(text) => Self::Conflict(text),
            Error::Locked(text) => Self::Locked(text),
            Error::NotLeader => Self::NotLeader,
            Error::CommitUnknown(text) => Self::CommitUnknown(text),
            // The messages of these errors would suggest a wrong host or password, so the reason comes first.
            Error::Unavailable(reason @ (OutageReason::DiskFull | OutageReason::Connections | OutageReason::ReadOnly), text) => {
                Self::Unavailable(format!("{} ({text})", reason.text()))
            }
            Error::Unavailable(_, text) => Self::Unavailable(text),
            Error::Disk(_) => Self::Unavailable(error.to_string()),
            Error::Damaged(_) | Error::Unusable(Fault::Damaged | Fault::Moved | Fault::Imported) => Self::Unusable(error.to_string()),
            Error::Unusable(Fault::Failing) => Self::Unavailable(error.to_string()),
            Error::Corrupt(text) => Self::Corrupt(text),
            Error::Setup(text) => Self::Setup(text),
            Error::Other(error) => Self::Other(told(&error)),
        }
    }
}

impl From<sqlx::Error> for Error {
    fn from(error: sqlx::Error) -> Self {
        use sqlx::Error as E;
        match &error {
            E::Database(database) => {
                let code = database.code().unwrap_or_default();
                if is_conflict(&code) {
                    Self::Conflict(told(&error))
                } else if code == "55P03" {
                    Self::Locked(told(&error))
                } else if is_disk(&code) {
                    Self::Disk(told(&error))
                } else if is_damage(&code) {
                    Self::Damaged(told(&error))
                } else if is_outage(&code) || is_writer_gone(&code, database.message()) {
                    Self::Unavailable(OutageReason::of(&error), told(&error))
                } else {
                    Self::Other(error)
                }
            }
            E::Io(_) | E::Tls(_) | E::Protocol(_) | E::PoolTimedOut | E::PoolClosed | E::WorkerCrashed => {
                Self::Unavailable(OutageReason::of(&error), told(&error))
            }
            E::ColumnDecode { .. } | E::Decode(_) | E::ColumnIndexOutOfBounds { .. } | E::ColumnNotFound(_) => {
                Self::Corrupt(error.to_string())
            }
            _ => Self::Other(error),
        }
    }
}

/// The text of the error for people. The driver's own text also contains the line of PostgreSQL's source code.
pub(crate) fn told(error: &sqlx::Error) -> String {
    match error {
        sqlx::Error::Database(database) => {
            let code = database.code().map(|code| format!(" (code {code})")).unwrap_or_default();
            format!("{}{code}", database.message())
        }
        sqlx::Error::PoolTimedOut => {
            "no connection in time; behind a pooler such as PgBouncer, its pool may be too small (default_pool_size)".into()
        }
        other => other.to_string(),
    }
}

/// The SQLSTATEs of unique violation, deadlock and serialization failure; SQLite's codes of unique violations and of a busy database.
fn is_conflict(code: &str) -> bool {
    matches!(code, "23505" | "40P01" | "40001" | "1555" | "2067" | "5" | "6" | "261" | "517" | "773")
}

/// SQLite's primary result code for an extended code. `None` for codes of PostgreSQL, which have five characters.
fn of_sqlite(code: &str) -> Option<u32> {
    if code.len() == 5 { None } else { code.parse().ok().map(|code: u32| code & 0xff) }
}

/// The codes of a full disk and of I/O errors.
fn is_disk(code: &str) -> bool {
    matches!(code, "53100" | "58030") || matches!(of_sqlite(code), Some(10 | 13))
}

/// The codes of a file that is damaged, or is no longer an SQLite file.
fn is_damage(code: &str) -> bool {
    matches!(of_sqlite(code), Some(11 | 26))
}

/// PostgreSQL's codes for shutdown, startup, a lost connection, a refused user or database, missing privileges, a timeout, too many
/// connections, and a standby. SQLite's code for a file that can't be opened.
fn is_outage(code: &str) -> bool {
    matches!(code, "42501" | "57014" | "57P01" | "57P02" | "57P03" | "57P05" | "25P03" | "25P04" | "25006")
        || (code.len() == 5 && ["08", "28", "3D", "53"].iter().any(|class| code.starts_with(class)))
        || of_sqlite(code) == Some(14)
}

/// Whether the writer's row was removed, because its replica was silent for very long. A new connection registers a new writer.
fn is_writer_gone(code: &str, message: &str) -> bool {
    matches!(code, "23502" | "1299") && message.contains("batches")
}
