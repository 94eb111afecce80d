//! `task describe`, `worker describe`, `task edit` and `task delete`.

use super::*;

#[test]
fn a_task_is_described_with_its_attempts() {
    run(async {
        let crew = sqlite().crew();
        let user = User::at(crew.api);
        let worker = crew.worker().slots(4).register().await;
        let first = crew.task().with("session", json!("none")).create().await;
        let task = crew.task().with("session", json!("none")).with("depends_on", json!([first.id])).with("labels", json!({ "team": "a" }));
        let task = task.create().await;
        let describe = |more: &[&str]| user.does(&[&["task", "describe", short(&task.id)], more].concat());
        let said = describe(&[]).ok();
        for part in ["queued", "depends_on: ", "What to do: ", "team=a", "Attempts: none", "Depends on:", &first.id, "task_created"] {
            assert!(said.contains(part), "{part}:\n{said}");
        }
        first.lease_to(&worker).await;
        first.succeed("x").await;
        let lost = task.lease_for(&worker, 1).await;
        eventually("the lease expires", || async { (task.status().await == "queued").then_some(()) }).await;
        let lease = task.lease_to(&worker).await;
        task.heartbeat(json!({})).await.ok();
        let events = json!([
            { "seq": 1, "kind": "text", "at": now_ms(), "data": "looking around" },
            { "seq": 2, "kind": "lifecycle", "at": now_ms(), "data": { "phase": "ended", "exit": 0, "duration_ms": 5_000 } },
            { "seq": 3, "kind": "lifecycle", "at": now_ms(), "data": { "phase": "egress", "bytes": 5 } },
        ]);
        crew.api.post(&task.path("/events"), json!({ "lease_id": lease.id, "events": events })).await.ok();
        let usage = json!({ "input_tokens": 30, "output_tokens": 4, "cost_usd": 0.5, "cost_estimated": true });
        task.complete(json!({
            "status": "error", "reason": "timeout", "error_message": "it took too long", "metrics": { "duration_ms": 1 }, "usage": usage,
            "model": "opus",
        }))
        .await
        .ok();
        let said = describe(&[]).ok();
        for part in [
            "failed",
            "timeout: it took too long",
            "--timeout",
            "2 of 3",
            "30+4",
            "4 output tokens, ~$0.5000",
            "expired",
            "lease_expired",
            "the run failed: timeout",
            "after ",
            "never",
            "looking around",
            "the run ends after 5s",
            "completed",
            &worker.name,
        ] {
            assert!(said.contains(part), "{part}:\n{said}");
        }
        assert!(!said.contains("opus") && !said.contains("phase") && !said.contains("egress"), "{said}");
        let wide = describe(&["-o", "wide"]).ok();
        assert!(wide.contains("opus") && wide.contains(&lost.id), "{wide}");
        let whole = describe(&["-o", "json"]).json();
        let leases = whole["leases"].as_array().unwrap();
        assert_eq!(leases.iter().map(|lease| &lease["id"]).collect::<Vec<_>>(), [&json!(lost.id), &json!(lease.id)], "in their order");
        assert_eq!((&leases[1]["usage"], &leases[1]["model"]), (&usage, &json!("opus")));
        assert!(leases[0]["ended_at"].is_i64() && leases[0]["usage"].is_null());
        assert_eq!((&whole["task"]["id"], &whole["dependencies"][0]["id"]), (&json!(task.id), &json!(first.id)));
        assert_eq!((whole["events"].as_array().unwrap().len(), whole["audit"].as_array().unwrap().len()), (3, 5));
        user.does(&["task", "delete", "--yes", &first.id]).ends(0);
        assert!(describe(&[]).ok().contains("removed"), "a dependency that is gone");
        assert_eq!(describe(&["-o", "name"]).ok(), format!("{}\n", task.id));
        let said = user.does(&["task", "describe", NO_ID]).complains(1);
        assert!(said.contains("Task not found"), "{said}");
    });
}

#[test]
fn a_long_failure_is_whole_in_one_place_only() {
    run(async {
        let crew = sqlite().crew();
        let worker = crew.worker().register().await;
        let task = crew.task().with("max_attempts", json!(1)).create().await;
        let run = Run::claimed_by(&worker).await;
        let why = "it broke because of this, ".repeat(8);
        let end = json!({ "status": "error", "error_message": why, "reason": "agent_error", "retryable": true,
            "lease_id": run.lease, "metrics": { "duration_ms": 5 } });
        task.complete(end).await.ok();
        let shown = User::at(crew.api).does(&["task", "describe", &task.id]).ok();
        let (facts, rest) = shown.split_once("Attempts:").unwrap();
        assert!(facts.contains(why.trim_end()), "{shown}");
        let attempts = rest.split("History:").next().unwrap();
        assert!(attempts.contains("the run failed: agent_error: it broke") && attempts.contains('…'), "{attempts}");
        assert!(attempts.matches("it broke").count() <= 2, "{attempts}");
    });
}

