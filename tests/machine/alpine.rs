//! A machine as Alpine has it: busybox, OpenRC, the packages of this repository, and an interface that the services wait for.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::chroot::Chroot;
use crate::packages;
use crate::support::janitor;

pub const KEY: &str = "a-key-of-the-administrator";
/// The user ids of the services.
pub const SERVER: u32 = 901;
pub const AGENT: u32 = 902;

const FILES: [(&str, &str); 6] = [
    (
        "etc/inittab",
        "::sysinit:/sbin/openrc sysinit\n::sysinit:/sbin/openrc boot\n::wait:/sbin/openrc default\n::shutdown:/sbin/openrc shutdown\n",
    ),
    ("etc/passwd", "root:x:0:0::/root:/bin/sh\n"),
    ("etc/group", "root:x:0:\n"),
    ("etc/hosts", "127.0.0.1 localhost\n"),
    ("etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files\n"),
    // Debian's OpenRC asks PAM, that of Alpine does not.
    ("etc/pam.d/other", "auth required pam_permit.so\naccount required pam_permit.so\nsession required pam_permit.so\n"),
];

const SETTINGS: [(&str, &str); 4] = [
    (
        "etc/passwd",
        "root:x:0:0::/root:/bin/sh\nbloom-runtime:x:901:901::/var/lib/bloom-runtime:/sbin/nologin\nbloom-agent:x:902:902::/var/lib/bloom-agent:/bin/sh\n",
    ),
    ("etc/group", "root:x:0:\nbloom-runtime:x:901:\nbloom-agent:x:902:\n"),
    ("etc/bloom-runtime.env", "RUNTIME_API_KEY='a-key-of-the-administrator'\n"),
    ("etc/bloom-runtime.toml", "log_level = \"info\"\nrate_limit_per_minute = 0\n"),
];

const LOOPBACK: &str = "#!/sbin/openrc-run
depend() { provide net; }
start() { ebegin 'Bringing up loopback'; ip link set lo up; eend $?; }
";

/// A machine that is installed, but not running yet.
pub struct Installed(PathBuf);

impl Installed {
    /// A machine with the packages, settings and users of both services.
    pub fn new() -> Self {
        let installed = Self::bare();
        packages::install(&installed.0);
        SETTINGS.iter().for_each(|(path, text)| installed.write(path, text));
        fs::create_dir_all(installed.0.join("var/lib/bloom-agent")).unwrap();
        std::os::unix::fs::chown(installed.0.join("var/lib/bloom-agent"), Some(AGENT), Some(AGENT)).unwrap();
        installed
    }

    /// A machine that knows nothing of bloom-runtime.
    pub fn bare() -> Self {
        let root = janitor::new_path("alpine");
        fs::create_dir_all(&root).unwrap();
        let archive = std::env::var_os("OPENRC_ROOT").expect("OPENRC_ROOT is not set: run tests/run machine");
        does(Command::new("tar").arg("--extract").arg("--file").arg(archive).arg("--directory").arg(&root));
        for dir in ["proc", "run", "sys", "root", "tmp", "etc/runlevels/default", "var/log", "var/lib"] {
            fs::create_dir_all(root.join(dir)).unwrap();
        }
        // The programs of Debian's packages stay; all others are those of busybox.
        let _ = Command::new("chroot").arg(&root).args(["/bin/busybox", "--install", "-s"]).output().unwrap();
        let installed = Self(root);
        FILES.iter().for_each(|(path, text)| installed.write(path, text));
        installed.program("etc/init.d/loopback", LOOPBACK);
        installed.enable("loopback");
        installed
    }

    /// Copies a file or a directory of this machine.
    pub fn copy(&self, from: &Path, to: &str) {
        fs::create_dir_all(self.0.join(to).parent().unwrap()).unwrap();
        does(Command::new("cp").arg("-r").arg(from).arg(self.0.join(to)));
    }

    pub fn write(&self, path: &str, text: &str) {
        fs::write(self.0.join(path), text).unwrap_or_else(|error| panic!("{path}: {error}"));
    }

    pub fn program(&self, path: &str, text: &str) {
        fs::create_dir_all(self.0.join(path).parent().unwrap()).unwrap();
        self.write(path, text);
        fs::set_permissions(self.0.join(path), fs::Permissions::from_mode(0o755)).unwrap();
    }

    pub fn enable(&self, service: &str) {
        does(Command::new("chroot").arg(&self.0).args(["/sbin/rc-update", "add", service, "default"]));
    }

    pub fn boot(self) -> Chroot {
        Chroot::start(Path::new(&self.0), &["/bin/busybox", "init"], &[])
    }
}

fn does(command: &mut Command) {
    let done = command.output().expect("it starts");
    assert!(done.status.success(), "{command:?}: {done:?}");
}
