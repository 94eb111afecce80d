//! Runs that fail or are stopped: each ends with all its processes, and the task has the reason.

use super::*;
use crate::support::{Database, Server};

/// A run that ignores SIGTERM, with a child that has left its process group.
const STUBBORN: &str = "trap '' TERM; setsid sh -c 'trap \"\" TERM; sleep 150' & sleep 150 & sleep 150; sleep 150";

fn with(profile: &'static str, body: impl AsyncFnOnce(&Server, &agent::Agent)) {
    run(async {
        let server = Server::on(Database::Sqlite).start();
        let agent = server.agent("box").slots(2).profile(profile).start();
        body(&server, &agent).await;
        agent.has_no_processes().await;
    });
}

const SHELL: &str = "runner = \"command\"\ncommand = [\"sh\"]";

#[test]
fn a_run_that_takes_too_long() {
    with(SHELL, async |server, _| {
        let task = server.crew().task().prompt(STUBBORN).with("policy", json!({"timeout_sec": 1})).create().await;
        let late = task.reaches("failed").await;
        assert_eq!((&late["failure"]["reason"], &late["attempts"]), (&json!("timeout"), &json!(1)), "no further attempt is paid for");
        assert_eq!(late["failure"]["message"], "did not end within its time limit of 1s");
    });
}

#[test]
fn a_profile_limits_the_time_of_tasks_that_name_no_limit() {
    with("runner = \"command\"\ncommand = [\"sh\"]\ntimeout_sec = 2", async |server, _| {
        let crew = server.crew();
        let limited = [json!({}), json!({"timeout_sec": 1800, "timeout_is_default": true})];
        for policy in limited {
            let task = crew.task().prompt(STUBBORN).with("policy", policy).create().await;
            let failure = task.reaches("failed").await["failure"].clone();
            let told = json!("did not end within its profile's time limit of 2s");
            assert_eq!((&failure["reason"], &failure["message"]), (&json!("timeout"), &told));
        }
        // One that names its limit keeps to it, be it shorter or longer.
        let short = crew.task().prompt("sleep 150").with("policy", json!({"timeout_sec": 1})).create().await;
        let told = short.reaches("failed").await["failure"]["message"].as_str().unwrap_or_default().to_owned();
        assert!(told.starts_with("did not end within its time limit of 1s"), "{told}");
        let latch = Latch::new();
        let long = crew.task().prompt(&format!("{}; sleep 3; echo done", latch.wait())).create().await;
        long.reaches("failed").await;
        latch.open();
        server.post(&long.path("/requeue"), json!({"policy": {"timeout_sec": 100}})).await.ok();
        long.reaches("completed").await;
    });
}

#[test]
fn a_profile_may_give_more_time_than_tasks_have_without_it_but_no_more_than_the_server() {
    run(async {
        let server = Server::on(Database::Sqlite).env("MAX_TIMEOUT_SECONDS", 2).start();
        let agent = server.agent("box").profile("runner = \"command\"\ncommand = [\"sh\"]\ntimeout_sec = 604800").start();
        let policy = json!({"timeout_sec": 1, "timeout_is_default": true});
        let task = server.crew().task().prompt("sleep 150").with("policy", policy).create().await;
        let told = task.reaches("failed").await["failure"]["message"].clone();
        assert_eq!(told, "did not end within its profile's time limit of 2s");
        agent.has_no_processes().await;
    });
}

#[test]
fn a_run_that_gets_more_time() {
    with(SHELL, async |server, _| {
        // Only the first run takes too long.
        let latch = Latch::new();
        let task =
            server.crew().task().prompt(&format!("{}; echo done", latch.wait())).with("policy", json!({"timeout_sec": 2})).create().await;
        task.reaches("failed").await;
        latch.open();
        server.post(&task.path("/requeue"), json!({"policy": {"timeout_sec": 100}})).await.ok();
        task.reaches("completed").await;
    });
}

