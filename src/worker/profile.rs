//! Agent profiles: which program runs the tasks of an agent slug, and how.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::cgroup::Limits;
use bloom_core::limits::{NAME_CHARS, WORKER_ACCOUNTS};

/// The profile for all slugs that have none of their own.
const DEFAULT: &str = "default";
/// Longer than the longest silent tool call, which the CLI ends after ten minutes.
const STALL_SECONDS: u64 = 900;
/// Profiles that run the tasks of another one while it is paused, one after the other.
const MAX_FALLBACKS: usize = 8;
const MAX_FILE_BYTES: u64 = 1 << 20;

/// How tasks of an agent slug are run: a table of the profiles file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
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
    pub fallback_model: Option<String>,
    pub permission_mode: Option<String>,
    #[serde(default)]
    pub allowed_tools: Vec<String>,
    #[serde(default)]
    pub disallowed_tools: Vec<String>,
    /// A file; a relative path starts at the directory of the profiles file.
    pub mcp_config: Option<PathBuf>,
    pub append_system_prompt: Option<String>,
    /// US dollars per run, or the task's own budget if that is lower.
    pub max_budget_usd: Option<f64>,
    /// Additional arguments for the Claude CLI.
    #[serde(default)]
    pub args: Vec<String>,
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Profiles with the same account are paused together: those of one agent, and if it is not `default`, those of all agents.
    #[serde(default = "default_account")]
    pub account: String,
    /// The profile that runs the tasks while this one, or its account, is paused.
    pub fallback: Option<String>,
    /// A run that prints nothing for this long is ended.
    #[serde(default = "stall_seconds")]
    pub stall_seconds: u64,
    #[serde(default)]
    pub limits: Limits,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Runner {
    #[default]
    Claude,
    Echo,
    Command,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum Output {
    #[default]
    Text,
    StreamJson,
}

fn default_account() -> String {
    DEFAULT.to_owned()
}

fn stall_seconds() -> u64 {
    STALL_SECONDS
}

impl Profile {
    fn of(runner: Runner) -> Self {
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
            mcp_config: None,
            append_system_prompt: None,
            max_budget_usd: None,
            args: Vec::new(),
            env: BTreeMap::new(),
            account: default_account(),
            fallback: None,
            stall_seconds: STALL_SECONDS,
            limits: Limits::default(),
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

    /// The output is the answer as plain text, not a stream of JSON lines.
    pub fn is_plain(&self) -> bool {
        self.runner == Runner::Command && self.output == Output::Text
    }

    fn check(&self, dir: &Path) -> Result<(), String> {
        if self.runner == Runner::Command && self.command.first().is_none_or(String::is_empty) {
            return Err("runner = \"command\" needs command = [\"PROGRAM\", …]".into());
        }
        if self.runner != Runner::Command && !self.command.is_empty() {
            return Err("command needs runner = \"command\"".into());
        }
        if self.account.is_empty() || self.account.chars().count() > NAME_CHARS {
            return Err(format!("account must have 1 to {NAME_CHARS} characters"));
        }
        if self.stall_seconds == 0 {
            return Err("stall_seconds must be 1 or more".into());
        }
        if self.max_budget_usd.is_some_and(|usd| !usd.is_finite() || usd <= 0.0) {
            return Err("max_budget_usd must be more than 0".into());
        }
        self.limits.check()?;
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
                _ => format!("the program {name} is not installed"),
            }
        })
    }
}

/// The path of the program: relative to `dir`, or for a bare name the first match in PATH. It must be an executable file.
pub fn find_program(program: &Path, dir: &Path) -> Option<PathBuf> {
    use std::os::unix::fs::PermissionsExt;
    let is_program = |path: &PathBuf| path.metadata().is_ok_and(|data| data.is_file() && data.permissions().mode() & 0o111 != 0);
    if program.components().count() > 1 {
        return Some(dir.join(program)).filter(is_program);
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).map(|dir| dir.join(program)).find(is_program)
}

