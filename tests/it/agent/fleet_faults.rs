//! The worst that users of such tools report, one after the other on one fleet: PostgreSQL, a server, and three agents with the real Claude CLI. Each fault's
//! tasks are counted in a table of what was stuck, lost, doubled or overspent; `tests/run faults` prints it. All of it must be zero.

use std::path::PathBuf;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use super::ending::ON_A_SMALL_DISK;
use super::*;
use crate::liveness_clocks::{faketime_library, set_wall_clock};
use crate::support::agent::{Agent, AgentPlan};
use crate::support::claude::Anthropic;
use crate::support::proxy::Proxy;
use crate::support::{Server, checker, postgres};

/// In dollars for a million tokens; those of the stub's answers are few.
const PROFILE: &str = "allowed_tools = [\"Bash\"]\nprices = { claude-stub = { input = 3, output = 15 } }";
/// More than what one call of the stub costs by these prices or by those of the CLI.
const CALL_USD: f64 = 0.001;
/// A task that has no end after so long is stuck: the lease is over long before, and so is each wait of the agents.
const STUCK_AFTER: Duration = Duration::from_secs(150);
const TTL_SECONDS: u32 = 12;

struct Fleet {
    cluster: postgres::Cluster,
    clock: PathBuf,
    log: std::fs::File,
    server: Server,
    api: Anthropic,
    machines: Vec<(Agent, Proxy)>,
    rows: Mutex<Vec<Row>>,
}

/// What became of the tasks of a fault.
#[derive(Default)]
struct Row {
    fault: &'static str,
    tasks: usize,
    /// Without an end.
    stuck: usize,
    /// Not there any more, or ended otherwise than the fault explains.
    lost: usize,
    /// More than one result, or more calls of the model than the fault explains.
    doubled: usize,
    /// A cost that is not the sum of its attempts, or more than its calls can have cost.
    overspent: usize,
}

/// How the tasks of a fault must end.
struct End {
    status: &'static str,
    /// The reason of the failure, or the answer.
    said: &'static str,
    /// The most calls of the model for one task.
    calls: usize,
}

const fn answers_after(calls: usize) -> End {
    End { status: "completed", said: "done", calls }
}

const fn fails(said: &'static str, calls: usize) -> End {
    End { status: "failed", said, calls }
}

