//! All profiles of an agent, and the file that contains them.

mod keys;
mod wrong;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::profile::{DEFAULT, Profile, Runner};
use bloom_core::limits::{NAME_CHARS, WORKER_ACCOUNTS, WORKER_AGENTS, WORKER_AGENTS_BYTES};

/// The maximum number of profiles in a chain of fallbacks.
const MAX_FALLBACKS: usize = 8;
const MAX_FILE_BYTES: u64 = 1 << 20;

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

/// The same file as tables, for the names of their keys.
#[derive(Deserialize)]
struct ProfileTables {
    profiles: BTreeMap<String, toml::Table>,
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
        profiles.check_accounts()?;
        Ok(profiles)
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
            // What runs in a sandbox leave in a context's directory must not reach runs without one.
            let other = |(_, profile): &(&str, &Profile)| profile.sandbox.is_some() != self.by_slug[name].sandbox.is_some();
            if let Some((fallback, _)) = self.chain(name).find(other) {
                return Err(format!("profile {name}: it and its fallback {fallback} must both have a sandbox, or none"));
            }
        }
        Ok(())
    }

    fn check_accounts(&self) -> Result<(), String> {
        let number = self.shared_accounts().len();
        let wrong = || format!("the profiles name {number} accounts, and an agent may name at most {WORKER_ACCOUNTS}: run another agent");
        if number > WORKER_ACCOUNTS { Err(wrong()) } else { Ok(()) }
    }

    /// The accounts with names of their own, which are the same account for all agents that use the name. `default` is whatever account a
    /// machine is signed in to.
    pub fn shared_accounts(&self) -> BTreeSet<&str> {
        self.by_slug.values().map(|profile| profile.account.as_str()).filter(|account| *account != DEFAULT).collect()
    }

    /// The profile of a slug, followed by the fallbacks that run its tasks while it is paused, in order, each with its name.
    pub fn chain(&self, agent_slug: &str) -> impl Iterator<Item = (&str, &Profile)> {
        let named = |name: &str| self.by_slug.get_key_value(name).map(|(name, profile)| (name.as_str(), profile));
        let first = named(agent_slug).or_else(|| named(DEFAULT));
        std::iter::successors(first, move |(_, profile)| named(profile.fallback.as_ref()?)).take(1 + MAX_FALLBACKS)
    }

    /// The profile of this name.
    pub fn named(&self, name: &str) -> Option<&Profile> {
        self.by_slug.get(name)
    }

    /// The profile that runs the tasks of a slug, unless it is paused. `None`: the agent does not serve the slug.
    pub fn of(&self, agent_slug: &str) -> Option<&Profile> {
        self.chain(agent_slug).next().map(|(_, profile)| profile)
    }

    /// The name of the profile that runs a task of a slug, for people. A slug that no profile names may be a spelling mistake.
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

    /// The names of the profiles, limited to the number and length that a registration may contain.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        let names = self.by_slug.keys().map(String::as_str).filter(|name| (1..=NAME_CHARS).contains(&name.chars().count()));
        let mut room = WORKER_AGENTS_BYTES;
        names.take(WORKER_AGENTS).take_while(move |name| {
            let fits = name.len() <= room;
            room = room.saturating_sub(name.len());
            fits
        })
    }

    /// The profiles, each with the slug that it is for.
    pub fn all(&self) -> impl Iterator<Item = (&str, &Profile)> {
        self.by_slug.iter().map(|(slug, profile)| (slug.as_str(), profile))
    }

    /// The same profiles, mutable.
    pub fn all_mut(&mut self) -> impl Iterator<Item = (&str, &mut Profile)> {
        self.by_slug.iter_mut().map(|(slug, profile)| (slug.as_str(), profile))
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
    let file: ProfilesFile = toml::from_str(&text).map_err(|error| failed(&wrong::told(&error, &text)))?;
    if file.profiles.is_empty() {
        return Err(failed(&"it has no [profiles.NAME]"));
    }
    // A parsed profile does not show which keys were written and which are defaults.
    let tables: ProfileTables = toml::from_str(&text).map_err(|error| failed(&error))?;
    for (name, profile) in &file.profiles {
        let table = tables.profiles.get(name).ok_or_else(|| failed(&format_args!("profile {name} is not a table")))?;
        keys::check(profile, table).map_err(|why| format!("profile {name}: {why}"))?;
    }
    Ok(file.profiles)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::STALL_SECONDS;

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
        wrong("[profiles.a]\nrunnr = \"echo\"", None, "line 2: there is no key runnr; did you mean runner?");
        wrong("[profiles.a]\nrunner = \"sh\"", None, "line 2");
        wrong("[profiles.a]\nrunner = \"command\"", None, "needs command");
        wrong("[profiles.a]\nrunner = \"command\"\ncommand = [\"no-such-program\"]", None, "no-such-program is not installed");
        wrong("[profiles.a]\nrunner = \"echo\"", Some("b"), "choose one of a, claude, echo");
        let command = "[profiles.a]\nrunner = \"command\"\ncommand = [\"cat\"]";
        wrong(&format!("{command}\nmax_budget_usd = 2.0"), None, "profile a: max_budget_usd needs runner = \"claude\"");
        for (env, told) in
            [("\"A=B\" = \"c\"", "\"A=B\" is not the name"), ("\"\" = \"c\"", "\"\" is not"), ("A = \"\\u0000\"", "the value of A")]
        {
            wrong(&format!("{command}\nenv = {{ {env} }}"), None, &format!("profile a: env: {told}"));
        }
        for limit in ["memory_mib = 0", "cpus = 0.0", "cpus = nan", "max_processes = 0", "disk_mib = 0"] {
            let name = limit.split(' ').next().unwrap();
            wrong(&format!("[profiles.a]\nrunner = \"echo\"\nlimits = {{ {limit} }}"), None, &format!("limits.{name} must be"));
        }
        wrong("[profiles.a]\nrunner = \"echo\"\nlimits = { memory = 5 }", None, "line 3: there is no key memory; did you mean memory_mib?");
        wrong("[profiles.a]\nmodle = \"m\"", None, "line 2: there is no key modle; did you mean model?");
        wrong("[profiles.a]\nsandbox = \"none\"", None, "line 2, sandbox: \"none\" is not one of its values; give one of: \"bubblewrap\"");
        wrong("[profiles.a]\nbackground = 1", None, "line 2, background: background must be true or false");
        wrong("[profiles.a]\nmodel = 4", None, "line 2, model: model must be a text between quotes");
        wrong("[profiles.a]\nprices = { m = { input = -1, output = 1 } }", None, "profile a: prices.\"m\".input must be 0 or more");
        for seconds in [0, 604_801] {
            let text = format!("[profiles.a]\nrunner = \"echo\"\ntimeout_sec = {seconds}");
            wrong(&text, None, "profile a: timeout_sec must be 1 to 604800, which is a week");
        }
        wrong("", None, "no [profiles.NAME]");
        let accounts =
            |count: usize| (0..count).map(|n| format!("[profiles.p{n}]\nrunner = \"echo\"\naccount = \"a{n}\"\n")).collect::<String>();
        wrong(&accounts(65), None, "the profiles name 65 accounts, and an agent may name at most 64");
        assert_eq!(load(&format!("{}[profiles.b]\nrunner = \"echo\"", accounts(64)), None).unwrap().shared_accounts().len(), 64);
        wrong("[profiles.a]\nrunner = \"command\"\ncommand = \"false\"", None, "write a list: command = [\"false\"]");
        wrong("[profiles.a]\nrunner = \"command\"\ncommand = \"tr a-z A-Z\"", None, "write a list: command = [\"tr\", \"a-z\", \"A-Z\"]");
        for value in ["\"90\"", "\"10m\"", "1.5"] {
            for key in ["stall_seconds", "background_seconds", "timeout_sec", "ask_human_seconds"] {
                wrong(&format!("[profiles.a]\n{key} = {value}"), None, &format!("{key} must be a whole number of seconds"));
            }
        }
        wrong("[profiles.a]\nstall_seconds = -1", None, "stall_seconds must be a whole number of seconds");
        wrong("[profiles.a]\nlimits = { cpus = 2.0, memory_mib = \"2G\" }", None, "memory_mib must be a whole number of MiB");
        wrong("[profiles.a]\nmax_budget_usd = \"2\"", None, "max_budget_usd must be a number of US dollars");
        wrong("[profiles.a]\nprices = { x = 3 }", None, "prices = { MODEL = { input = 3.0, output = 15.0 } }");
    }
}
