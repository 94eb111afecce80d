//! Why calls fail.

use std::time::Duration;

/// Why a call failed. The texts are shown to users.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// The address or the key can't be used; nothing was sent.
    #[error("{0}")]
    Usage(String),
    /// No connection was established, or there was no answer in time. It is unknown whether the call took effect.
    #[error("{0}")]
    Unreachable(String),
    /// The connection broke before the end of the answer. It is unknown whether the call took effect.
    #[error("{0}")]
    Broken(String),
    /// The server refused the call.
    #[error("{message}")]
    Refused {
        /// The HTTP status.
        status: u16,
        /// The server's text, for people.
        message: String,
        /// How long to wait before the next try, if the server says so.
        retry_after: Option<Duration>,
        /// What is wrong with the request, by field; the message contains it too.
        fields: Vec<(String, String)>,
    },
    /// The answer could not be written to the disk.
    #[error("{0}")]
    Unwritten(String),
    /// The answer does not conform to the API.
    #[error("{0}")]
    Garbled(String),
}

impl Error {
    /// Whether the same call may succeed later.
    pub fn is_passing(&self) -> bool {
        match self {
            Self::Unreachable(_) | Self::Broken(_) => true,
            Self::Refused { status, .. } => matches!(status, 408 | 429 | 500..),
            Self::Usage(_) | Self::Unwritten(_) | Self::Garbled(_) => false,
        }
    }

    /// The HTTP status with which the server refused the call; `None` for other failures.
    pub fn status(&self) -> Option<u16> {
        if let Self::Refused { status, .. } = self { Some(*status) } else { None }
    }

    /// Whether something answered at the server's address, so that the address is probably right.
    pub fn was_there(&self) -> bool {
        matches!(self, Self::Broken(_) | Self::Refused { .. })
    }
}
