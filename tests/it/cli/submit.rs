//! `task submit`: what it sends and what it prints.

use std::fs;

use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpStream};

use super::*;
use crate::support::stub::{Reply, Stub};

fn id(out: &str) -> &str {
    let id = out.strip_suffix('\n').expect("a line");
    assert_eq!(id.len(), 36, "the output is only an id: {out:?}");
    id
}

#[test]
fn it_prints_the_id_alone() {
    run(async {
        let server = sqlite();
        let done = User::at(server).does(&["task", "submit", "Say hello"]).ends(0);
        // Which agents workers know depends on the tests beside.
        let hints = done.err.lines().filter(|line| !line.starts_with("Warning: no worker "));
        assert_eq!(hints.count(), 0, "hints are printed only on a terminal: {}", done.err);
        let task = server.task(id(&done.out)).now().await;
        assert_eq!((&task["prompt"], &task["agent_slug"], &task["status"]), (&json!("Say hello"), &json!("default"), &json!("queued")));
        assert!(task["idempotency_key"].is_string(), "{task}");
        let other = User::at(server).does(&["task", "submit", "Say hello"]).ok();
        assert_ne!(server.task(id(&other)).now().await["context_id"], task["context_id"], "each task has a context of its own");
        server.task(id(&done.out)).cancel().await.ok();
        server.task(id(&other)).cancel().await.ok();
    });
}

#[test]
fn every_field_has_a_flag() {
    run(async {
        let server = sqlite();
        let first = server.crew().task().create().await;
        let (agent, context) = (unique("agent"), unique("context"));
        let flags = [
            "task",
            "submit",
            "-o",
            "json",
            "--context",
            &context,
            "--agent",
            &agent,
            "--priority",
            "9",
            "--not-before",
            "2200-01-01T00:00:00Z",
            "--depends-on",
            &first.id,
            "--label",
            "k=v",
            "--label",
            "l=w=x",
            "--model",
            "m",
            "--budget",
            "0.5",
            "--timeout",
            "5m",
            "--format",
            "json",
            "--max-attempts",
            "2",
            "--session",
            "none",
            "--exclusive-key",
            &context,
            "--idempotency-key",
            &context,
            "--hint",
            "a.txt",
            "--keep",
            "out/*",
            "--ttl",
            "1h",
            "--",
            "--really",
        ];
        let task = User::at(server).does(&flags).json();
        let expected = json!({
            "context_id": context, "agent_slug": agent, "priority": 9, "not_before": 7_258_118_400_000_i64, "depends_on": [first.id],
            "labels": { "k": "v", "l": "w=x" }, "model": "m", "policy": { "timeout_sec": 300, "timeout_is_default": false, "budget": 0.5 }, "desired_format": "json",
            "max_attempts": 2, "session": "none", "exclusive_key": context, "idempotency_key": context, "context_hints": ["a.txt"], "outputs": ["out/*"],
            "ttl_after_finished_sec": 3600, "prompt": "--really",
        });
        for (field, value) in expected.as_object().unwrap() {
            assert_eq!(task[field], *value, "{field}");
        }
        let again = User::at(server).does(&flags).json();
        assert_eq!(again["id"], task["id"], "the same key returns the same task");
    });
}

