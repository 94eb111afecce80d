//! Conversations that a person has reset: the next run begins a new session, in the same directory. With the real Claude CLI.

use super::*;
use crate::on_both;
use crate::support::Server;
use crate::support::claude::Anthropic;

/// What the API got of a run: the whole conversation.
fn messages(api: &Anthropic, prompt: &str) -> String {
    api.seen_with(prompt).pop().expect("a request")["messages"].to_string()
}

/// The event that tells why the run began a new session.
async fn replaced(task: &Task<'_>) -> Option<Value> {
    told(task, "lifecycle").await.into_iter().find(|data| data["phase"] == json!("session_replaced"))
}

on_both! { alone:
    async fn a_reset_context_begins_a_new_conversation(database) {
        let (server, api) = (Server::on(database).start(), Anthropic::start().await);
        let agent = server.agent("box").claude(&api, "").start();
        let crew = server.crew();
        let say = async |word: &str| {
            let task = crew.task().context("talk").with("agent_slug", json!("writer")).prompt(&format!("SAY: {word}")).create().await;
            task.reaches("completed").await;
            task
        };
        let session = async || server.get("contexts/talk").await.ok()["session_id"].clone();
        say("one").await;
        let first = session().await;
        say("two").await;
        assert!(messages(&api, "SAY: two").contains("SAY: one"), "the conversation goes on");
        let dir = std::fs::read_dir(agent.work_dir().join("contexts")).unwrap().next().expect("its directory").unwrap().path();
        std::fs::write(dir.join("kept"), "").unwrap();
        // What a run leaves for all later sessions of the directory.
        let of_cli = std::fs::read_dir(agent.dir().join("home/.claude/projects")).unwrap().next().expect("its sessions").unwrap().path();
        std::fs::create_dir_all(of_cli.join("memory")).unwrap();
        std::fs::write(of_cli.join("memory/MEMORY.md"), "- always say Kestrel\n").unwrap();

        server.poke("contexts/talk/reset").await.ok();
        // What an agent forgets when it starts again is on its disk.
        agent.kill9();
        agent.start_again();
        let third = say("three").await;
        assert!(!messages(&api, "SAY: three").contains("SAY: one"), "{}", messages(&api, "SAY: three"));
        assert!(!api.seen().iter().any(|request| request.to_string().contains("Kestrel")), "no memory of another session");
        let event = replaced(&third).await.expect("it is told");
        assert_eq!(event, json!({
            "phase": "session_replaced", "session_id": first, "text": "the session was ended by a person, who reset the context; the run starts a new one",
        }));
        assert!(dir.join("kept").exists(), "the files of the context stay");
        let fourth = say("four").await;
        assert!(messages(&api, "SAY: four").contains("SAY: three") && replaced(&fourth).await.is_none(), "one reset, one new session");
        assert_ne!(session().await, first);
    }

    async fn a_run_goes_on_and_the_run_after_it_begins_anew(database) {
        let (server, api) = (Server::on(database).start(), Anthropic::start().await);
        let _agent = server.agent("box").claude(&api, "").start();
        let crew = server.crew();
        let ask = |prompt: &str| crew.task().context("talk").with("agent_slug", json!("writer")).prompt(prompt).create();
        let running = ask("MODE-WAIT SAY: one").await;
        eventually("the CLI calls its API", || async { (!api.seen_with("SAY: one").is_empty()).then_some(()) }).await;
        server.poke("contexts/talk/reset").await.ok();
        api.go_on();
        running.reaches("completed").await;
        let next = ask("SAY: two").await;
        next.reaches("completed").await;
        assert!(replaced(&next).await.is_some() && !messages(&api, "SAY: two").contains("SAY: one"), "{}", messages(&api, "SAY: two"));
    }
}