/// All profiles of an agent.
#[derive(Clone, Debug)]
pub struct Profiles {
    by_slug: BTreeMap<String, Profile>,
    /// The directory at which relative paths start.
    pub dir: PathBuf,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ProfilesFile {
    #[serde(default)]
    profiles: BTreeMap<String, Profile>,
}

impl Profiles {
    /// `runner` chooses the default profile: `claude`, `echo`, or the name of a profile in the file.
    ///
    /// # Errors
    /// The file or a profile in it can't be used, or a program is missing. The text says what to do.
    pub fn load(file: Option<&Path>, runner: Option<&str>) -> Result<Self, String> {
        let (mut by_slug, dir) = match file {
            Some(path) => (read(path)?, path.parent().map(Path::to_owned).unwrap_or_default()),
            None => (BTreeMap::new(), PathBuf::new()),
        };
        match runner {
            Some("claude") => drop(by_slug.entry(DEFAULT.to_owned()).or_insert_with(|| Profile::of(Runner::Claude))),
            Some("echo") => drop(by_slug.insert(DEFAULT.to_owned(), Profile::of(Runner::Echo))),
            Some(name) => {
                let known = || by_slug.keys().map(String::as_str).chain(["claude", "echo"]).collect::<Vec<_>>().join(", ");
                let profile = by_slug.get(name).cloned().ok_or_else(|| format!("there is no runner {name}; choose one of {}", known()))?;
                by_slug.insert(DEFAULT.to_owned(), profile);
            }
            None if by_slug.is_empty() => drop(by_slug.insert(DEFAULT.to_owned(), Profile::of(Runner::Claude))),
            None => {}
        }
        let dir = std::path::absolute(if dir.as_os_str().is_empty() { Path::new(".") } else { &dir })
            .map_err(|error| format!("the directory of the profiles can't be determined: {error}"))?;
        for (slug, profile) in &by_slug {
            profile.check(&dir).map_err(|why| format!("profile {slug}: {why}"))?;
        }
        let profiles = Self { by_slug, dir };
        profiles.check_fallbacks()?;
        match profiles.shared_accounts().len() {
            0..=WORKER_ACCOUNTS => Ok(profiles),
            number => {
                Err(format!("the profiles name {number} accounts, and an agent may name at most {WORKER_ACCOUNTS}: run another agent"))
            }
        }
    }

    fn check_fallbacks(&self) -> Result<(), String> {
        for name in self.by_slug.keys() {
            let last = self.chain(name).last().and_then(|(_, last)| last.fallback.as_ref());
            match last {
                Some(unknown) if !self.by_slug.contains_key(unknown) => {
                    let known = self.by_slug.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
                    return Err(format!("profile {name}: fallback names the profile {unknown}, which is not there; choose one of {known}"));
                }
                Some(_) => {
                    return Err(format!("profile {name}: its fallbacks lead in a circle, or are more than {MAX_FALLBACKS}: leave one out"));
                }
                None => {}
            }
        }
        Ok(())
    }

    /// The accounts that are the same for all agents that name them. `default` is whatever account a machine is signed in to.
    pub fn shared_accounts(&self) -> BTreeSet<&str> {
        self.by_slug.values().map(|profile| profile.account.as_str()).filter(|account| *account != DEFAULT).collect()
    }

    /// The profile of a slug, and those that run its tasks while it is paused, each with its name and the next choice last.
    pub fn chain(&self, agent_slug: &str) -> impl Iterator<Item = (&str, &Profile)> {
        let named = |name: &str| self.by_slug.get_key_value(name).map(|(name, profile)| (name.as_str(), profile));
        let first = named(agent_slug).or_else(|| named(DEFAULT));
        std::iter::successors(first, move |(_, profile)| named(profile.fallback.as_ref()?)).take(1 + MAX_FALLBACKS)
    }

    /// The profile of this name.
    pub fn named(&self, name: &str) -> Option<&Profile> {
        self.by_slug.get(name)
    }

