//! Measures that harden the sandboxes on this machine, besides hiding files.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

/// Opens the file given as the first argument for bubblewrap, and becomes the command that follows. If the file can't be read, the error
/// begins like bubblewrap's own errors, so that it counts as a sandbox that can't be made.
const WITH_FILTER: &str = r#"[ -r "$0" ] || { echo "bwrap: $0 can't be read" >&2; exit 1; }; exec 9<"$0" && exec "$@""#;
/// The number of that open file.
const FILTER_FD: &str = "9";

/// The features of bubblewrap and the kernel on this machine, determined when the agent starts.
#[derive(Clone, Debug, Default)]
pub struct Hardening {
    /// Whether processes are kept from making user namespaces, in which they would have all capabilities.
    pub bans_namespaces: bool,
    /// Whether in-memory directories can have a limited size.
    pub limits_sizes: bool,
    /// The file with the filter of system calls.
    pub filter: Option<PathBuf>,
}

impl Hardening {
    /// The command line up to bubblewrap's own arguments.
    pub fn program(&self, bubblewrap: &Path) -> Vec<OsString> {
        let Some(filter) = &self.filter else { return vec![bubblewrap.into()] };
        let words = [OsStr::new("/bin/sh"), OsStr::new("-c"), OsStr::new(WITH_FILTER), filter.as_os_str(), bubblewrap.as_os_str()];
        let option = ["--seccomp", FILTER_FD].map(OsString::from);
        words.map(OsStr::to_owned).into_iter().chain(option).collect()
    }

    pub fn namespaces(&self) -> &'static [&'static str] {
        if self.bans_namespaces { &["--unshare-user", "--disable-userns"] } else { &[] }
    }

    /// The arguments that make an empty in-memory directory.
    pub fn directory_in_memory(&self, path: &Path, mib: u64) -> Vec<OsString> {
        let size = self.limits_sizes.then(|| ["--size".into(), (mib << 20).to_string().into()]);
        size.into_iter().flatten().chain(["--tmpfs".into(), path.into()]).collect()
    }
}
