//! `audit`, with filters and followed; and tasks named by a part of their ids.

use super::*;

#[test]
fn the_audit_trail_is_filtered() {
    run(async {
        let crew = sqlite().crew();
        let user = User::at(crew.api);
        let worker = crew.worker().register().await;
        let task = crew.task().create().await;
        task.lease_to(&worker).await;
        task.succeed("x").await;
        crew.leased_task().await;
        let leases = user.does(&["lease", "list", "--task", short(&task.id), "-o", "json"]).json();
        assert_eq!((leases.as_array().map(Vec::len), &leases[0]["task_id"]), (Some(1), &json!(task.id)));
        let actions = |more: &[&str]| {
            let entries = user.does(&[&["audit", "-o", "json"], more].concat()).json();
            entries.as_array().unwrap().iter().map(|entry| entry["action"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(actions(&["--task", &task.id]), ["task_completed", "task_leased", "task_created"]);
        assert_eq!(actions(&["--task", short(&task.id), "--action", "task_leased"]), ["task_leased"]);
        assert_eq!(actions(&["--task", short(&task.id), "--action", "task_leased,task_created"]), ["task_leased", "task_created"]);
        assert_eq!(actions(&["--worker", &worker.name]), ["task_completed", "task_leased", "worker_registered"]);
        assert_eq!(actions(&["--worker", &worker.name, "--actor", "api"]), ["worker_registered"]);
        assert_eq!(actions(&["--task", &task.id, "--until", "1h"]), [] as [&str; 0]);
        assert_eq!(actions(&["--task", &task.id, "--since", "1h", "--limit", "1"]), ["task_completed"]);
        let shown = user.does(&["audit", "--task", &task.id]).ok();
        assert!(shown.contains(&format!("llm_task/{} ", short(&task.id))), "{shown}");
        assert!(user.does(&["audit", "--task", &task.id, "-o", "wide"]).ok().contains(&format!("llm_task/{}", task.id)));
        let decided = user.does(&["audit", "--people", "--task", &task.id, "-o", "jsonl"]).ok();
        assert!(decided.contains("task_created") && !decided.contains("task_leased"), "{decided}");
        assert_eq!(actions(&["--people", "--action", "task_completed", "--task", &task.id]), [] as [&str; 0], "no person has done that");
        let (before, after) = (crew.task().create().await, crew.task());
        let after = after.with("depends_on", serde_json::json!([before.id])).create().await;
        user.does(&["task", "cancel", &before.id]).ok();
        after.reaches("cancelled").await;
        assert_eq!(actions(&["--people", "--task", &after.id]), ["task_created"], "its cancellation is no decision of a person");
        let at_once = crew.task().with("depends_on", json!([before.id])).create().await;
        assert_eq!(actions(&["--task", &at_once.id]), ["task_cancelled", "task_created"]);
        assert_eq!(actions(&["--people", "--task", &at_once.id]), ["task_created"], "nobody has cancelled it");
        let stopped = crew.task().create().await;
        let lease = stopped.lease_to(&worker).await;
        user.does(&["task", "cancel", &stopped.id]).ok();
        let ended = json!({ "lease_id": lease.id, "status": "error", "reason": "cancelled", "metrics": { "duration_ms": 1 } });
        stopped.complete(ended).await.ok();
        assert_eq!(actions(&["--task", &stopped.id]), ["task_cancelled", "task_cancelled", "task_leased", "task_created"]);
        assert_eq!(actions(&["--people", "--task", &stopped.id]), ["task_cancelled", "task_created"], "its end is no decision of a person");
        user.does(&["audit", "--action", "task_crated"]).complains(2);
        user.does(&["audit", "--since", "soonish"]).complains(2);
        user.does(&["audit", "-f", "--until", "1h"]).complains(2);
    });
}

#[test]
fn the_audit_trail_is_followed_across_a_restart() {
    run(async {
        let server = Server::on(Database::Sqlite).start();
        let crew = server.crew();
        let user = User::at(&server);
        let old = crew.task().create().await;
        let first = crew.task().create().await;
        let following = user.starts(&["audit", "-f", "--action", "task_created", "--limit", "1", "-o", "json"]);
        following.prints(&first.id).await;
        let second = crew.task().create().await;
        second.cancel().await.ok();
        following.prints(&second.id).await;
        server.kill9();
        server.start_again();
        let third = crew.task().create().await;
        following.prints(&third.id).await;
        following.interrupt();
        let lines = following.done().ends(130).out;
        let told: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).expect("an entry in a line")).collect();
        let ids: Vec<_> = told.iter().map(|entry| entry["entity_id"].as_str().unwrap()).collect();
        assert_eq!(ids, [&first.id, &second.id, &third.id], "each once, oldest first, and not {}", old.id);
        let table = user.starts(&["audit", "-f", "--task", short(&third.id)]);
        table.prints("task_created").await;
        third.cancel().await.ok();
        table.prints("task_cancelled").await;
        table.interrupt();
        table.done().ends(130);
    });
}

#[test]
fn a_task_is_named_by_a_part_of_its_id() {
    run(async {
        let server = Server::on(Database::Sqlite).start();
        let crew = server.crew();
        let user = User::at(&server);
        let (one, two) = (crew.task().create().await, crew.task().create().await);
        let list = user.does(&["task", "list"]).ok();
        assert!(list.contains(short(&one.id)) && !list.contains(&one.id), "{list}");
        assert!(user.does(&["task", "list", "-o", "wide"]).ok().contains(&one.id));
        let part = short(&one.id);
        assert_eq!(user.does(&["task", "get", "-o", "name", part]).ok(), format!("{}\n", one.id));
        let said = user.does(&["task", "get", &one.id[..8]]).complains(1);
        assert!(said.contains("several tasks") && said.contains(&one.id) && said.contains(&two.id), "{said}");
        let said = user.does(&["task", "get", "ffffffff"]).complains(1);
        assert!(said.contains("no task whose id begins or ends with ffffffff"), "{said}");
        for no_id in ["abc", "", "my-task"] {
            let said = user.does(&["task", "get", no_id]).complains(2);
            assert!(said.contains(&format!("'{no_id}' is no id")) && said.contains("at least 4 digits"), "{said}");
        }
        let waits = user.does(&["task", "submit", "--agent", &crew.slug, "--depends-on", part, "later"]).ok();
        assert_eq!(server.task(waits.trim()).now().await["depends_on"], json!([one.id]));
        user.does(&["task", "cancel", part, short(&two.id)]).ends(0);
        assert_eq!((one.status().await, two.status().await), ("cancelled".into(), "cancelled".into()));
        user.does(&["task", "requeue", part]).ends(0);
        let worker = crew.worker().register().await;
        let run = Run::claimed_by(&worker).await;
        run.tells("text", json!("a b\n")).await;
        run.answers("done").await;
        assert_eq!(user.does(&["task", "result", part]).ok(), "done\n");
        assert_eq!(user.does(&["task", "logs", part]).ok(), "a b\n");
        assert_eq!(user.does(&["task", "wait", "-o", "name", part]).ok(), format!("{}\n", one.id));
    });
}
