/// Why a command failed, for the person who gave it: what is wrong and what to do next.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct CommandError {
    pub message: String,
    /// What the process ends with.
    pub status: u8,
}

impl CommandError {
    /// The command line or a setting is wrong, not the world.
    pub fn usage(message: impl Into<String>) -> Self {
        Self { message: message.into(), status: 2 }
    }

    /// It did not come within the time that was given for it.
    pub fn too_late(message: impl Into<String>) -> Self {
        Self { message: message.into(), status: 3 }
    }

    pub fn interrupted(message: impl Into<String>) -> Self {
        Self { message: message.into(), status: 130 }
    }

    /// Says what it is about, where several things were named.
    pub fn about(self, name: &str) -> Self {
        Self { message: format!("{name}: {}", self.message), ..self }
    }

    /// Nobody reads the output any more: there is nothing left to do, and nothing to say about it.
    pub fn unread() -> Self {
        Self { message: String::new(), status: 0 }
    }
}

impl From<String> for CommandError {
    fn from(message: String) -> Self {
        Self { message, status: 1 }
    }
}