    pub fn of(&self, agent_slug: &str) -> Option<&Profile> {
        self.chain(agent_slug).next().map(|(_, profile)| profile)
    }

    /// The profile that runs a task of a slug, for people: a slug that no profile names may be a spelling mistake.
    pub fn told(&self, agent_slug: &str, name: &str) -> String {
        match self.chain(agent_slug).next() {
            _ if name == agent_slug => name.to_owned(),
            Some((first, _)) if first == name => format!("{name}, because no profile is named {agent_slug}"),
            _ => format!("{name}, because that of {agent_slug} is paused"),
        }
    }

    /// The slugs to report; `None` if the agent serves all.
    pub fn slugs(&self) -> Option<Vec<String>> {
        (!self.by_slug.contains_key(DEFAULT)).then(|| self.by_slug.keys().cloned().collect())
    }

    pub fn all(&self) -> impl Iterator<Item = (&str, &Profile)> {
        self.by_slug.iter().map(|(slug, profile)| (slug.as_str(), profile))
    }

    /// Whether a profile runs the Claude CLI, which the worker reports as its capability `claude_cli`.
    pub fn run_claude(&self) -> bool {
        self.by_slug.values().any(|profile| profile.runner == Runner::Claude)
    }
}

fn read(path: &Path) -> Result<BTreeMap<String, Profile>, String> {
    let failed = |why: &dyn std::fmt::Display| format!("the profiles file {} can't be used: {why}", path.display());
    let size = std::fs::metadata(path).map_err(|error| failed(&error))?.len();
    if size > MAX_FILE_BYTES {
        return Err(failed(&"it is longer than 1 MiB"));
    }
    let text = std::fs::read_to_string(path).map_err(|error| failed(&error))?;
    let file: ProfilesFile = toml::from_str(&text).map_err(|error| failed(&with_advice(&error, &text)))?;
    if file.profiles.is_empty() {
        return Err(failed(&"it has no [profiles.NAME]"));
    }
    Ok(file.profiles)
}

/// The parser's error names types of the programming language; this adds how the value is written.
fn with_advice(error: &toml::de::Error, text: &str) -> String {
    let value = error.span().and_then(|span| text.get(span)).unwrap_or_default();
    let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
    let line = before.rsplit('\n').next().unwrap_or_default();
    let key = line.split('=').next().unwrap_or_default().trim();
    let advice = match error.message() {
        message if message.ends_with("expected a sequence") && line.contains('=') => format!("write a list: {key} = [{value}]"),
        message if key == "stall_seconds" && message.ends_with("expected u64") => {
            format!("{key} must be a whole number of seconds, such as {STALL_SECONDS}")
        }
        _ => return error.to_string(),
    };
    format!("{}\n{advice}", error.to_string().trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(text: &str, runner: Option<&str>) -> Result<Profiles, String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("profiles.toml");
        std::fs::write(&path, text).unwrap();
        Profiles::load(Some(&path), runner)
    }

    #[test]
    fn fallbacks_follow_one_another_and_have_an_end() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("profiles.toml");
        let load = |text: &str| {
            let profile = "runner = \"command\"\ncommand = [\"cat\"]";
            let all: String = text
                .lines()
                .map(|line| {
                    let (name, fallback) = line.split_once(' ').unwrap();
                    format!("[profiles.{name}]\n{profile}\nfallback = \"{fallback}\"\n")
                })
                .collect();
            std::fs::write(&path, format!("{all}[profiles.last]\n{profile}\n")).unwrap();
            Profiles::load(Some(&path), None)
        };
        let profiles = load("default a\na b\nb last").unwrap();
        let chain = |slug| profiles.chain(slug).map(|(name, _)| name).collect::<Vec<_>>();
        assert_eq!((chain("any"), chain("b")), (vec!["default", "a", "b", "last"], vec!["b", "last"]));
        std::fs::write(&path, format!("[profiles.a]\naccount = \"{}\"", "a".repeat(129))).unwrap();
        assert_eq!(Profiles::load(Some(&path), None).unwrap_err(), "profile a: account must have 1 to 128 characters");
        assert!(load("a nobody").unwrap_err().contains("profile a: fallback names the profile nobody, which is not there"));
        for circle in ["a a", "a b\nb a"] {
            assert!(load(circle).unwrap_err().contains("profile a: its fallbacks lead in a circle"));
        }
    }

