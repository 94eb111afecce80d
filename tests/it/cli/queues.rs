//! `queue list`, `pause`, `resume` and `limit`.

use super::*;

#[test]
fn a_queue_is_paused_limited_and_resumed() {
    run(async {
        let crew = sqlite().crew();
        let user = User::at(crew.api);
        let worker = crew.worker().register().await;
        let task = crew.task().create().await;
        let said = user.does(&["queue", "pause", "--agent", &crew.slug]).ends(0).out;
        assert!(said.contains("AGENT") && said.contains(&crew.slug) && said.contains("for "), "{said}");
        assert!(worker.claim(1).await.is_empty());
        let row = |text: &str| text.lines().find(|line| line.starts_with(&crew.slug)).map(str::to_owned);
        let listed = user.does(&["queue", "list", "--limit", "10000"]).ends(0).out;
        assert!(listed.contains("(all)") && row(&listed).is_some_and(|row| row.contains("for ")), "{listed}");
        let shown = user.does(&["task", "get", &task.id, "-o", "json"]).json();
        assert_eq!(shown["waiting"]["reason"], "paused");

        assert_eq!(user.does(&["queue", "limit", "--agent", &crew.slug, "3", "-o", "json"]).json()["max_concurrency"], 3);
        assert_eq!(user.does(&["queue", "limit", "--agent", &crew.slug, "none", "-o", "json"]).json()["max_concurrency"], json!(null));
        assert_eq!(user.does(&["queue", "resume", "--agent", &crew.slug, "-o", "json"]).json()["paused"], false);
        assert_eq!(worker.claim(1).await.len(), 1);
    });
}

#[test]
fn all_queues_are_meant_without_an_agent() {
    let server = Server::on(Database::Sqlite).start();
    run(async {
        let user = User::at(&server);
        assert!(user.does(&["queue", "pause", "--all"]).ends(0).out.contains("(all)"));
        let crew = server.crew();
        crew.worker().register().await;
        let task = crew.task().create().await;
        let described = user.does(&["task", "describe", &task.id]).ok();
        let advice = |text: &str| text.lines().find(|line| line.starts_with("What to do:")).map(str::to_owned).unwrap_or_default();
        assert!(advice(&described).ends_with("resume all queues: bloom-runtime queue resume"), "{described}");
        user.does(&["queue", "pause", "--agent", &crew.slug]).ok();
        let resumed = user.does(&["queue", "resume", "--agent", &crew.slug]).ends(0).err;
        assert_eq!(resumed, "All queues are paused, so this queue still gives out no tasks: bloom-runtime queue resume\n");
        assert_eq!(user.does(&["queue", "list", "-o", "name"]).ok(), format!("{}\n", crew.slug), "a name that --agent takes");
        assert_eq!(user.does(&["queue", "list", "-o", "json"]).json()[0]["paused"], true);
        assert_eq!(user.does(&["queue", "resume", "-o", "json"]).json()["paused"], false);
        user.does(&["queue", "pause", "--all"]).ok();
        assert_eq!(user.does(&["queue", "resume", "--all", "-o", "json"]).json()["paused"], false);
        user.does(&["queue", "resume", "--all", "--agent", &crew.slug]).complains(2);
        user.does(&["queue", "pause", "--agent", &crew.slug]).ok();
        let described = user.does(&["task", "describe", &task.id]).ok();
        assert!(
            advice(&described).ends_with(&format!("resume its queue: bloom-runtime queue resume --agent {}", crew.slug)),
            "{described}"
        );
    });
}

#[test]
fn what_can_not_be_meant_is_refused_before_the_call() {
    run(async {
        let user = User::at(sqlite());
        for (words, text) in [
            (&["queue", "limit", "--agent", "a", "0"][..], "expected a number from 1 to 10000, or none"),
            (&["queue", "limit", "--agent", "a", "10001"], "expected a number from 1 to 10000, or none"),
            (&["queue", "limit", "--agent", "a", "many"], "expected a number from 1 to 10000, or none"),
            (&["queue", "limit", "3"], "--agent"),
            (&["queue", "limit", "default", "3"], "the agent is named by --agent"),
            (&["queue", "pause", "default"], "named by a flag: --agent default"),
            (&["queue", "resume", "default"], "named by a flag: --agent default"),
            (&["queue", "pause", "--agent", ""], "at least 1 character"),
            (&["queue", "pause", "--agent", "(all)"], "(all) stands for all queues together: give --all"),
            (&["queue", "pause", "--agent", ".."], "no URL can name the queue of an agent '..'"),
        ] {
            let said = user.does(words).complains(2);
            assert!(said.contains(text), "{words:?}: {said}");
        }
    });
}

#[test]
fn an_agent_that_nobody_has_named_is_told() {
    run(async {
        let crew = sqlite().crew();
        let user = User::at(crew.api);
        for words in [&["queue", "pause", "--agent", &crew.slug][..], &["queue", "limit", "--agent", &crew.slug, "3"]] {
            let done = user.does(words).ends(0);
            assert!(done.err.contains(&format!("No task is for agent {} yet, and no worker knows it", crew.slug)), "{done:?}");
            assert!(done.out.contains(&crew.slug), "the queue is changed: {done:?}");
        }
        let silent = |words: &[&str]| assert_eq!(user.does(words).ends(0).err, "", "{words:?}");
        silent(&["queue", "limit", "--agent", &crew.slug, "none"]);
        silent(&["queue", "resume", "--agent", &crew.slug]);
        for words in [&["queue", "resume", "--agent", &crew.slug][..], &["queue", "limit", "--agent", &crew.slug, "none"]] {
            let done = user.does(words).ends(0);
            assert!(done.err.contains(&format!("No task is for agent {} yet, and no worker knows it", crew.slug)), "{done:?}");
            assert!(done.err.contains("check the spelling") && !done.err.contains("is changed"), "{done:?}");
        }
        let listed = user.does(&["task", "list", "--agent", &crew.slug]).ends(0);
        assert!(listed.err.contains("check the spelling"), "a list of nothing, too: {listed:?}");
        crew.worker().register().await;
        silent(&["queue", "pause", "--agent", &crew.slug]);
        let other = crew.api.crew();
        other.task().create().await;
        silent(&["queue", "limit", "--agent", &other.slug, "2"]);
    });
}
