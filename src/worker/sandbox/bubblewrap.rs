//! The sandbox of a run: what bubblewrap shows to its processes.
//!
//! Only what is listed here is visible: programs and libraries of the system, what the profile adds, the context's directory, and the
//! configuration of the Claude CLI. Nothing has to be hidden, so nothing can be forgotten: the agent's directory and keys, other contexts,
//! the sockets of services, and other processes do not exist in the sandbox.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::claude::cli_settings::CREDENTIALS;
use crate::machine::program::find_program;
use crate::sandbox::hardening::Hardening;
use serde::de::value::{MapAccessDeserializer, StrDeserializer};
use serde::de::{Deserializer, IntoDeserializer, MapAccess, Visitor};
use serde::{Deserialize, de};

use crate::sandbox::egress::{Network, WayOut};

/// The directories of programs and libraries, and the files through which they find users, hosts, certificates and other libraries. The
/// rest of /etc contains keys of all kinds.
const SYSTEM: [&str; 34] = [
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/opt",
    "/nix/store",
    "/etc/alternatives",
    "/etc/ca-certificates",
    "/etc/crypto-policies",
    "/etc/fonts",
    "/etc/gitconfig",
    "/etc/group",
    "/etc/host.conf",
    "/etc/hosts",
    "/etc/inputrc",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/localtime",
    "/etc/mime.types",
    "/etc/nsswitch.conf",
    "/etc/os-release",
    "/etc/passwd",
    "/etc/pki/ca-trust",
    "/etc/pki/tls/certs",
    "/etc/protocols",
    "/etc/resolv.conf",
    "/etc/services",
    "/etc/ssl/cert.pem",
    "/etc/ssl/certs",
    "/etc/ssl/openssl.cnf",
];
/// Settings and switches of the kernel that root may change even without capabilities.
const KERNEL: [&str; 7] = ["/proc/acpi", "/proc/fs", "/proc/mtrr", "/proc/pressure", "/proc/scsi", "/proc/sys", "/proc/sysrq-trigger"];
const MAX_TMP_MIB: u64 = 1 << 20;
/// The home of a run. At the start of each run, it contains only the configuration of the Claude CLI.
const HOME: &str = "/tmp/home";
/// Where the runs of a context see the sessions of its conversations.
pub(crate) const SESSIONS: &str = "/tmp/home/.claude/projects";
/// The parts of the Claude CLI's configuration that the user or the provider has written. They are read-only, so that no run leaves
/// anything there for others. Missing files are shown as empty ones: the CLI reads most of them again during a run, so the run's tools
/// could otherwise grant themselves permissions by creating them.
const CLAUDE_SETUP_FILES: [&str; 6] =
    ["CLAUDE.md", "policy-limits.json", "remote-settings.json", "scheduled_tasks.json", "settings.json", "settings.local.json"];
const CLAUDE_SETUP_DIRS: [&str; 9] =
    ["agents", "commands", "hooks", "output-styles", "plugins", "routines", "rules", "skills", "workflows"];

/// The sandbox that a profile asks for: the word `bubblewrap`, or a table.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct Sandbox {
    #[serde(rename = "type")]
    kind: Kind,
    #[serde(default)]
    pub network: Network,
    /// Further files and directories that runs may read.
    #[serde(default)]
    readable: Vec<PathBuf>,
    /// Further files and directories that runs may change.
    #[serde(default)]
    writable: Vec<PathBuf>,
    /// The size in MiB of /tmp, which contains the home, and of /dev/shm.
    #[serde(default = "default_tmp_mib")]
    tmp_mib: u64,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq)]
#[serde(rename_all = "lowercase")]
enum Kind {
    Bubblewrap,
}

fn default_tmp_mib() -> u64 {
    1024
}

pub(crate) fn word_or_table<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Sandbox>, D::Error> {
    struct WordOrTable;

    impl<'de> Visitor<'de> for WordOrTable {
        type Value = Sandbox;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("\"bubblewrap\", or a table with type = \"bubblewrap\"")
        }

        fn visit_str<E: de::Error>(self, word: &str) -> Result<Sandbox, E> {
            let word: StrDeserializer<'_, E> = word.into_deserializer();
            let kind = Kind::deserialize(word)?;
            Ok(Sandbox { kind, network: Network::Open, readable: Vec::new(), writable: Vec::new(), tmp_mib: default_tmp_mib() })
        }

        fn visit_map<A: MapAccess<'de>>(self, table: A) -> Result<Sandbox, A::Error> {
            Sandbox::deserialize(MapAccessDeserializer::new(table))
        }
    }

    from.deserialize_any(WordOrTable).map(Some)
}

