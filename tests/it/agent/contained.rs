//! Every process that a run starts ends with it, also those that leave its process group, its session and its environment.

use super::*;
use crate::support::agent::AgentPlan;
use crate::support::{Database, Server};

/// What the agent has to hold the processes of a run together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Means {
    /// A cgroup of its own, which this machine's cgroup v2 hierarchy lets the agent make. The tests need root rights for that.
    Cgroup,
    /// Only the supervisor, as in most containers and for most users.
    Supervisor,
}

pub(super) const BOTH: [Means; 2] = [Means::Cgroup, Means::Supervisor];

/// Starts the program where no cgroup v2 hierarchy can be seen.
const WITHOUT_CGROUPS: &str = r#"
    exec unshare --mount sh -c 'for dir in $(awk "\$3 == \"cgroup2\" {print \$2}" /proc/mounts); do umount -l "$dir"; done; exec "$0" "$@"' "$0" "$@""#;

impl Means {
    pub fn limit(self, plan: AgentPlan) -> AgentPlan {
        if self == Self::Supervisor { plan.through(WITHOUT_CGROUPS) } else { plan }
    }

    pub async fn is_used(self, agent: &agent::Agent) {
        let words = if self == Self::Cgroup { "each run gets a cgroup" } else { "runs get no cgroups" };
        eventually("the agent says what holds its runs", || async { agent.log().contains(words).then_some(()) }).await;
    }
}

/// A process without any environment, of which only the second thread is left: it looks as if it had ended.
const HEADLESS: &str = r#"
import ctypes, os, platform, signal, sys, threading, time
if len(sys.argv) == 2:
    os.execve(sys.executable, [sys.executable, "-S", *sys.argv, "bare"], {})
os.setsid()
signal.signal(signal.SIGTERM, signal.SIG_IGN)
threading.Thread(target=time.sleep, args=(250,)).start()
with open(sys.argv[1], "a") as file:
    file.write(f"{os.getpid()}\n")
ctypes.CDLL(None).syscall(60 if platform.machine() == "x86_64" else 93, 0)
"#;

/// Processes that have left everything that they can leave. They write their ids to a file.
pub(super) struct Escaped(PathBuf);

impl Escaped {
    pub fn new() -> Self {
        Self(janitor::new_path("escaped"))
    }

    /// A shell script that starts them: in a session of its own without any environment, as a daemon, one that gives its place to a child
    /// again and again, and one whose first thread has ended. None of them heeds SIGTERM.
    pub fn start(&self) -> String {
        let (file, script) = (self.0.display(), self.0.with_extension("sh"));
        std::fs::write(&script, format!("trap '' TERM HUP INT; echo $$ >>{file}; exec sleep 250")).expect("a script");
        let headless = self.0.with_extension("py");
        std::fs::write(&headless, HEADLESS).expect("a script");
        let (script, headless) = (script.display(), headless.display());
        format!(
            "env -i setsid sh {script} & \
             (cd /; env -i setsid sh -c 'sh {script} </dev/null >/dev/null 2>&1 &' &) \n\
             perl -e '$SIG{{TERM}} = \"IGNORE\"; fork and exit; setpgrp; open F, \">>\", \"{file}\"; print F \"$$\\n\"; close F; \
                      for (1..20000) {{ fork and exit; select undef, undef, undef, 0.002 }}' & \n\
             perl -e '$SIG{{TERM}} = \"IGNORE\"; for (1..50) {{ fork or do {{ setpgrp; sleep 250; exit }} }}' & \n\
             python3 {headless} {file} & \n\
             while [ \"$(wc -l <{file} 2>/dev/null)\" != 4 ]; do sleep 0.05; done"
        )
    }

    /// Without a cgroup, the supervisor lists the process groups of its run every second.
    pub async fn are_known(&self, agent: &agent::Agent) {
        eventually("the supervisor knows them", || async {
            let runs = std::fs::read_dir(agent.work_dir().join("runs")).expect("runs").flatten();
            let lists: Vec<String> = runs.filter_map(|run| std::fs::read_to_string(run.path().join("groups.json")).ok()).collect();
            let is_listed = |group: &u32| lists.iter().any(|list| list.contains(&format!("\"pid\":{group},")));
            (!agent.cgroups().is_empty() || self.alive().iter().all(is_listed)).then_some(())
        })
        .await;
    }

    /// No such process is left, not even a zombie.
    pub async fn are_gone(&self) {
        assert_eq!(self.recorded().len(), 4, "they have started");
        eventually("no escaped process is left", || async { self.alive().is_empty().then_some(()) }).await;
    }

    fn recorded(&self) -> Vec<u32> {
        std::fs::read_to_string(&self.0).unwrap_or_default().lines().flat_map(str::parse).collect()
    }

