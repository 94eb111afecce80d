//! The overview: what needs a person, first of all.

use super::browser::Browser;
use crate::keys::{ADMIN, create, keyed};
use crate::on_both;
use crate::support::*;

on_both! { alone:
    async fn nobody_allows_what_is_not_shown(database) {
        let server = Server::on(database).start();
        let (crew, browser) = (server.crew(), Browser::of(&server));
        let asks = async |input: Value| {
            let (task, lease) = crew.leased_task().await;
            let question = json!({ "tool": "Bash", "input": input, "limit_sec": 600 });
            server.post(&task.path("/question"), json!({ "lease_id": lease.id, "id": lease.id, "question": question })).await.ok();
            task.id
        };
        let button = |id: &str| format!("action=\"/tasks/{id}/answer\"");
        let far = format!("echo start{}; touch \u{2067}b\u{202e}", " ".repeat(6_000));
        let far = asks(json!({ "command": far, "dangerouslyDisableSandbox": true })).await;
        let shown = "echo start⟨6000 blank characters⟩; touch \\u2067b\\u202e";
        let page = browser.ok(&format!("/tasks/{far}")).await;
        page.has(&format!("<pre tabindex=\"0\" lang=\"en\" class=\"command\"><code>{shown}</code></pre>"));
        page.has("<code>dangerouslyDisableSandbox</code></p><pre tabindex=\"0\" lang=\"en\"><code>true</code></pre>");
        let overview = browser.ok("/").await;
        overview.has(&format!("<code>{shown}\ndangerouslyDisableSandbox: true</code>"));
        overview.has(&button(&far));
        let long = format!("echo {}; touch c", "a".repeat(8_000));
        let [whole, cut] = [asks(json!({ "command": long })).await, asks(json!("{\"content\": \"abc…")).await];
        let overview = browser.ok("/").await;
        for id in [&whole, &cut] {
            overview.has_not(&button(id));
            overview.has(&format!("<a class=\"button\" href=\"/tasks/{id}\">Read all of it and answer…</a>"));
        }
        browser.ok(&format!("/tasks/{whole}")).await.has(&long);
        browser.ok(&format!("/tasks/{cut}")).await.has("This is only the beginning");
    }

    async fn the_overview_counts_what_was_cancelled_because_another_task_failed(database) {
        let server = Server::on(database).start();
        let (crew, browser) = (server.crew(), Browser::of(&server));
        let link = "<a href=\"/tasks?status=cancelled&amp;finished_since=24h\">Cancelled because a task on which they depend did not complete: ";
        let (task, lease) = crew.leased_task().await;
        let mut dependents = Vec::new();
        for _ in 0..2 {
            dependents.push(crew.task().with("depends_on", json!([task.id])).create().await);
        }
        let alone = crew.task().create().await;
        alone.cancel().await.ok();
        browser.ok("/").await.has_not(link);
        lease.complete("error", json!({ "error_message": "no", "reason": "auth" })).await.ok();
        for dependent in &dependents {
            dependent.reaches("cancelled").await;
        }
        browser.ok("/").await.has(&format!("{link}2</a>"));
    }

    async fn failures_of_one_cause_are_one_row_of_the_overview(database) {
        let server = Server::on(database).start();
        let (crew, browser) = (server.crew(), Browser::of(&server));
        let worker = crew.worker().register().await;
        let fail = async |prompt: &str, message: &str| {
            let task = crew.task().prompt(prompt).create().await;
            let failed = json!({ "error_message": message, "reason": "auth" });
            task.lease_to(&worker).await.complete("error", failed).await.ok();
            task.id
        };
        fail("the first", "no such table: users (3 ms)").await;
        // One alone is a row as in other lists.
        let alone = browser.ok("/").await;
        alone.has("the first</a>");
        alone.has_not(" × ");
        fail("the second", "no such table: users (17 ms)").await;
        let newest = fail("the third", "no such table: users (5 ms)").await;
        let other = fail("the other", "no such table: orders").await;
        let shown = browser.ok("/").await;
        shown.has("<strong>3 × <span lang=\"en\">no such table: users (5 ms)</span></strong>");
        shown.has(&format!("the newest: <a href=\"/tasks/{newest}\">the third</a>"));
        shown.has_not("the first</a>");
        shown.has(&format!("<a href=\"/tasks/{other}\">the other</a>"));
        let list = format!("/tasks?agent_slug={}&status=failed&finished_since=24h", crew.slug);
        shown.has(&format!("<a href=\"{}\">All that failed in the last day: {}</a>", list.replace('&', "&#38;"), crew.slug));
        browser.ok(&list).await.has("the first");
        shown.has("All that failed in the last day (4)");
    }

    async fn the_overview_tells_a_paused_worker_from_one_that_is_away(database) {
        let server = Server::on(database).start();
        let browser = Browser::of(&server);
        let until = now_ms() + 600_000;
        let pause = json!({ "kind": "account", "name": "default", "cause": "credentials", "since": now_ms(), "until": until, "message": "sign in there" });
        let register = |status: &str, pauses: Value| json!({ "name": "w", "status": status, "pauses": pauses });
        server.post("workers", register("error", json!([pause]))).await.created();
        let paused = browser.ok("/").await;
        paused.has("1 of 1 worker online, 1 paused");
        paused.has("sign in there");
        paused.has_not("No worker is online");
        paused.has_not("the oldest has waited");
        server.post("workers", register("offline", json!([]))).await.ok();
        browser.ok("/").await.has("No worker is online");
        // A question that a button answers is answered there.
        let (task, lease) = server.crew().leased_task().await;
        let question = json!({ "tool": "Bash", "input": { "command": "ls" }, "limit_sec": 600 });
        server.post(&task.path("/question"), json!({ "lease_id": lease.id, "id": NO_ID, "question": question })).await.ok();
        let answer = format!("/tasks/{}/answer", task.id);
        browser.ok("/").await.has(&format!("action=\"{answer}\""));
        browser.send_form("/", &answer, &[("question_id", NO_ID), ("decision", "allow")]).await.leads_to(&format!("/tasks/{}?done=answer", task.id));
        browser.ok("/").await.has_not(&answer);
    }
    async fn the_page_of_a_worker_that_is_away_says_what_to_do(database) {
        let server = Server::on(database).start();
        let (crew, browser) = (server.crew(), Browser::of(&server));
        let worker = crew.worker().register().await;
        let page = format!("/workers/{}", worker.name);
        let lease = crew.task().create().await.lease_to(&worker).await;
        let away = ["it is offline and still holds tasks: bring it back, or remove it", "it gets no tasks: see the log of its agent"];
        let online = browser.ok(&page).await;
        away.iter().for_each(|told| online.has_not(told));
        server.post("workers", json!({ "name": worker.name, "status": "offline" })).await.ok();
        // As on the overview.
        for page in [page.as_str(), "/"] {
            browser.ok(page).await.has(away[0]);
        }
        lease.complete("success", json!({ "output": "done" })).await.ok();
        browser.ok(&page).await.has(away[1]);
    }
    async fn a_key_that_sees_some_tasks_is_told_its_numbers_and_whose_tasks_they_are(database) {
        let server = keyed(database);
        let admin = server.with_key(ADMIN);
        let key = create(&admin, "ann", "member", json!({ "team": "docs", "quota": { "max_open_tasks": 5 } })).await;
        server.with_key(&key).crew().task().create().await;
        let whose = "<div class=\"about\">key <a href=\"/tasks?owner=ann\">ann</a></div>";
        Browser::signed_in(&server, ADMIN).await.ok("/").await.has(whose);
        let member = Browser::signed_in(&server, &key).await.ok("/").await;
        let cost = "<b>$0</b><span>cost today (UTC)</span>";
        for told in [whose, "<b>1</b><span>queued</span>", "<b>0</b><span>running</span>", cost, "<b>1 of 5</b><span>open tasks of your quota</span>"] {
            member.has(told);
        }
        // It sees no queues, and has no quota.
        let submit = Browser::signed_in(&server, &create(&admin, "ci", "submit", json!({})).await).await.ok("/").await;
        submit.has(cost);
        for hidden in [whose, "<span>queued</span>", "of your quota"] {
            submit.has_not(hidden);
        }
    }
    async fn the_overview_tells_what_runs_cost_today(database) {
        let server = Server::on(database).start();
        let (crew, browser) = (server.crew(), Browser::of(&server));
        let cost = "<a class=\"card\" href=\"/usage\"><b>";
        browser.ok("/").await.has(&format!("{cost}$0</b>"));
        let worker = crew.worker().register().await;
        let usage = json!({ "input_tokens": 1, "output_tokens": 1, "cost_usd": 1.5 });
        crew.task().create().await.lease_to(&worker).await.complete("success", json!({ "usage": usage })).await.ok();
        let shown = browser.ok("/").await;
        // A run that ended just before midnight is of yesterday.
        if now_ms() % 86_400_000 > 60_000 {
            shown.has(&format!("{cost}$1.50</b><span>cost today (UTC)</span>"));
        }
        // Its row tells how long it took and what it cost.
        shown.has("<br><span class=\"soft\">took ");
        shown.has(", $1.50</span>");
    }
}
