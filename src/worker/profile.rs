//! An agent profile: which program runs the tasks of an agent slug, and how.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::claude::cli_settings::{SettingSource, user_settings};
use crate::claude::cli_version::Version;
use crate::claude::prices::Prices;
use crate::contexts::session::OnSessionLost;
use crate::git::worktree::{CommitAuthor, commit_author};
use crate::machine::cgroup::Limits;
use crate::machine::environment;
use crate::machine::program::{find_program, why_not};
use crate::sandbox::bubblewrap::{Sandbox, word_or_table};
use crate::sandbox::egress::Network;
use bloom_core::limits::{ASKED_MS, NAME_CHARS, TIMEOUT_SEC};

/// The profile for all slugs that have none of their own.
pub const DEFAULT: &str = "default";
/// Longer than the longest tool call without output: the CLI ends tool calls after ten minutes.
pub const STALL_SECONDS: u64 = 900;
/// The Claude CLI's own default for waiting for its sub-agents.
const BACKGROUND_SECONDS: u64 = 600;

/// A day.
const MAX_BACKGROUND_SECONDS: u64 = 24 * 3600;
/// A day.
const MAX_ASK_SECONDS: u64 = ASKED_MS.unsigned_abs() / 1000;
/// Modes in which the Claude CLI decides alone what is allowed and what is denied.
const ASKING_NOBODY: [&str; 2] = ["bypassPermissions", "dontAsk"];

/// How tasks of an agent slug are run: a table of the profiles file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// What runs the tasks.
    #[serde(default)]
    pub runner: Runner,
    /// The Claude CLI's program; by default `claude` in PATH.
    pub program: Option<PathBuf>,
    /// For the runner `command`: the program and its arguments. `{model}`, `{context_dir}`, `{prompt_file}`, `{task_id}`, `{agent_slug}`
    /// and `{context_id}` are replaced by the task's values; the prompt is on standard input.
    #[serde(default)]
    pub command: Vec<String>,
    /// What the command prints: its answer as text, or the Claude CLI's stream of JSON lines.
    #[serde(default)]
    pub output: Output,
    /// The model of tasks that set none.
    pub model: Option<String>,
    /// The model that the Claude CLI uses while the run's own model is overloaded.
    pub fallback_model: Option<String>,
    /// What the Claude CLI may do without asking, by the name of its mode. `None`: its default.
    pub permission_mode: Option<String>,
    /// The tools that the Claude CLI uses without asking.
    #[serde(default)]
    pub allowed_tools: Vec<String>,
    /// The tools that the Claude CLI may not use.
    #[serde(default)]
    pub disallowed_tools: Vec<String>,
    /// By default only the user's: project and local settings are in the context's directory, where a run may have written them.
    #[serde(default = "user_settings")]
    pub setting_sources: Vec<SettingSource>,
    /// A file; a relative path starts at the directory of the profiles file.
    pub mcp_config: Option<PathBuf>,
    /// Text that is added to the system prompt of each run.
    pub append_system_prompt: Option<String>,
    /// US dollars per run; what is left of the task's own budget applies if it is lower.
    pub max_budget_usd: Option<f64>,
    /// Prices of models, for runs that end without a total.
    #[serde(default)]
    pub prices: Prices,
    /// The author of the commits with runs' changes in projects: `NAME <EMAIL>`.
    #[serde(default, deserialize_with = "commit_author")]
    pub commit_author: CommitAuthor,
    /// Additional arguments for the Claude CLI.
    #[serde(default)]
    pub args: Vec<String>,
    /// Further environment variables of runs, with their values.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Further variables of the agent that runs inherit: `NAME`, or `PREFIX_*` for all names with the prefix.
    #[serde(default)]
    pub pass_env: Vec<String>,
    /// Profiles with the same account are paused together when its quota is used up: the profiles of one agent or, unless the account is
    /// `default`, those of all agents.
    #[serde(default = "default_account")]
    pub account: String,
    /// The profile that runs the tasks while this profile, or its account, is paused.
    pub fallback: Option<String>,
    /// A run that prints nothing for this long is ended.
    #[serde(default = "stall_seconds")]
    pub stall_seconds: u64,
    /// What happens when the session of a context is lost, or can't go on.
    #[serde(default)]
    pub on_session_lost: OnSessionLost,
    /// Whether runs may start tasks in the background and continue them after an answer.
    #[serde(default = "yes")]
    pub background: bool,
    /// How long a run may wait for its background tasks after each answer.
    #[serde(default = "background_seconds")]
    pub background_seconds: u64,
    /// The time limit of tasks that set none, as far as the server allows it.
    pub timeout_sec: Option<i64>,
    /// Whether a run that was stopped at its time limit is retried, with the same limit.
    #[serde(default)]
    pub retry_timeouts: bool,
    /// Whether a person is asked about tool uses that nothing allows, and about the CLI's own questions.
    #[serde(default)]
    pub ask_human: bool,
    /// How long each question waits for an answer; after that it is denied.
    #[serde(default = "ask_human_seconds")]
    pub ask_human_seconds: u64,
    /// The limits of a run's use of the machine.
    #[serde(default)]
    pub limits: Limits,
    /// The sandbox of runs. `None`: they run without one.
    #[serde(default, deserialize_with = "word_or_table")]
    pub sandbox: Option<Sandbox>,
    /// The version of the Claude CLI, which the agent determines when it starts.
    #[serde(skip)]
    pub cli_version: Option<Version>,
}