#[test]
fn the_prompt_may_come_from_a_file_or_a_pipe() {
    run(async {
        let server = sqlite();
        let user = User::at(server);
        fs::write(user.home.join("prompt.txt"), "from a file\n").unwrap();
        let check = async |out: String, prompt: &str| assert_eq!(server.task(id(&out)).now().await["prompt"], prompt);
        let agent = unique("agent");
        let flags = ["task", "submit", "--agent", &agent];
        check(user.does(&[&flags[..], &["--prompt-file", "prompt.txt"]].concat()).ok(), "from a file\n").await;
        check(user.pipes("from a pipe\nGrüße", &flags).ok(), "from a pipe\nGrüße").await;
        check(user.pipes("dashed", &[&flags[..], &["-"]].concat()).ok(), "dashed").await;
        check(user.pipes("a diff\n", &[&flags[..], &["Review this"]].concat()).ok(), "Review this\n\na diff\n").await;
        check(user.pipes("", &[&flags[..], &["Review this"]].concat()).ok(), "Review this").await;
        check(user.does(&[&flags[..], &["Review this"]].concat()).ok(), "Review this").await;
        let both = [&flags[..], &["Review this", "--prompt-file", "prompt.txt"]].concat();
        check(user.does(&both).ok(), "Review this\n\nfrom a file\n").await;
        let with_file = [&flags[..], &["--prompt-file", "prompt.txt"]].concat();
        check(user.pipes("a diff\n", &with_file).ok(), "from a file\n\n\na diff\n").await;
        check(user.pipes("dashed", &[&with_file[..], &["-"]].concat()).ok(), "from a file\n\n\ndashed").await;
        check(user.pipes("", &both).ok(), "Review this\n\nfrom a file\n").await;
        let said = user.pipes("a diff\n", &both).complains(2);
        assert!(said.contains("three places") && said.contains("--prompt-file") && said.contains("/dev/null"), "{said}");
        fs::write(user.home.join("marked.txt"), "\u{feff}from Windows\n").unwrap();
        check(user.does(&[&flags[..], &["--prompt-file", "marked.txt"]].concat()).ok(), "from Windows\n").await;
        let marked = user.pipes("\u{feff}{\"prompt\": \"one\"}\n", &[&flags[..], &["--from", "-"]].concat()).ok();
        check(marked, "one").await;
    });
}

#[test]
fn what_makes_no_sense_is_not_sent() {
    let user = User::at(sqlite());
    fs::write(user.home.join("bytes"), b"\xff\xfe").unwrap();
    let wrong: &[(&[&str], &str)] = &[
        (&[], "empty"),
        (&["--prompt-file", "nowhere.txt"], "nowhere.txt"),
        (&["--prompt-file", "bytes"], "bytes"),
        (&["p", "--prompt-file", "bytes"], "bytes"),
        (&[" \n"], "empty"),
        (&["p", "--again"], "--from"),
        (&["p", "--priority", "10"], "--priority"),
        (&["p", "--not-before", "soon"], "--not-before"),
        (&["p", "--label", "x"], "--label"),
        (&["p", "--label", "a=1", "--label", "a=2"], "the label a is named twice"),
        (&["p", "--timeout", "25h"], "--timeout"),
        (&["p", "--context", ""], "--context"),
        (&["p", "--agent", &"a".repeat(300)], "--agent"),
        (&["p", "--depends-on", NO_ID], "--depends-on"),
        (&["p", "--wait-timeout", "5"], "--wait-timeout"),
        (&["p", "--from", "x"], "--from"),
    ];
    for (flags, named) in wrong {
        let said = user.does(&[&["task", "submit"], *flags].concat()).complains(2);
        assert!(said.contains(named), "{flags:?}: {said}");
    }
    let said = user.does(&["task", "submit", "p", "--depends-on", "x"]).complains(2);
    assert!(said.contains("--depends-on: 'x' is no id of a task"), "{said}");
}

