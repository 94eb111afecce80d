//! What a run's supervisor does while no agent lives, and what a later agent finds.

use super::contained::{BOTH, Escaped, has_no_cgroups};
use super::*;
use crate::support::{Database, Server};

fn with(
    profile: &str,
    plan: impl FnOnce(crate::support::server::Plan) -> crate::support::server::Plan,
    body: impl AsyncFnOnce(&Server, &agent::Agent, &BootClock),
) {
    run(async {
        let (server, clock) = (plan(Server::on(Database::Sqlite)).start(), BootClock::new());
        let profile = format!("runner = \"command\"\ncommand = [\"sh\"]\n{}\n{profile}", BootClock::PASSED);
        let agent = clock.of(server.agent("box").profile(&profile)).start();
        body(&server, &agent, &clock).await;
        agent.has_no_processes().await;
        assert_eq!(agent.cgroups(), Vec::<PathBuf>::new());
    });
}

/// Starts a task whose run does `first` and then `script`, and kills the agent in between.
async fn left_alone<'a>(server: &'a Server, agent: &agent::Agent, first: &str, script: &str) -> (Task<'a>, Tally) {
    let tally = Tally::new();
    let prompt = format!("{first}; {}; {script}", tally.mark());
    let task = server.crew().task().prompt(&prompt).with("policy", json!({"timeout_sec": 600})).attempts(1).create().await;
    tally.reaches(1).await;
    agent.kill9();
    (task, tally)
}

#[test]
fn the_exit_status_is_there_for_the_next_agent() {
    with(
        "output = \"stream-json\"",
        |plan| plan,
        async |server, agent, _| {
            let latch = Latch::new();
            let (task, tally) = left_alone(server, agent, ":", &format!("{}; echo why >&2; exit 7", latch.wait())).await;
            latch.open();
            agent.has_no_processes().await;
            agent.start_again();
            let failure = task.reaches("dead").await["failure"].clone();
            assert_eq!(
                (&failure["reason"], &failure["message"]),
                (&json!("agent_error"), &json!("ended with status 7 and without a result: why"))
            );
            assert_eq!(tally.count(), 1, "the run was not repeated");
        },
    );
}

#[test]
fn the_time_limit_counts() {
    with(
        "",
        |plan| plan.env("LEASE_TTL_SECONDS", 900),
        async |server, agent, clock| {
            let (task, tally) = left_alone(server, agent, "echo begun", "trap '' TERM; sleep 250").await;
            clock.advance(600);
            agent.has_no_processes().await;
            agent.start_again();
            assert_eq!(task.reaches("failed").await["failure"]["reason"], json!("timeout"));
            assert_eq!(tally.count(), 1);
            assert_eq!(told(&task, "text").await, [json!({"text": "begun\n"})]);
        },
    );
}

#[test]
fn silence_counts() {
    with(
        "stall_seconds = 300",
        |plan| plan.env("LEASE_TTL_SECONDS", 900),
        async |server, agent, clock| {
            let (task, tally) = left_alone(server, agent, ":", "sleep 250").await;
            clock.advance(300);
            agent.has_no_processes().await;
            agent.start_again();
            assert_eq!(task.reaches("dead").await["failure"]["reason"], json!("stalled"));
            assert_eq!(tally.count(), 1);
        },
    );
}

#[test]
fn the_lease_counts() {
    with(
        "",
        |plan| plan.env("LEASE_TTL_SECONDS", 300),
        async |server, agent, clock| {
            let (task, tally) = left_alone(server, agent, "trap '' TERM", "sleep 250").await;
            clock.advance(300);
            agent.has_no_processes().await;
            assert!(["leased", "running"].contains(&task.status().await.as_str()), "the run ends before its lease does");
            agent.start_again();
            assert_eq!(tally.count(), 1);
        },
    );
}

