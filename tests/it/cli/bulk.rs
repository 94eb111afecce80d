//! `task cancel` and `task requeue`: by id, by many ids, by filters with a confirmation.

use super::*;

#[test]
fn one_task_is_cancelled_by_its_id() {
    run(async {
        let crew = sqlite().crew();
        let person = Person::at(crew.api);
        let queued = crew.task().create().await;
        let done = person.does(&["task", "cancel", &queued.id]).ends(0);
        assert_eq!(done.out, "");
        assert!(done.err.contains("cancelled"), "{}", done.err);
        assert_eq!(queued.status().await, "cancelled");
        assert_eq!(person.does(&["task", "requeue", "-o", "json", &queued.id]).json()["status"], "queued");
        queued.cancel().await.ok();

        let (held, _) = crew.leased_task().await;
        let done = person.does(&["task", "cancel", &held.id]).ends(0);
        assert!(done.err.contains("its worker was told to stop"), "{}", done.err);
        held.succeed("x").await;
        let said = person.does(&["task", "cancel", &held.id]).complains(1);
        assert!(said.contains("Cannot cancel task with status 'completed'"), "{said}");
    });
}

#[test]
fn many_ids_go_in_one_call() {
    run(async {
        let crew = sqlite().crew();
        let person = Person::at(crew.api);
        let (one, two) = (crew.task().create().await, crew.task().create().await);
        let counted = person.does(&["task", "cancel", "--dry-run", "-o", "json", &one.id, &two.id]).json();
        assert_eq!((&counted["matched"], &counted["changed"]), (&json!(2), &json!(0)));
        assert_eq!(one.status().await, "queued");
        person.does(&["task", "cancel", &one.id, &two.id]).ends(0);
        assert_eq!((one.status().await, two.status().await), ("cancelled".into(), "cancelled".into()));
        one.requeue().await.ok();
        let said = person.does(&["task", "cancel", &one.id, &two.id]).complains(1);
        assert!(said.contains("1 of 2"), "{said}");
    });
}

#[test]
fn by_filters_nothing_happens_unasked() {
    run(async {
        let crew = sqlite().crew();
        let person = Person::at(crew.api);
        let label = unique("label");
        let mine = crew.task().with("labels", json!({ "batch": label })).create().await;
        let other = crew.task().create().await;
        let wish = ["task", "cancel", "--status", "queued", "--label", &format!("batch={label}")];
        let said = person.does(&wish).complains(2);
        assert!(said.contains("cancel 1 task") && said.contains("--yes"), "{said}");
        for answer in ["n\n", "\n", "nonsense\n"] {
            let said = person.types(answer, &wish).ends(0).out;
            assert!(said.contains("cancel 1 task? [y/N]") && said.contains("Nothing was changed."), "{said}");
        }
        let done = person.does(&[&wish[..], &["--dry-run"]].concat()).ends(0);
        assert!(done.err.contains("1 task to cancel"), "{}", done.err);
        assert_eq!(mine.status().await, "queued");

        let said = person.types("y\n", &wish).ends(0).out;
        assert!(said.contains("1 task: cancelled"), "{said}");
        assert_eq!((mine.status().await, other.status().await), ("cancelled".into(), "queued".into()));
        let again = person.does(&["task", "requeue", "--status", "cancelled", "--agent", &crew.slug, "--yes", "-o", "json"]).json();
        assert_eq!(again["changed"], 1);
        assert_eq!(mine.status().await, "queued");
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
        let done = Person::at(crew.api).does(&["task", "cancel", "--agent", &crew.slug, "--yes", "-o", "json"]);
        assert_eq!(done.json(), json!({ "matched": 1205, "changed": 1205, "more": false }));
        let left = crew.api.get(&format!("llm-tasks?agent_slug={}&status=queued", crew.slug)).await.ok();
        assert_eq!(left, json!([]));
    });
}

#[test]
fn a_wish_for_nothing_in_particular_is_refused() {
    let person = Person::at(sqlite());
    for verb in ["cancel", "requeue"] {
        let said = person.does(&["task", verb, "--yes"]).complains(2);
        assert!(said.contains("--status queued"), "{said}");
        let said = person.does(&["task", verb, NO_ID, "--status", "failed"]).complains(2);
        assert!(said.contains("either ids or filters"), "{said}");
    }
    let done = person.does(&["task", "cancel", "--agent", "nobody-at-all", "--yes"]).ends(0);
    assert!(done.err.contains("0 tasks to cancel"), "{}", done.err);
}
