//! Errors of the database, as far as callers distinguish them.

/// Why a call of the database failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
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
    /// The connection was lost at COMMIT. [`Writer::resolve_commit`](super::Writer::resolve_commit) determines the outcome.
    #[error("the connection was lost during the commit: {0}")]
    CommitUnknown(String),
    /// The database can't be reached, or can't serve at the moment.
    #[error("the database is not available: {0}")]
    Unavailable(String),
    /// The database can't be used until a fault is fixed; the text says what to do.
    #[error("{0}")]
    Unusable(String),
    /// The database contains data that this program never writes.
    #[error("unexpected data in the database: {0}")]
    Corrupt(String),
    /// The installation must be changed first; the text says how.
    #[error("{0}")]
    Setup(String),
    /// Any other error of the database; the text is its message.
    #[error("database error: {0}")]
    Other(String),
}

impl Error {
    /// Whether the batch must be loaded and decided again.
    pub fn is_conflict(&self) -> bool {
        matches!(self, Self::Conflict(_))
    }

    /// Whether the cause is the database and not the call: it can't be reached or used, rows are locked, or the outcome of a commit is
    /// unknown.
    pub fn is_unavailable(&self) -> bool {
        matches!(self, Self::Unavailable(_) | Self::Locked(_) | Self::Unusable(_) | Self::CommitUnknown(_))
    }

    /// Whether another try would fail as well.
    pub fn is_lasting(&self) -> bool {
        matches!(self, Self::Unusable(_))
    }
}
