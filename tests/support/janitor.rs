//! Ends and removes everything that a test run starts or writes, however the run ends.
//!
//! Children are started by one thread that lives as long as the process, and are bound to it (`setpriv --pdeathsig`): when the test binary
//! ends, also by a panic or a kill, the kernel ends them. A shell that waits until a pipe is closed removes the files.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{LazyLock, Mutex};

/// Which signal ends a child when the tests end.
#[derive(Clone, Copy)]
pub enum AtTheEnd {
    Kill,
    /// PostgreSQL's fast shutdown.
    Interrupt,
}

type Order = (Command, Sender<io::Result<Child>>);

/// The thread that starts the children. The kernel sends the signal when the *thread* that started a child ends, and threads of tests end
/// early.
static STARTER: LazyLock<Mutex<Sender<Order>>> = LazyLock::new(|| {
    let (sender, orders) = channel::<Order>();
    std::thread::spawn(move || {
        for (mut command, reply) in orders {
            // The test that asked for the child may have ended meanwhile. Then nobody would end the child, so it is killed here.
            if let Err(unasked) = reply.send(command.spawn())
                && let Ok(mut child) = unasked.0
            {
                let _ = child.kill();
            }
        }
    });
    Mutex::new(sender)
});

/// A command whose process ends with the tests. It runs as the system user `user`, if given.
pub fn bound(program: &Path, user: Option<&str>, at_the_end: AtTheEnd) -> Command {
    let mut command = Command::new("setpriv");
    if let Some(user) = user {
        command.args(["--reuid", user, "--regid", user, "--clear-groups"]);
    }
    let signal = match at_the_end {
        AtTheEnd::Kill => "KILL",
        AtTheEnd::Interrupt => "INT",
    };
    command.args(["--pdeathsig", signal]).arg(program).stdin(Stdio::null());
    command
}

pub fn spawn(command: Command) -> io::Result<Child> {
    let (reply, answer) = channel();
    let order = (command, reply);
    STARTER.lock().expect("the starter").send(order).map_err(|_| io::Error::other("the starter has ended"))?;
    answer.recv().map_err(|_| io::Error::other("the starter has ended"))?
}

/// Sends a signal to one process, by its id.
pub fn signal(pid: u32, name: &str) {
    let sent = Command::new("sh").arg("-c").arg(format!("kill -{name} {pid}")).status().expect("a shell");
    assert!(sent.success(), "no process {pid} to send {name} to");
}

/// Runs a shell script, whose `$1` is the argument, when this process has ended in whatever way.
pub fn at_the_end(script: &str, argument: &str) {
    // `read` returns when the last writer of the pipe has ended, which is this process.
    let watcher = Command::new("sh")
        .args(["-c", &format!("trap '' INT TERM HUP; read -r _; {script}"), "watcher", argument])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("a shell that cleans up");
    // This keeps the writing end of the pipe open until this process ends.
    std::mem::forget(watcher);
}

/// The directory of this test run; it is removed when the run ends.
static RUN_DIR: LazyLock<PathBuf> = LazyLock::new(|| {
    let dir = tempfile::Builder::new().prefix("bloom-it-").tempdir().expect("a temporary directory").keep();
    // PostgreSQL's user must be able to reach its own directory in here.
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&dir, open).expect("permissions of the run's directory");
    // The removal is repeated while servers still write.
    at_the_end(r#"for _ in 1 2 3 4 5 6 7 8 9 10; do sleep 0.3; rm -rf "$1" 2>/dev/null && exit; done"#, &dir.display().to_string());
    dir
});

/// An unused path in the directory of this test run.
pub fn new_path(name: &str) -> PathBuf {
    static NEXT: AtomicUsize = AtomicUsize::new(1);
    RUN_DIR.join(format!("{name}-{}", NEXT.fetch_add(1, Ordering::Relaxed)))
}

/// A port that was free a moment ago.
pub fn free_port() -> u16 {
    let probe = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    probe.local_addr().expect("an address").port()
}
