//! `task cancel` and `task requeue`: by id, by many ids, by filters with a confirmation.

use std::time::Duration;

use super::*;
use crate::support::stub::{Reply, Stub};

#[test]
fn one_task_is_cancelled_by_its_id() {
    run(async {
        let crew = sqlite().crew();
        let user = User::at(crew.api);
        let queued = crew.task().create().await;
        let done = user.does(&["task", "cancel", &queued.id]).ends(0);
        assert_eq!(done.out, "");
        assert!(done.err.contains("cancelled"), "{}", done.err);
        assert_eq!(queued.status().await, "cancelled");
        assert_eq!(user.does(&["task", "requeue", "-o", "json", &queued.id]).json()["status"], "queued");
        queued.cancel().await.ok();

        let (held, _) = crew.leased_task().await;
        let done = user.does(&["task", "cancel", &held.id]).ends(0);
        assert!(done.err.contains("its worker was told to stop"), "{}", done.err);
        held.succeed("x").await;
        let said = user.does(&["task", "cancel", &held.id]).complains(1);
        assert!(said.contains("Cannot cancel task with status 'completed'"), "{said}");
    });
}

#[test]
fn a_retry_tells_of_tasks_that_stay_cancelled() {
    run(async {
        let crew = sqlite().crew();
        let user = User::at(crew.api);
        let batch = format!("first={}", crew.slug);
        let first = crew.task().with("labels", json!({ "first": crew.slug })).create().await;
        let next = crew.task().with("depends_on", json!([first.id])).create().await;
        let last = crew.task().with("depends_on", json!([next.id])).create().await;
        first.cancel().await.ok();
        eventually("its dependent is cancelled", || async { (next.status().await == "cancelled").then_some(()) }).await;
        eventually("the next one is cancelled", || async { (last.status().await == "cancelled").then_some(()) }).await;
        let dependents = user.does(&["task", "list", "--depends-on", short(&first.id), "-o", "name"]).ok();
        assert_eq!(dependents.trim(), next.id);
        let told = format!(
            "2 tasks that were cancelled because of it stay cancelled. To queue them again as well: bloom-runtime task retry {} --with-dependents",
            first.id
        );
        let done = user.does(&["task", "retry", &first.id]).ends(0);
        assert!(done.err.contains(&told), "{}", done.err);
        // The command works although the task itself is in the queue already.
        let done = user.does(&["task", "retry", &first.id, "--with-dependents"]).ends(0);
        assert!(done.err.contains("2 of 2 tasks: queued again"), "{}", done.err);
        first.cancel().await.ok();
        eventually("the last one is cancelled again", || async { (last.status().await == "cancelled").then_some(()) }).await;
        let by_filter = user.does(&["task", "requeue", "-l", &batch, "--dry-run"]).ends(0);
        let warned = "2 tasks that were cancelled because of it stay cancelled, unless you give --with-dependents";
        assert!(by_filter.err.contains(warned), "{}", by_filter.err);
        let by_filter = user.does(&["task", "requeue", "-l", &batch, "--with-dependents", "--yes"]).ends(0);
        assert!(by_filter.err.contains("3 tasks: queued again") && !by_filter.err.contains("stay"), "{}", by_filter.err);
        assert_eq!(last.status().await, "queued");
        first.cancel().await.ok();
    });
}

#[test]
fn many_ids_go_in_one_call() {
    run(async {
        let crew = sqlite().crew();
        let user = User::at(crew.api);
        let (one, two) = (crew.task().create().await, crew.task().create().await);
        let counted = user.does(&["task", "cancel", "--dry-run", "-o", "json", &one.id, &two.id]).json();
        assert_eq!((&counted["matched"], &counted["changed"]), (&json!(2), &json!(0)));
        assert_eq!(one.status().await, "queued");
        user.does(&["task", "cancel", &one.id, &two.id]).ends(0);
        assert_eq!((one.status().await, two.status().await), ("cancelled".into(), "cancelled".into()));
        one.requeue().await.ok();
        let said = user.does(&["task", "cancel", &one.id, &two.id]).complains(1);
        assert!(said.contains("1 of 2"), "{said}");
        // A part of an id that names no task is no reason to leave the others as they are.
        let three = crew.task().create().await;
        for (command, state) in [("cancel", "cancelled"), ("retry", "queued")] {
            let said = user.does(&["task", command, "ffff1111", short(&three.id)]).complains(1);
            assert!(said.contains("no task whose id begins or ends with ffff1111"), "{said}");
            assert_eq!(three.status().await, state, "{said}");
        }
        user.does(&["task", "cancel", &three.id]).ends(0);
    });
}