#[test]
fn a_busy_server_is_asked_again_for_the_same_task() {
    run(async {
        let stub = Stub::start().await;
        let path = "/api/runtime/llm-tasks";
        stub.once(path, Reply::new(503, r#"{"error": "busy"}"#));
        stub.once(path, Reply::new(503, r#"{"error": "busy"}"#));
        stub.once(path, Reply::new(500, r#"{"error": "broken"}"#));
        stub.always(path, Reply::new(201, &json!({ "id": NO_ID, "status": "queued" }).to_string()));
        let done = User::new().with("BLOOM_SERVER", &stub.url).does(&["task", "submit", "p"]).ends(0);
        assert_eq!(done.out, format!("{NO_ID}\n"));
        let (reasons, waits) = (done.err.matches("busy; trying again in").count(), done.err.matches("trying again in").count());
        assert_eq!((reasons, waits), (1, 3), "the same reason is told once: {}", done.err);
        let seen = stub.seen(path);
        assert_eq!(seen.len(), 4);
        assert!(seen.iter().all(|request| request.body == seen[0].body), "each attempt sends the same request");
        assert!(seen[0].body.contains("\"idempotency_key\":\""), "{}", seen[0].body);
    });
}

/// A proxy to the server that drops the first answer, after the server has handled the request.
async fn lossy_line(to: &Api) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let here = format!("http://{}", listener.local_addr().expect("an address"));
    let target = to.base().trim_start_matches("http://").to_owned();
    beside(async move {
        let mut is_first = true;
        while let Ok((mut near, _)) = listener.accept().await {
            let mut far = TcpStream::connect(&target).await.expect("the server");
            if std::mem::take(&mut is_first) {
                let (mut near, _) = near.split();
                let (mut answer, mut far) = far.split();
                let mut buffer = [0; 1024];
                tokio::select! {
                    _ = tokio::io::copy(&mut near, &mut far) => {}
                    read = answer.read(&mut buffer) => assert!(read.expect("an answer") > 0),
                }
            } else {
                beside(async move { tokio::io::copy_bidirectional(&mut near, &mut far).await });
            }
        }
    });
    here
}

#[test]
fn a_lost_answer_makes_no_second_task() {
    run(async {
        let server = sqlite();
        let line = lossy_line(server).await;
        let agent = unique("agent");
        let done = User::new().with("BLOOM_SERVER", &line).does(&["task", "submit", "--agent", &agent, "p"]).ends(0);
        assert!(done.err.contains("trying again"), "the first answer was lost: {}", done.err);
        let tasks = server.get(&format!("llm-tasks?agent_slug={agent}")).await.ok();
        assert_eq!((tasks.as_array().unwrap().len(), tasks[0]["id"].as_str()), (1, Some(id(&done.out))));
    });
}

#[test]
fn a_file_is_submitted_line_by_line() {
    run(async {
        let server = sqlite();
        let user = User::at(server);
        let agent = unique("agent");
        let line = |i: i32| json!({ "prompt": format!("task {i}"), "priority": i % 10 }).to_string();
        let lines: Vec<String> = (0..1005).map(line).collect();
        fs::write(user.home.join("tasks.jsonl"), lines.join("\n") + "\n\n").unwrap();
        let flags = ["task", "submit", "--from", "tasks.jsonl", "--agent", &agent, "--label", "batch=7"];
        let out = user.does(&flags).ok();
        let ids: Vec<&str> = out.lines().collect();
        assert_eq!(ids.len(), 1005, "one id per line of the file");
        for i in [0, 999, 1000, 1004] {
            let task = server.task(ids[i]).now().await;
            assert_eq!((&task["prompt"], &task["agent_slug"]), (&json!(format!("task {i}")), &json!(agent)));
            assert_eq!(task["labels"], json!({ "batch": "7" }));
        }
        let repeated = user.does(&flags).ends(0);
        assert_eq!(repeated.out, out, "a repeated run creates no second task");
        assert_eq!(repeated.err, "1,005 tasks: 0 new, 1,005 existed already\n");
        fs::write(user.home.join("tasks.jsonl"), lines.join("\n") + "\n{\"prompt\": \"new\"}").unwrap();
        let more = user.does(&flags).ends(0);
        assert!(more.err.ends_with("1,006 tasks: 1 new, 1,005 existed already\n"), "{}", more.err);
        fs::write(user.home.join("tasks.jsonl"), lines.join("\n")).unwrap();
        fs::copy(user.home.join("tasks.jsonl"), user.home.join("other.jsonl")).unwrap();
        let other = user.does(&["task", "submit", "--from", "other.jsonl", "--agent", &agent, "--label", "batch=7"]).ends(0);
        assert!(
            other.err.ends_with("1,005 tasks: 1,005 new, 0 existed already\n"),
            "the lines of another file are other tasks: {}",
            other.err
        );
        assert!(other.err.lines().count() <= 2, "an agent is told once, not in each batch: {}", other.err);
        let anew = user.does(&[&flags[..], &["--again"]].concat()).ends(0);
        assert!(anew.err.ends_with("1,005 tasks: 1,005 new, 0 existed already\n"), "{}", anew.err);
        let renamed = user.does(&[&flags[..], &["--idempotency-key", "again", "-o", "json"]].concat()).json();
        let renamed = renamed.as_array().expect("one array");
        assert!(renamed.len() == 1005 && renamed[0]["id"] != ids[0], "another key creates new tasks");
    });
}

#[test]
fn a_key_makes_one_task_however_often_it_is_submitted() {
    run(async {
        let user = User::at(sqlite());
        let key = unique("key");
        let submit = |prompt: &str| user.does(&["task", "submit", "--agent", "nobody", "--idempotency-key", &key, "-o", "name", prompt]);
        let first = submit("Say hello").ok();
        assert_eq!(submit("Say hello").ok(), first);
        submit("Say something else").complains(1);
    });
}

#[test]
fn a_file_with_a_wrong_line_makes_nothing() {
    run(async {
        let server = sqlite();
        let agent = unique("agent");
        let file = "{\"prompt\": \"p\"}\n{\"prompt\": \"\", \"max_attempts\": 0}\n{\"prompt\"}\n";
        let said = User::at(server).pipes(file, &["task", "submit", "--from", "-", "--agent", &agent]).complains(2);
        assert!(said.contains("line 2: ") && said.contains("max_attempts: ") && said.contains("prompt: "), "{said}");
        assert!(said.contains("line 3: it is not valid JSON"), "{said}");
        assert_eq!(server.get(&format!("llm-tasks?agent_slug={agent}")).await.ok(), json!([]));
    });
}

#[test]
fn a_line_does_not_run_in_1970() {
    let file = "{\"prompt\": \"p\"}\n{\"prompt\": \"p\", \"not_before\": 60}\n";
    let said = User::at(sqlite()).pipes(file, &["task", "submit", "--from", "-"]).complains(2);
    assert!(said.contains("line 2: not_before: 60 would be in January 1970") && said.contains("--not-before +60s"), "{said}");
}

#[test]
fn an_open_pipe_on_which_nothing_comes_is_left_alone() {
    run(async {
        let server = sqlite();
        let agent = unique("agent");
        let done = User::at(server).holds(&["task", "submit", "--agent", &agent, "Say hello"]).done().ends(0);
        assert!(done.err.contains("nothing came within 3 s") && done.err.contains("< /dev/null"), "{}", done.err);
        assert_eq!(server.task(id(&done.out)).now().await["prompt"], "Say hello");
    });
}

#[test]
fn a_misspelt_field_is_refused_with_its_line() {
    run(async {
        let server = sqlite();
        let agent = unique("agent");
        let file = "{\"prompt\": \"p\"}\n{\"prompt\": \"p\", \"prioritty\": 9}\n{\"prompt\": \" \"}\n";
        let said = User::at(server).pipes(file, &["task", "submit", "--from", "-", "--agent", &agent]).complains(2);
        assert!(said.contains("line 2: prioritty is not a field of a task; the nearest is priority"), "{said}");
        assert!(said.contains("line 3: prompt: it is blank") && !said.contains("line 1"), "{said}");
        assert_eq!(server.get(&format!("llm-tasks?agent_slug={agent}")).await.ok(), json!([]));
    });
}

#[test]
fn a_proxy_never_sees_calls_of_this_machine() {
    run(async {
        let nowhere = format!("http://127.0.0.1:{}", janitor::free_port());
        let user = User::at(sqlite()).with("HTTP_PROXY", &nowhere).with("http_proxy", &nowhere).with("ALL_PROXY", &nowhere);
        user.does(&["stats"]).ok();
    });
}

#[test]
fn a_proxy_that_is_not_there_is_told_with_its_variable() {
    let dead = format!("127.0.0.1:{}", janitor::free_port());
    let with_password = format!("http://me:secret@{dead}");
    for (variable, proxy, server) in [
        ("HTTP_PROXY", &with_password, "http://bloom.example"),
        ("http_proxy", &dead, "http://bloom.example:5000"),
        ("ALL_PROXY", &with_password, "http://bloom.example"),
        ("HTTPS_PROXY", &with_password, "https://bloom.example"),
    ] {
        let user = User::new().with(variable, proxy);
        let said = user.does(&["stats", "--server", server]).complains(1);
        assert!(said.contains(&format!("can't connect to the proxy {dead} that {variable} names")), "{said}");
        assert!(said.contains("NO_PROXY") && !said.contains("secret"), "{said}");
        let nowhere = format!("http://127.0.0.2:{}", janitor::free_port());
        let said = user.does(&["stats", "--server", &nowhere]).complains(1);
        assert!(said.contains("is the server running there?") && !said.contains("proxy"), "{said}");
    }
}

#[test]
fn a_prompt_without_quotes_is_told() {
    run(async {
        let user = User::at(sqlite());
        let agent = unique("agent");
        let said = user.does(&["task", "submit", "write", "a", "--agent", &agent, "haiku"]).complains(2);
        assert!(said.contains("quote the prompt: bloom-runtime task submit \"write a haiku\""), "{said}");
        let said = user.does(&["task", "submit", "it's", "$5"]).complains(2);
        assert!(said.contains(r"bloom-runtime task submit 'it'\''s $5'"), "{said}");
        assert_eq!(sqlite().get(&format!("llm-tasks?agent_slug={agent}")).await.ok(), json!([]));
        let help = user.does(&["task", "submit", "--help"]).ok();
        assert!(!help.contains("FURTHER_WORDS"), "{help}");
    });
}

#[test]
fn a_prompt_that_the_server_does_not_take_is_told_with_the_setting() {
    let prompt = "word ".repeat(400_000);
    let said = User::at(sqlite()).pipes(&prompt, &["task", "submit", "-"]).complains(2);
    assert!(said.contains("at most 1048576 bytes") && said.contains("MAX_BODY_BYTES"), "{said}");
    let file = format!("{{\"prompt\": \"{prompt}\"}}\n");
    let said = User::at(sqlite()).pipes(&file, &["task", "submit", "--from", "-"]).complains(2);
    assert!(said.contains("line") && said.contains("MAX_BODY_BYTES"), "{said}");
}

#[test]
fn lines_name_dependencies_by_parts_of_their_ids() {
    run(async {
        let crew = sqlite().crew();
        let user = User::at(crew.api);
        let (one, two) = (crew.task().create().await, crew.task().create().await);
        let line = |on: &[&str]| json!({ "prompt": "p", "depends_on": on }).to_string();
        let submit =
            |lines: &[String]| user.pipes(&lines.join("\n"), &["task", "submit", "--from", "-", "--agent", &crew.slug, "-o", "json"]);
        let tasks = submit(&[line(&[short(&one.id), &two.id]), line(&[short(&one.id)])]).json();
        assert_eq!((&tasks[0]["depends_on"], &tasks[1]["depends_on"]), (&json!([one.id, two.id]), &json!([one.id])));
        let said = submit(&[line(&[short(&one.id)]), line(&["ffffffff"]), line(&["nonsense"])]).complains(2);
        assert!(said.contains("line 2: depends_on: no task whose id begins or ends with ffffffff"), "{said}");
        assert!(said.contains("line 3: depends_on: 'nonsense' is no id of a task") && !said.contains("line 1"), "{said}");
        let many: Vec<String> = (0..51).map(|number| line(&[&format!("{:08x}", 0xffff_0000_u32 + number)])).collect();
        let said = submit(&many).complains(2);
        assert!(said.contains("more than 50 different tasks"), "{said}");
        let listed = crew.api.get(&format!("llm-tasks?agent_slug={}", crew.slug)).await.ok();
        assert_eq!(listed.as_array().unwrap().len(), 4, "a file with a wrong line makes nothing");
    });
}
