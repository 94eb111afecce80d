//! The command line of a run.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use tokio::process::Command;
use uuid::Uuid;

use crate::claude::cli_settings::SettingSource;
use crate::claude::cli_version::Version;
use crate::contexts::session::RunSession;
use crate::machine::environment;
use crate::profile::{Profile, Runner};
use crate::run::question_files::PermissionTool;
use crate::run::task::Task;
use crate::sandbox::egress::WayOut;

/// The first argument that makes this program the echo runner.
pub(crate) const ECHO: &str = "echo-runner";
/// Keeps other sessions of the same user, such as runs of other contexts, from sending messages to a run. Versions that do not know the
/// setting ignore it.
const REFUSE_MESSAGES: &str = r#"{"crossSessionInbound":"refuse"}"#;

/// The command of a run. It reads its prompt from standard input.
#[derive(Debug, PartialEq)]
pub(crate) struct Invocation {
    pub program: PathBuf,
    pub args: Vec<OsString>,
    pub env: Vec<(String, String)>,
    /// The output is the answer as plain text, not a stream of JSON lines.
    pub is_plain: bool,
}

/// The conversation that the run starts or continues.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Conversation {
    /// A new one. The agent chooses its id, so that the id is already known when the CLI starts.
    New(String),
    Resumed(String),
}

impl Conversation {
    /// The conversation of a session. `None`: the run takes no part in a conversation of its context.
    pub(crate) fn of(session: Option<&RunSession>) -> Self {
        let id = session.map_or_else(|| Uuid::now_v7().to_string(), |session| session.record.session_id.clone());
        if session.is_some_and(|session| session.is_resumed) { Self::Resumed(id) } else { Self::New(id) }
    }
}

/// The files and directories of a run.
#[derive(Debug)]
pub(crate) struct RunFiles<'a> {
    pub context_dir: &'a Path,
    pub prompt: &'a Path,
    /// The repository of its context, and the repository of its project, whose objects the first one shares.
    pub git_dirs: Option<[PathBuf; 2]>,
    /// The tool with which its CLI asks a person; `None`: it can't ask.
    pub permission_tool: Option<&'a PermissionTool>,
    /// The way to the network destinations that its profile lists.
    pub way_out: Option<&'a WayOut>,
}

impl Invocation {
    /// `program` is the resolved path of the profile's program.
    pub(crate) fn new(
        profile: &Profile,
        program: PathBuf,
        profiles_dir: &Path,
        task: &Task,
        conversation: &Conversation,
        files: &RunFiles<'_>,
    ) -> Self {
        let args = match profile.runner {
            Runner::Claude => claude(profile, profiles_dir, task, conversation, files.permission_tool),
            Runner::Echo => vec![ECHO.into()],
            Runner::Command => profile.command.iter().skip(1).map(|word| fill(word, profile, task, files).into()).collect(),
        };
        let env = profile.env.iter().map(|(name, value)| (name.clone(), value.clone())).collect();
        Self { program, args, env, is_plain: profile.is_plain() }
    }
}

fn claude(
    profile: &Profile,
    profiles_dir: &Path,
    task: &Task,
    conversation: &Conversation,
    permission_tool: Option<&PermissionTool>,
) -> Vec<OsString> {
    let mut args: Vec<OsString> =
        ["-p", "--output-format", "stream-json", "--verbose", "--include-partial-messages"].map(Into::into).into();
    args.push(match conversation {
        Conversation::New(id) => option("--session-id", id),
        Conversation::Resumed(id) => option("--resume", id),
    });
    args.extend(permission_tool.into_iter().flat_map(PermissionTool::options).map(OsString::from));
    args.extend(claude_options(profile, profiles_dir, task.model.as_deref(), budget(task, profile)));
    args
}

/// What the run may cost, in US dollars: the rest of the task's budget, or the profile's limit if that is lower. `None`: no limit.
pub(crate) fn budget(task: &Task, profile: &Profile) -> Option<f64> {
    [Some(task.policy.budget.0).filter(|usd| *usd > 0.0), profile.max_budget_usd].into_iter().flatten().reduce(f64::min)
}

