//! Whatever process dies during a run, the task ends once, with the right answer.

use super::*;
use crate::on_both;
use crate::support::agent::AgentPlan;
use crate::support::proxy::Proxy;
use crate::support::{Database, Server, checker};

/// A run that records its start, waits for the latch, and answers.
fn script(tally: &Tally, latch: &Latch) -> String {
    format!("{}; echo begun; {}; echo answer", tally.mark(), latch.wait())
}

/// A run that has started and waits at its latch.
pub struct Begun<'a> {
    pub agent: agent::Agent,
    pub task: Task<'a>,
    pub tally: Tally,
    pub latch: Latch,
}

pub async fn begun(server: &Server, plan: AgentPlan) -> Begun<'_> {
    let (tally, latch) = (Tally::new(), Latch::new());
    // A machine whose clock a test decides has it in a library that processes load.
    let shell = format!("runner = \"command\"\ncommand = [\"sh\"]\n{}", BootClock::PASSED);
    let agent = plan.profile(&shell).start();
    let task = server.crew().task().prompt(&script(&tally, &latch)).create().await;
    tally.reaches(1).await;
    Begun { agent, task, tally, latch }
}

pub async fn ended_once(server: &Server, task: &Task<'_>) {
    let done = task.reaches("completed").await;
    assert_eq!(result(task).await["output"], json!("begun\nanswer\n"), "{done}");
    assert_eq!(answers(task).await, 1);
    checker::read(&server.database_url()).await.are_sound();
}

on_both! { alone:
    async fn the_agent_is_killed_and_its_run_goes_on(database) {
        let server = Server::on(database).start();
        let Begun { agent, task, tally, latch } = begun(&server, server.agent("box")).await;
        has_begun(&task).await;
        agent.kill9();
        assert!(!agent.processes().is_empty(), "the run continues without its agent");
        agent.start_again();
        eventually("the agent continues the run", || async { agent.log().contains("continuing an earlier run").then_some(()) }).await;
        latch.open();
        ended_once(&server, &task).await;
        assert_eq!((tally.count(), task.now().await["attempts"].clone()), (1, json!(1)));
        let texts = told(&task, "text").await;
        assert_eq!(texts, [json!({"text": "begun\n"}), json!({"text": "answer\n"})], "no text is sent twice");
        agent.has_no_processes().await;
    }

    async fn a_run_ends_while_no_agent_watches(database) {
        let server = Server::on(database).start();
        let Begun { agent, task, tally, latch } = begun(&server, server.agent("box")).await;
        agent.kill9();
        latch.open();
        agent.has_no_processes().await;
        agent.start_again();
        ended_once(&server, &task).await;
        assert_eq!(tally.count(), 1, "the run was not repeated");
    }

    async fn a_run_ends_while_no_agent_watches_and_its_lease_expires(database) {
        let server = Server::on(database).env("LEASE_TTL_SECONDS", 10).start();
        let Begun { agent, task, tally, latch } = begun(&server, server.agent("box")).await;
        agent.kill9();
        latch.open();
        agent.has_no_processes().await;
        task.reaches("queued").await;
        agent.start_again();
        ended_once(&server, &task).await;
        assert_eq!((tally.count(), task.now().await["attempts"].clone()), (1, json!(1)), "{}", agent.log());
    }

    async fn the_agent_and_its_run_are_killed(database) {
        let server = Server::on(database).start();
        let Begun { agent, task, tally, latch } = begun(&server, server.agent("box")).await;
        agent.kill9();
        agent.kill_processes();
        agent.has_no_processes().await;
        latch.open();
        agent.start_again();
        tally.reaches(2).await;
        ended_once(&server, &task).await;
        assert_eq!(task.now().await["infra_retries"], json!(1));
    }

    async fn the_server_is_killed(database) {
        let server = Server::on(database).start();
        let Begun { agent, task, tally, latch } = begun(&server, server.agent("box")).await;
        server.kill9();
        latch.open();
        // The run ends while there is no server to report to.
        agent.has_no_processes().await;
        server.start_again();
        ended_once(&server, &task).await;
        assert_eq!(tally.count(), 1);
    }

    async fn both_are_killed(database) {
        let server = Server::on(database).start();
        let Begun { agent, task, tally, latch } = begun(&server, server.agent("box")).await;
        server.kill9();
        agent.kill9();
        agent.start_again();
        server.start_again();
        eventually("the agent has registered", || async { agent.log().contains("registered").then_some(()) }).await;
        latch.open();
        ended_once(&server, &task).await;
        assert_eq!(tally.count(), 1);
    }

    async fn the_network_is_cut_until_the_lease_is_over(database) {
        let server = Server::on(database).env("LEASE_TTL_SECONDS", 3).start();
        let line = Proxy::start(server.base()).await;
        let Begun { agent: cut, task, latch, .. } = begun(&server, AgentPlan::at(&line.url, "cut")).await;
        line.hold();
        // The agent can't learn from the server that the lease has expired. It ends the run by its own clock, before the task is leased
        // again.
        cut.has_no_processes().await;
        assert!(["leased", "running"].contains(&task.status().await.as_str()), "the run ends before its lease does");
        let other = server.agent("other").shell().start();
        latch.open();
        ended_once(&server, &task).await;
        assert_eq!(task.now().await["worker_id"], json!("other"));
        line.release();
        eventually("the late completion is refused and discarded", || async { (cut.kept_runs() == 0).then_some(()) }).await;
        ended_once(&server, &task).await;
        drop(other);
    }

    async fn an_end_whose_answer_is_lost_counts_once(database) {
        let server = Server::on(database).start();
        let line = Proxy::start(server.base()).await;
        let Begun { agent, task, tally, latch } = begun(&server, AgentPlan::at(&line.url, "box")).await;
        line.hold_answers();
        latch.open();
        ended_once(&server, &task).await;
        assert_eq!(agent.kept_runs(), 1, "the agent has no acknowledgement yet");
        agent.kill9();
        line.release();
        agent.start_again();
        eventually("the completion is acknowledged", || async { (agent.kept_runs() == 0).then_some(()) }).await;
        ended_once(&server, &task).await;
        assert_eq!(tally.count(), 1);
    }
}

#[test]
fn a_run_goes_on_while_its_agent_can_open_no_files() {
    run(async {
        let server = Server::on(Database::Sqlite).start();
        let agent = server.agent("box").shell().start();
        let (tally, first, second) = (Tally::new(), Latch::new(), Latch::new());
        let prompt = format!("{}; {}; echo during; {}; echo after", tally.mark(), first.wait(), second.wait());
        let task = server.crew().task().prompt(&prompt).create().await;
        tally.reaches(1).await;
        let limit_files = |soft: &str| {
            let words = [format!("--pid={}", agent.pid()), format!("--nofile={soft}:")];
            assert!(std::process::Command::new("prlimit").args(words).status().expect("prlimit starts").success());
        };
        limit_files("3");
        first.open();
        eventually("the agent sends what the run printed meanwhile", || async { told(&task, "text").await.first().cloned() }).await;
        limit_files("1024");
        second.open();
        let done = task.reaches("completed").await;
        assert_eq!((tally.count(), &done["infra_retries"]), (1, &json!(0)));
        assert_eq!(result(&task).await["output"], json!("during\nafter\n"));
    });
}