#[test]
fn an_agent_and_a_supervisor_that_are_killed_leave_nothing_and_nothing_runs_twice() {
    for means in BOTH {
        for agent_first in [true, false] {
            run(async {
                let server = Server::on(Database::Sqlite).start();
                let agent = means.limit(server.agent("box").shell()).start();
                let (tally, escaped) = (Tally::new(), Escaped::new());
                let prompt =
                    format!("[ -e {0} ] && {{ echo again; exit; }}; {1}; {2}; sleep 250", tally.0.display(), escaped.start(), tally.mark());
                let task = server.crew().task().prompt(&prompt).create().await;
                tally.reaches(1).await;
                escaped.are_known(&agent).await;
                let supervisors = agent.supervisors();
                assert_eq!(supervisors.len(), 1);
                if agent_first {
                    agent.kill9();
                }
                janitor::signal(supervisors[0], "KILL");
                if !agent_first {
                    agent.kill9();
                }
                agent.start_again();
                task.reaches("completed").await;
                escaped.are_gone().await;
                agent.has_no_processes().await;
                assert_eq!(tally.count(), 1);
                assert_eq!(result(&task).await["output"], json!("again\n"));
                has_no_cgroups(&task).await;
            });
        }
    }
}

/// Starts the program as the first process of a namespace of its own.
const AS_THE_FIRST: &str =
    r#"[ "$(id -u)" = 0 ] || own=--map-root-user; exec unshare $own --fork --pid --kill-child --mount-proc "$0" "$@""#;

/// The state and the parent of each process.
fn zombies_below(ancestor: u32) -> Vec<u32> {
    let stat = |pid: u32| {
        let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let rest = text.rsplit(')').next()?.to_owned();
        let mut words = rest.split_whitespace();
        Some((words.next()?.to_owned(), words.next()?.parse::<u32>().ok()?))
    };
    let pids = std::fs::read_dir("/proc").expect("/proc").flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let is_below = |pid: u32| std::iter::successors(stat(pid), |(_, parent)| stat(*parent)).any(|(_, parent)| parent == ancestor);
    pids.filter(|pid| stat(*pid).is_some_and(|(state, _)| state == "Z") && is_below(*pid)).collect()
}

#[test]
fn an_agent_that_is_the_first_process_reaps() {
    run(async {
        let server = Server::on(Database::Sqlite).start();
        let agent = server.agent("box").shell().through(AS_THE_FIRST).start();
        let tally = Tally::new();
        let prompt =
            format!("[ -e {0} ] && {{ echo again; exit; }}; env -i setsid sleep 250 & {1}; sleep 250", tally.0.display(), tally.mark());
        let task = server.crew().task().prompt(&prompt).create().await;
        tally.reaches(1).await;
        for pid in agent.processes() {
            let _ = std::process::Command::new("kill").args(["-KILL", &pid.to_string()]).stderr(std::process::Stdio::null()).status();
        }
        task.reaches("completed").await;
        eventually("no zombie is left", || async { zombies_below(agent.pid()).is_empty().then_some(()) }).await;
        let init = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", agent.pid())).expect("its children");
        janitor::signal(init.trim().parse().expect("one child"), "TERM");
        assert!(agent.wait_for_end().success(), "a signal to the first process stops the agent: {}", agent.log());
    });
}

#[test]
fn an_agent_that_starts_itself_again_reaps_the_runs_that_it_started_before() {
    super::push_server::with(&[], async |server, push_server, agent| {
        let push_server = push_server.with_header(super::push_server::KEY.0, super::push_server::KEY.1);
        let (tally, latch) = (Tally::new(), Latch::new());
        let task = server.crew().task().prompt(&format!("{}; {}; echo done", tally.mark(), latch.wait())).create().await;
        task.lease(json!({"worker_id": "box"})).await.created();
        assert_eq!(push_server.post("/execute-task", json!({"task_id": task.id})).await.status, 202);
        tally.reaches(1).await;
        push_server.post("/restart", json!({})).await.ok();
        eventually("the agent continues the run", || async { agent.log().contains("continuing an earlier run").then_some(()) }).await;
        latch.open();
        task.reaches("completed").await;
        assert_eq!((tally.count(), result(&task).await["output"].clone()), (1, json!("done\n")));
        eventually("no zombie is left", || async { zombies_below(agent.pid()).is_empty().then_some(()) }).await;
    });
}
