//! How lists are chosen, sorted and printed.

use super::*;

#[test]
fn lists_are_sorted_limited_and_filtered() {
    run(async {
        let crew = sqlite().crew();
        let user = User::at(crew.api);
        let low = crew.task().prompt("low").with("priority", json!(1)).with("labels", json!({ "k": "v" })).create().await;
        let high = crew.task().prompt("high").with("priority", json!(9)).create().await;
        let gone = crew.task().prompt("gone").create().await;
        gone.cancel().await.ok();
        let names = |more: &[&str]| {
            let out = user.does(&[&["task", "list", "--agent", &crew.slug, "-o", "name"], more].concat()).ok();
            out.lines().map(str::to_owned).collect::<Vec<_>>()
        };
        let (low, high, gone) = (low.id.clone(), high.id.clone(), gone.id.clone());
        assert_eq!(names(&["--sort", "priority"]), [&*low, &*gone, &*high]);
        assert_eq!(names(&["--sort", "-priority"]), [&*high, &*gone, &*low]);
        assert_eq!(names(&["--sort=-age"]), [&*low, &*high, &*gone]);
        assert_eq!(names(&["--sort", "prompt"]), [&*gone, &*high, &*low]);
        assert_eq!(names(&["-n", "1"]), [&*gone]);
        assert_eq!(names(&["--sort", "-priority", "-n", "1"]), [&*high], "the first of all that match, not of the newest one");
        assert_eq!(names(&["-l", "k=v"]), [&*low]);
        assert_eq!(names(&["--status", "queued,cancelled"]), [&*gone, &*high, &*low], "the newest first, whatever their status");
        assert_eq!(names(&["--status", "cancelled,failed", "--status", "dead"]), [&*gone]);
        assert_eq!(names(&["--status", "queued,cancelled", "-n", "2"]), [&*gone, &*high]);
        let found = |words: &[&str]| user.does(&[&["task", "search", "--agent", &crew.slug, "-o", "name"], words].concat()).ok();
        assert_eq!(found(&["HIGH"]), format!("{high}\n"));
        assert_eq!(found(&["k=v"]), format!("{low}\n"));
        assert_eq!(found(&["gone", "--status", "queued"]), "");
        assert!(user.does(&["task", "search", "x"]).complains(2).contains("TEXT"));
        let said = user.does(&["task", "list", "--sort", "size"]).complains(2);
        assert!(said.contains("id, status, agent"), "{said}");
        let watched = user.does(&["task", "list", "--watch", "--sort", "age"]).complains(2);
        assert!(watched.contains("--sort"), "{watched}");
    });
}

#[test]
fn values_are_printed_for_programs() {
    run(async {
        let crew = sqlite().crew();
        let user = User::at(crew.api);
        let (one, two) = (crew.task().prompt("a\nb").with("priority", json!(9)).create().await, crew.task().create().await);
        let list = |form: &str| user.does(&["task", "list", "--agent", &crew.slug, "-o", form]).ok();
        assert_eq!(list("jsonpath=$[*].id"), format!("{}\n{}\n", two.id, one.id));
        assert_eq!(list("jsonpath=$[?@.priority == 9].id"), format!("{}\n", one.id));
        let lines: Vec<Value> = list("jsonl").lines().map(|line| serde_json::from_str(line).expect("a task")).collect();
        assert_eq!(lines, [two.now().await, one.now().await]);
        assert_eq!(user.does(&["task", "get", "-o", "jsonpath={.status}", &one.id]).ok(), "queued\n");
        for (words, told) in [
            (&["task", "list", "--agent", &crew.slug, "-o", "jsonpath=$.id"][..], "The path found nothing. A list is an array: $[*].id\n"),
            (&["task", "get", &one.id, "-o", "jsonpath=$.nothing"], "The path found nothing; -o json shows all fields.\n"),
            (&["task", "list", "--agent", "nobody-at-all", "-o", "jsonpath=$[*].id"], "Nothing found.\n"),
        ] {
            let done = user.does(words).ends(0);
            assert!(done.out.is_empty() && done.err.ends_with(told), "{words:?}: {done:?}");
        }
        let said = user.does(&["task", "list", "-o", "jsonpath=$["]).complains(2);
        assert!(said.contains("not a JSONPath"), "{said}");
        let said = user.does(&["task", "list", "-o", "jason"]).complains(2);
        assert!(said.contains("jsonl") && said.contains("jsonpath="), "{said}");
        let bare = user.does(&["task", "list", "--agent", &crew.slug, "--no-headers"]).ok();
        assert!(bare.starts_with(short(&two.id)) && bare.lines().count() == 2, "{bare}");
    });
}

