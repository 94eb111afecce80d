//! The page of queues, its buttons and its form.

use super::browser::Browser;
use crate::keys::{ADMIN, create, keyed};
use crate::on_both;
use crate::support::*;

on_both! { alone:
    async fn a_queue_is_limited_paused_and_resumed(database) {
        let server = Server::on(database).start();
        let (crew, browser) = (server.crew(), Browser::of(&server));
        let agent = crew.slug.as_str();
        crew.task().create().await;
        crew.leased_task().await;
        let shown = browser.ok("/queues").await;
        shown.has(&format!("<a href=\"/tasks?status=queued&#38;agent_slug={agent}\" aria-label=\"Queued tasks: {agent}, 1\">1</a>"));
        shown.has(&format!("aria-label=\"Running tasks: {agent}, 1\">1</a>"));
        shown.has("all queues together");
        let send = async |fields: &[(&str, &str)]| browser.send_form("/queues", "/queues", fields).await;
        let now = async || {
            let queues = server.get("queues").await.ok();
            let queues = queues.as_array().unwrap();
            let queue = queues.iter().find(|queue| queue["agent_slug"] == json!(agent)).expect("its queue");
            (queue["paused"].clone(), queue["max_concurrency"].clone())
        };
        send(&[("action", "limit"), ("agent_slug", agent), ("max_concurrency", " 3 ")]).await.leads_to("/queues?done=limit");
        assert_eq!(now().await, (json!(false), json!(3)));
        browser.ok("/queues?done=limit").await.has("The limit counts from now on.");
        send(&[("action", "pause"), ("agent_slug", agent)]).await.leads_to("/queues?done=pause");
        assert_eq!(now().await, (json!(true), json!(3)));
        let paused = browser.ok("/queues").await;
        paused.has(&format!("aria-label=\"Resume: {agent}\""));
        // The limit can be changed where it stands.
        paused.has(&format!("name=\"max_concurrency\" value=\"3\" placeholder=\"none\" inputmode=\"numeric\" aria-label=\"Limit: {agent}\""));
        paused.has(&format!("aria-label=\"Set the limit: {agent}\""));
        paused.has(&format!("<a href=\"/tasks?agent_slug={agent}\">{agent}</a>"));
        paused.has_not(&format!("aria-label=\"Pause: {agent}\""));
        send(&[("action", "resume"), ("agent_slug", agent)]).await.leads_to("/queues?done=resume");
        send(&[("action", "limit"), ("agent_slug", agent)]).await.leads_to("/queues?done=limit");
        assert_eq!(now().await, (json!(false), json!(null)));

        for (wrong, told) in [("three", "Expected a whole number"), ("1.5", "Expected a whole number"), ("0", "greater than or equal to 1"), ("10001", "less than or equal to 10000")] {
            let refused = send(&[("action", "limit"), ("agent_slug", agent), ("max_concurrency", wrong)]).await.expect(400);
            refused.has("id=\"max_concurrency-wrong\"");
            refused.has(told);
            refused.has(&format!("value=\"{wrong}\""));
        }
        // What is typed in the row of a queue is refused there.
        let refused = send(&[("action", "limit"), ("agent_slug", agent), ("row", "yes"), ("max_concurrency", "0")]).await.expect(400);
        refused.has("name=\"max_concurrency\" value=\"0\" placeholder=\"none\"");
        refused.has("<p class=\"wrong\" id=\"row-wrong\">");
        refused.has_not("id=\"max_concurrency-wrong\"");
        // An empty field means no queue, least of all every one.
        for action in ["pause", "limit"] {
            send(&[("action", action), ("agent_slug", "")]).await.expect(400).has("id=\"agent_slug-wrong\"");
        }
        send(&[("action", "paws"), ("agent_slug", agent)]).await.expect(400).has("Known: pause, resume, limit");
        assert_eq!(now().await, (json!(false), json!(null)));
    }

    async fn all_queues_are_paused_together(database) {
        let server = Server::on(database).start();
        let browser = Browser::of(&server);
        let send = async |action: &str| browser.send_form("/queues", "/queues", &[("action", action), ("all", "yes")]).await;
        send("pause").await.expect(400);
        browser.ok("/queues/confirm-pause").await.has("Those that run go on");
        server.crew().task().with("agent_slug", json!("open")).create().await;
        browser.ok("/queues").await.has("<span class=\"badge s-online\">open</span>");
        browser.send_form("/queues/confirm-pause", "/queues/pause", &[]).await.leads_to("/queues?done=pause");
        let paused = browser.ok("/queues").await;
        paused.has("aria-label=\"Resume: all queues together\"");
        // No queue gives out tasks, also one that is not paused itself.
        paused.has("<span class=\"badge s-queued\">paused (all)</span>");
        paused.has_not("<span class=\"badge s-online\">open</span>");
        browser.ok("/").await.has("All queues are paused");
        send("limit").await.expect(400).has("id=\"agent_slug-wrong\"");
        send("resume").await.leads_to("/queues?done=resume");
        browser.ok("/queues").await.has("href=\"/queues/confirm-pause\"");
        browser.ok("/").await.has_not("All queues are paused");
    }

    async fn a_queue_that_no_worker_serves_is_told(database) {
        let server = Server::on(database).start();
        let browser = Browser::of(&server);
        server.post("workers", json!({ "name": "w", "capabilities": { "agents": ["reviewer", "served"] } })).await.created();
        for agent in ["reviewer", "revewer"] {
            server.crew().task().with("agent_slug", json!(agent)).create().await;
        }
        let told = server.get("queues").await.ok();
        let workers: Vec<(&Value, &Value)> = told.as_array().unwrap().iter().map(|queue| (&queue["agent_slug"], &queue["workers"])).collect();
        assert_eq!(json!(workers), json!([[null, 1], ["revewer", 0], ["reviewer", 1]]));
        let shown = browser.ok("/queues").await;
        assert_eq!(shown.text.matches("no worker</a>").count(), 1);
        // An agent that a worker serves need not be typed, also if it has no task.
        shown.has("aria-label=\"Pause: served\"");
        assert_eq!(shown.text.matches("aria-label=\"Pause: reviewer\"").count(), 1);
        let home = browser.ok("/").await;
        home.has("No worker serves");
        home.has("agent_slug=revewer");
    }

    async fn only_an_admin_key_changes_queues(database) {
        let server = keyed(database);
        let admin = server.with_key(ADMIN);
        admin.crew().task().with("agent_slug", json!("of-others")).create().await;
        for (scope, more, sees) in [("read", json!({}), true), ("member", json!({ "team": "docs" }), true), ("submit", json!({}), false)] {
            let browser = Browser::signed_in(&server, &create(&admin, scope, scope, more).await).await;
            let home = browser.ok("/").await;
            assert_eq!(home.text.contains("href=\"/queues\""), sees, "{scope}");
            if sees {
                let shown = browser.ok("/queues").await;
                assert_eq!(shown.text.matches("method=\"post\"").count(), 1, "only signing out: {}", shown.text);
                // A member sees the queues of its team's tasks.
                assert_eq!(shown.text.contains("of-others"), scope == "read");
            } else {
                browser.get("/queues").await.expect(403);
            }
            let token = home.form_token();
            let form = [("form_token", token.as_str()), ("action", "pause"), ("agent_slug", "of-others")];
            browser.post("/queues", &form, &[]).await.expect(403).has(&format!("scope {scope}"));
        }
        let queues = admin.get("queues").await.ok();
        assert!(queues.as_array().unwrap().iter().all(|queue| queue["paused"] == json!(false)), "{queues}");
    }
}