#[test]
fn a_profile_may_say_that_runs_that_took_too_long_are_repeated() {
    with("runner = \"command\"\ncommand = [\"sh\"]\nretry_timeouts = true", async |server, _| {
        let task = server.crew().task().prompt("sleep 150").with("policy", json!({"timeout_sec": 1})).attempts(2).create().await;
        let dead = task.reaches("dead").await;
        assert_eq!((&dead["failure"]["reason"], &dead["attempts"]), (&json!("timeout"), &json!(2)));
        assert_eq!(dead["failure"]["message"], "did not end within its time limit of 1s");
    });
}

#[test]
fn a_run_that_says_nothing_any_more() {
    run(async {
        let (server, clock) = (Server::on(Database::Sqlite).env("LEASE_TTL_SECONDS", 900).start(), BootClock::new());
        let profile = format!("runner = \"command\"\ncommand = [\"sh\"]\nstall_seconds = 300\n{}", BootClock::PASSED);
        let agent = clock.of(server.agent("box").profile(&profile)).start();
        let task =
            server.crew().task().prompt("echo hello; sleep 150").with("policy", json!({"timeout_sec": 600})).attempts(1).create().await;
        has_begun(&task).await;
        clock.advance(300);
        assert_eq!(task.reaches("dead").await["failure"]["reason"], json!("stalled"));
        assert_eq!(told(&task, "text").await, [json!({"text": "hello\n"})]);
        agent.has_no_processes().await;
    });
}

#[test]
fn a_run_that_is_cancelled() {
    with(SHELL, async |server, agent| {
        let tally = Tally::new();
        let task = server.crew().task().prompt(&format!("{}; {STUBBORN}", tally.mark())).create().await;
        tally.reaches(1).await;
        task.cancel().await.ok();
        let cancelled = task.reaches("cancelled").await;
        assert_eq!(cancelled["failure"]["reason"], json!("cancelled"));
        agent.has_no_processes().await;
        assert_eq!(tally.count(), 1);
    });
}

#[test]
fn children_that_stay_after_a_success_are_ended() {
    with(SHELL, async |server, agent| {
        let task = server.crew().task().prompt("setsid sleep 150 >/dev/null 2>&1 & sleep 150 >/dev/null 2>&1 & echo done").create().await;
        task.reaches("completed").await;
        agent.has_no_processes().await;
    });
}

#[test]
fn a_run_that_fails_is_tried_again_and_then_dead() {
    with(SHELL, async |server, _| {
        let task = server.crew().task().prompt("echo why >&2; exit 3").attempts(1).create().await;
        let dead = task.reaches("dead").await;
        assert_eq!(dead["failure"]["reason"], json!("agent_error"));
        assert_eq!(dead["failure"]["message"], json!("ended with status 3 and without a result: why"));
    });
}

#[test]
fn an_answer_that_is_not_the_json_asked_for() {
    with(SHELL, async |server, _| {
        // The prompt also contains the request for JSON, which is no shell command.
        let task = server.crew().task().prompt("echo 'no json'; exit 0").with("desired_format", json!("json")).create().await;
        let failed = task.reaches("failed").await;
        assert_eq!(failed["failure"]["reason"], json!("bad_output"));
        let fine = server.crew().task().prompt("echo '{\"a\": [1]}'; exit 0").with("desired_format", json!("json")).create().await;
        fine.reaches("completed").await;
        assert_eq!(result(&fine).await["output"], json!("{\"a\": [1]}"));
    });
}

#[test]
fn of_an_answer_that_is_too_long_the_beginning_is_kept() {
    with(SHELL, async |server, _| {
        let task = server.crew().task().prompt("echo begins; head -c 70000000 /dev/zero | tr '\\0' x").create().await;
        task.reaches("completed").await;
        let output = result(&task).await["output"].as_str().unwrap().to_owned();
        assert!(output.starts_with("begins\n") && output.len() <= 16 << 20, "{} bytes", output.len());
        let artifacts = server.get(&format!("artifacts?task_id={}", task.id)).await.ok();
        assert_eq!(artifacts[0]["tags"], json!(["output_cut"]));
    });
}