impl Fleet {
    async fn start() -> Fleet {
        let (cluster, api, clock, pipe) =
            (postgres::Cluster::start(), Anthropic::start().await, janitor::new_path("clock"), janitor::new_path("log"));
        set_wall_clock(&clock, 0);
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let log = std::fs::File::options().read(true).write(true).open(&pipe).unwrap();
        let server = Server::on_url(&cluster.database())
            .env("LEASE_TTL_SECONDS", TTL_SECONDS)
            .env("LD_PRELOAD", faketime_library().display())
            .env("FAKETIME_TIMESTAMP_FILE", clock.display())
            .env("FAKETIME_NO_CACHE", 1)
            .env("FAKETIME_DONT_FAKE_MONOTONIC", 1)
            .env("PIPE", pipe.display())
            .through(r#"exec "$0" "$@" 2>"$PIPE""#)
            .start();
        let mut machines = Vec::new();
        for name in ["one", "two", "three"] {
            let line = Proxy::start(server.base()).await;
            let plan = AgentPlan::at(&line.url, name);
            let profile = plan.claude_profile("default", &api, token(name), PROFILE);
            machines.push((plan.profiles(&profile).start(), line));
        }
        Fleet { cluster, clock, log, server, api, machines, rows: Mutex::default() }
    }

    /// A task whose calls of the model are known by a word of its own.
    async fn task(&self, prompt: &str, slug: &str, budget: Option<f64>) -> (Task<'_>, String) {
        let word = unique("fault");
        let task = self.server.crew().task().with("agent_slug", json!(slug)).prompt(&format!("{prompt}\n{word}\n"));
        let task = budget.into_iter().fold(task, |task, budget| task.with("policy", json!({"timeout_sec": 600, "budget": budget})));
        (task.create().await, word)
    }

    /// The agent that has the task, and its line to the server.
    async fn machine_of(&self, task: &Task<'_>) -> &(Agent, Proxy) {
        let now = task.now().await;
        let place = ["one", "two", "three"].iter().position(|name| now["worker_id"] == json!(name));
        &self.machines[place.unwrap_or_else(|| panic!("no machine has it: {now}"))]
    }

    /// Breaks something while a run waits for the model.
    async fn in_mid_run(&self, fault: &'static str, calls: usize, breaks: impl AsyncFnOnce(&Agent, &Proxy)) {
        self.api.hold(true);
        let (task, word) = self.task("SAY: done", "any", None).await;
        eventually("the run calls the model", || async { (!self.api.seen_with(&word).is_empty()).then_some(()) }).await;
        let (agent, line) = self.machine_of(&task).await;
        breaks(agent, line).await;
        self.api.hold(false);
        self.count(fault, &[(task, word)], &answers_after(calls)).await;
    }

    /// Waits until the tasks have ended, and counts how.
    async fn count(&self, fault: &'static str, tasks: &[(Task<'_>, String)], end: &End) {
        let mut row = Row { fault, tasks: tasks.len(), ..Row::default() };
        let until = Instant::now() + STUCK_AFTER;
        for (task, word) in tasks {
            let now = loop {
                let now = task.api.get(&task.path("")).await;
                let is_over =
                    |now: &Value| ["completed", "failed", "dead", "cancelled"].iter().any(|status| now["status"] == json!(status));
                // Other answers are those of a server whose database is not back yet.
                if now.status == 404 || now.status == 200 && is_over(&now.json()) || Instant::now() > until {
                    break now;
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            };
            if now.status != 200 {
                row.lost += 1;
                continue;
            }
            let now = now.json();
            let said = match end.status {
                "completed" => result(task).await["output"].clone(),
                _ => now["failure"]["reason"].clone(),
            };
            let calls = self.api.seen_with(word).len();
            let leases = task.api.get(&format!("leases?task_id={}", task.id)).await.ok();
            let cost = |of: &Value| of["usage"]["cost_usd"].as_f64().unwrap_or(0.0);
            let attempts: f64 = leases.as_array().expect("leases").iter().map(cost).sum();
            let is_budget = end.said == "budget_exceeded";
            let faults = [
                (&mut row.stuck, ["queued", "leased", "running"].iter().any(|status| now["status"] == json!(status))),
                (&mut row.lost, now["status"] != json!(end.status) || said != json!(end.said)),
                (&mut row.doubled, answers(task).await > 1 || calls > end.calls),
                (&mut row.overspent, (cost(&now) - attempts).abs() > 1e-9 || !is_budget && cost(&now) > CALL_USD * end.calls as f64),
            ];
            for (count, is_so) in faults {
                if is_so {
                    *count += 1;
                    eprintln!("{fault}: {said}, {calls} calls, leases {leases}, task {now}");
                }
            }
        }
        self.rows.lock().expect("the table").push(row);
    }

    /// One task that runs to its end without a fault from outside.
    async fn alone(&self, fault: &'static str, prompt: &str, end: &End) {
        let task = self.task(prompt, "any", (end.said == "budget_exceeded").then_some(0.5)).await;
        self.count(fault, &[task], end).await;
    }
}

fn token(name: &str) -> &'static str {
    match name {
        "one" => "sk-ant-oat01-one",
        "two" => "sk-ant-oat01-two",
        _ => "sk-ant-oat01-three",
    }
}

/// Connections and processes.
async fn what_is_cut_off_or_killed(fleet: &Fleet) {
    fleet.in_mid_run("the network is cut at the completion", 1, async |_, line| line.hold_answers_from("/complete")).await;
    fleet.machines.iter().for_each(|(_, line)| line.release());
    fleet
        .in_mid_run("the network is cut until the lease is over", 2, async |agent, line| {
            line.hold();
            agent.has_no_processes().await;
        })
        .await;
    fleet.machines.iter().for_each(|(_, line)| line.release());
    fleet
        .in_mid_run("kill -9 of an agent", 1, async |agent, _| {
            agent.kill9();
            agent.start_again();
        })
        .await;
    fleet
        .in_mid_run("kill -9 of an agent and its runs", 2, async |agent, _| {
            agent.kill9();
            agent.kill_processes();
            agent.start_again();
        })
        .await;
    fleet
        .in_mid_run("kill -9 of a supervisor", 2, async |agent, _| {
            agent.supervisors().iter().for_each(|pid| janitor::signal(*pid, "KILL"));
        })
        .await;
    fleet
        .in_mid_run("kill -9 of the server", 1, async |_, _| {
            fleet.server.kill9();
            fleet.server.start_again();
        })
        .await;
    fleet
        .in_mid_run("PostgreSQL crashes", 1, async |_, _| {
            fleet.cluster.crash();
            fleet.cluster.resume();
        })
        .await;
}

