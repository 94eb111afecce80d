//! The environment of the programs that the agent starts.
//!
//! Runs inherit only the variables that are listed here or in their profile's `pass_env`, and get those that its `env` sets. The agent's
//! other variables, such as keys of other services, are not for them. The agent's own commands, such as git with the user's ssh agent and
//! credential helpers, inherit everything except this program's settings.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::process::Command;

/// The variables that runs inherit. A name that ends with `*` stands for all names with that prefix.
const INHERITED: [&str; 33] = [
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "LANG",
    "LANGUAGE",
    "LC_*",
    "TZ",
    "TERM",
    "TMPDIR",
    "XDG_*",
    "SSH_AUTH_SOCK",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "ALL_PROXY",
    "http_proxy",
    "https_proxy",
    "no_proxy",
    "all_proxy",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "NODE_EXTRA_CA_CERTS",
    "CURL_CA_BUNDLE",
    "REQUESTS_CA_BUNDLE",
    "GIT_SSL_CAINFO",
    "ANTHROPIC_*",
    "CLAUDE_*",
    // A user who has turned off reports must not send any because of an update of this program.
    "DISABLE_TELEMETRY",
    "DISABLE_ERROR_REPORTING",
    "DISABLE_BUG_COMMAND",
    "DO_NOT_TRACK",
];
/// Further variables that runs inherit if the first variable selects another service for the models of the Claude CLI: the service's
/// credentials and regions.
const BACKENDS: [(&str, &[&str]); 3] = [
    ("CLAUDE_CODE_USE_BEDROCK", &["AWS_*"]),
    ("CLAUDE_CODE_USE_VERTEX", &["GOOGLE_*", "CLOUDSDK_*", "GCLOUD_PROJECT", "CLOUD_ML_REGION", "VERTEX_*"]),
    ("CLAUDE_CODE_USE_FOUNDRY", &["AZURE_*"]),
];
/// Variables that no program inherits: keys and settings of this program, and variables that belong to another session or trace.
const NEVER: [&str; 11] = [
    "BLOOM_*",
    "RUNTIME_*",
    "MEMBRIDGE_*",
    "DATABASE_URL*",
    "TLS_KEY_FILE*",
    "CLAUDECODE",
    "CLAUDE_CODE_ENTRYPOINT",
    "CLAUDE_CODE_SESSION_*",
    "CLAUDE_CODE_SSE_PORT",
    "TRACEPARENT",
    "TRACESTATE",
];
/// Variables that the agent's own commands do not inherit either: settings of a server in the same process. Runs may need such settings for
/// their own programs.
const OF_SERVER: [&str; 2] = ["MINIO_*", "OTEL_*"];

/// The maximum number of names in `pass_env`.
const MAX_NAMES: usize = 100;

/// Whether one of the names matches this variable.
fn names(names: &[impl AsRef<str>], variable: &str) -> bool {
    names.iter().any(|name| match name.as_ref().strip_suffix('*') {
        Some(start) => variable.starts_with(start),
        None => variable == name.as_ref(),
    })
}

/// Removes this program's own keys and settings from the environment of one of the agent's own commands.
pub(crate) fn scrub(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_none_or(|name| names(&NEVER, name) || names(&OF_SERVER, name)) {
            command.env_remove(name);
        }
    }
}

/// Makes a command inherit what runs inherit. `env` and `pass_env` are the profile's; the caller still has to set the variables in `env`.
pub(crate) fn inherit(command: &mut Command, env: &BTreeMap<String, String>, pass_env: &[String]) {
    command.env_clear().envs(inherited(env, pass_env, std::env::vars_os()));
}

fn inherited(
    env: &BTreeMap<String, String>,
    pass_env: &[String],
    variables: impl Iterator<Item = (OsString, OsString)>,
) -> Vec<(String, OsString)> {
    let known: Vec<(String, OsString)> = variables.filter_map(|(name, value)| Some((name.into_string().ok()?, value))).collect();
    let uses = |switch: &str| {
        let own = env.get(switch).map(String::as_str);
        own.or_else(|| known.iter().find(|(name, _)| name == switch)?.1.to_str()).is_some_and(is_on)
    };
    let mut passed = INHERITED.to_vec();
    passed.extend(BACKENDS.iter().filter(|(switch, _)| uses(switch)).flat_map(|(_, needed)| *needed));
    passed.extend(pass_env.iter().map(String::as_str));
    known.into_iter().filter(|(name, _)| names(&passed, name) && !names(&NEVER, name)).collect()
}