    /// The groups of those that are left.
    fn alive(&self) -> Vec<u32> {
        let recorded = self.recorded();
        let entries = std::fs::read_dir("/proc").expect("/proc").flatten();
        let stats = entries.filter_map(|entry| std::fs::read_to_string(entry.path().join("stat")).ok());
        let of_stat = |stat: String| {
            let pid = stat.split(' ').next()?.parse::<u32>().ok()?;
            let group = stat.rsplit(')').next()?.split_whitespace().nth(2)?.parse::<u32>().ok()?;
            (recorded.contains(&pid) || recorded.contains(&group)).then_some(group)
        };
        stats.filter_map(of_stat).collect()
    }
}

impl Drop for Escaped {
    fn drop(&mut self) {
        for group in self.alive() {
            let _ =
                std::process::Command::new("kill").args(["-KILL", "--", &format!("-{group}")]).stderr(std::process::Stdio::null()).status();
        }
    }
}

/// All cgroups of runs on this machine whose lease is one of these.
fn left_cgroups(leases: &[String]) -> Vec<PathBuf> {
    let mounts = std::fs::read_to_string("/proc/mounts").expect("mounts");
    let roots = mounts.lines().filter(|line| line.contains(" cgroup2 ")).filter_map(|line| line.split(' ').nth(1));
    let mut open: Vec<PathBuf> = roots.map(PathBuf::from).collect();
    let mut found = Vec::new();
    while let Some(dir) = open.pop() {
        open.extend(std::fs::read_dir(&dir).into_iter().flatten().flatten().map(|entry| entry.path()).filter(|path| path.is_dir()));
        if leases.iter().any(|lease| dir.ends_with(format!("bloom-run-{lease}"))) {
            found.push(dir);
        }
    }
    found
}

/// No cgroup of a run of this task is left.
pub(super) async fn has_no_cgroups(task: &Task<'_>) {
    let leases = task.api.get(&format!("leases?task_id={}", task.id)).await.ok();
    let leases: Vec<String> =
        leases.as_array().expect("leases").iter().filter_map(|lease| lease["id"].as_str()).map(str::to_owned).collect();
    assert!(!leases.is_empty());
    eventually("no cgroup of the task is left", || async { left_cgroups(&leases).is_empty().then_some(()) }).await;
}

fn with(means: Means, body: impl for<'a> AsyncFnOnce(&'a Server, &agent::Agent, &Escaped, &BootClock) -> Task<'a>) {
    run(async {
        let (server, clock) = (Server::on(Database::Sqlite).env("LEASE_TTL_SECONDS", 900).start(), BootClock::new());
        let plan = server.agent("box").profile(&format!("runner = \"command\"\ncommand = [\"sh\"]\n{}", BootClock::PASSED));
        let agent = clock.of(means.limit(plan)).start();
        let escaped = Escaped::new();
        let task = body(&server, &agent, &escaped, &clock).await;
        escaped.are_gone().await;
        agent.has_no_processes().await;
        means.is_used(&agent).await;
        has_no_cgroups(&task).await;
    });
}

#[test]
fn what_escapes_ends_with_a_cancel() {
    for means in BOTH {
        with(means, async |server, agent, escaped, _| {
            let tally = Tally::new();
            let prompt = format!("trap '' TERM; {}; {}; sleep 250", escaped.start(), tally.mark());
            let task = server.crew().task().prompt(&prompt).create().await;
            tally.reaches(1).await;
            assert_eq!(agent.cgroups().len(), usize::from(means == Means::Cgroup));
            task.cancel().await.ok();
            task.reaches("cancelled").await;
            task
        });
    }
}

#[test]
fn what_escapes_ends_at_the_time_limit() {
    for means in BOTH {
        with(means, async |server, _, escaped, clock| {
            let tally = Tally::new();
            let prompt = format!("{}; {}; sleep 250", escaped.start(), tally.mark());
            let task = server.crew().task().prompt(&prompt).with("policy", json!({"timeout_sec": 600})).attempts(1).create().await;
            tally.reaches(1).await;
            clock.advance(600);
            assert_eq!(task.reaches("failed").await["failure"]["reason"], json!("timeout"));
            task
        });
    }
}

#[test]
fn what_escapes_ends_with_a_success() {
    for means in BOTH {
        with(means, async |server, _, escaped, _| {
            let task = server.crew().task().prompt(&format!("{}; echo done", escaped.start())).create().await;
            task.reaches("completed").await;
            assert_eq!(result(&task).await["output"], json!("done\n"));
            task
        });
    }
}

