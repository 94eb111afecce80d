//! What hardens the sandboxes of this machine, beside what they hide.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

/// Opens the file that is named first, for bubblewrap, and becomes the command that follows. What it says where it can't is taken for
/// bubblewrap's own words: the sandbox can't be made.
const WITH_FILTER: &str = r#"[ -r "$0" ] || { echo "bwrap: $0 can't be read" >&2; exit 1; }; exec 9<"$0" && exec "$@""#;
/// The number of that open file.
const FILTER_FD: &str = "9";

/// What the bubblewrap and the kernel of this machine can do. It is found out at the start of the agent.
#[derive(Clone, Debug, Default)]
pub struct Hardening {
    /// Processes can make no namespaces of users, in which they would have all capabilities.
    pub bans_namespaces: bool,
    /// Directories in memory have a size.
    pub limits_sizes: bool,
    /// The file with the filter of system calls.
    pub filter: Option<PathBuf>,
}

impl Hardening {
    /// The words before the arguments of bubblewrap.
    pub fn program(&self, bubblewrap: &Path) -> Vec<OsString> {
        let Some(filter) = &self.filter else { return vec![bubblewrap.into()] };
        let words = [OsStr::new("/bin/sh"), OsStr::new("-c"), OsStr::new(WITH_FILTER), filter.as_os_str(), bubblewrap.as_os_str()];
        let option = ["--seccomp", FILTER_FD].map(OsString::from);
        words.map(OsStr::to_owned).into_iter().chain(option).collect()
    }

    pub fn namespaces(&self) -> &'static [&'static str] {
        if self.bans_namespaces { &["--unshare-user", "--disable-userns"] } else { &[] }
    }

    /// The arguments that make an empty directory in memory.
    pub fn directory_in_memory(&self, path: &Path, mib: u64) -> Vec<OsString> {
        let size = self.limits_sizes.then(|| ["--size".into(), (mib << 20).to_string().into()]);
        size.into_iter().flatten().chain(["--tmpfs".into(), path.into()]).collect()
    }
}
