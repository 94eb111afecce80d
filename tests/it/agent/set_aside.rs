//! Files of a run that can't be used: the agent goes on without them, and the task runs elsewhere or again.

use super::*;
use crate::support::{Database, Server};

/// Starts a run, kills the agent and changes what it kept of the run.
fn with_kept_run(change: impl Fn(&str) -> String) {
    run(async {
        let server = Server::on(Database::Sqlite).start();
        let agent = server.agent("box").shell().start();
        let (tally, latch) = (Tally::new(), Latch::new());
        let prompt = format!("{}; {}; echo done", tally.mark(), latch.wait());
        let task = server.crew().task().prompt(&prompt).with("policy", json!({"timeout_sec": 100})).create().await;
        tally.reaches(1).await;
        agent.kill9();
        let runs = std::fs::read_dir(agent.work_dir().join("runs")).expect("runs").flatten();
        let kept = runs.map(|entry| entry.path().join("run.json")).next().expect("a run");
        let text = std::fs::read_to_string(&kept).expect("the run");
        std::fs::write(&kept, change(&text)).expect("the run");
        latch.open();
        agent.start_again();
        task.reaches("completed").await;
        assert_eq!((tally.count(), task.now().await["infra_retries"].clone()), (2, json!(1)), "{}", agent.log());
        assert!(agent.log().contains("set aside"), "{}", agent.log());
        let aside = std::fs::read_dir(agent.work_dir().join("set-aside")).expect("the directory").flatten();
        assert_eq!(aside.count(), 1);
        eventually("nothing of it is left", || async { (agent.kept_runs() == 0).then_some(()) }).await;
    });
}

#[test]
fn a_kept_run_with_impossible_numbers_is_set_aside() {
    for (field, number) in [("\"timeout_sec\":", "9223372036854775807"), ("\"ttl_seconds\":", "18446744073709551615")] {
        with_kept_run(|text| {
            let (before, after) = text.split_once(field).unwrap_or_else(|| panic!("{field} in {text}"));
            let rest = after.trim_start_matches(|c: char| c.is_ascii_digit());
            format!("{before}{field}{number}{rest}")
        });
    }
}

#[test]
fn a_kept_run_of_a_newer_program_is_set_aside() {
    with_kept_run(|text| text.replace("\"session\":\"context\"", "\"session\":{\"kind\":\"context\"}"));
}