#[test]
fn by_filters_nothing_happens_unasked() {
    run(async {
        let crew = sqlite().crew();
        let user = User::at(crew.api);
        let label = unique("label");
        let mine = crew.task().with("labels", json!({ "batch": label })).create().await;
        let other = crew.task().create().await;
        let command = ["task", "cancel", "--status", "queued", "--label", &format!("batch={label}")];
        let said = user.does(&command).complains(2);
        assert!(said.contains("cancel 1 task, and the tasks that depend on them;") && said.contains("--yes"), "{said}");
        for answer in ["n\n", "\n", "nonsense\n"] {
            let said = user.types(answer, &command).ends(0).out;
            assert!(
                said.contains("cancel 1 task, and the tasks that depend on them? [y/N]") && said.contains("Nothing was changed."),
                "{said}"
            );
        }
        let done = user.does(&[&command[..], &["--dry-run"]].concat()).ends(0);
        assert!(done.err.contains("1 task to cancel, and the tasks that depend on them"), "{}", done.err);
        assert_eq!(mine.status().await, "queued");

        let said = user.types("y\n", &command).ends(0).out;
        assert!(said.contains("1 task: cancelled") && said.contains("tasks that depend on them are cancelled, too"), "{said}");
        assert_eq!((mine.status().await, other.status().await), ("cancelled".into(), "queued".into()));
        // What matches since the question is not what was confirmed.
        let one_more = || crew.task().with("labels", json!({ "batch": label })).create();
        let (counted, mut asking) = (one_more().await, user.at_terminal(&command));
        asking.prints("cancel 1 task, and the tasks that depend on them? [y/N]").await;
        let later = one_more().await;
        asking.types("y\n");
        assert!(asking.done().ends(0).out.contains("1 task: cancelled"));
        assert_eq!((counted.status().await, later.status().await), ("cancelled".into(), "queued".into()));
        let again = user.does(&["task", "requeue", "--status", "cancelled", "--agent", &crew.slug, "--yes", "-o", "json"]).json();
        assert_eq!(again["changed"], 2);
        assert_eq!(mine.status().await, "queued");
    });
}

#[test]
fn what_depends_on_others_is_requeued_after_them_or_told() {
    run(async {
        let crew = sqlite().crew();
        let user = User::at(crew.api);
        let first = crew.task().attempts(1).create().await;
        first.lease_to(&crew.worker().register().await).await;
        first.fail("no").await;
        let next = crew.task().with("depends_on", json!([first.id])).create().await;
        next.reaches("cancelled").await;
        let command = ["task", "requeue", "--agent", &crew.slug, "--yes"];
        let said = user.does(&[&command[..], &["--status", "cancelled"]].concat()).complains(1);
        assert!(said.contains("0 of 1 task: queued again; not these:") && said.contains(&first.id), "{said}");
        let said = user.does(&["task", "requeue", &next.id, NO_ID]).complains(1);
        assert!(said.contains(&format!("{}: Cannot requeue it: it depends on task {}", next.id, first.id)), "{said}");
        let did = user.does(&[&command[..], &["--status", "cancelled,failed,dead", "-o", "json"]].concat()).json();
        assert_eq!((&did["matched"], &did["changed"]), (&json!(2), &json!(2)), "{did}");
    });
}

#[test]
fn by_filters_all_are_met_however_many() {
    run(async {
        let crew = sqlite().crew();
        for count in [1000, 205] {
            let tasks: Vec<_> = (0..count).map(|_| crew.task().json()).collect();
            crew.api.post("llm-tasks:batch", json!({ "tasks": tasks })).await.created();
        }
        let user = User::at(crew.api);
        let said = user.does(&["task", "cancel", "--agent", &crew.slug]).complains(2);
        assert!(said.contains("cancel 1,205 tasks"), "the true number is named before anything happens: {said}");
        let done = user.does(&["task", "cancel", "--agent", &crew.slug, "--status", "queued,failed", "--yes", "-o", "json"]);
        assert_eq!(done.json(), json!({ "matched": 1205, "changed": 1205, "more": false }));
        let left = crew.api.get(&format!("llm-tasks?agent_slug={}&status=queued", crew.slug)).await.ok();
        assert_eq!(left, json!([]));
    });
}

