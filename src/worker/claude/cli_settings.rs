//! Where the Claude CLI reads its settings.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Deserialize;

/// The CLI writes renewed credentials into this file.
pub(crate) const CREDENTIALS: &str = ".credentials.json";

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum SettingSource {
    User,
    Project,
    Local,
}

impl SettingSource {
    /// The CLI's name for it.
    pub fn word(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Project => "project",
            Self::Local => "local",
        }
    }
}

/// The default of a profile's `setting_sources`.
pub(crate) fn user_settings() -> Vec<SettingSource> {
    vec![SettingSource::User]
}

/// The directory of the CLI's configuration for runs with these additional variables.
pub(crate) fn config_dir(env: &BTreeMap<String, String>) -> Option<PathBuf> {
    let variable = |name: &str| env.get(name).map(PathBuf::from).or_else(|| std::env::var_os(name).map(PathBuf::from));
    variable("CLAUDE_CONFIG_DIR").or_else(|| Some(variable("HOME")?.join(".claude")))
}
