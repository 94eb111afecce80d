//! Lists and single objects, in every output format.

use super::*;

/// The cells of a table, line by line.
fn table(out: &str) -> Vec<Vec<String>> {
    let cells = |line: &str| line.split("   ").map(|cell| cell.trim().to_owned()).filter(|cell| !cell.is_empty()).collect();
    out.lines().map(cells).collect()
}

#[test]
fn tasks_are_listed_in_every_form() {
    run(async {
        let crew = sqlite().crew();
        let user = User::at(crew.api);
        let older = crew.task().prompt("Write\nsomething that is much longer than a cell of a table may be").create().await;
        let newer = crew.task().with("labels", json!({ "k": "v" })).create().await;
        let list = |more: &[&str]| user.does(&[&["task", "list", "--agent", &crew.slug], more].concat()).ok();
        let rows = table(&list(&[]));
        assert_eq!(rows[0], ["ID", "STATUS", "AGENT", "WORKER", "ATTEMPTS", "AGE", "REASON", "PROMPT"]);
        assert_eq!(
            (rows.len(), rows[1][0].as_str(), rows[2][0].as_str()),
            (3, short(&newer.id), short(&older.id)),
            "the newest task comes first"
        );
        assert_eq!((rows[2][1].as_str(), rows[2][4].as_str(), rows[2][6].as_str()), ("queued", "0/3", "no_worker"));
        assert!(rows[2][7].starts_with("Write something") && rows[2][7].ends_with('…'), "{rows:?}");
        assert!(!list(&[]).contains('\u{1b}'), "there are no colors in a pipe");
        assert!(list(&["-o", "wide"]).contains("k=v"));
        assert_eq!(list(&["-o", "name"]), format!("{}\n{}\n", newer.id, older.id));
        let own = crew.api.get(&format!("llm-tasks?agent_slug={}", crew.slug)).await.ok();
        assert_eq!(serde_json::from_str::<Value>(&list(&["-o", "json"])).unwrap(), own, "the JSON is the server's");
        assert_eq!(serde_norway::from_str::<Value>(&list(&["-o", "yaml"])).unwrap(), own);
        assert_eq!(user.does(&["task", "get", "-o", "json", &older.id]).json(), older.now().await);
        assert_eq!(user.does(&["task", "get", "-o", "name", &older.id, &newer.id]).ok(), format!("{}\n{}\n", older.id, newer.id));
        let some = user.does(&["task", "get", "-o", "name", &older.id, "ffffffff", &newer.id]).ends(1);
        assert_eq!(some.out, format!("{}\n{}\n", older.id, newer.id));
        assert!(some.err.contains("ffffffff"), "{}", some.err);

        assert_eq!(list(&["--label", "k=v", "-o", "name"]), format!("{}\n", newer.id));
        assert_eq!(list(&["--status", "failed", "-o", "json"]), "[]\n");
        assert_eq!(list(&["--since", "1h", "-o", "name"]).lines().count(), 2);
        assert_eq!(list(&["--until", "1h", "-o", "name"]), "");
        assert_eq!(list(&["--finished-since", "1h", "-o", "name"]), "");
        user.does(&["task", "cancel", &older.id]).ok();
        assert_eq!(list(&["--finished-since", "1h", "-o", "name"]), format!("{}\n", older.id));
        assert_eq!(list(&["--finished-since", "0s", "-o", "name"]), "");
        let cut = user.does(&["task", "list", "--agent", &crew.slug, "--limit", "1", "-o", "name"]).ends(0);
        assert_eq!(cut.out, format!("{}\n", newer.id));
        assert_eq!(cut.err, "", "a script knows what it has asked for");
        let cut = user.does(&["task", "list", "--agent", &crew.slug, "--limit", "1"]).ends(0);
        assert!(cut.err.contains("There are more than this one: use a higher --limit"), "{}", cut.err);
        assert_eq!(list(&["--project", "none-of-this-name", "-o", "name"]), "");
        assert_eq!(list(&["--owner", "nobody", "-o", "name"]), "");
        for command in [&["task", "list"][..], &["usage"]] {
            let none = user.does(&[command, &["--project", "none-of-this-name"]].concat()).ends(0);
            assert!(none.err.contains("No project has the name none-of-this-name now"), "{command:?}: {}", none.err);
        }
        let none = user.does(&["task", "list", "--context", "nowhere-at-all"]).ends(0);
        assert_eq!((none.out.as_str(), none.err.as_str()), ("", "Nothing found.\n"));
        let said = user.does(&["task", "list", "--status", "quued"]).complains(2);
        assert!(said.contains("queued, leased, running") && said.contains("similar"), "{said}");
        assert_eq!(crew.api.get("llm-tasks?status=quued").await.ok(), json!([]));
    });
}

