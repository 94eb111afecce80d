//! The environment of the programs that the agent starts.

use std::process::Command;

/// Prefixes of the environment variables that runs do not inherit, because they contain keys and settings of this program, or the trace
/// of another.
const OWN_SECRETS: [&str; 9] = [
    "BLOOM_",
    "RUNTIME_",
    "MEMBRIDGE_",
    "DATABASE_URL",
    "TLS_KEY_FILE",
    "CLAUDECODE",
    "OTEL_EXPORTER_OTLP_HEADERS",
    "TRACEPARENT",
    "TRACESTATE",
];

/// Removes this program's own keys and settings from the environment of a command.
pub fn scrub(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_none_or(|name| OWN_SECRETS.iter().any(|start| name.starts_with(start))) {
            command.env_remove(name);
        }
    }
}
