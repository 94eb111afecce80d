//! The server's settings: from flags, the environment and an optional TOML file, in this order of precedence.
//!
//! [`load`] resolves every setting, records where its value came from, and reports all mistakes at once.

#![warn(missing_docs, unreachable_pub)]

mod flags;
mod object_settings;
mod objects;
mod parse;
mod postgres;
mod report;
mod resolve;
mod serve;
mod setting;
mod settings;
mod sources;
#[cfg(test)]
mod tests;

pub use bloom_telemetry::{LogFormat, LogSettings, TraceSettings};
pub use flags::Flags;
pub use objects::ObjectStore;
pub use parse::{log_file, log_format, namespace};
pub use report::{Mistake, Report, Row};
pub use resolve::{default_data_dir, traces_of_agent};
pub use serve::Serve;
pub use setting::Setting;
pub use settings::{ControlPlane, Data, Keys, Kubernetes, Limits, Network, SETTINGS, Work};
pub use sources::Environment;

/// Resolves all settings from the flags given, the process's environment and the file that either of them names.
pub fn load(flags: &Flags) -> Report {
    load_from(flags, &Environment::of_process())
}

/// As [`load`], for `bloom-runtime membridge`.
pub fn load_membridge(flags: &Flags) -> Report {
    resolve::resolve(flags, &Environment::of_process(), resolve::Program::ControlPlane)
}

/// Like [`load`], with a given environment instead of the process's.
pub fn load_from(flags: &Flags, environment: &Environment) -> Report {
    resolve::resolve(flags, environment, resolve::Program::Server)
}
