//! What can go wrong with the database, as far as callers act on it.

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Another transaction was first (unique violation, deadlock, serialization): load again and decide again.
    #[error("conflict with another transaction: {0}")]
    Conflict(String),
    /// Another transaction has locked what this one needs, and keeps it.
    #[error("locked by another transaction: {0}")]
    Locked(String),
    /// The leadership that the batch relied on is over; nothing was written.
    #[error("this replica is no longer the leader")]
    NotLeader,
    /// The connection was lost at COMMIT: [`Writer::resolve_commit`](super::Writer::resolve_commit) tells what became of it.
    #[error("the connection was lost during the commit: {0}")]
    CommitUnknown(String),
    /// The database can't be reached or can't serve now; later it may.
    #[error("the database is not available: {0}")]
    Unavailable(String),
    /// The database can't be used any more until people have seen to it; the text says what.
    #[error("{0}")]
    Unusable(String),
    /// What stands in the database is not what this program writes.
    #[error("unexpected data in the database: {0}")]
    Corrupt(String),
    /// Something about the installation has to be changed first; the text says what.
    #[error("{0}")]
    Setup(String),
    #[error("database error: {0}")]
    Other(String),
}

impl Error {
    pub fn is_conflict(&self) -> bool {
        matches!(self, Self::Conflict(_))
    }

    pub fn is_unavailable(&self) -> bool {
        matches!(self, Self::Unavailable(_) | Self::Locked(_) | Self::Unusable(_) | Self::CommitUnknown(_))
    }

    /// There is no use in trying again.
    pub fn is_lasting(&self) -> bool {
        matches!(self, Self::Unusable(_))
    }
}