#[test]
fn a_program_that_cannot_be_started_costs_no_attempt() {
    run(async {
        let server = Server::on(Database::Sqlite).start();
        let program = janitor::new_path("program");
        std::fs::write(&program, "").unwrap();
        std::fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        let agent = server.agent("box").profile(&format!("runner = \"command\"\ncommand = [{program:?}]")).start();
        eventually("the agent is registered", || async { agent.log().contains("registered").then_some(()) }).await;
        std::fs::remove_file(&program).unwrap();
        let task = server.crew().task().create().await;
        let queued = eventually("the task is given back", || async {
            let now = task.now().await;
            (now["infra_retries"] == json!(1)).then_some(now)
        })
        .await;
        assert_eq!((&queued["failure"]["reason"], &queued["attempts"]), (&json!("spawn_failed"), &json!(0)));
        assert!(queued["not_before"].as_i64().is_some(), "the retry has a backoff: {queued}");
        drop(agent);
    });
}

#[test]
fn a_worker_that_was_removed_ends_its_runs_and_comes_back() {
    with(SHELL, async |server, agent| {
        let (tally, latch) = (Tally::new(), Latch::new());
        let task = server.crew().task().prompt(&format!("{}; {}; echo done", tally.mark(), latch.wait())).create().await;
        tally.reaches(1).await;
        server.delete("workers/box").await.ok();
        // The agent registers again and claims the task once more.
        tally.reaches(2).await;
        latch.open();
        task.reaches("completed").await;
        assert_eq!(answers(&task).await, 1);
        agent.has_no_processes().await;
    });
}

/// Starts the agent with a small file system of its own for its directory.
pub const ON_A_SMALL_DISK: &str = r#"[ "$(id -u)" = 0 ] || own=--map-root-user
    mkdir -p "$BLOOM_WORK_DIR"
    exec unshare --mount $own sh -c 'mount -t tmpfs -o size=4m tmpfs "$BLOOM_WORK_DIR" && exec "$0" "$@"' "$0" "$@""#;

#[test]
fn a_run_that_prints_more_than_the_disk_takes() {
    run(async {
        let server = Server::on(Database::Sqlite).start();
        let agent = server.agent("box").shell().through(ON_A_SMALL_DISK).start();
        let crew = server.crew();
        let task = crew.task().prompt("yes | head --bytes 9000000; sleep 150").create().await;
        let failure = eventually("it fails", || async { task.now().await["failure"].as_object().cloned() }).await;
        assert_eq!(failure["reason"], json!("worker_disk"));
        assert_eq!(failure["message"], json!("the worker could not store on its disk what the run printed"));
        task.cancel().await.ok();
        let next = crew.task().prompt("echo next").create().await;
        next.reaches("completed").await;
        agent.has_no_processes().await;
    });
}

#[test]
fn a_run_that_fills_the_disk_is_ended_and_the_worker_waits_for_room() {
    run(async {
        let server = Server::on(Database::Sqlite).start();
        let agent = server.agent("box").shell().through(ON_A_SMALL_DISK).start();
        let crew = server.crew();
        let task =
            crew.task().prompt("head --bytes 9000000 /dev/zero >filler 2>/dev/null; echo said before the end; sleep 150").create().await;
        let failure = eventually("it fails", || async { task.now().await["failure"].as_object().cloned() }).await;
        assert_eq!(failure["reason"], json!("disk_limit"));
        let events = eventually("all is told", || async {
            let events = task.api.get(&task.path("/events")).await.ok();
            events.as_array().unwrap().iter().any(|event| event["data"]["phase"] == "ended").then_some(events)
        })
        .await;
        assert!(events.as_array().unwrap().iter().any(|event| event["data"]["text"] == "said before the end\n"), "{events:?}");

        // Nothing is taken, and people are told why, until there is room.
        let waiting = || async { Some(task.now().await["waiting"].clone()).filter(|waiting| waiting["reason"] == "worker_paused") };
        let waiting = eventually("the task waits for the worker", waiting).await;
        assert!(waiting["message"].as_str().unwrap().contains("a disk is full"), "{waiting}");
        task.cancel().await.ok();
        let next = crew.task().prompt("echo next").create().await;
        let filler = format!("/proc/{}/root{}/contexts/{}/filler", agent.pid(), agent.work_dir().display(), "*");
        let removed = std::process::Command::new("sh").args(["-c", &format!("rm {filler}")]).status().unwrap();
        assert!(removed.success());
        next.reaches("completed").await;
        agent.has_no_processes().await;
    });
}
