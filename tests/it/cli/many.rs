//! Commands on several tasks, chosen by ids or by filters.

use std::fs;

use super::*;

/// Two completed tasks and a failed one, in the order of their creation.
async fn finished(crew: &Crew<'_>) -> [String; 3] {
    let worker = crew.worker().slots(4).register().await;
    let ids = [crew.task().create().await.id, crew.task().create().await.id, crew.task().create().await.id];
    for at in 0..3 {
        let run = Run::claimed_by(&worker).await;
        let place = ids.iter().position(|id| *id == run.task.id).expect("one of these");
        run.tells("text", json!({ "text": format!("line of {place}\nno end {at}") })).await;
        match place {
            2 => run.fails("agent_error", "it was too hard").await,
            _ => run.answers(&format!("answer {place}")).await,
        }
    }
    ids
}

fn lines(out: &str) -> Vec<Value> {
    out.lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect()
}

#[test]
fn tasks_are_waited_for_and_their_results_printed_by_filters() {
    run(async {
        let crew = sqlite().crew();
        let user = User::at(crew.api);
        for command in ["wait", "result", "logs"] {
            // A script with a misspelt filter must not go on as if all were done.
            let waiting = user.does(&["task", command, "--agent", &crew.slug]).ends(1);
            assert!(waiting.err.contains("no task matches"), "{}", waiting.err);
        }
        let [one, two, three] = finished(&crew).await;
        let done = user.does(&["task", "wait", "--agent", &crew.slug]).ends(1);
        assert!([&one, &two, &three].iter().all(|id| done.out.contains(short(id))), "{}", done.out);
        assert!(done.err.contains("it was too hard"), "{}", done.err);
        user.does(&["task", "wait", "--agent", &crew.slug, "--status", "completed"]).ends(0);

        let done = user.does(&["task", "result", "--agent", &crew.slug]).ends(1);
        let found = lines(&done.out);
        assert_eq!(found[0], json!({ "id": one, "status": "completed", "output": "answer 0" }));
        assert_eq!(found[1], json!({ "id": two, "status": "completed", "output": "answer 1" }));
        assert_eq!((&found[2]["id"], &found[2]["output"]), (&json!(three), &Value::Null));
        assert!(found[2]["error"].as_str().unwrap().contains("it was too hard"), "{}", found[2]);
        assert!(done.err.contains(&three) && !done.err.contains(&one), "{}", done.err);

        // A name that is not there does not spoil the others.
        let done = user.does(&["task", "result", short(&two), NO_ID, "-o", "json"]).ends(1);
        assert_eq!(serde_json::from_str::<Value>(&done.out).unwrap()[0]["output"], "answer 1");
        assert!(done.err.contains(NO_ID), "{}", done.err);
        let said = user.does(&["task", "result"]).complains(2);
        assert!(said.contains("no tasks are named"), "{said}");
    });
}

#[test]
fn a_wait_by_filters_ends_when_all_that_matched_are_finished() {
    run(async {
        let crew = sqlite().crew();
        let label = format!("batch={}", unique("label"));
        let (name, value) = label.split_once('=').unwrap();
        let (one, two) = (
            crew.task().with("labels", json!({ name: value })).create().await,
            crew.task().with("labels", json!({ name: value })).create().await,
        );
        let said = user_waits(&crew, &["-l", &label, "--timeout", "0"]).complains(3);
        assert!(said.contains(&one.id) && said.contains(&two.id), "each that is not finished is told: {said}");
        let waiting = User::at(crew.api).starts(&["task", "wait", "-l", &label, "-o", "name"]);
        waiting.says("no_worker").await;
        let later = crew.task().with("labels", json!({ name: value, "later": "yes" })).create().await;
        let worker = crew.worker().slots(2).register().await;
        for _ in 0..2 {
            Run::claimed_by(&worker).await.answers("done").await;
        }
        assert_eq!(waiting.done().ok(), format!("{}\n{}\n", one.id, two.id), "later ones are not waited for");
        later.cancel().await.ok();
    });
}

fn user_waits(crew: &Crew<'_>, flags: &[&str]) -> user::Done {
    User::at(crew.api).does(&[&["task", "wait"], flags].concat())
}

#[test]
fn answers_are_written_into_files_that_are_not_replaced() {
    run(async {
        let crew = sqlite().crew();
        let user = User::at(crew.api);
        let [one, two, three] = finished(&crew).await;
        let out = user.home.join("answers");
        let command = ["task", "result", "--agent", &crew.slug, "--out", out.to_str().unwrap()];
        let done = user.does(&command).ends(1);
        assert_eq!(done.out.lines().count(), 2, "{}", done.out);
        let read = |id: &str| fs::read_to_string(out.join(format!("{id}.txt")));
        assert_eq!((read(&one).unwrap(), read(&two).unwrap()), ("answer 0".into(), "answer 1".into()));
        assert!(read(&three).is_err() && done.err.contains("it was too hard"), "{}", done.err);
        fs::write(out.join(format!("{one}.txt")), "mine").unwrap();
        let said = user.does(&command).complains(1);
        assert!(said.contains("it exists"), "{said}");
        assert_eq!(read(&one).unwrap(), "mine");
        user.does(&["task", "result", &one, "--out", out.to_str().unwrap(), "--force"]).ends(0);
        assert_eq!(read(&one).unwrap(), "answer 0");
    });
}

