//! The agent as a process, and the processes of its runs.

use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};

use super::server::{OWN_KEY, Plan, Server, follow, wait_for_end};
use super::{eventually, janitor};

/// The settings and arguments that an agent is started with.
#[derive(Clone)]
pub struct AgentPlan {
    plan: Plan,
    args: Vec<String>,
    dir: PathBuf,
}

impl Server {
    /// An agent that calls this server, in a directory of its own.
    pub fn agent(&self, name: &str) -> AgentPlan {
        let plan = AgentPlan::at(self.base(), name);
        if self.plan().is_keyed() { plan.env("BLOOM_KEY", OWN_KEY) } else { plan }
    }
}

impl AgentPlan {
    pub fn at(url: &str, name: &str) -> Self {
        let dir = janitor::new_path("agent");
        let work = dir.join("work").display().to_string();
        let plan = Plan::empty(dir.clone()).env("BLOOM_SERVER", url).env("BLOOM_AGENT_NAME", name).env("BLOOM_WORK_DIR", work);
        Self { plan, args: Vec::new(), dir }
    }

    pub fn env(mut self, name: &str, value: impl ToString) -> Self {
        self.plan = self.plan.env(name, value);
        self
    }

    pub fn arg(mut self, words: &[&str]) -> Self {
        self.args.extend(words.iter().map(|word| (*word).to_owned()));
        self
    }

    pub fn slots(self, count: u32) -> Self {
        self.env("BLOOM_MAX_CONCURRENCY", count)
    }

    pub fn echo(self) -> Self {
        self.env("BLOOM_RUNNER", "echo")
    }

    /// Defines the profile `default` with these TOML lines.
    pub fn profile(self, lines: &str) -> Self {
        self.profiles(&format!("[profiles.default]\n{lines}\n"))
    }

    pub fn profiles(self, text: &str) -> Self {
        std::fs::create_dir_all(&self.dir).expect("a directory");
        let path = self.dir.join("profiles.toml");
        std::fs::write(&path, text).expect("the profiles");
        self.env("BLOOM_PROFILES", path.display())
    }

    /// Runs prompts as shell scripts.
    pub fn shell(self) -> Self {
        self.profile("runner = \"command\"\ncommand = [\"sh\"]")
    }

    /// Starts the program by this shell script, which ends with `exec "$0" "$@"`.
    pub fn through(mut self, script: &'static str) -> Self {
        self.plan = self.plan.through(script);
        self
    }

    pub fn dir(&self) -> &PathBuf {
        &self.dir
    }

    pub fn start(self) -> Agent {
        let log = Arc::new(Mutex::new(String::new()));
        let process = start(&self, &log);
        Agent { plan: self, process: Mutex::new(Some(process)), log }
    }

    /// Runs the agent when its start must fail. Returns the exit code and its output.
    pub fn start_in_vain(self) -> (Option<i32>, String) {
        let mut words = vec!["agent"];
        words.extend(self.args.iter().map(String::as_str));
        let mut command = self.plan.command(&words);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let output = janitor::spawn(command).expect("the program starts").wait_with_output().expect("its output");
        let said = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8_lossy(&said).into_owned())
    }
}

pub struct Agent {
    plan: AgentPlan,
    process: Mutex<Option<Child>>,
    log: Arc<Mutex<String>>,
}

fn start(plan: &AgentPlan, log: &Arc<Mutex<String>>) -> Child {
    let mut words = vec!["agent"];
    words.extend(plan.args.iter().map(String::as_str));
    let mut command = plan.plan.command(&words);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = janitor::spawn(command).expect("the program starts");
    follow(child.stdout.take().expect("its stdout"), Arc::clone(log), None);
    follow(child.stderr.take().expect("its stderr"), Arc::clone(log), None);
    child
}

impl Agent {
    pub fn log(&self) -> String {
        self.log.lock().expect("the log").clone()
    }

    pub fn pid(&self) -> u32 {
        self.process.lock().expect("the process").as_ref().expect("a running agent").id()
    }

