//! Confines the agent's commands on files that runs wrote.
//!
//! Git executes programs that the settings of a repository name (filters, monitors, programs for signatures), and runs write such settings.
//! So a git command of the agent on a repository or a worktree of runs has no more rights than the run itself. If the profile has a
//! sandbox, the command is executed in a sandbox without network that shows only the worktree and its repository. It is a process of the
//! run: in the run's cgroup, without the agent's environment, and ended together with the run.

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::process::Command;
use uuid::Uuid;

use crate::Agent;
use crate::machine::cgroup;
use crate::machine::process::{self, HOME_VARIABLE, LEASE_VARIABLE};
use crate::machine::program::find_program;
use crate::profile::Profile;
use crate::run::run_dir::RunDir;
use crate::sandbox::bubblewrap::{Needs, Sandbox};
use crate::sandbox::hardening::Hardening;
use crate::supervisor::cleanup;

/// Enters the cgroup given as the first argument, and becomes the command that follows.
const IN_CGROUP: &str = r#"echo 0 >"$0/cgroup.procs" && exec "$@""#;
/// The variables of the agent that commands inherit. A sandbox sets a HOME of its own.
const PASSED: [&str; 2] = ["PATH", "HOME"];

/// The confinement of commands for one run.
#[derive(Debug, Default)]
pub(crate) struct Confinement {
    sandbox: Option<Wrapper>,
    cgroup: Option<PathBuf>,
    /// The maximum number of bytes that the run's directories may take on the disk.
    pub disk_limit: Option<u64>,
    /// The lease and the agent's directory are in the environment of the commands, so that a later agent finds their processes, too.
    lease: String,
    home: PathBuf,
}

#[derive(Debug)]
struct Wrapper {
    /// The resolved path of the program that makes the sandbox.
    program: PathBuf,
    sandbox: Sandbox,
    hardening: Hardening,
    profiles_dir: PathBuf,
}

/// What a command needs in its sandbox, besides the programs and libraries of the system.
#[derive(Debug)]
pub(crate) struct Shown<'a> {
    /// The worktree. It must exist.
    pub dir: &'a Path,
    pub writable: Vec<PathBuf>,
    pub readable: Vec<PathBuf>,
}

impl Confinement {
    /// Prepares the confinement for commands while no process of the run is alive. Ends commands that a killed agent has left.
    ///
    /// # Errors
    /// The sandbox or the cgroup can't be made.
    pub(crate) async fn begin(agent: &Agent, dir: &RunDir, profile: &Profile, lease: Uuid) -> io::Result<Self> {
        let sandbox = profile.sandbox.as_ref().map(|sandbox| Wrapper::of(sandbox, agent)).transpose()?;
        end_commands(dir).await;
        let cgroup = dir.make_cgroup(agent.cgroups.as_ref(), &profile.limits)?;
        let (lease, home) = (lease.to_string(), agent.home.root().to_owned());
        Ok(Self { sandbox, cgroup, disk_limit: profile.limits.disk_bytes(), lease, home })
    }

    /// A function that finds the processes of the confined commands.
    pub(crate) fn processes(&self) -> impl Fn() -> Vec<i32> + Clone + Send + 'static {
        let (cgroup, lease) = (self.cgroup.clone(), self.lease.clone());
        move || cgroup.as_deref().map_or_else(|| process::of_lease(&lease), cgroup::members)
    }

    /// The command in its confinement. Of its environment, only variables that were set explicitly are passed on.
    pub(crate) fn command(&self, plain: &Command, shown: &Shown<'_>) -> Command {
        let plain = plain.as_std();
        let mut words: Vec<OsString> = Vec::new();
        if let Some(leaf) = &self.cgroup {
            words.extend(["sh", "-c", IN_CGROUP].map(OsString::from));
            words.push(leaf.into());
        }
        match &self.sandbox {
            Some(wrapper) => words.extend(wrapper.words(plain.get_program(), shown)),
            None => words.push(plain.get_program().to_owned()),
        }
        words.extend(plain.get_args().map(OsStr::to_owned));
        let mut command = Command::new(words.remove(0));
        command.args(words).env_clear().current_dir(shown.dir);
        command.envs(PASSED.iter().filter_map(|name| Some((name, std::env::var_os(name)?))));
        command.envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?))));
        command.env(LEASE_VARIABLE, &self.lease).env(HOME_VARIABLE, &self.home);
        command
    }
}

/// Ends remaining confined commands, and removes their cgroup. No process of the run itself is alive.
pub(crate) async fn end_commands(dir: &RunDir) {
    cleanup::end(dir, None, &dir.lease(), Duration::ZERO).await;
}

impl Wrapper {
    fn of(sandbox: &Sandbox, agent: &Agent) -> io::Result<Self> {
        let profiles_dir = agent.settings.profiles.dir.clone();
        let program = sandbox.installed(&profiles_dir)?;
        Ok(Self { program, sandbox: sandbox.with_nothing_added(), hardening: agent.hardening.clone(), profiles_dir })
    }

    /// The command line that starts this program in the sandbox.
    fn words(&self, program: &OsStr, shown: &Shown<'_>) -> Vec<OsString> {
        let program = find_program(Path::new(program), &self.profiles_dir).unwrap_or_else(|| program.into());
        let (readable, writable) = (shown.readable.clone(), shown.writable.clone());
        let needs = Needs { program: &program, context_dir: shown.dir, readable, writable, claude: None, way_out: None };
        self.sandbox.command(&self.program, &self.hardening, &self.profiles_dir, &needs)
    }
}
