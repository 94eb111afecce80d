//! A root directory whose first process runs in namespaces of its own, so that nothing it starts outlives the test or leaves the machine.

use std::fs::File;
use std::net::UdpSocket;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::support::janitor::{self, AtTheEnd};

const NAMESPACES: [(&str, &str); 5] = [("mount", "mnt"), ("net", "net"), ("uts", "uts"), ("ipc", "ipc"), ("pid", "pid_for_children")];
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// How long a command, or a condition, may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(180);

pub struct Chroot {
    root: PathBuf,
    process: Child,
}

impl Chroot {
    /// Starts the first process, with these environment variables.
    pub fn start(root: &Path, first: &[&str], environment: &[(&str, &str)]) -> Self {
        let mut command = janitor::bound(Path::new("unshare"), None, AtTheEnd::Kill);
        command.args(NAMESPACES.map(|(kind, _)| format!("--{kind}"))).args(["--fork", "--kill-child"]);
        command.arg(format!("--root={}", root.display())).args(first).env_clear().env("PATH", PATH).envs(environment.iter().copied());
        let log = File::create(root.with_extension("log")).expect("a log");
        command.stdout(log.try_clone().expect("a log")).stderr(log);
        let process = janitor::spawn(command).expect("unshare starts");
        Self { root: root.to_owned(), process }
    }

    /// A program of this machine in the namespaces of the chroot, but with the files of this machine.
    fn beside(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        for (kind, name) in NAMESPACES {
            command.arg(format!("--{kind}=/proc/{}/ns/{name}", self.process.id()));
        }
        command.args(["--", "timeout", "--signal=KILL", &PATIENCE.as_secs().to_string(), program]).env_clear().env("PATH", PATH);
        command.stdin(Stdio::null());
        command
    }

    /// Brings the loopback interface up.
    pub fn bring_up_loopback(&self) {
        let done = self.beside("ip").args(["link", "set", "lo", "up"]).output().expect("ip");
        assert!(done.status.success(), "{done:?}");
    }

    /// Binds a UDP port in its network.
    pub fn bind_udp(&self, address: &'static str) -> UdpSocket {
        let network = File::open(format!("/proc/{}/ns/net", self.process.id())).expect("its network");
        // A socket stays in the network in which it was made; the thread that enters it ends here.
        let thread = std::thread::spawn(move || -> std::io::Result<UdpSocket> {
            move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network))?;
            UdpSocket::bind(address)
        });
        thread.join().expect("the thread ends").expect("a port")
    }

    /// Runs a program of the chroot.
    pub fn run(&self, arguments: &[&str], environment: &[(&str, &str)]) -> Output {
        let mut command = self.beside("chroot");
        command.arg(&self.root).args(arguments).envs(environment.iter().copied()).output().expect("the program runs")
    }

    /// Runs a shell script in the chroot. Returns its output if it succeeds, else both outputs.
    pub fn sh(&self, script: &str) -> Result<String, String> {
        let done = self.run(&["/bin/sh", "-euc", script], &[]);
        let (said, complained) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
        if done.status.success() { Ok(said.trim().to_owned()) } else { Err(format!("{}\n{said}{complained}", done.status)) }
    }

    /// Runs a script until it succeeds and its output fits.
    pub fn until(&self, script: &str, fits: impl Fn(&str) -> bool) -> String {
        let started = Instant::now();
        loop {
            let said = self.sh(script);
            if let Ok(said) = &said
                && fits(said)
            {
                return said.clone();
            }
            assert!(started.elapsed() < PATIENCE, "not within {PATIENCE:?}: {script}: {said:?}\n{}", self.log());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    pub fn path(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    pub fn read(&self, path: &str) -> String {
        std::fs::read_to_string(self.path(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    pub fn write(&self, path: &str, text: &str) {
        std::fs::write(self.path(path), text).unwrap_or_else(|error| panic!("{path}: {error}"));
    }

    /// What its first process has printed.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.root.with_extension("log")).unwrap_or_default()
    }
}

impl Drop for Chroot {
    fn drop(&mut self) {
        // Its first process ends with it, and with that all others.
        let _ = self.process.kill();
        let _ = self.process.wait();
        if std::thread::panicking() {
            eprintln!("--- the log of {}\n{}", self.root.display(), self.log());
        }
    }
}

/// The static program, stripped.
pub fn static_program() -> PathBuf {
    std::env::var_os("STATIC_PROGRAM").expect("STATIC_PROGRAM is not set: run tests/run machine").into()
}