#[test]
fn long_lists_come_page_by_page() {
    run(async {
        let crew = sqlite().crew();
        for count in [1000, 100] {
            let tasks: Vec<_> = (0..count).map(|_| crew.task().json()).collect();
            crew.api.post("llm-tasks:batch", json!({ "tasks": tasks })).await.created();
        }
        let user = User::at(crew.api);
        let done = user.does(&["task", "list", "--agent", &crew.slug, "--limit", "5000", "-o", "name"]).ends(0);
        let mut ids: Vec<_> = done.out.lines().collect();
        assert_eq!((ids.len(), done.err.as_str()), (1100, ""));
        ids.dedup();
        assert_eq!(ids.len(), 1100, "each task is listed once");
        let done = user.does(&["task", "list", "--agent", &crew.slug, "--limit", "1050", "-o", "json"]);
        assert_eq!(done.json().as_array().unwrap().len(), 1050);
    });
}

#[test]
fn changes_are_watched() {
    run(async {
        let server = Server::on(Database::Sqlite).start();
        let crew = server.crew();
        let worker = crew.worker().register().await;
        let user = User::at(&server);
        let first = crew.task().create().await;
        let watching = user.starts(&["task", "list", "--watch", "--agent", &crew.slug]);
        watching.prints(short(&first.id)).await;
        let lines = user.starts(&["task", "list", "--watch", "--status", "completed", "-o", "json"]);
        let second = crew.task().create().await;
        watching.prints(short(&second.id)).await;
        let stranger = server.crew().task().create().await;
        Run::claimed_by(&worker).await.answers("x").await;
        watching.prints("completed").await;
        lines.prints(&first.id).await;
        assert!(!watching.out().contains(short(&stranger.id)), "filters apply to changes too");

        server.kill9();
        server.start_again();
        let third = crew.task().create().await;
        watching.prints(short(&third.id)).await;
        assert_eq!(watching.out().matches(short(&third.id)).count(), 1);
        lines.interrupt();
        let seen = lines.done().ends(130).out;
        let seen: Vec<Value> = seen.lines().map(|line| serde_json::from_str(line).expect("a line is a task")).collect();
        assert!(!seen.is_empty() && seen.iter().all(|task| task["id"] == first.id && task["status"] == "completed"), "{seen:?}");
        watching.interrupt();
        watching.done().ends(130);
    });
}

#[test]
fn changes_of_older_tasks_during_an_interruption_are_shown() {
    let url = postgres::database();
    let (here, there) = (Server::on_url(&url).start(), Server::on_url(&url).start());
    run(async {
        let crew = here.crew();
        let watching = User::at(&there).starts(&["task", "list", "--watch", "-n", "1", "--agent", &crew.slug]);
        let older = crew.task().create().await;
        watching.prints(short(&older.id)).await;
        let newer = crew.task().create().await;
        watching.prints(short(&newer.id)).await;
        there.kill9();
        crew.api.poke(&older.path("/cancel")).await.ok();
        there.start_again();
        watching.prints("cancelled").await;
        watching.interrupt();
        watching.done().ends(130);
    });
}