/// What a run needs in its sandbox, besides the system and what the profile adds.
#[derive(Debug)]
pub struct Needs<'a> {
    /// The resolved path of its program.
    pub program: &'a Path,
    pub context_dir: &'a Path,
    /// Files and directories that the run only reads.
    pub readable: Vec<PathBuf>,
    /// Directories of the agent that the run may write.
    pub writable: Vec<PathBuf>,
    pub claude: Option<ClaudeDirs>,
    /// The way to the network destinations that the profile lists.
    pub way_out: Option<&'a WayOut>,
}

/// The directories that the Claude CLI uses.
#[derive(Debug)]
pub struct ClaudeDirs {
    /// The configuration of the agent's user.
    pub config: PathBuf,
    /// The sessions of the context.
    pub sessions: PathBuf,
    /// An empty file that is shown in place of files that do not exist.
    pub empty: PathBuf,
}

impl Sandbox {
    /// The name of the program that makes the sandbox.
    pub fn program(&self) -> &'static Path {
        match self.kind {
            Kind::Bubblewrap => Path::new("bwrap"),
        }
    }

    /// The resolved path of that program.
    ///
    /// # Errors
    /// The program was removed after the agent's start, which had checked it.
    pub fn installed(&self, profiles_dir: &Path) -> io::Result<PathBuf> {
        let gone = || io::Error::new(io::ErrorKind::NotFound, "bubblewrap is not installed any more");
        find_program(self.program(), profiles_dir).ok_or_else(gone)
    }

    /// The same sandbox without the profile's additions and without network, for the agent's own commands on files that runs wrote.
    pub fn with_nothing_added(&self) -> Self {
        Self { network: Network::Closed, readable: Vec::new(), writable: Vec::new(), ..self.clone() }
    }

    /// The command that starts a program in the sandbox, without the program's own arguments. `bubblewrap` is the resolved path of
    /// bubblewrap.
    pub fn command(&self, bubblewrap: &Path, hardening: &Hardening, profiles_dir: &Path, needs: &Needs<'_>) -> Vec<OsString> {
        let mut args = Args(hardening.program(bubblewrap));
        // Processes in the sandbox can't see or signal others. All of them end with the first one, which ends with the run's supervisor.
        args.add(["--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try", "--die-with-parent", "--new-session"]);
        args.add(["--cap-drop", "ALL"]);
        args.add(hardening.namespaces());
        if self.network != Network::Open {
            args.add(["--unshare-net"]);
        }
        for path in SYSTEM {
            args.add(["--ro-bind-try", path, path]);
        }
        args.add(["--proc", "/proc", "--dev", "/dev"]);
        args.add(hardening.directory_in_memory("/tmp".as_ref(), self.tmp_mib));
        args.add(hardening.directory_in_memory("/dev/shm".as_ref(), self.tmp_mib));
        args.add(["--remount-ro", "/dev", "--dir", HOME]);
        for path in KERNEL {
            args.add(["--ro-bind-try", path, path]);
        }
        args.add(["--setenv", "HOME", HOME, "--unsetenv", "CLAUDE_CONFIG_DIR"]);
        for name in ["TMPDIR", "CLAUDE_CODE_TMPDIR"] {
            args.add(["--unsetenv", name]);
        }
        for path in &self.readable {
            args.bind("--ro-bind", &profiles_dir.join(path));
        }
        let (program, shown) = program_in_sandbox(needs.program);
        for path in shown.iter().chain(&needs.readable) {
            args.bind("--ro-bind", path);
        }
        if let Some(claude) = &needs.claude {
            let to = Path::new(HOME).join(".claude");
            // These directories and their contents are mount points, because mount points can neither be moved away nor replaced.
            for dir in [Path::new(HOME), &to] {
                args.add(hardening.directory_in_memory(dir, self.tmp_mib));
            }
            for name in CLAUDE_SETUP_FILES {
                args.mount("--ro-bind", &claude.empty, &to.join(name));
            }
            for name in CLAUDE_SETUP_DIRS {
                args.add(["--tmpfs".as_ref(), to.join(name).as_os_str(), "--remount-ro".as_ref(), to.join(name).as_os_str()]);
            }
            for name in CLAUDE_SETUP_FILES.iter().chain(&CLAUDE_SETUP_DIRS) {
                args.mount("--ro-bind-try", &claude.config.join(name), &to.join(name));
            }
            args.mount("--bind-try", &claude.config.join(CREDENTIALS), &to.join(CREDENTIALS));
            args.mount("--bind", &claude.sessions, Path::new(SESSIONS));
        }
        for path in &self.writable {
            args.bind("--bind", &profiles_dir.join(path));
        }
        for path in &needs.writable {
            args.bind("--bind", path);
        }
        args.bind("--bind", needs.context_dir);
        if let Some(way_out) = needs.way_out {
            way_out.mounts().into_iter().for_each(|(from, to)| args.mount("--ro-bind", from, to));
        }
        args.add([OsStr::new("--chdir"), needs.context_dir.as_os_str()]);
        // Only the mounts above can be writable, and not the directories that contain them.
        args.add(["--remount-ro", "/", "--"]);
        args.add(needs.way_out.iter().flat_map(|way_out| way_out.words()));
        args.add([program]);
        args.0
    }

    /// # Errors
    /// The size is out of bounds, or a path that the profile adds does not exist.
    pub fn check(&self, profiles_dir: &Path) -> Result<(), String> {
        if !(1..=MAX_TMP_MIB).contains(&self.tmp_mib) {
            return Err(format!("sandbox.tmp_mib must be 1 to {MAX_TMP_MIB}"));
        }
        for (key, paths) in [("readable", &self.readable), ("writable", &self.writable)] {
            if let Some(missing) = paths.iter().map(|path| profiles_dir.join(path)).find(|path| !path.exists()) {
                return Err(format!("sandbox.{key} names {}, which does not exist", missing.display()));
            }
        }
        Ok(())
    }

    /// The first of these paths that runs could see, with the mount that would expose it.
    pub fn exposes<'p>(&self, profiles_dir: &Path, program: &Path, hidden: &'p [PathBuf]) -> Option<(&'p Path, PathBuf)> {
        let added = self.readable.iter().chain(&self.writable).map(|path| profiles_dir.join(path));
        let shown = SYSTEM.iter().map(PathBuf::from).chain(added).chain(program_in_sandbox(program).1);
        let real = |path: &Path| fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        shown.into_iter().find_map(|shown| {
            let within = real(&shown);
            let exposed =
                hidden.iter().map(|path| (path, real(path))).find(|(_, path)| path.starts_with(&within) || within.starts_with(path));
            let (exposed, _) = exposed?;
            Some((exposed.as_path(), shown))
        })
    }
}

