/// The maximum number of failures that a command on many objects reports.
const MAX_TOLD: usize = 100;

/// Why a command failed. The message tells the user what is wrong and what to do next.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct CommandError {
    /// The text for the user.
    pub message: String,
    /// The exit status of the process.
    pub status: u8,
}

impl CommandError {
    /// The command line or a setting is wrong.
    pub fn usage(message: impl Into<String>) -> Self {
        Self { message: message.into(), status: 2 }
    }

    /// The time limit of waiting was reached.
    pub fn too_late(message: impl Into<String>) -> Self {
        Self { message: message.into(), status: 3 }
    }

    /// The user interrupted the command.
    pub fn interrupted(message: impl Into<String>) -> Self {
        Self { message: message.into(), status: 130 }
    }

    /// Adds the name of the object that the error is about, for commands on several objects.
    pub fn about(self, name: &str) -> Self {
        Self { message: format!("{}: {}", name.escape_debug(), self.message), ..self }
    }

    /// Combines the failures of a command on several objects into one.
    ///
    /// # Errors
    /// There is at least one failure.
    pub fn all(failures: &[Self]) -> Result<(), Self> {
        let Some(worst) = failures.iter().map(|failure| failure.status).max() else { return Ok(()) };
        let mut told: Vec<String> = failures.iter().take(MAX_TOLD).map(ToString::to_string).collect();
        if failures.len() > MAX_TOLD {
            told.push(format!("and {} more", failures.len() - MAX_TOLD));
        }
        Err(Self { message: told.join("\n"), status: worst })
    }

    /// The reader has closed the output, so there is nothing left to do or to report.
    pub fn unread() -> Self {
        Self { message: String::new(), status: 0 }
    }
}

impl From<String> for CommandError {
    fn from(message: String) -> Self {
        Self { message, status: 1 }
    }
}