#[test]
fn workers_are_taken_out_of_service_and_back() {
    run(async {
        let crew = sqlite().crew();
        let user = User::at(crew.api);
        let worker = crew.worker().slots(4).register().await;
        let task = crew.task().create().await;
        task.lease_to(&worker).await;
        let name = worker.name.as_str();
        let row = |out: String| table(&out)[1].clone();
        let shown = row(user.does(&["worker", "get", name]).ok());
        assert_eq!(shown[..4], [name.to_owned(), "online".into(), "1/4".into(), crew.slug.clone()]);
        // A name that is not there does not spoil the others.
        let cordoned = user.does(&["worker", "cordon", "nosuch", name]).ends(1);
        assert!(cordoned.err.contains("nosuch: Worker not found") && !cordoned.err.contains("Did you mean"), "{}", cordoned.err);
        for verb in ["get", "cordon", "rm"] {
            let said = user.does(&["worker", verb, &format!("{name}x")]).complains(1);
            assert!(said.contains("Worker not found") && said.contains(&format!("Did you mean {name}?")), "{verb}: {said}");
        }
        assert_eq!(row(cordoned.out)[1], "online,cordoned");
        assert_eq!(row(user.does(&["worker", "uncordon", name]).ok())[1], "online");
        assert_eq!(row(user.does(&["worker", "drain", name]).ok())[1], "online,draining");
        let names = user.does(&["worker", "list", "--limit", "1000", "-o", "name"]).ok();
        assert!(names.lines().any(|line| line == name), "{names}");
        let whole = user.does(&["worker", "get", "-o", "json", name]).json();
        assert_eq!(whole["leases"][0]["task_id"], task.id);
        let said = user.does(&["worker", "rm", name]).complains(2);
        assert!(said.contains(&format!("{name} is online: its agent registers it again unless it is stopped")), "{said}");
        assert!(said.contains("remove 1 worker") && said.contains("--yes"), "{said}");
        let said = user.types("n\n", &["worker", "rm", name]).ends(0).out;
        assert!(said.contains("remove 1 worker? [y/N]") && said.contains("Nothing was changed."), "{said}");
        assert_eq!(task.status().await, "leased");
        let done = user.does(&["worker", "rm", "--yes", name]).ends(0);
        assert_eq!(done.out, "");
        assert_eq!(task.status().await, "queued");
        for verb in ["get", "cordon", "rm"] {
            let said = user.does(&["worker", verb, name]).complains(1);
            assert!(said.contains(&format!("{name}: Worker not found")), "{verb}: {said}");
        }
    });
}

#[test]
fn leases_audit_and_figures_are_shown() {
    run(async {
        let crew = sqlite().crew();
        let user = User::at(crew.api);
        let (task, lease) = crew.leased_task().await;
        let rows = table(&user.does(&["lease", "list", "--status", "active", "--limit", "1000"]).ok());
        assert_eq!(rows[0], ["ID", "TASK", "WORKER", "STATUS", "OUTCOME", "AGE", "EXPIRES"]);
        let own = rows.iter().find(|row| row[0] == short(&lease.id)).expect("the lease");
        assert!(own[1] == short(&task.id) && own[3] == "active" && own[6].starts_with("in "), "{own:?}");
        // Other tests add thousands of entries to the same audit trail.
        let audit = user.does(&["audit", "-o", "json", "--limit", "50000"]).json();
        let own = audit.as_array().unwrap().iter().find(|entry| entry["entity_id"] == lease.id).expect("the lease's entry");
        assert_eq!((&own["action"], &own["entity_type"]), (&json!("task_leased"), &json!("lease")));
        assert!(user.does(&["audit"]).ok().starts_with("TIME "));
        let stats = user.does(&["stats", "-o", "json"]).json();
        assert!(stats["leases"]["active"].as_i64().unwrap() >= 1, "{stats}");
        let rows = table(&user.does(&["stats"]).ok());
        assert!(rows.iter().any(|row| row[..2] == ["tasks", "total"]), "{rows:?}");
        let end =
            json!({ "model": crew.slug, "usage": { "input_tokens": 7, "output_tokens": 8, "cost_usd": 0.25, "cost_estimated": true } });
        lease.complete("success", end).await.ok();
        let out = user.does(&["usage", "--by", "agent", "--from", "1h"]).ok();
        let rows = table(&out);
        assert_eq!(rows[0], ["KEY", "RUNS", "INPUT_TOKENS", "OUTPUT_TOKENS", "COST"]);
        let own = rows.iter().find(|row| row[0] == crew.slug).unwrap_or_else(|| panic!("{out}"));
        assert_eq!(own[1..], ["1", "7", "8", "~$0.2500"]);
        let filters = ["--agent", &crew.slug, "--since", "1h", "--until", "0s"];
        let rows = table(&user.does(&[&["usage", "--by", "worker,label:team"][..], &filters].concat()).ok());
        assert_eq!(rows[1][rows[1].len() - 4..], ["1", "7", "8", "~$0.2500"]);
        let csv = user.does(&[&["usage", "--by", "agent,label:team", "-o", "csv"][..], &filters].concat()).ok();
        let expected = format!(
            "key,keys.agent_slug,keys.label:team,runs,input_tokens,output_tokens,cost_usd,cost_estimated\r\n{0},{0},,1,7,8,0.25,true\r\n",
            crew.slug
        );
        assert_eq!(csv, expected);
        assert_eq!(user.does(&["usage", "--agent", &crew.slug, "-l", "team=none", "-o", "csv"]).ok(), "");
        user.does(&["usage", "--by", "moon"]).complains(2);
    });
}