#[test]
fn a_wish_for_nothing_in_particular_is_refused() {
    let user = User::at(sqlite());
    for verb in ["cancel", "requeue"] {
        let said = user.does(&["task", verb, "--yes"]).complains(2);
        assert!(said.contains(if verb == "cancel" { "--status queued" } else { "--status failed,dead" }), "{said}");
        let said = user.does(&["task", verb, NO_ID, "--status", "failed"]).complains(2);
        assert!(said.contains("either ids or filters"), "{said}");
    }
    let done = user.does(&["task", "cancel", "--agent", "nobody-at-all", "--yes"]).ends(0);
    assert!(done.err.contains("0 tasks to cancel"), "{}", done.err);
}

#[test]
fn the_help_tells_what_changes_tasks_from_what_chooses_them() {
    for (command, flag) in
        [("retry", "--timeout"), ("edit", "--priority"), ("wait", "--timeout"), ("logs", "--follow"), ("result", "--out")]
    {
        let help = User::new().does(&["task", command, "--help"]).ok();
        let (before, after) = help.split_once("\nFilters:").expect("filters");
        let filters = after.split("\nConnection:").next().unwrap_or_default();
        assert!(before.contains(flag) && !filters.contains(flag) && filters.contains("--failed"), "{command}: {help}");
    }
    let help = User::new().does(&["task", "retry", "--help"]).ok();
    assert!(help.split_once("\nChanges:").expect("changes").1.contains("--timeout"), "{help}");
}

#[test]
fn a_bar_is_shown_on_a_terminal_only() {
    run(async {
        let crew = sqlite().crew();
        crew.task().create().await;
        let user = User::at(crew.api).with("TERM", "xterm");
        let shown = user.types("y\n", &["task", "cancel", "--agent", &crew.slug]).ok();
        assert!(shown.contains("] 0 of 1") && shown.contains("] 1 of 1"), "{shown:?}");
        let plain = user.does(&["task", "requeue", "--agent", &crew.slug, "--yes"]).ends(0).err;
        assert_eq!(plain, "1 task: queued again\n");
    });
}

#[test]
fn an_interrupted_command_says_what_was_done() {
    run(async {
        let stub = Stub::start().await;
        let path = "/api/runtime/llm-tasks:cancel";
        stub.once(path, Reply::new(200, &json!({ "matched": 20_000, "changed": 0, "more": false }).to_string()));
        stub.once(path, Reply::new(200, &json!({ "matched": 1000, "changed": 1000, "more": true }).to_string()));
        stub.always(path, Reply { after: Duration::from_secs(600), ..Reply::new(200, "{}") });
        let running = User::new().with("BLOOM_SERVER", &stub.url).starts(&["task", "cancel", "--status", "queued", "--yes"]);
        eventually("the third call", || async { (stub.seen(path).len() == 3).then_some(()) }).await;
        running.interrupt();
        let said = running.done().complains(130);
        assert!(said.contains("interrupted: 1,000 of 20,000 tasks") && said.contains("same command again"), "{said}");
    });
}

#[test]
fn tasks_that_are_left_as_they_are_are_named() {
    run(async {
        let crew = sqlite().crew();
        let user = User::at(crew.api);
        let (one, two) = (crew.task().create().await, crew.task().create().await);
        let (completed, _) = crew.leased_task().await;
        completed.succeed("x").await;
        let said = user.does(&["task", "cancel", &one.id, NO_ID, &completed.id, &two.id]).complains(1);
        assert!(said.contains("2 of 4 tasks: cancelled"), "{said}");
        assert!(
            said.contains(&format!("{NO_ID}: Task not found")) && said.contains(&format!("{}: it is completed", completed.id)),
            "{said}"
        );
        assert!(!said.contains(&one.id) && !said.contains("The others"), "{said}");
        assert_eq!((one.status().await, two.status().await), ("cancelled".into(), "cancelled".into()), "the others are cancelled");
        let said = user.does(&["task", "requeue", &one.id, NO_ID]).complains(1);
        assert!(said.contains("1 of 2 tasks: queued again") && said.contains(&format!("{NO_ID}: Task not found")), "{said}");
        let said = user.does(&["task", "cancel", "--dry-run", &one.id, NO_ID]).complains(1);
        assert!(said.contains("1 of 2 tasks: to cancel") && said.contains(NO_ID), "{said}");
        let said = user.does(&["task", "cancel", &two.id, &two.id]).complains(1);
        assert!(said.contains("0 of 2") && said.contains("had been cancelled before, do not exist, or were given twice"), "{said}");
    });
}