/// Whether a variable selects another service for the models of the Claude CLI.
pub(crate) fn uses_other_backend(env: &BTreeMap<String, String>) -> bool {
    let is_set = |switch: &str| env.get(switch).cloned().or_else(|| std::env::var(switch).ok()).is_some_and(|value| is_on(&value));
    BACKENDS.iter().any(|(switch, _)| is_set(switch))
}

fn is_on(value: &str) -> bool {
    !["", "0", "false"].contains(&value)
}

/// # Errors
/// The profile's `pass_env` can't be used. The text says what to do.
pub(crate) fn check(pass_env: &[String]) -> Result<(), String> {
    if pass_env.len() > MAX_NAMES {
        return Err(format!(
            "pass_env has {} names, and at most {MAX_NAMES} are allowed: PREFIX_* names all that begin so",
            pass_env.len()
        ));
    }
    for name in pass_env {
        let start = name.strip_suffix('*').unwrap_or(name);
        if name.is_empty() || start.contains(['*', '=', '\0']) {
            return Err(format!("pass_env: {name:?} is not the name of a variable: write NAME, or PREFIX_* for all that begin so"));
        }
        if names(&NEVER, start) {
            return Err(format!("pass_env: {name} is the agent's own and never passed on: leave it out, or set what runs need in env"));
        }
    }
    Ok(())
}

/// # Errors
/// A variable can't be set, so no run could start. The text does not contain the value, which may be a key.
pub(crate) fn check_env(env: &BTreeMap<String, String>) -> Result<(), String> {
    for (name, value) in env {
        if name.is_empty() || name.contains(['=', '\0']) {
            return Err(format!("env: {name:?} is not the name of a variable: write NAME = \"VALUE\", with a name that has no = in it"));
        }
        if value.contains('\0') {
            return Err(format!("env: the value of {name} has a NUL character, which no variable can have: leave it out"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passed(env: &[(&str, &str)], pass_env: &[&str], has: &[(&str, &str)]) -> Vec<String> {
        let env = env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let pass_env: Vec<String> = pass_env.iter().map(|name| (*name).to_owned()).collect();
        let variables = has.iter().map(|(name, value)| (OsString::from(name), OsString::from(value)));
        inherited(&env, &pass_env, variables).into_iter().map(|(name, _)| name).collect()
    }

    #[test]
    fn credentials_of_another_service_are_passed_on_if_the_cli_uses_it() {
        let (key, switch) = (("AWS_SECRET_ACCESS_KEY", "secret"), "CLAUDE_CODE_USE_BEDROCK");
        assert_eq!(passed(&[], &[], &[key, (switch, "")]), [switch]);
        assert_eq!(passed(&[], &[], &[key, (switch, "1")]), [key.0, switch]);
        assert_eq!(passed(&[(switch, "true")], &[], &[key, ("GOOGLE_CLOUD_PROJECT", "p")]), [key.0]);
        assert_eq!(passed(&[(switch, "0")], &[], &[key, (switch, "1")]), [switch], "the profile decides");
    }

    #[test]
    fn nothing_of_the_agent_itself_is_passed_on() {
        let own = ["BLOOM_KEY", "RUNTIME_API_KEY", "DATABASE_URL_FILE", "CLAUDECODE", "CLAUDE_CODE_ENTRYPOINT", "TRACEPARENT"];
        assert_eq!(passed(&[], &["*"], &own.map(|name| (name, "value"))), [""; 0]);
        assert_eq!(passed(&[], &["*"], &[("ANYTHING", "value")]), ["ANYTHING"]);
    }

    #[test]
    fn names_that_cannot_be_passed_on_are_told() {
        let check = |name: &str| check(&[name.to_owned()]);
        assert!(["GITHUB_TOKEN", "AWS_*", "*"].iter().all(|name| check(name).is_ok()));
        for wrong in ["", "A=B", "A*B", "**"] {
            assert!(check(wrong).unwrap_err().contains("is not the name of a variable"), "{wrong}");
        }
        assert!(["BLOOM_KEY", "RUNTIME_*", "CLAUDECODE"].iter().all(|name| check(name).unwrap_err().contains("the agent's own")));
    }
}