/// The options that the profile sets for the Claude CLI, for a task with this model and budget.
pub(crate) fn claude_options(profile: &Profile, profiles_dir: &Path, model: Option<&str>, budget: Option<f64>) -> Vec<OsString> {
    let list = |tools: &[String]| (!tools.is_empty()).then(|| tools.join(","));
    let sources = profile.setting_sources.iter().map(|source| source.word()).collect::<Vec<_>>().join(",");
    let keeps_prompt = profile.cli_version.is_some_and(Version::keeps_system_prompt);
    let brings_settings = profile.args.iter().any(|word| word == "--settings" || word.starts_with("--settings="));
    let options = [
        ("--model", model.or(profile.model.as_deref()).map(OsString::from)),
        ("--fallback-model", profile.fallback_model.as_ref().map(Into::into)),
        ("--max-budget-usd", budget.map(|usd| usd.to_string().into())),
        ("--permission-mode", profile.permission_mode.as_ref().map(Into::into)),
        ("--allowed-tools", list(&profile.allowed_tools).map(Into::into)),
        ("--disallowed-tools", list(&profile.disallowed_tools).map(Into::into)),
        ("--setting-sources", Some(sources.into())),
        ("--mcp-config", profile.mcp_config.as_ref().map(|path| profiles_dir.join(path).into())),
        ("--append-system-prompt", profile.append_system_prompt.as_ref().map(Into::into)),
        // The profile's current system prompt applies, even in a conversation that began with another one.
        ("--system-prompt-snapshot", keeps_prompt.then(|| "off".into())),
        ("--settings", (!brings_settings).then(|| REFUSE_MESSAGES.into())),
    ];
    let options = options.into_iter().filter_map(|(name, value)| Some(option(name, value?)));
    // MCP servers in the context's directory are settings of the project.
    let is_strict = profile.mcp_config.is_some() || !profile.setting_sources.contains(&SettingSource::Project);
    let strict = is_strict.then(|| "--strict-mcp-config".into());
    options.chain(strict).chain(profile.args.iter().map(Into::into)).collect()
}

/// How many times the CLI retries a request that the API refuses or fails, with pauses that double: for about half a minute in total. By
/// default it would retry for three minutes, even if its key is wrong, and then a run has no answer in time. The server retries the task,
/// possibly on another worker.
const MAX_RETRIES: &str = "6";

/// Keeps the CLI from updating itself: updates are up to the administrator of the machine.
const NO_UPDATES: (&str, &str) = ("DISABLE_AUTOUPDATER", "1");

/// Keeps the CLI from storing a memory besides its sessions: notes that the CLI or a tool writes for later sessions in the directory would
/// outlive a conversation that was reset.
const NO_MEMORY: (&str, &str) = ("CLAUDE_CODE_DISABLE_AUTO_MEMORY", "1");

/// A call of the CLI outside of a run, in the environment of the profile's runs.
pub(crate) fn claude_call(program: PathBuf, profile: &Profile) -> Command {
    let mut call = Command::new(program);
    environment::inherit(call.as_std_mut(), &profile.env, &profile.pass_env);
    call.envs(claude_environment(profile)).envs(&profile.env).env(NO_UPDATES.0, NO_UPDATES.1);
    call
}

/// Environment variables of runs, which the profile's variables may override.
pub(crate) fn claude_environment(profile: &Profile) -> impl Iterator<Item = (&'static str, &'static str)> {
    let is_claude = profile.runner == Runner::Claude;
    let retries = is_claude.then_some(("CLAUDE_CODE_MAX_RETRIES", MAX_RETRIES));
    let no_background = (is_claude && !profile.background).then_some(("CLAUDE_CODE_DISABLE_BACKGROUND_TASKS", "1"));
    let own = [NO_UPDATES].into_iter().chain(is_claude.then_some(NO_MEMORY)).chain(retries).chain(no_background);
    own.chain(git_settings(profile).iter().copied())
}

/// Variables that set the directory for temporary files of the CLI and its tools, and for its socket.
pub(crate) const TEMP_VARIABLES: [&str; 3] = ["TMPDIR", "CLAUDE_CODE_TMPDIR", "XDG_RUNTIME_DIR"];

/// Git settings for runs of the Claude CLI, which calls git when it starts. A repository in the context's directory must not execute
/// commands that an earlier run has left there, unless the profile uses the settings of projects.
fn git_settings(profile: &Profile) -> &'static [(&'static str, &'static str)] {
    if profile.runner != Runner::Claude || profile.setting_sources.contains(&SettingSource::Project) {
        return &[];
    }
    &[
        ("GIT_CONFIG_COUNT", "2"),
        ("GIT_CONFIG_KEY_0", "core.fsmonitor"),
        ("GIT_CONFIG_VALUE_0", "false"),
        ("GIT_CONFIG_KEY_1", "core.hooksPath"),
        ("GIT_CONFIG_VALUE_1", "/dev/null"),
        // Otherwise the CLI calls `git status`, which executes filters. The agent commits the changes of a run, so the CLI's git
        // instructions are not needed.
        ("CLAUDE_CODE_DISABLE_GIT_INSTRUCTIONS", "1"),
    ]
}