/// The path by which a program is started in the sandbox, and what must be shown for it.
fn program_in_sandbox(program: &Path) -> (PathBuf, Option<PathBuf>) {
    let is_system = |path: &Path| SYSTEM.iter().any(|dir| path.starts_with(dir));
    let real = fs::canonicalize(program).unwrap_or_else(|_| program.to_owned());
    if is_system(&real) {
        // The program is started under its own name if that exists, because some programs behave according to their name.
        return (if is_system(program) { program.to_owned() } else { real }, None);
    }
    // A program in a Node package needs the packages next to its own.
    let packages = real.ancestors().filter(|dir| dir.ends_with("node_modules")).last().map(Path::to_owned);
    let shown = packages.unwrap_or_else(|| real.clone());
    (real, Some(shown))
}

struct Args(Vec<OsString>);

impl Args {
    fn add<T: Into<OsString>>(&mut self, words: impl IntoIterator<Item = T>) {
        self.0.extend(words.into_iter().map(Into::into));
    }

    fn mount(&mut self, how: &str, from: &Path, to: &Path) {
        self.add([OsStr::new(how), from.as_os_str(), to.as_os_str()]);
    }

    /// Mounts a path at its own place.
    fn bind(&mut self, how: &str, path: &Path) {
        self.mount(how, path, path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_shown_with_the_packages_that_it_needs() {
        let dir = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(dir.path()).unwrap();
        let script = root.join("lib/node_modules/@a/b/node_modules/c/cli.js");
        fs::create_dir_all(script.parent().unwrap()).unwrap();
        fs::write(&script, "").unwrap();
        let link = root.join("cli");
        std::os::unix::fs::symlink(&script, &link).unwrap();
        assert_eq!(program_in_sandbox(&link), (script, Some(root.join("lib/node_modules"))));
        let alone = root.join("alone");
        fs::write(&alone, "").unwrap();
        assert_eq!(program_in_sandbox(&alone), (alone.clone(), Some(alone)));
        assert_eq!(program_in_sandbox(Path::new("/bin/sh")), ("/bin/sh".into(), None));
    }
}