    #[test]
    fn slugs_are_told_unless_all_are_served() {
        let two = "[profiles.writer]\nrunner = \"echo\"\nmodel = \"m\"\n[profiles.critic]\nrunner = \"command\"\ncommand = [\"cat\"]\n";
        let profiles = load(two, None).unwrap();
        assert_eq!(profiles.slugs().unwrap(), ["critic", "writer"]);
        assert!(profiles.of("other").is_none() && !profiles.run_claude());
        let profiles = load(two, Some("critic")).unwrap();
        assert_eq!(profiles.slugs(), None);
        assert_eq!(profiles.of("other").unwrap().command, ["cat"]);
        assert_eq!(profiles.of("writer").unwrap().model.as_deref(), Some("m"));
        assert_eq!(Profiles::load(None, Some("echo")).unwrap().slugs(), None);
    }

    #[test]
    fn the_documentation_shows_a_file_that_can_be_used() {
        let text = include_str!("../../docs/agents-and-profiles.md").split("```toml\n").nth(1).unwrap().split("```").next().unwrap();
        let file: ProfilesFile = toml::from_str(text).unwrap();
        assert_eq!(file.profiles.keys().collect::<Vec<_>>(), ["default", "reviewer", "shout"]);
        assert_eq!((file.profiles["default"].stall_seconds, file.profiles["reviewer"].stall_seconds), (STALL_SECONDS, STALL_SECONDS));
    }

    #[test]
    fn mistakes_are_named() {
        let wrong = |text: &str, runner, expected: &str| {
            let told = load(text, runner).unwrap_err();
            assert!(told.contains(expected), "{told}");
        };
        wrong("[profiles.a]\nrunnr = \"echo\"", None, "unknown field `runnr`");
        wrong("[profiles.a]\nrunner = \"sh\"", None, "line 2");
        wrong("[profiles.a]\nrunner = \"command\"", None, "needs command");
        wrong("[profiles.a]\nrunner = \"command\"\ncommand = [\"no-such-program\"]", None, "no-such-program is not installed");
        wrong("[profiles.a]\nrunner = \"echo\"", Some("b"), "choose one of a, claude, echo");
        for limit in ["memory_mib = 0", "cpus = 0.0", "cpus = nan", "max_processes = 0"] {
            let name = limit.split(' ').next().unwrap();
            wrong(&format!("[profiles.a]\nrunner = \"echo\"\nlimits = {{ {limit} }}"), None, &format!("limits.{name} must be"));
        }
        wrong("[profiles.a]\nrunner = \"echo\"\nlimits = { memory = 5 }", None, "unknown field `memory`");
        wrong("", None, "no [profiles.NAME]");
        let accounts =
            |count: usize| (0..count).map(|n| format!("[profiles.p{n}]\nrunner = \"echo\"\naccount = \"a{n}\"\n")).collect::<String>();
        wrong(&accounts(65), None, "the profiles name 65 accounts, and an agent may name at most 64");
        assert_eq!(load(&format!("{}[profiles.b]\nrunner = \"echo\"", accounts(64)), None).unwrap().shared_accounts().len(), 64);
        wrong("[profiles.a]\nrunner = \"command\"\ncommand = \"false\"", None, "write a list: command = [\"false\"]");
        for value in ["\"90\"", "-1", "1.5"] {
            wrong(&format!("[profiles.a]\nstall_seconds = {value}"), None, "stall_seconds must be a whole number of seconds");
        }
    }
}
