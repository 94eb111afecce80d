//! `task suspend`, `task resume` and `task submit --suspend`.

use super::*;

#[test]
fn tasks_are_suspended_and_resumed() {
    run(async {
        let crew = sqlite().crew();
        let user = User::at(crew.api);
        let worker = crew.worker().slots(4).register().await;
        let (one, two) = (crew.task().create().await, crew.task().create().await);
        let running = crew.task().create().await;
        running.lease_to(&worker).await;
        let said = user.does(&["task", "suspend", short(&one.id), &two.id, &running.id]).ends(0);
        for part in [
            format!("task {}: suspended\n", one.id),
            format!("task {}: suspended\n", two.id),
            format!("task {}: still running; it is suspended if it is queued again\n", running.id),
        ] {
            assert!(said.err.contains(&part), "{part}: {}", said.err);
        }
        assert_eq!(said.out, "");
        assert!(worker.claim(4).await.is_empty());
        let said = user.does(&["task", "describe", short(&one.id)]).ok();
        for part in ["suspended: ", &format!("bloom-runtime task resume {}", short(&one.id)), "task_suspended"] {
            assert!(said.contains(part), "{part}:\n{said}");
        }
        let said = user.does(&["task", "list", "--agent", &crew.slug]).ok();
        assert_eq!(said.matches("suspended").count(), 2, "{said}");

        running.succeed("x").await;
        let said = user.does(&["task", "resume", &running.id, short(&one.id)]).complains(1);
        assert!(said.contains("Cannot resume task with status 'completed'") && said.contains(&running.id), "{said}");
        assert!(said.contains(&format!("task {}: resumed\n", one.id)), "the others are resumed: {said}");
        let shown = user.does(&["task", "resume", &two.id, "-o", "json"]).json();
        assert_eq!((&shown["id"], &shown["suspend"]), (&json!(two.id), &json!(false)));
        let shown = user.does(&["task", "suspend", &one.id, &two.id, "-o", "json"]).json();
        assert_eq!((&shown[0]["suspend"], &shown[1]["suspend"]), (&json!(true), &json!(true)));
        user.does(&["task", "suspend"]).complains(2);
    });
}

#[test]
fn tasks_are_submitted_suspended() {
    run(async {
        let crew = sqlite().crew();
        let user = User::at(crew.api);
        let worker = crew.worker().slots(4).register().await;
        let id = user.does(&["task", "submit", "--agent", &crew.slug, "--suspend", "p"]).ok();
        let task = crew.api.task(id.trim());
        assert_eq!(task.waits_for().await, "suspended");
        let lines = "{\"prompt\": \"one\"}\n{\"prompt\": \"two\", \"suspend\": false}\n";
        let file = user.home.join("tasks.jsonl");
        std::fs::write(&file, lines).unwrap();
        let ids = user.does(&["task", "submit", "--agent", &crew.slug, "--suspend", "--from", file.to_str().unwrap()]).ok();
        let ids: Vec<&str> = ids.lines().collect();
        let claimed = worker.claim(4).await;
        assert_eq!(claimed.iter().map(|entry| entry["task"]["id"].as_str().unwrap()).collect::<Vec<_>>(), [ids[1]]);
        user.does(&["task", "resume", id.trim(), ids[0]]).ends(0);
        assert_eq!(worker.claim(4).await.len(), 2);
    });
}