#[test]
fn the_death_of_a_supervisor_ends_its_run_and_the_task_is_tried_again() {
    for means in BOTH {
        with(means, async |server, agent, escaped, _| {
            let tally = Tally::new();
            let prompt =
                format!("[ -e {0} ] && {{ echo again; exit; }}; {1}; {2}; sleep 250", tally.0.display(), escaped.start(), tally.mark());
            let task = server.crew().task().prompt(&prompt).create().await;
            tally.reaches(1).await;
            escaped.are_known(agent).await;
            for pid in agent.supervisors() {
                janitor::signal(pid, "KILL");
            }
            escaped.are_gone().await;
            let done = task.reaches("completed").await;
            assert_eq!(done["infra_retries"], json!(1));
            assert_eq!(result(&task).await["output"], json!("again\n"));
            task
        });
    }
}

/// Starts the program in a terminal of its own, and ends it with that.
const IN_A_TERMINAL: &str =
    r#"PROGRAM="$0" exec script --quiet --flush --command 'exec setpriv --pdeathsig KILL "$PROGRAM" agent' /dev/null"#;

#[test]
fn a_run_has_no_terminal() {
    run(async {
        let server = Server::on(Database::Sqlite).start();
        let _agent = server.agent("box").shell().through(IN_A_TERMINAL).start();
        let task = server.crew().task().prompt("cat </dev/tty; echo after").with("policy", json!({"timeout_sec": 20})).create().await;
        task.reaches("completed").await;
        assert_eq!(result(&task).await["output"], json!("after\n"));
    });
}

#[test]
fn output_is_kept_when_a_program_opens_it_anew() {
    run(async {
        let server = Server::on(Database::Sqlite).start();
        let _agent = server.agent("box").shell().start();
        let prompt = "echo first; echo second >/dev/stdout; echo third; echo why >/dev/stderr; echo more >/dev/stderr; exit 3";
        let task = server.crew().task().prompt(prompt).attempts(1).create().await;
        assert_eq!(task.reaches("dead").await["failure"]["message"], json!("ended with status 3 and without a result: why\nmore"));
        let texts = told(&task, "text").await;
        let text: String = texts.iter().filter_map(|data| data["text"].as_str()).collect();
        assert_eq!(text, "first\nsecond\nthird\n");
    });
}

const LIMITED: &str = "runner = \"command\"\ncommand = [\"sh\"]\nlimits = { memory_mib = 64, max_processes = 20 }";

#[test]
fn limits_that_cannot_be_kept_stop_the_start() {
    run(async {
        let server = Server::on(Database::Sqlite).start();
        let (code, said) = server.agent("box").profile(LIMITED).through(WITHOUT_CGROUPS).start_in_vain();
        assert_eq!(code, Some(1));
        assert!(said.contains("profile default: its limits need the cgroup controllers memory, pids"), "{said}");
    });
}

/// A machine may have the controllers in the hierarchy of version 2, or use them for cgroups of version 1. Then the agent must say so.
#[test]
fn limits_hold_where_the_machine_has_the_controllers() {
    run(async {
        let server = Server::on(Database::Sqlite).start();
        let plan = server.agent("box").profile(LIMITED);
        let mounts = std::fs::read_to_string("/proc/mounts").expect("mounts");
        let root = mounts.lines().find(|line| line.contains(" cgroup2 ")).and_then(|line| line.split(' ').nth(1)).expect("cgroups v2");
        let offered = std::fs::read_to_string(PathBuf::from(root).join("cgroup.controllers")).expect("controllers");
        let missing: Vec<&str> =
            ["memory", "pids"].into_iter().filter(|name| !offered.split_whitespace().any(|has| has == *name)).collect();
        if !missing.is_empty() {
            let (code, said) = plan.start_in_vain();
            assert_eq!(code, Some(1));
            return assert!(said.contains(&format!("controllers {}", missing.join(", "))), "{said}");
        }
        let agent = plan.start();
        let crew = server.crew();
        let hungry = crew.task().prompt("perl -e '$x = \"a\" x (512 << 20)'; exit $?").attempts(1).create().await;
        let failure = hungry.reaches("dead").await["failure"].clone();
        assert_eq!(failure["reason"], json!("out_of_memory"));
        assert!(failure["message"].as_str().expect("a message").contains("limits.memory_mib"), "{failure}");
        let many =
            crew.task().prompt("perl -e 'for (1..100) { defined(my $pid = fork) or last; $pid or exec \"sleep\", 250; $n++ } print $n'");
        let many = many.create().await;
        many.reaches("completed").await;
        let started: u32 = result(&many).await["output"].as_str().expect("a number").parse().expect("a number");
        assert!(started < 20, "{started}");
        agent.has_no_processes().await;
    });
}