/// What a machine lacks or has wrong.
async fn what_a_machine_lacks(fleet: &Fleet) {
    fleet
        .in_mid_run("the server's clock steps an hour on, and back", 1, async |_, _| {
            for seconds in [3600, 0] {
                set_wall_clock(&fleet.clock, seconds);
                let seen = fleet.server.get("workers/one").await.ok()["last_heartbeat"].clone();
                eventually("the agent goes on", || async {
                    (fleet.server.get("workers/one").await.ok()["last_heartbeat"] != seen).then_some(())
                })
                .await;
            }
        })
        .await;

    // Whoever reads the log has stalled since the start. Now the pipe fills up.
    for _ in 0..40 {
        let path = format!("llm-tasks/{}", "x".repeat(256));
        for _ in 0..50 {
            fleet.server.get(&path).await;
        }
        if !fleet.server.get("/metrics").await.expect(200).text.contains("\nbloom_log_lines_lost_total 0\n") {
            break;
        }
    }
    fleet.alone("nobody reads the server's log", "SAY: done", &answers_after(1)).await;
    assert!(fleet.log.metadata().is_ok(), "the reader was there all the time");

    let small = fleet.server.agent("small");
    let profile = small.claude_profile("small", &fleet.api, token("three"), PROFILE);
    let small = small.profiles(&profile).through(ON_A_SMALL_DISK).start();
    eventually("it has registered", || async { (fleet.server.get("workers/small").await.status == 200).then_some(()) }).await;
    let prompt = "MODE-TOOL RUN: head --bytes 9000000 /dev/zero > \"$BLOOM_AGENT_HOME/filler\"; sleep 5\nSAY: done";
    let task = fleet.task(prompt, "small", None).await;
    // The run ends for want of room, and the task is taken by a worker that has some.
    fleet.count("the disk of a worker is full", &[task], &answers_after(4)).await;
    drop(small);
}

/// What the model and its API do.
async fn what_the_model_does(fleet: &Fleet) {
    let call = json!({"command": "sleep 3", "description": "the build", "run_in_background": true});
    let background = End { status: "completed", said: "begun\n\nbuilt", calls: 3 };
    fleet
        .alone("work in the background goes on after the answer", &format!("CALL: Bash {call}\nSAY: begun\nTHEN: built"), &background)
        .await;
    fleet.alone("the answer is empty", "MODE-THINK", &fails("bad_output", 3)).await;
    fleet.alone("the conversation is full", "MODE-TOO-LONG", &fails("context_full", 1)).await;
    // The CLI asks once more without a stream, which the stub does not answer; then the task has another attempt.
    fleet.alone("the stream breaks off in the middle", "MODE-BREAK SAY: done", &answers_after(3)).await;
    fleet.alone("a turn costs more than the budget", "MODE-EXPENSIVE MODE-TOOL RUN: true\nSAY: done", &fails("budget_exceeded", 1)).await;

    fleet.api.use_up(token("one"));
    let mut tasks = Vec::new();
    for _ in 0..6 {
        tasks.push(fleet.task("SAY: done", "any", None).await);
    }
    // A task whose first call was refused is called for once more, at another account.
    fleet.count("the quota of one account is used up", &tasks, &answers_after(2)).await;
}

/// Prints the table, and fails if a number in it is not zero.
fn tell(rows: &[Row]) {
    println!("{:<50} {:>5} {:>5} {:>4} {:>7} {:>9}", "fault", "tasks", "stuck", "lost", "doubled", "overspent");
    for row in rows {
        println!("{:<50} {:>5} {:>5} {:>4} {:>7} {:>9}", row.fault, row.tasks, row.stuck, row.lost, row.doubled, row.overspent);
    }
    let bad: Vec<_> = rows.iter().filter(|row| row.stuck + row.lost + row.doubled + row.overspent > 0).map(|row| row.fault).collect();
    assert!(bad.is_empty(), "{bad:?}");
}

#[test]
fn nothing_is_stuck_lost_doubled_or_overspent() {
    run(async {
        let fleet = Fleet::start().await;
        what_is_cut_off_or_killed(&fleet).await;
        what_a_machine_lacks(&fleet).await;
        what_the_model_does(&fleet).await;
        checker::read(&fleet.server.database_url()).await.are_sound();
        tell(&fleet.rows.lock().expect("the table"));
    });
}