/// An option and its value as one argument: a separate value that begins with a dash would be parsed as an option.
fn option(name: &str, value: impl Into<OsString>) -> OsString {
    let mut word = OsString::from(name);
    word.push("=");
    word.push(value.into());
    word
}

/// Replaces the placeholders in braces, but not inside of inserted values.
fn fill(word: &str, profile: &Profile, task: &Task, files: &RunFiles<'_>) -> String {
    let mut filled = String::new();
    let mut rest = word;
    while let Some(start) = rest.find('{') {
        filled.push_str(&rest[..start]);
        rest = &rest[start..];
        let end = rest.find('}').map_or(rest.len(), |end| end + 1);
        match &rest[..end] {
            "{model}" => filled.push_str(task.model.as_deref().or(profile.model.as_deref()).unwrap_or_default()),
            "{context_dir}" => filled.push_str(&files.context_dir.display().to_string()),
            "{prompt_file}" => filled.push_str(&files.prompt.display().to_string()),
            "{task_id}" => filled.push_str(&task.id.to_string()),
            "{agent_slug}" => filled.push_str(&task.agent_slug),
            "{context_id}" => filled.push_str(&task.context_id),
            other => filled.push_str(other),
        }
        rest = &rest[end..];
    }
    filled + rest
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::profiles::Profiles;

    fn made(profile: &str, task: serde_json::Value) -> Invocation {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("mcp.json"), "{}").unwrap();
        let path = dir.path().join("p.toml");
        std::fs::write(&path, format!("[profiles.a]\n{profile}")).unwrap();
        let profiles = Profiles::load(Some(&path), None).unwrap();
        let mut fields = json!({"agent_slug": "a{model}"});
        fields.as_object_mut().unwrap().extend(task.as_object().unwrap().clone());
        let task = Task::for_test(&fields);
        let conversation = Conversation::Resumed("s".into());
        let profile = profiles.of("a").unwrap();
        let files = RunFiles {
            context_dir: Path::new("/ctx"),
            prompt: Path::new("/run/prompt"),
            git_dirs: None,
            permission_tool: None,
            way_out: None,
        };
        Invocation::new(profile, profile.program(), Path::new("/p"), &task, &conversation, &files)
    }

    #[test]
    fn claude_gets_what_the_profile_and_the_task_say() {
        let profile = "program = \"/bin/sh\"\nmodel = \"m\"\nmax_budget_usd = 2.0\nallowed_tools = [\"Read\", \"Bash(git *)\"]\nmcp_config = \"mcp.json\"\n\
                       permission_mode = \"acceptEdits\"\nargs = [\"--effort\", \"low\"]\nenv = { A = \"b\" }";
        let made = made(profile, json!({"model": "own", "policy": {"timeout_sec": 60, "budget": 0.5}}));
        let args: Vec<&str> = made.args.iter().filter_map(|arg| arg.to_str()).collect();
        assert_eq!(
            args,
            [
                "-p",
                "--output-format",
                "stream-json",
                "--verbose",
                "--include-partial-messages",
                "--resume=s",
                "--model=own",
                "--max-budget-usd=0.5",
                "--permission-mode=acceptEdits",
                "--allowed-tools=Read,Bash(git *)",
                "--setting-sources=user",
                "--mcp-config=/p/mcp.json",
                "--settings={\"crossSessionInbound\":\"refuse\"}",
                "--strict-mcp-config",
                "--effort",
                "low",
            ]
        );
        assert_eq!((made.env, made.is_plain), (vec![("A".into(), "b".into())], false));
    }

    #[test]
    fn settings_of_the_profile_replace_those_of_the_agent() {
        for args in [r#"["--settings", "s.json"]"#, r#"["--settings=s.json"]"#] {
            let made = made(&format!("program = \"/bin/sh\"\nargs = {args}"), json!({}));
            let count = made.args.iter().filter(|arg| arg.to_string_lossy().starts_with("--settings")).count();
            assert_eq!(count, 1, "{:?}", made.args);
        }
    }

    #[test]
    fn a_template_is_filled_once() {
        let made = made(
            "runner = \"command\"\ncommand = [\"sh\", \"{agent_slug}-{x}-{\", \"--in={prompt_file}\", \"{context_dir}\"]\nmodel = \"m\"",
            json!({}),
        );
        assert_eq!(made.args, ["a{model}-{x}-{", "--in=/run/prompt", "/ctx"]);
        assert!(made.is_plain);
    }
}