/// What runs the tasks of a profile.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Runner {
    /// The Claude CLI.
    #[default]
    Claude,
    /// This program itself, which answers with the prompt. It needs no account, so users can try things out.
    Echo,
    /// The program in `command`.
    Command,
}

/// What a command prints.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum Output {
    /// The answer, as text.
    #[default]
    Text,
    /// The Claude CLI's stream of JSON lines.
    StreamJson,
}

fn default_account() -> String {
    DEFAULT.to_owned()
}

fn ask_human_seconds() -> u64 {
    3600
}

fn yes() -> bool {
    true
}

fn background_seconds() -> u64 {
    BACKGROUND_SECONDS
}

fn stall_seconds() -> u64 {
    STALL_SECONDS
}

impl Profile {
    /// A profile with this runner, and the defaults for everything else.
    pub fn of(runner: Runner) -> Self {
        Self {
            runner,
            program: None,
            command: Vec::new(),
            output: Output::Text,
            model: None,
            fallback_model: None,
            permission_mode: None,
            allowed_tools: Vec::new(),
            disallowed_tools: Vec::new(),
            setting_sources: user_settings(),
            mcp_config: None,
            append_system_prompt: None,
            max_budget_usd: None,
            prices: Prices::default(),
            commit_author: CommitAuthor::default(),
            args: Vec::new(),
            env: BTreeMap::new(),
            pass_env: Vec::new(),
            account: default_account(),
            fallback: None,
            stall_seconds: STALL_SECONDS,
            on_session_lost: OnSessionLost::New,
            background: true,
            background_seconds: BACKGROUND_SECONDS,
            timeout_sec: None,
            retry_timeouts: false,
            ask_human: false,
            ask_human_seconds: ask_human_seconds(),
            limits: Limits::default(),
            sandbox: None,
            cli_version: None,
        }
    }

    /// The program that must be installed for a run to start.
    pub fn program(&self) -> PathBuf {
        match self.runner {
            Runner::Claude => self.program.clone().unwrap_or_else(|| PathBuf::from("claude")),
            Runner::Command => self.command.first().map(PathBuf::from).unwrap_or_default(),
            Runner::Echo => std::env::current_exe().unwrap_or_else(|_| PathBuf::from("/proc/self/exe")),
        }
    }

    /// Whether the output is the answer as plain text, and not a stream of JSON lines.
    pub fn is_plain(&self) -> bool {
        self.runner == Runner::Command && self.output == Output::Text
    }

    /// What the profile's runs may reach on the network.
    pub fn network(&self) -> &Network {
        self.sandbox.as_ref().map_or(&Network::Open, |sandbox| &sandbox.network)
    }

    /// Checks the values, and that the program is installed. `dir` is the directory of the profiles file.
    ///
    /// # Errors
    /// Something can't be used; the text says what.
    pub fn check(&self, dir: &Path) -> Result<(), String> {
        if self.runner == Runner::Command && self.command.first().is_none_or(String::is_empty) {
            return Err("runner = \"command\" needs command = [\"PROGRAM\", …]".into());
        }
        if self.account.is_empty() || self.account.chars().count() > NAME_CHARS {
            return Err(format!("account must have 1 to {NAME_CHARS} characters"));
        }
        if self.model.as_ref().is_some_and(|model| model.trim().is_empty()) {
            return Err("model must not be empty; leave it out for the default model of the CLI".into());
        }
        if self.stall_seconds == 0 {
            return Err("stall_seconds must be 1 or more".into());
        }
        if self.timeout_sec.is_some_and(|seconds| !(1..=TIMEOUT_SEC).contains(&seconds)) {
            return Err(format!("timeout_sec must be 1 to {TIMEOUT_SEC}, which is a week"));
        }
        if !(1..=MAX_BACKGROUND_SECONDS).contains(&self.background_seconds) {
            return Err(format!("background_seconds must be 1 to {MAX_BACKGROUND_SECONDS}; background = false forbids background tasks"));
        }
        if !(1..=MAX_ASK_SECONDS).contains(&self.ask_human_seconds) {
            return Err(format!("ask_human_seconds must be 1 to {MAX_ASK_SECONDS}"));
        }
        if self.ask_human
            && let Some(mode) = self.permission_mode.as_deref().filter(|mode| ASKING_NOBODY.contains(mode))
        {
            return Err(format!("ask_human: with permission_mode = \"{mode}\" the Claude CLI asks nobody; leave one of the two out"));
        }
        if self.max_budget_usd.is_some_and(|usd| !usd.is_finite() || usd <= 0.0) {
            return Err("max_budget_usd must be more than 0".into());
        }
        environment::check(&self.pass_env)?;
        environment::check_env(&self.env)?;
        self.prices.check()?;
        self.limits.check()?;
        if self.runner == Runner::Claude && *self.network() == Network::Closed {
            return Err("sandbox.network = false: without the network, the Claude CLI reaches no model".into());
        }
        self.sandbox.as_ref().map_or(Ok(()), |sandbox| sandbox.check(dir))?;
        if let Some(config) = self.mcp_config.as_ref().filter(|config| !dir.join(config).is_file()) {
            return Err(format!("mcp_config is not a file: {}", dir.join(config).display()));
        }
        let program = self.program();
        find_program(&program, dir).map(drop).ok_or_else(|| {
            let name = program.display();
            match self.runner {
                Runner::Claude => format!(
                    "the program {name} is not installed: npm install -g @anthropic-ai/claude-code, or set program = \"/path\" in a \
                     profile, or use --runner echo"
                ),
                _ => why_not(&program, dir),
            }
        })
    }
}
