//! `task submit --from` with names, and with --wait; `task reply`; `--failed`.

use std::fs;

use super::*;
use crate::keys::{ADMIN, keyed};

fn file(user: &User, lines: &str) -> String {
    let path = user.home.join("tasks.jsonl");
    fs::write(&path, lines).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn a_file_is_waited_for_and_its_answers_come_in_the_order_of_its_lines() {
    run(async {
        let crew = sqlite().crew();
        let user = User::at(crew.api);
        let from = file(&user, "{\"prompt\": \"one\"}\n\n{\"name\": \"b\", \"prompt\": \"two\", \"priority\": 9}\n");
        let command = ["task", "submit", "--agent", &crew.slug, "--from", &from, "--wait"];
        let said = user.does(&[&command[..], &["--wait-timeout", "1s"]].concat()).complains(3);
        assert!(said.contains("2 new, 0 existed already"), "{said}");
        let listed = user.does(&["task", "list", "--agent", &crew.slug, "--sort", "-age", "-o", "json"]).json();
        let ids: Vec<String> = (0..2).map(|at| listed[at]["id"].as_str().unwrap().to_owned()).collect();
        assert!(ids.iter().all(|id| said.contains(&format!("task {id} is not finished after"))), "{said}");

        let worker = crew.worker().slots(2).register().await;
        let (second, first) = (Run::claimed_by(&worker).await, Run::claimed_by(&worker).await);
        second.answers("of two").await;
        first.answers("of one").await;
        let done = user.does(&command).ends(0);
        assert!(done.err.contains("0 new, 2 existed already"), "{}", done.err);
        let lines: Vec<Value> = done.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let expected = |id: &str, output: &str| json!({ "id": id, "status": "completed", "output": output });
        assert_eq!(lines, [expected(&first.task.id, "of one"), expected(&second.task.id, "of two")]);
        let out = user.home.join("answers");
        user.does(&[&command[..], &["--out", out.to_str().unwrap()]].concat()).ends(0);
        assert_eq!(fs::read_to_string(out.join(format!("{}.txt", first.task.id))).unwrap(), "of one");
        let index = fs::read_to_string(out.join("index.jsonl")).unwrap();
        let rows: Vec<Value> = index.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let row = |line: usize, id: &str| json!({ "line": line, "id": id, "status": "completed", "file": format!("{id}.txt") });
        let mut of_second = row(3, &second.task.id);
        of_second["name"] = json!("b");
        assert_eq!(rows, [row(1, &first.task.id), of_second]);
        let said = user.does(&[&command[..], &["--out", out.to_str().unwrap()]].concat()).complains(1);
        assert!(said.contains("index.jsonl: it exists") && !said.contains("existed already"), "it is told first: {said}");

        fs::write(&from, "{\"prompt\": \"one\"}\n{\"prompt\": \"three\"}\n").unwrap();
        let waiting = user.starts(&command);
        Run::claimed_by(&worker).await.fails("agent_error", "no idea").await;
        let done = waiting.done().ends(1);
        assert!(done.out.contains("of one") && done.out.contains("no idea") && done.err.contains("no idea"), "{} {}", done.out, done.err);
        let said = user.does(&["task", "submit", "--out", "x", "p"]).complains(2);
        assert!(said.contains("--out needs --from and --wait"), "{said}");
    });
}

#[test]
fn the_same_command_submits_what_a_quota_left_out() {
    let server = keyed(Database::Sqlite);
    run(async {
        let admin = User::at(&server).with("BLOOM_KEY", ADMIN);
        let key = admin.does(&["key", "create", "ci", "--scope", "submit", "--max-open-tasks", "2"]).ends(0).out;
        let user = User::at(&server).with("BLOOM_KEY", key.trim_end());
        // A line that depends on another one begins a batch.
        let later = "{\"prompt\": \"later\", \"depends_on\": [\"a\"]}\n".repeat(2);
        let from = file(&user, &format!("{{\"prompt\": \"first\", \"name\": \"a\"}}\n{later}"));
        let command = ["task", "submit", "--agent", "nobody", "--from", &from];
        let said = user.does(&command).ends(1).err;
        assert!(said.contains("line 3 was not submitted: The quota of this key is 2 open tasks, and 2 are open"), "{said}");
        let how =
            "Lines 1 to 2 were submitted. Wait for room in the quota. Give the same command again to go on; no line becomes a second task.";
        assert!(said.contains(how), "{said}");
        let limit =
            "What is used: bloom-runtime key whoami. An administrator sets another limit: bloom-runtime key quota ci --max-open-tasks N";
        assert!(said.contains(limit), "{said}");
        admin.does(&["key", "quota", "ci", "--max-open-tasks", "3"]).ok();
        let done = user.does(&command).ends(0);
        assert!(done.err.contains("1 new, 2 existed already"), "{}", done.err);
        let said = user.does(&["task", "submit", "--agent", "nobody", "one more"]).complains(1);
        assert!(said.contains("bloom-runtime key quota ci --max-open-tasks N"), "{said}");
    });
}

#[test]
fn a_file_of_more_than_the_quota_is_sent_as_far_as_there_is_room() {
    let server = keyed(Database::Sqlite);
    run(async {
        let admin = User::at(&server).with("BLOOM_KEY", ADMIN);
        let key = admin.does(&["key", "create", "ci", "--scope", "submit", "--max-open-tasks", "5"]).ends(0).out;
        let user = User::at(&server).with("BLOOM_KEY", key.trim_end());
        let from = file(&user, &(1..=8).map(|line| format!("{{\"prompt\": \"{line}\"}}\n")).collect::<String>());
        let command = ["task", "submit", "--agent", "nobody", "--from", &from];
        let said = user.does(&command).ends(1);
        assert_eq!(said.out.lines().count(), 5, "{}", said.out);
        let limit = "lines 6 to 8 were not submitted: The quota of this key is 5 open tasks, and 5 are open";
        assert!(said.err.contains(limit) && said.err.contains("Lines 1 to 5 were submitted."), "{}", said.err);
        let again = user.does(&command).ends(1);
        assert_eq!((again.out, again.err), (said.out, said.err), "what is left stays the same");
        admin.does(&["key", "quota", "ci", "--max-open-tasks", "8"]).ok();
        let done = user.does(&command).ends(0);
        assert!(done.err.contains("3 new, 5 existed already"), "{}", done.err);
    });
}

#[test]
fn lines_depend_on_earlier_ones_by_their_names() {
    run(async {
        let crew = sqlite().crew();
        let user = User::at(crew.api);
        let earlier = crew.task().create().await;
        let lines = |first: &str| {
            format!(
                "{{\"prompt\": \"{first}\", \"name\": \"build\"}}\n{{\"prompt\": \"test\", \"name\": \"test\", \"depends_on\": [\"build\"]}}\n\
                 {{\"prompt\": \"lint\", \"depends_on\": [\"build\"]}}\n\
                 {{\"prompt\": \"ship\", \"depends_on\": [\"build\", \"test\", \"{}\"]}}\n",
                short(&earlier.id)
            )
        };
        let submit = |text: &str| {
            let from = file(&user, text);
            user.does(&["task", "submit", "--agent", &crew.slug, "--from", &from])
        };
        let done = submit(&lines("build")).ends(0);
        let ids: Vec<&str> = done.out.lines().collect();
        assert_eq!(ids.len(), 4);
        let mut expected = [ids[0], ids[1], &earlier.id];
        expected.sort_unstable();
        assert_eq!(crew.api.task(ids[1]).now().await["depends_on"], json!([ids[0]]));
        assert_eq!(crew.api.task(ids[2]).now().await["depends_on"], json!([ids[0]]));
        assert_eq!(crew.api.task(ids[3]).now().await["depends_on"], json!(expected));

        let again = submit(&lines("build")).ends(0);
        assert_eq!(again.out, done.out, "the same file makes no second task");
        let renamed = submit(
            &lines("build")
                .replace("\"build\"]", "\"b\"]")
                .replace("[\"build\"", "[\"b\"")
                .replace("\"name\": \"build\"", "\"name\": \"b\""),
        );
        assert_eq!(renamed.ends(0).out, done.out, "a name says nothing of the task");
        let other = submit(&lines("build it anew")).ends(0);
        assert!(other.out.lines().all(|id| !ids.contains(&id)), "what depends on another task is another task");

        let said = submit(
            "{\"prompt\": \"p\", \"name\": \"a\", \"depends_on\": [\"b\"]}\n{\"prompt\": \"p\", \"name\": \"b\", \"depends_on\": [\"a\"]}\n\
             {\"prompt\": \"p\", \"depends_on\": [\"late\"]}\n{\"prompt\": \"p\", \"name\": \"late\"}\n{\"prompt\": \"p\", \"name\": \"a\"}\n\
             {\"prompt\": \"p\", \"depends_on\": [\"lat\"]}\n",
        )
        .complains(2);
        for part in [
            "line 1: depends_on: b is line 2, which depends on this line in turn",
            "line 3: depends_on: late is line 4, which comes later",
            "line 5: name: a is the name of line 1, too",
            "line 6: depends_on: 'lat' is no id of a task, and no line has the name lat; the nearest is late",
            "nothing was submitted",
        ] {
            assert!(said.contains(part), "{part}: {said}");
        }
    });
}

#[test]
fn a_reply_goes_on_with_the_conversation_of_a_task() {
    run(async {
        let crew = sqlite().crew();
        let user = User::at(crew.api);
        let first = crew.task().with("labels", json!({ "batch": "1" })).with("model", json!("m")).create().await;
        let id = user.does(&["task", "reply", short(&first.id), "--timeout", "2h", "--budget", "0.5", "And in French?"]).ok();
        let (first, reply) = (first.now().await, crew.api.task(id.trim()).now().await);
        for field in ["context_id", "agent_slug", "labels", "model", "project", "push", "exclusive_key"] {
            assert_eq!(reply[field], first[field], "{field}");
        }
        assert_eq!((&reply["prompt"], &reply["policy"]["timeout_sec"]), (&json!("And in French?"), &json!(7200)));
        assert_eq!(reply["policy"]["budget"], 0.5);
        let worker = crew.worker().register().await;
        Run::claimed_by(&worker).await.answers("one").await;
        Run::claimed_by(&worker).await.answers("two").await;
        let waiting = user.starts(&["task", "reply", id.trim(), "--wait", "Once more"]);
        Run::claimed_by(&worker).await.answers("three").await;
        assert_eq!(waiting.done().ok(), "three\n");
        let alone = crew.task().with("session", json!("none")).create().await;
        let said = user.does(&["task", "reply", &alone.id, "p"]).complains(2);
        assert!(said.contains("it has no conversation"), "{said}");
        assert!(user.does(&["task", "reply", NO_ID, "p"]).complains(1).contains("not found"));
    });
}

#[test]
fn failed_means_dead_tasks_too() {
    run(async {
        let crew = sqlite().crew();
        let user = User::at(crew.api);
        let worker = crew.worker().register().await;
        let task = crew.task().with("max_attempts", json!(1)).create().await;
        task.lease_for(&worker, 1).await;
        eventually("the task is dead", || async { (task.status().await == "dead").then_some(()) }).await;
        for (command, status) in [(&["list"][..], 0), (&["wait"], 1), (&["requeue", "--yes"], 0)] {
            let done = user.does(&[&["task"], command, &["--status", "failed", "--agent", &crew.slug]].concat()).ends(status);
            assert!(done.err.contains("1 dead task: --failed"), "{command:?}: {}", done.err);
        }
        let listed = user.does(&["task", "list", "--failed", "--agent", &crew.slug, "-o", "name"]).ok();
        assert_eq!(listed.trim(), task.id);
        user.does(&["task", "list", "--failed", "--status", "queued"]).complains(2);
        let done = user.does(&["task", "retry", "--failed", "--agent", &crew.slug, "--yes"]).ends(0);
        assert_eq!(done.err, "1 task: queued again\n");
        assert_eq!(task.status().await, "queued");
    });
}

#[test]
fn plain_lines_are_prompts() {
    run(async {
        let crew = sqlite().crew();
        let user = User::at(crew.api);
        let from = file(&user, "say \"hello\"\n\nsay {bye}\n");
        let command = ["task", "submit", "--agent", &crew.slug, "--from", &from];
        let said = user.does(&command).complains(2);
        assert!(said.contains("if each line is a prompt as it stands, give --plain"), "{said}");
        let plain = [&command[..], &["--plain"]].concat();
        let done = user.does(&plain).ends(0);
        let ids: Vec<&str> = done.out.lines().collect();
        assert_eq!(ids.len(), 2, "{}", done.err);
        for (id, prompt) in ids.iter().zip(["say \"hello\"", "say {bye}"]) {
            assert_eq!(crew.api.task(id).now().await["prompt"], prompt);
        }
        assert!(user.does(&plain).ends(0).err.contains("0 new, 2 existed already"));
        user.does(&["task", "submit", "--plain", "p"]).complains(2);
    });
}
