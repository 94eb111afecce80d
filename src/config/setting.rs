//! What a setting is, and how its value is read.

use std::path::PathBuf;

use secrecy::SecretString;

/// A setting of the server. Its key is the name in the TOML file; the flag and the environment variable are derived from it.
#[derive(Debug)]
pub struct Setting {
    /// The name in the TOML file, in snake case.
    pub key: &'static str,
    /// The placeholder of the value in `--help`.
    pub value_name: &'static str,
    /// The value if none is given; empty = unset, or explained in `help`.
    pub default: &'static str,
    /// The text in `--help`.
    pub help: &'static str,
    /// The heading under which `--help` lists it.
    pub group: &'static str,
    /// Never shown. It may also be read from the file that the setting with the suffix `_file` names.
    pub secret: bool,
}

impl Setting {
    /// `lease_ttl_seconds` → `LEASE_TTL_SECONDS`.
    pub fn env_name(&self) -> String {
        self.key.to_uppercase()
    }

    /// `lease_ttl_seconds` → `lease-ttl-seconds`, without the leading dashes.
    pub fn flag_name(&self) -> String {
        self.key.replace('_', "-")
    }

    /// The key of the setting that names a file with the value; only secrets have one.
    pub fn file_key(&self) -> String {
        format!("{}_file", self.key)
    }
}

/// Reads the value of a setting. `None` if it is wrong; the mistake is recorded.
pub(crate) trait Reader {
    /// A setting that has a default.
    fn required<T>(&mut self, setting: &'static Setting, parse: impl Fn(&str) -> Result<T, String>) -> Option<T>;

    /// A setting without a default, which may be left out.
    fn optional<T>(&mut self, setting: &'static Setting, parse: impl Fn(&str) -> Result<T, String>) -> Option<Option<T>>;

    /// Any number of values, none if it is left out.
    fn list<T: Default>(&mut self, setting: &'static Setting, parse: impl Fn(&str) -> Result<T, String>) -> Option<T> {
        self.optional(setting, parse).map(Option::unwrap_or_default)
    }

    /// The data directory, whose default depends on the environment.
    fn data_dir(&mut self, setting: &'static Setting) -> Option<PathBuf>;

    /// A database, whose default is this file in the data directory; that must be read before.
    fn database_url(&mut self, setting: &'static Setting, file: &str) -> Option<SecretString>;
}