#[test]
fn the_program_tells_of_itself() {
    let user = User::new();
    let help = user.does(&["--help"]).ok();
    for word in ["task", "worker", "lease", "audit", "stats", "usage", "context", "Exit status: 0 ", "130"] {
        assert!(help.contains(word), "{word}:\n{help}");
    }
    let help = user.does(&["task", "submit", "--help"]).ok();
    for word in ["Examples:", "--idempotency-key", "BLOOM_SERVER", "BLOOM_KEY_FILE", "BLOOM_CONTEXT"] {
        assert!(help.contains(word), "{word}:\n{help}");
    }
    user.does(&["man", "pages/man1"]).ok();
    for page in ["bloom-runtime.1", "bloom-runtime-task.1", "bloom-runtime-task-submit.1", "bloom-runtime-worker-drain.1"] {
        let text = std::fs::read_to_string(user.home.join("pages/man1").join(page)).unwrap_or_else(|error| panic!("{page}: {error}"));
        assert!(text.contains(".TH"), "{page}");
    }
    let said = user.does(&["man", "/dev/null/x"]).complains(1);
    assert!(said.contains("/dev/null/x"), "{said}");
}

#[test]
fn a_name_is_sent_as_it_is_or_not_at_all() {
    run(async {
        let api = sqlite();
        let user = User::at(api);
        let worker = api.crew().worker().register().await;
        let (head, tail) = worker.name.split_at(4);
        let broken = format!("{head}\n{tail}");
        let err = user.does(&["worker", "drain", &broken]).complains(1);
        assert!(err.contains("Worker not found"), "{err}");
        let tab = format!("{head}\t{tail}");
        user.does(&["worker", "rm", &tab]).complains(1);
        assert_eq!(worker.now().await["draining"], false);
        for name in [".", ".."] {
            for command in ["drain", "rm", "get"] {
                let err = user.does(&["worker", command, name]).complains(2);
                assert!(err.contains("can't be sent"), "{command} {name}: {err}");
            }
            user.does(&["task", "get", name]).complains(2);
        }
    });
}

#[test]
fn a_drain_is_waited_for() {
    run(async {
        let crew = sqlite().crew();
        let user = User::at(crew.api);
        let worker = crew.worker().register().await;
        let task = crew.task().create().await;
        let lease = task.lease_to(&worker).await;
        let waiting = user.starts(&["worker", "drain", &worker.name, "--wait"]);
        eventually("it is draining", || async { (worker.now().await["draining"] == true).then_some(()) }).await;
        lease.complete("success", json!({ "output": "x" })).await.ok();
        assert!(waiting.done().ok().contains("online,drained"));
    });
}

#[test]
fn the_first_digits_of_the_id_in_a_table_are_enough() {
    run(async {
        let server = Server::on(Database::Sqlite).start();
        let crew = server.crew();
        let task = crew.task().create().await;
        let described = User::at(&server).does(&["task", "describe", &short(&task.id)[..5]]).ok();
        assert!(described.contains(&task.id), "{described}");
    });
}
