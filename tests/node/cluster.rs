//! A cluster of one whole node, in namespaces of its own (`node.sh`), and the tools that a person would use with it.

use std::ffi::OsString;
use std::fs;
use std::io::{self, Write as _};
use std::net::TcpListener;
use std::os::fd::AsFd as _;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::images::Image;
use crate::support::janitor::{self, AtTheEnd, bound};
use crate::support::server::BINARY;

/// The node's address, which the pods reach too.
const ADDRESS: &str = "192.0.2.10";
/// How long the node's parts may take to become ready.
const PATIENCE: Duration = Duration::from_secs(300);
/// The time limit of one command, and of what it waits for.
const LIMIT: &str = "240";

/// Removes the control groups with the name `$1`, below which the node put its pods. The processes in them may still be ending.
const REMOVE_CONTROL_GROUPS: &str = r#"for _ in $(seq 100); do
  left="$(find /sys/fs/cgroup -maxdepth 2 -type d -name "$1")"
  [ -n "$left" ] || exit 0
  find $left -depth -type d -exec rmdir {} + 2>/dev/null
  sleep 0.1
done"#;

pub struct Cluster {
    dir: PathBuf,
    control_group: String,
    node: Child,
}

impl Cluster {
    /// Starts the node and waits until it can run pods.
    pub fn start() -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(1);
        let dir = janitor::new_path("node");
        fs::create_dir_all(dir.join("bin")).expect("a directory");
        // kubectl finds its plugin by the name of the program.
        symlink(BINARY, dir.join("bin/kubectl-bloom")).expect("the plugin");
        let control_group = format!("bloom-node-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        janitor::at_the_end(REMOVE_CONTROL_GROUPS, &control_group);
        let snapshotter = if can_overlay(&dir) { "overlayfs" } else { "native" };
        let mut unshare = bound(Path::new("unshare"), None, AtTheEnd::Kill);
        unshare.args(["--pid", "--fork", "--kill-child", "--mount", "--mount-proc", "--net", "--uts", "--ipc"]);
        unshare.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/node/node.sh"));
        unshare.arg(&dir).args([&control_group, snapshotter]);
        let log = fs::File::create(dir.join("node.log")).expect("a log");
        unshare.env("PATH", programs()).stdin(Stdio::piped()).stdout(log.try_clone().expect("a log")).stderr(log);
        let node = janitor::spawn(unshare).expect("the node starts");
        let mut cluster = Self { dir, control_group, node };
        cluster.wait_until_ready();
        cluster.import(&Image::pause());
        cluster
    }