    pub fn work_dir(&self) -> PathBuf {
        self.plan.dir.join("work")
    }

    pub fn dir(&self) -> &PathBuf {
        self.plan.dir()
    }

    pub fn kill9(&self) {
        let mut child = self.process.lock().expect("the process").take().expect("a running agent");
        child.kill().expect("it can be killed");
        child.wait().expect("its end");
    }

    pub fn start_again(&self) {
        *self.process.lock().expect("the process") = Some(start(&self.plan, &self.log));
    }

    pub fn signal(&self, name: &str) {
        janitor::signal(self.pid(), name);
    }

    pub fn wait_for_end(&self) -> ExitStatus {
        let child = self.process.lock().expect("the process").take().expect("a running agent");
        wait_for_end(child, &self.log)
    }

    pub fn stop(&self) -> ExitStatus {
        self.signal("TERM");
        self.wait_for_end()
    }

    /// The processes of its runs that are alive. Zombies are not included.
    pub fn processes(&self) -> Vec<u32> {
        let wanted = format!("BLOOM_AGENT_HOME={}", self.work_dir().canonicalize().unwrap_or_default().display());
        let entries = std::fs::read_dir("/proc").expect("/proc").flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        let is_its = |pid: &u32| {
            let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            environment.split(|byte| *byte == 0).any(|variable| variable == wanted.as_bytes())
        };
        pids.filter(is_its).collect()
    }

    /// The supervisors of its runs.
    pub fn supervisors(&self) -> Vec<u32> {
        let is_one = |pid: &u32| {
            let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            line.starts_with(b"bloom-runtime\0supervise-run\0")
        };
        self.processes().into_iter().filter(is_one).collect()
    }

    /// Kills all processes at once, as if the machine died: they are stopped first, so that none sees another's end.
    pub fn kill_processes(&self) {
        self.signal_processes("STOP");
        self.signal_processes("KILL");
    }

    /// Sends the signal to the processes of its runs, which come and go meanwhile.
    pub fn signal_processes(&self, name: &str) {
        for pid in self.processes() {
            let _ = Command::new("sh").args(["-c", &format!("kill -{name} {pid}")]).stderr(Stdio::null()).status();
        }
    }

    pub async fn has_no_processes(&self) {
        eventually("no process of a run is left", || async { self.processes().is_empty().then_some(()) }).await;
    }

    /// The cgroups of the runs that it still has on disk.
    pub fn cgroups(&self) -> Vec<PathBuf> {
        let runs = std::fs::read_dir(self.work_dir().join("runs")).into_iter().flatten().flatten();
        let kept = runs.filter_map(|run| std::fs::read_to_string(run.path().join("cgroup.json")).ok());
        kept.map(|path| PathBuf::from(path.trim_matches('"'))).filter(|path| path.exists()).collect()
    }

    /// Removes the cgroups of runs whose processes were killed a moment ago.
    fn remove_cgroups(&self) {
        for path in self.cgroups() {
            let _ = std::fs::write(path.join("cgroup.kill"), "1");
            while std::fs::read_to_string(path.join("cgroup.events")).is_ok_and(|events| events.contains("populated 1")) {
                std::thread::yield_now();
            }
            let _ = std::fs::remove_dir(path);
        }
    }

    /// How many runs the agent still has on disk.
    pub fn kept_runs(&self) -> usize {
        std::fs::read_dir(self.work_dir().join("runs")).map_or(0, |entries| entries.flatten().count())
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        if let Ok(mut process) = self.process.lock()
            && let Some(mut child) = process.take()
        {
            let _ = child.kill();
            let _ = child.wait();
        }
        // Runs continue without their agent, so they are ended here.
        self.kill_processes();
        self.remove_cgroups();
        if std::thread::panicking() {
            let log = self.log.lock().map(|log| log.clone()).unwrap_or_default();
            let from = log.len().saturating_sub(4000);
            eprintln!("--- the agent's last log lines ---\n{}", log.get(from..).unwrap_or(&log));
        }
        let _ = std::fs::remove_dir_all(&self.plan.dir);
    }
}