#[test]
fn lines_of_several_logs_begin_with_their_task() {
    run(async {
        let crew = sqlite().crew();
        let user = User::at(crew.api);
        let ids = finished(&crew).await;
        for follow in [&[][..], &["-f"]] {
            let logs = user.does(&[&["task", "logs", "--agent", &crew.slug], follow].concat()).ok();
            for (at, id) in ids.iter().enumerate() {
                // The logs are read at once, so lines of others may stand between these.
                let own: Vec<&str> = logs.lines().filter_map(|line| line.strip_prefix(&format!("{} ", short(id)))).collect();
                assert!(own[0] == format!("line of {at}") && own[1].starts_with("no end "), "{logs}");
            }
            assert!(logs.lines().all(|line| ids.iter().any(|id| line.starts_with(&format!("{} ", short(id))))), "{logs}");
        }
        let events = user.does(&["task", "logs", &ids[0], &ids[1], "--kind", "text", "-o", "json"]).json();
        assert_eq!((&events[0]["task_id"], &events[1]["task_id"]), (&json!(ids[0]), &json!(ids[1])));
        let said = user.does(&["task", "logs", &ids[0], NO_ID]).ends(1);
        assert!(said.out.contains("line of 0") && said.err.contains(NO_ID), "{} {}", said.out, said.err);
    });
}

#[test]
fn tasks_are_edited_suspended_and_deleted_by_filters() {
    run(async {
        let crew = sqlite().crew();
        let user = User::at(crew.api);
        let done = finished(&crew).await;
        let (one, two) = (crew.task().create().await, crew.task().create().await);
        let agent = crew.slug.as_str();
        let refused = user.does(&["task", "edit", "--agent", agent, "--priority", "9"]).complains(2);
        assert!(refused.contains("edit 2 tasks") && refused.contains("--yes"), "only queued tasks can be edited: {refused}");
        let dry = user.does(&["task", "edit", "--agent", agent, "--priority", "9", "--dry-run"]).ends(0);
        assert_eq!((dry.out.as_str(), dry.err.as_str()), ("", "2 tasks to edit\n"));
        assert_eq!(one.now().await["priority"], 5);
        user.does(&["task", "edit", &one.id, &two.id, "--label", "batch=1"]).ends(0);
        let edited =
            user.does(&["task", "edit", "--agent", agent, "-l", "batch=1", "--label", "batch=2", "--priority", "9", "--yes", "-o", "json"]);
        assert_eq!(edited.json()[1]["labels"], json!({ "batch": "2" }));
        assert_eq!((&one.now().await["priority"], &two.now().await["priority"]), (&json!(9), &json!(9)));
        let said = user.does(&["task", "edit", &done[0], &one.id, "--priority", "8"]).ends(1);
        assert!(said.err.contains(&done[0]) && said.out.contains(short(&one.id)), "the others are edited: {} {}", said.out, said.err);

        let said = user.does(&["task", "suspend", "--agent", agent, "--yes"]).ends(0);
        assert_eq!(said.err, "2 tasks: suspended\n");
        let said = user.does(&["task", "suspend", "--agent", agent, "--dry-run"]).ends(0);
        assert_eq!(said.err, "0 tasks to suspend\n", "they are suspended already");
        user.does(&["task", "resume", &one.id]).ends(0);
        let said = user.does(&["task", "resume", "--agent", agent, "--yes"]).ends(0);
        assert_eq!(said.err, "1 task: resumed\n");

        let refused = user.does(&["task", "delete", "--agent", agent]).complains(2);
        assert!(refused.contains("delete 3 tasks"), "only finished tasks can be deleted: {refused}");
        let said = user.does(&["task", "delete", "--agent", agent, "--status", "completed", "--yes"]).ends(0);
        assert_eq!(said.err, "2 tasks: deleted\n");
        let said = user.does(&["task", "delete", &one.id, &done[2], "--yes"]).complains(1);
        assert!(said.contains(&one.id) && said.contains(&format!("task {} is deleted", done[2])), "{said}");
        assert_eq!(user.does(&["task", "list", "--agent", agent, "-o", "name"]).ok().lines().count(), 2);
        for command in ["wait", "result", "logs", "suspend", "resume", "delete"] {
            let said = user.does(&["task", command, &one.id, "--agent", agent]).complains(2);
            assert!(said.contains("either ids or filters"), "{command}: {said}");
        }
    });
}