#[test]
fn tasks_are_sorted_by_how_long_they_ran() {
    run(async {
        let crew = sqlite().crew();
        let worker = crew.worker().slots(2).register().await;
        let (long, short) = (crew.task().create().await, crew.task().create().await);
        let (of_long, of_short) = (long.lease_to(&worker).await, short.lease_to(&worker).await);
        let begun = now_ms();
        of_short.complete("success", json!({})).await.ok();
        eventually("the clock goes on", || async { (now_ms() > begun + 5).then_some(()) }).await;
        of_long.complete("success", json!({})).await.ok();
        let waiting = crew.task().create().await;
        let list = |more: &[&str]| User::at(crew.api).does(&[&["task", "list", "--agent", &crew.slug], more].concat()).ok();
        assert!(list(&["-o", "wide"]).lines().next().unwrap().contains("DURATION"));
        let ids = |sort| list(&["-o", "name", "--sort", sort]);
        assert_eq!(ids("duration"), format!("{}\n{}\n{}\n", waiting.id, short.id, long.id));
        assert_eq!(ids("-duration"), format!("{}\n{}\n{}\n", long.id, short.id, waiting.id));
    });
}

#[test]
fn a_table_fits_the_terminal() {
    run(async {
        let crew = sqlite().crew();
        crew.task().prompt(&"word ".repeat(100)).create().await;
        let user = User::at(crew.api).with("NO_COLOR", "1");
        // `script` has no terminal whose width the new one could take over, so it is 80.
        let shown = user.types("", &["task", "list", "--agent", &crew.slug]).ok();
        let lines: Vec<&str> = shown.lines().collect();
        assert!(lines.iter().all(|line| line.chars().count() <= 80), "{shown}");
        assert!(lines[1].contains("word") && lines[1].ends_with('…'), "{shown}");
        let piped = user.does(&["task", "list", "--agent", &crew.slug]).ok();
        let titles = ["ID", "STATUS", "AGENT", "WORKER", "ATTEMPTS", "AGE", "REASON", "PROMPT"];
        assert!(titles.iter().all(|title| piped.contains(title)), "nothing is left out of a pipe: {piped}");
    });
}

#[test]
fn a_narrow_terminal_gets_whole_names() {
    run(async {
        let server = Server::on(Database::Sqlite).start();
        let crew = server.crew();
        let user = User::at(&server).with("NO_COLOR", "1");
        let worker = crew.worker().able("agents", json!([crew.slug, "reviewer", "translator"])).register().await;
        let task = crew.task().prompt(&"word ".repeat(100)).create().await;
        let lease = task.lease_to(&worker).await;
        task.succeed("x").await;
        crew.task().create().await;
        server.post("queues/default/pause", json!({})).await.ok();
        let shown = |columns: usize, words: &[&str], names: &[&str]| {
            let out = user.types_at(columns, words).ok();
            assert!(out.lines().all(|line| line.chars().count() <= columns), "{words:?} at {columns}:\n{out}");
            for name in names {
                assert!(out.contains(name), "{name} in {words:?} at {columns}:\n{out}");
            }
        };
        let (task_entity, lease_entity) = (format!("llm_task/{}", short(&task.id)), format!("lease/{}", short(&lease.id)));
        for columns in [40, 80] {
            shown(columns, &["audit", "--task", &task.id], &[&task_entity, &lease_entity, "task_completed"]);
            shown(columns, &["queue", "list"], &["(all)", "default", "QUEUED"]);
            shown(columns, &["task", "list"], &[short(&task.id), "completed"]);
            shown(columns, &["worker", "list"], &[&worker.name, "online"]);
            shown(columns, &["lease", "list"], &[short(&task.id), &worker.name]);
            shown(columns, &["usage"], &["COST"]);
            shown(columns, &["stats"], &["COUNT"]);
        }
        let said = user.does(&["task", "list", "-n", "1"]).ends(0).err;
        assert!(said.contains("There are more than this one"), "{said}");
    });
}

#[test]
fn counts_are_shown_again_and_again() {
    run(async {
        let server = Server::on(Database::Sqlite).start();
        for command in [&["top", "--interval", "1"][..], &["stats", "--watch", "--interval", "1", "-o", "json"]] {
            let watching = User::at(&server).starts(command);
            watching.prints("total").await;
            server.crew().task().create().await;
            server.kill9();
            watching.says("trying again").await;
            server.start_again();
            eventually("a second look", || async {
                (watching.out().matches("by_status").count() > 1 || watching.out().matches("WHAT").count() > 1).then_some(())
            })
            .await;
            watching.interrupt();
            watching.done().ends(130);
        }
        let shown = User::at(&server).does(&["top", "--interval", "0"]).complains(2);
        assert!(shown.contains("at least one second"), "{shown}");
    });
}

#[test]
fn one_missing_name_does_not_spoil_the_others() {
    run(async {
        let crew = sqlite().crew();
        let user = User::at(crew.api);
        let (task, worker) = (crew.task().create().await, crew.worker().register().await);
        let done = user.does(&["task", "get", "-o", "name", NO_ID, &task.id]).ends(1);
        assert_eq!(done.out, format!("{}\n", task.id));
        assert!(done.err.contains(&format!("{NO_ID}: Task not found")), "{}", done.err);
        let done = user.does(&["worker", "get", "-o", "json", &worker.name, "nobody-at-all"]).ends(1);
        assert_eq!(serde_json::from_str::<Value>(&done.out).unwrap()[0]["id"], worker.name, "a list, since several were named");
        assert!(done.err.contains("nobody-at-all: Worker not found"), "{}", done.err);
    });
}