#[test]
fn a_worker_is_described_with_what_it_runs() {
    run(async {
        let crew = sqlite().crew();
        let user = User::at(crew.api);
        let worker = crew.worker().slots(2).able("labels", json!(["gpu"])).register().await;
        let (done, open) = (crew.task().create().await, crew.task().create().await);
        done.lease_to(&worker).await;
        done.fail("broken").await;
        open.lease_to(&worker).await;
        let said = user.does(&["worker", "describe", &worker.name]).ok();
        for part in [
            "online",
            "1 of 2 in use",
            "gpu",
            &crew.slug,
            short(&open.id),
            short(&done.id),
            "the run failed: agent_error",
            "worker_registered",
            "claims them by itself",
        ] {
            assert!(said.contains(part), "{part}:\n{said}");
        }
        assert!(said.contains("all, and tasks without one"), "{said}");
        let limited = crew.worker().able("namespaces", json!(["team-a", "team-b"])).register().await;
        let said = user.does(&["worker", "describe", &limited.name]).ok();
        assert!(said.contains("only team-a, team-b"), "{said}");
        let wide = user.does(&["worker", "list", "-o", "wide"]).ok();
        assert!(wide.contains("NAMESPACES") && wide.contains("team-a,team-b"), "{wide}");
        let whole = user.does(&["worker", "describe", "-o", "json", &worker.name]).json();
        assert_eq!((whole["tasks"].as_array().unwrap().len(), whole["leases"].as_array().unwrap().len()), (1, 2));
        user.does(&["worker", "cordon", &worker.name]).ok();
        assert!(user.does(&["worker", "describe", &worker.name]).ok().contains("worker uncordon"));
        let said = user.does(&["worker", "describe", "nobody-at-all"]).complains(1);
        assert!(said.contains("Worker not found") && said.contains("worker list"), "{said}");
    });
}

#[test]
fn a_task_is_edited_and_deleted() {
    run(async {
        let crew = sqlite().crew();
        let user = User::at(crew.api);
        let task = crew.task().with("labels", json!({ "old": "1" })).create().await;
        let edit = |flags: &[&str]| user.does(&[&["task", "edit", short(&task.id), "-o", "json"], flags].concat());
        let shown = edit(&["--priority", "8", "--not-before", "+1h", "--label", "new=2", "--remove-label", "old"]).json();
        assert_eq!((&shown["priority"], &shown["labels"]), (&json!(8), &json!({ "new": "2" })));
        assert!(shown["not_before"].as_i64().unwrap() > now_ms());
        assert_eq!(edit(&["--not-before", "now"]).json()["not_before"], Value::Null);
        let table = user.does(&["task", "edit", &task.id, "--priority", "7"]).ok();
        assert!(table.contains("PRIORITY") && table.contains(" 7 ") && table.contains("new=2"), "{table}");
        let table = user.does(&["task", "edit", &task.id, "--timeout", "2h"]).ok();
        assert!(table.contains("TIMEOUT") && table.contains(" 2h "), "{table}");
        edit(&[]).complains(2);
        edit(&["--priority", "10"]).complains(2);
        edit(&["--label", "a=1", "--remove-label", "a"]).complains(2);

        let said = user.does(&["task", "delete", &task.id]).complains(2);
        assert!(said.contains("--yes"), "{said}");
        let said = user.does(&["task", "delete", "-y", &task.id]).complains(1);
        assert!(said.contains("cancel it first"), "{said}");
        task.cancel().await.ok();
        assert!(edit(&["--priority", "1"]).complains(1).contains("only a queued task"));
        user.does(&["task", "retry", short(&task.id)]).ends(0);
        assert_eq!(task.status().await, "queued");
        let said = user.does(&["task", "describe", &task.id]).ok();
        assert!(said.contains("0 of 3 since it was requeued"), "{said}");
        task.cancel().await.ok();
        let other = crew.task().create().await;
        let said = user.does(&["task", "delete", "--yes", &other.id, &task.id]).complains(1);
        assert!(said.contains(&format!("task {} is deleted", task.id)) && said.contains("cancel it first"), "{said}");
        crew.api.get(&task.path("")).await.expect(404);
        assert_eq!(other.status().await, "queued");
        other.cancel().await.ok();
        let typed = user.types("n\n", &["task", "delete", &other.id]).ends(0);
        assert!(typed.out.contains("delete 1 task? [y/N]"), "{}", typed.out);
        assert_eq!(other.status().await, "cancelled");
        user.types("y\n", &["task", "delete", &other.id]).ends(0);
        crew.api.get(&other.path("")).await.expect(404);
    });
}

#[test]
fn the_end_of_an_attempt_fits_a_narrow_terminal() {
    run(async {
        let crew = sqlite().crew();
        let worker = crew.worker().register().await;
        let task = crew.task().create().await;
        task.lease_for(&worker, 1).await;
        eventually("the lease expires", || async { (task.status().await == "queued").then_some(()) }).await;
        task.lease_to(&worker).await;
        task.complete(json!({
            "status": "error", "reason": "budget_exceeded", "error_message": "it was too dear", "metrics": { "duration_ms": 1 },
            "usage": { "input_tokens": 30_000, "output_tokens": 4_000, "cost_usd": 0.5 },
        }))
        .await
        .ok();
        let shown = User::at(crew.api).with("NO_COLOR", "1").types_at(80, &["task", "describe", &task.id]).ok();
        let attempts: Vec<&str> = shown.lines().skip_while(|line| !line.starts_with("Attempts:")).take(4).collect();
        assert!(attempts[2].contains("the lease expired") && attempts[3].contains("the run failed: budget_exceeded"), "{attempts:#?}");
        assert!(attempts.iter().all(|line| line.chars().count() <= 80), "{attempts:#?}");
    });
}
