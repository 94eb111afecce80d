//! An agent that has a join token fetches its key by itself.

use std::os::unix::fs::PermissionsExt;

use super::*;
use crate::keys::{ADMIN, create, keyed};
use crate::support::{Database, Server};

#[test]
fn an_agent_fetches_its_key_with_a_join_token() {
    run(async {
        let server = keyed(Database::Sqlite);
        let admin = server.with_key(ADMIN);
        let token = create(&admin, "join", "join", json!({})).await;
        let plan = server.agent("box").echo();
        let file = plan.dir().join("token");
        std::fs::create_dir_all(plan.dir()).unwrap();
        std::fs::write(&file, format!("{token}\n")).unwrap();
        let agent = plan.env("BLOOM_JOIN_TOKEN_FILE", file.display()).start();
        admin.crew().task().create().await.reaches("completed").await;
        let kept = agent.work_dir().join("key.json");
        assert_eq!(std::fs::metadata(&kept).unwrap().permissions().mode() & 0o777, 0o600);
        let key = serde_json::from_slice::<Value>(&std::fs::read(&kept).unwrap()).unwrap()["key"].as_str().unwrap().to_owned();
        let names = async || admin.get("keys").await.ok().as_array().unwrap().iter().map(|key| key["name"].clone()).collect::<Vec<_>>();
        assert_eq!(names().await, ["worker-box"], "the token is used up");

        // The next start uses the key that was kept.
        agent.stop();
        agent.start_again();
        admin.crew().task().create().await.reaches("completed").await;
        assert_eq!(names().await, ["worker-box"]);

        // After another token, it has another key.
        agent.stop();
        std::fs::write(&file, create(&admin, "again", "join", json!({ "worker": "box" })).await).unwrap();
        agent.start_again();
        admin.crew().task().create().await.reaches("completed").await;
        server.with_key(&key).post("workers", json!({ "name": "box" })).await.fails(401, "Unauthorized");
        let newer = serde_json::from_slice::<Value>(&std::fs::read(&kept).unwrap()).unwrap()["key"].as_str().unwrap().to_owned();
        assert_ne!(newer, key);
        for secret in [&token, &key, &newer] {
            assert!(!agent.log().contains(secret.as_str()) && !server.log().contains(secret.as_str()));
        }
    });
}

#[test]
fn an_agent_registers_with_the_namespaces_that_it_is_given() {
    run(async {
        let server = keyed(Database::Sqlite);
        let admin = server.with_key(ADMIN);
        let start = async |name: &str, namespaces: &str| {
            let token = create(&admin, name, "join", json!({ "namespaces": ["team-a", "team-b"] })).await;
            let plan = server.agent(name).echo();
            let file = plan.dir().join("token");
            std::fs::create_dir_all(plan.dir()).unwrap();
            std::fs::write(&file, format!("{token}\n")).unwrap();
            plan.env("BLOOM_JOIN_TOKEN_FILE", file.display()).env("BLOOM_NAMESPACES", namespaces)
        };
        let served = async |name: &str| {
            let path = format!("workers/{name}");
            let registered = || async { Some(admin.get(&path).await).filter(|answer| answer.status == 200) };
            eventually("it is registered", registered).await.ok()["capabilities"]["namespaces"].clone()
        };
        let _box = start("box", "team-b").await.start();
        assert_eq!(served("box").await, json!(["team-b"]));
        let _rack = start("rack", "").await.start();
        assert_eq!(served("rack").await, json!(["team-a", "team-b"]), "those of its key");
        let (code, said) = start("odd", "team-c").await.start_in_vain();
        assert_eq!(code, Some(1), "{said}");
        assert!(said.contains("only the namespaces team-a, team-b, not 'team-c'"), "{said}");
        let (code, said) = start("wrong", "Team A").await.start_in_vain();
        assert_eq!(code, Some(2), "{said}");
        assert!(said.contains("must be the name of a Kubernetes namespace"), "{said}");
    });
}

#[test]
fn a_used_token_stops_the_start_with_what_to_do() {
    run(async {
        let server: Server = keyed(Database::Sqlite);
        let plan = server.agent("box").echo();
        std::fs::create_dir_all(plan.dir()).unwrap();
        let file = plan.dir().join("token");
        std::fs::write(&file, "bloom_used-up").unwrap();
        let (code, said) = plan.env("BLOOM_JOIN_TOKEN_FILE", file.display()).start_in_vain();
        assert_eq!(code, Some(1), "{said}");
        assert!(said.contains("refuses the join token") && said.contains("create another one"), "{said}");
        assert!(!said.contains("bloom_used-up"), "{said}");
    });
}

#[test]
fn a_refused_key_is_told_with_the_command_that_makes_a_right_one() {
    run(async {
        let server = keyed(Database::Sqlite);
        let admin = server.with_key(ADMIN);
        let read = create(&admin, "reader", "read", json!({})).await;
        let (code, said) = server.agent("box").echo().env("BLOOM_KEY", &read).start_in_vain();
        assert_eq!(code, Some(1), "{said}");
        assert!(said.contains("This key has the scope read, and this call needs worker or admin"), "{said}");
        assert!(said.contains("bloom-runtime key create box --scope worker --worker box --out box.key"), "{said}");
        let other = create(&admin, "w10", "worker", json!({ "worker": "w10" })).await;
        let (code, said) = server.agent("box").echo().env("BLOOM_KEY", &other).start_in_vain();
        assert_eq!(code, Some(1), "{said}");
        assert!(said.contains("This key is for the worker 'w10' only") && said.contains("start the agent with --name w10"), "{said}");
        assert!(said.contains("--scope worker --worker box"), "{said}");
        let (code, wrong) = server.agent("box").echo().env("BLOOM_KEY", "of-nobody").start_in_vain();
        assert_eq!(code, Some(1), "{wrong}");
        assert!(wrong.contains("the server refuses this key: it is wrong, was revoked or has expired"), "{wrong}");
        assert!(wrong.contains("Then start the agent with --key-file box.key in place of --key or BLOOM_KEY"), "{wrong}");
        assert!(!said.contains(&read) && !said.contains(&other), "{said}");
    });
}

#[test]
fn an_agent_says_what_it_does_when_it_stops() {
    run(async {
        let server = keyed(Database::Sqlite);
        let agent = server.agent("box").echo().env("BLOOM_KEY", ADMIN).start();
        eventually("it is registered", || async { agent.log().contains("registered").then_some(()) }).await;
        agent.stop();
        assert!(agent.log().contains("stopping: no new tasks") && !agent.log().contains("finishing the requests"), "{}", agent.log());
    });
}
