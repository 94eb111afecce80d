//! Keys and join tokens that are replaced while the agent runs.

use std::path::Path;

use super::*;
use crate::keys::{ADMIN, create, keyed};
use crate::on_both;
use crate::support::agent::Agent;
use crate::support::{Database, Server};

/// An agent with a file that contains this, whose name this variable has.
fn agent_with(server: &Server, variable: &str, secret: &str) -> (Agent, PathBuf) {
    let plan = server.agent("box").shell();
    let file = plan.dir().join("secret");
    std::fs::create_dir_all(plan.dir()).unwrap();
    std::fs::write(&file, format!("{secret}\n")).unwrap();
    (plan.env(variable, file.display()).start(), file)
}

/// A task whose run waits for the latch.
async fn running<'a>(admin: &'a Api, latch: &Latch) -> Task<'a> {
    let task = admin.crew().task().prompt(&format!("{}; echo done", latch.wait())).create().await;
    task.reaches("running").await;
    task
}

/// An agent whose task waits for the latch, and whose key, the one in the file, the server refuses now.
async fn refused<'a>(server: &Server, admin: &'a Api) -> (Agent, PathBuf, Latch, Task<'a>) {
    let key = create(admin, "box", "worker", json!({ "worker": "box" })).await;
    let (agent, file) = agent_with(server, "BLOOM_KEY_FILE", &key);
    let latch = Latch::new();
    let task = running(admin, &latch).await;
    admin.delete("keys/box").await.ok();
    (agent, file, latch, task)
}

/// Puts another key into the file.
async fn renew(admin: &Api, file: &Path) {
    let new = create(admin, "box", "worker", json!({ "worker": "box" })).await;
    std::fs::write(file, format!("{new}\n")).unwrap();
}

async fn goes_on(admin: &Api, task: &Task<'_>) {
    let done = task.reaches("completed").await;
    assert_eq!((&done["attempts"], result(task).await["output"].as_str()), (&json!(1), Some("done\n")));
    admin.crew().task().prompt("true").create().await.reaches("completed").await;
}

on_both! { alone:
    async fn an_agent_takes_the_new_key_of_its_file(database) {
        let server = keyed(database);
        let admin = server.with_key(ADMIN);
        let old = create(&admin, "old", "worker", json!({ "worker": "box" })).await;
        let (agent, file) = agent_with(&server, "BLOOM_KEY_FILE", &old);
        let latch = Latch::new();
        let task = running(&admin, &latch).await;
        let new = create(&admin, "new", "worker", json!({ "worker": "box" })).await;
        std::fs::write(&file, format!("{new}\n")).unwrap();
        // At once, so that the server refuses the old key before the agent looks at the file by itself.
        admin.delete("keys/old").await.ok();
        latch.open();
        goes_on(&admin, &task).await;
        eventually("it is logged", || async { agent.log().contains("the key file has changed").then_some(()) }).await;
        assert!(!agent.log().contains(&old) && !agent.log().contains(&new));
    }
}

#[test]
fn a_refused_key_is_logged_once_with_what_to_do() {
    run(async {
        let server = keyed(Database::Sqlite);
        let admin = server.with_key(ADMIN);
        let (agent, file, latch, task) = refused(&server, &admin).await;
        let told = "because the server refuses the key of this agent";
        eventually("it is logged", || async { agent.log().contains(told).then_some(()) }).await;
        renew(&admin, &file).await;
        latch.open();
        goes_on(&admin, &task).await;
        let accepted = "the server accepts the key of this agent again";
        eventually("that is logged, too", || async { agent.log().contains(accepted).then_some(()) }).await;
        let log = agent.log();
        assert_eq!((log.matches(told).count(), log.matches(accepted).count()), (1, 1), "{log}");
        assert!(log.contains("bloom-runtime key create box --scope worker --worker box --out box.key"), "{log}");
        assert!(log.contains(&format!("Then put it into the file {}", file.display())), "{log}");
    });
}

#[test]
fn a_stop_does_not_wait_for_a_result_that_the_server_refuses_because_of_the_key() {
    run(async {
        let server = keyed(Database::Sqlite);
        let admin = server.with_key(ADMIN);
        let (agent, file, latch, task) = refused(&server, &admin).await;
        latch.open();
        eventually("the result is refused", || async { agent.log().contains("a completion is not acknowledged yet").then_some(()) }).await;
        // Less than the grace, for which the agent would wait if the run had not ended.
        let began = std::time::Instant::now();
        assert!(agent.stop().success());
        assert!(began.elapsed() < std::time::Duration::from_secs(60), "{:?}", began.elapsed());
        assert_eq!(agent.kept_runs(), 1, "the result is on the disk");
        renew(&admin, &file).await;
        agent.start_again();
        goes_on(&admin, &task).await;
    });
}

#[test]
fn a_key_file_without_a_key_changes_nothing() {
    run(async {
        let server = keyed(Database::Sqlite);
        let admin = server.with_key(ADMIN);
        let key = create(&admin, "one", "worker", json!({ "worker": "box" })).await;
        let (agent, file) = agent_with(&server, "BLOOM_KEY_FILE", &key);
        admin.crew().task().prompt("true").create().await.reaches("completed").await;
        std::fs::write(&file, "").unwrap();
        eventually("it is logged", || async { agent.log().contains("the key file can't be used").then_some(()) }).await;
        admin.crew().task().prompt("true").create().await.reaches("completed").await;
        std::fs::write(&file, "two\nlines\n").unwrap();
        eventually("it is logged", || async { agent.log().contains("one line of visible ASCII").then_some(()) }).await;
        assert!(!agent.log().contains("lines\\n"), "{}", agent.log());
        admin.crew().task().prompt("true").create().await.reaches("completed").await;
    });
}

#[test]
fn a_running_agent_exchanges_a_new_join_token() {
    run(async {
        let server = keyed(Database::Sqlite);
        let admin = server.with_key(ADMIN);
        let first = create(&admin, "first", "join", json!({})).await;
        let (agent, file) = agent_with(&server, "BLOOM_JOIN_TOKEN_FILE", &first);
        let latch = Latch::new();
        let task = running(&admin, &latch).await;
        std::fs::remove_file(&file).unwrap();
        admin.delete("keys/worker-box").await.ok();
        latch.open();
        std::fs::write(&file, "no-token").unwrap();
        eventually("it is logged", || async { agent.log().contains("the new join token can't be used").then_some(()) }).await;
        let second = create(&admin, "second", "join", json!({ "worker": "box" })).await;
        std::fs::write(&file, &second).unwrap();
        goes_on(&admin, &task).await;
        assert!(!agent.log().contains(&first) && !agent.log().contains(&second));
    });
}