    fn wait_until_ready(&mut self) {
        let started = Instant::now();
        loop {
            if let Some(status) = self.node.try_wait().expect("its state") {
                panic!("the node has ended: {status}");
            }
            // The namespaces exist once the script has begun.
            if self.dir.join("containerd.toml").exists()
                && self.kubectl(&["wait", "--for=condition=Ready", "node/node", "--timeout=1s"], "").is_ok()
                && self.kubectl(&["get", "serviceaccount", "default"], "").is_ok()
            {
                return;
            }
            assert!(started.elapsed() < PATIENCE, "the node is not ready within {PATIENCE:?}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// A program that runs on the node.
    fn on_the_node(&self, program: &str) -> Command {
        let namespaces = format!("/proc/{}/ns", self.node.id());
        let mut command = Command::new("nsenter");
        for (kind, name) in [("mount", "mnt"), ("net", "net"), ("uts", "uts"), ("ipc", "ipc"), ("pid", "pid_for_children")] {
            command.arg(format!("--{kind}={namespaces}/{name}"));
        }
        command.args(["--", "timeout", LIMIT, program]).env_clear().env("PATH", self.path()).env("HOME", &self.dir).stdin(Stdio::null());
        command.env("KUBECONFIG", self.dir.join("admin.kubeconfig")).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// The path of programs, with the plugin of kubectl.
    fn path(&self) -> OsString {
        let mut path = programs();
        path.push(":");
        path.push(self.dir.join("bin"));
        path
    }

    pub fn import(&self, image: &Image) {
        let mut archive = image.archive().stdout(Stdio::piped()).spawn().expect("tar starts");
        let mut import = self.on_the_node("ctr");
        import.args(["--namespace=k8s.io", "images", "import", "-"]);
        let output = import.stdin(archive.stdout.take().expect("its output")).output().expect("ctr starts");
        assert!(archive.wait().expect("the end of tar").success() && output.status.success(), "{output:?}");
    }

    /// Runs kubectl. Returns its output if it succeeds, else the text of its error.
    pub fn kubectl(&self, arguments: &[&str], input: &str) -> Result<String, String> {
        let mut command = self.on_the_node("kubectl");
        command.args(arguments);
        result(with_input(command, input))
    }

    /// Runs helm, as `kubectl` does.
    pub fn helm(&self, arguments: &[&str]) -> Result<String, String> {
        let helm = std::env::var("HELM").expect("HELM is not set: run tests/run node");
        let mut command = self.on_the_node(&helm);
        command.args(arguments);
        result(with_input(command, ""))
    }

    /// Kills the processes of a pod's first container, at once.
    pub fn kill(&self, namespace: &str, pod: &str) {
        let id = "--output=jsonpath={.status.containerStatuses[0].containerID}";
        let id = self.kubectl(&["get", "pod", pod, "--namespace", namespace, id], "").expect("a container");
        let mut command = self.on_the_node("ctr");
        command.args(["--namespace=k8s.io", "tasks", "kill", "--all", "--signal=SIGKILL", id.trim_start_matches("containerd://")]);
        result(with_input(command, "")).expect("it is killed");
    }

    /// Binds a port that the pods reach, and that belongs to this process.
    pub fn listen(&self) -> TcpListener {
        let network = fs::File::open(format!("/proc/{}/ns/net", self.node.id())).expect("the node's network");
        // A socket stays in the network in which it was made; the thread that enters it ends here.
        let thread = std::thread::spawn(move || -> io::Result<TcpListener> {
            move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network))?;
            TcpListener::bind((ADDRESS, 0))
        });
        let listener = thread.join().expect("the thread ends").expect("a port of the node");
        listener.set_nonblocking(true).expect("an asynchronous listener");
        listener
    }

    /// What a person would look at to find out why a test failed.
    fn tell(&self) {
        for arguments in [
            &["get", "pods,persistentvolumeclaims,llmtasks", "--all-namespaces", "--output=wide"][..],
            &["get", "events", "--all-namespaces", "--sort-by=.lastTimestamp"],
        ] {
            eprintln!("--- kubectl {}\n{}", arguments.join(" "), self.kubectl(arguments, "").unwrap_or_else(|error| error));
        }
        for pod in self
            .kubectl(
                &["get", "pods", "--all-namespaces", "--output=jsonpath={range .items[*]}{.metadata.namespace}/{.metadata.name} {end}"],
                "",
            )
            .unwrap_or_default()
            .split_whitespace()
        {
            if let Some((namespace, name)) = pod.split_once('/') {
                let log = self.kubectl(&["logs", "--namespace", namespace, name, "--all-containers", "--tail=20"], "");
                eprintln!("--- logs of {pod}\n{}", log.unwrap_or_else(|error| error));
            }
        }
        for name in ["node", "kubelet", "containerd"] {
            let log = fs::read_to_string(self.dir.join(format!("{name}.log"))).unwrap_or_default();
            let is_error = |line: &&str| name == "node" || line.starts_with('E') || line.contains("level=error");
            let last: Vec<&str> = log.lines().filter(is_error).rev().take(15).collect();
            eprintln!("--- {name}\n{}", last.into_iter().rev().collect::<Vec<_>>().join("\n"));
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.tell();
        }
        // The kernel ends all processes of the namespaces with their first one.
        let _ = self.node.kill();
        let _ = self.node.wait();
        let _ = Command::new("sh").args(["-c", REMOVE_CONTROL_GROUPS, "end", &self.control_group]).status();
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// The path of programs: those that `tests/run` built come first.
fn programs() -> OsString {
    let built = ["NODE_BIN", "KUBERNETES_BIN"]
        .map(|name| PathBuf::from(std::env::var_os(name).unwrap_or_else(|| panic!("{name} is not set: run tests/run node"))));
    let usual = ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"].map(PathBuf::from);
    std::env::join_paths(built.into_iter().chain(usual)).expect("paths without colons")
}

/// Whether containers can share the layers of their image here. Else each gets a copy.
fn can_overlay(dir: &Path) -> bool {
    let script = "mkdir lower upper work merged && mount -t overlay overlay -o lowerdir=lower,upperdir=upper,workdir=work merged";
    let tried = Command::new("unshare").args(["--mount", "sh", "-c", script]).current_dir(dir).output();
    tried.is_ok_and(|output| output.status.success())
}

fn with_input(mut command: Command, input: &str) -> Output {
    let mut child = command.stdin(Stdio::piped()).spawn().expect("it starts");
    // A program that fails early need not read.
    let _ = child.stdin.take().expect("its input").write_all(input.as_bytes());
    child.wait_with_output().expect("its end")
}

fn result(output: Output) -> Result<String, String> {
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    if output.status.success() { Ok(text(output.stdout)) } else { Err(text(output.stderr)) }
}
