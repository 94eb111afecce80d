//! Why nothing can be written for now.

use std::time::Instant;

/// The reasons for outages, for metrics and people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutageReason {
    /// PostgreSQL, or the pooler before it, has too many connections.
    Connections,
    /// PostgreSQL refuses the user.
    Authentication,
    /// PostgreSQL is read-only, as a standby is.
    ReadOnly,
    /// The disk is full or fails.
    DiskFull,
    /// PostgreSQL does not answer in time.
    Timeout,
    /// Another session keeps a table locked.
    Lock,
    /// PostgreSQL can't be reached.
    Unreachable,
    /// The database gave another reason.
    Other,
}

impl OutageReason {
    /// All reasons.
    pub const ALL: [Self; 8] = [
        Self::Connections,
        Self::Authentication,
        Self::ReadOnly,
        Self::DiskFull,
        Self::Timeout,
        Self::Lock,
        Self::Unreachable,
        Self::Other,
    ];

    /// The word for it in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Connections => "connections",
            Self::Authentication => "authentication",
            Self::ReadOnly => "read_only",
            Self::DiskFull => "disk_full",
            Self::Timeout => "timeout",
            Self::Lock => "lock",
            Self::Unreachable => "unreachable",
            Self::Other => "other",
        }
    }

    /// A text that everybody may see, so it contains no names of hosts, users or databases.
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Connections => "PostgreSQL, or the pooler before it, has too many connections",
            Self::Authentication => "PostgreSQL refuses the server's user: check its password and rights",
            Self::ReadOnly => "PostgreSQL is read-only: it is a standby, or was set so",
            Self::DiskFull => "the disk of the database is full or fails: make room on it, or check the system's log",
            Self::Timeout => "PostgreSQL does not answer in time",
            Self::Lock => "another session keeps a table of the database locked",
            Self::Unreachable => "PostgreSQL can't be reached",
            Self::Other => "the database refuses to write",
        }
    }

    pub(crate) fn of(error: &sqlx::Error) -> Self {
        match error {
            sqlx::Error::Database(database) => match &*database.code().unwrap_or_default() {
                "08P01" => Self::of_pooler(database.message()),
                // The error of a new connection while the disk is full: it can't write its cache of the catalog.
                "XX000" if database.message().contains("could not write") => Self::DiskFull,
                code => Self::of_sqlstate(code),
            },
            sqlx::Error::PoolTimedOut => Self::Timeout,
            _ => Self::Unreachable,
        }
    }

    /// Finds the reason in PgBouncer's message, because PgBouncer has only one code for everything that it refuses.
    fn of_pooler(message: &str) -> Self {
        let says = |words: &[&str]| words.iter().any(|word| message.contains(word));
        if says(&["no more connections allowed", "query_wait_timeout", "too many"]) {
            Self::Connections
        } else if says(&["authentication failed", "no such user", "no such database", "login failed", "password", "not allowed"]) {
            Self::Authentication
        } else {
            Self::Unreachable
        }
    }

    fn of_sqlstate(code: &str) -> Self {
        match code {
            "53100" | "58030" => Self::DiskFull,
            "25006" => Self::ReadOnly,
            "55P03" => Self::Lock,
            "57014" | "25P03" | "25P04" | "57P05" => Self::Timeout,
            "3D000" | "42501" => Self::Authentication,
            _ if code.starts_with("28") => Self::Authentication,
            _ if code.starts_with("53") => Self::Connections,
            _ if code.starts_with("08") || code.starts_with("57P") => Self::Unreachable,
            _ => Self::Other,
        }
    }
}

/// A period in which nothing can be written.
#[derive(Clone, Debug)]
pub struct Outage {
    /// Why nothing can be written.
    pub reason: OutageReason,
    /// The last error.
    pub error: String,
    pub(crate) since: Instant,
    pub(crate) last_error: Instant,
    pub(crate) errors: u64,
    /// The reasons that were logged. Connections may notice the same outage by different errors, in any order.
    pub(crate) logged: Vec<OutageReason>,
}

impl Outage {
    pub(crate) fn begins(reason: OutageReason, error: &str) -> Self {
        Self { reason, error: error.to_owned(), since: Instant::now(), last_error: Instant::now(), errors: 1, logged: vec![reason] }
    }

    /// A text about what is wrong, which everybody may see.
    pub fn told(&self) -> String {
        // The error of a lock is this program's own text, so it can be shown.
        let text = if self.reason == OutageReason::Lock { &self.error } else { self.reason.text() };
        format!("{text} ({})", self.label())
    }

    /// The reason, and the SQLSTATE if there is one.
    pub fn label(&self) -> String {
        let code = self.error.rsplit_once("(code ").and_then(|(_, code)| code.get(..5));
        let code = code.map(|code| format!(", SQLSTATE {code}")).unwrap_or_default();
        format!("{}{code}", self.reason.as_str())
    }
}
