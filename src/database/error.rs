//! What can go wrong with the database, as far as callers act on it.

use std::fmt;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    /// Another transaction was first (unique violation, deadlock, serialization): load again and decide again.
    Conflict(String),
    /// Another transaction has locked what this one needs, and keeps it.
    Locked(String),
    /// The leadership that the batch relied on is over; nothing was written.
    NotLeader,
    /// The connection was lost at COMMIT: [`Writer::resolve_commit`](super::Writer::resolve_commit) tells what became of it.
    CommitUnknown(String),
    /// The database can't be reached or can't serve now; later it may.
    Unavailable(String),
    /// The database can't be used any more until people have seen to it; the text says what.
    Unusable(String),
    /// What stands in the database is not what this program writes.
    Corrupt(String),
    /// Something about the installation has to be changed first; the text says what.
    Setup(String),
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

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Conflict(text) => write!(f, "conflict with another transaction: {text}"),
            Self::Locked(text) => write!(f, "locked by another transaction: {text}"),
            Self::NotLeader => f.write_str("this replica is no longer the leader"),
            Self::CommitUnknown(text) => write!(f, "the connection was lost during the commit: {text}"),
            Self::Unavailable(text) => write!(f, "the database is not available: {text}"),
            Self::Corrupt(text) => write!(f, "unexpected data in the database: {text}"),
            Self::Unusable(text) | Self::Setup(text) => f.write_str(text),
            Self::Other(text) => write!(f, "database error: {text}"),
        }
    }
}

impl std::error::Error for Error {}
