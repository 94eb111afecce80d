//! Forms: what they do, and that nobody else can send them.

use super::browser::Browser;
use crate::keys::{ADMIN, keyed};
use crate::on_both;
use crate::support::*;

const ID: &str = "0190a0a0-0000-7000-8000-00000000000b";

on_both! {
    async fn a_task_is_created_with_errors_at_the_field(server) {
        let browser = Browser::of(server);
        let context = unique("web");
        let fields = [("prompt", "first line\r\nsecond"), ("agent_slug", "writer"), ("context_id", context.as_str()), ("labels", "team=docs")];
        let wrong = browser.send_form("/tasks/new", "/tasks/new", &[&fields[..], &[("max_attempts", "11"), ("priority", "high")]].concat()).await.expect(400);
        wrong.has("id=\"priority-wrong\"");
        wrong.has("first line");
        let wrong = browser.send_form("/tasks/new", "/tasks/new", &[&fields[..], &[("max_attempts", "11"), ("budget", "-1")]].concat()).await.expect(400);
        wrong.has("id=\"max_attempts-wrong\" lang=\"en\">Number must be less than or equal to 10");
        wrong.has("id=\"budget-wrong\"");
        wrong.has("aria-describedby=\"max_attempts-wrong\"");
        assert_eq!(server.get(&format!("llm-tasks?context_id={context}")).await.ok(), json!([]));
        let created = browser.send_form("/tasks/new", "/tasks/new", &[&fields[..], &[("timeout_sec", "60"), ("suspend", "on")]].concat()).await;
        assert_eq!(created.status, 303, "{}", created.text);
        let page = browser.ok(created.header("location")).await;
        page.has("The task was created.");
        page.has("It is suspended");
        let task = &server.get(&format!("llm-tasks?context_id={context}")).await.ok()[0];
        assert_eq!(task["prompt"], json!("first line\nsecond"));
        assert_eq!((&task["policy"]["timeout_sec"], &task["suspend"], &task["labels"]), (&json!(60), &json!(true), &json!({ "team": "docs" })));
        let again = browser.ok(&format!("/tasks/new?like={}", task["id"].as_str().unwrap())).await;
        again.has("first line\nsecond");
        again.has("team=docs");
    }

    async fn a_task_of_the_form_has_half_an_hour(server) {
        let browser = Browser::of(server);
        browser.ok("/tasks/new").await.has("name=\"timeout_sec\" value=\"\"");
        let context = unique("web");
        let fields = [("prompt", "hello"), ("agent_slug", "writer"), ("context_id", context.as_str()), ("timeout_sec", "")];
        assert_eq!(browser.send_form("/tasks/new", "/tasks/new", &fields).await.status, 303);
        let task = &server.get(&format!("llm-tasks?context_id={context}")).await.ok()[0];
        assert_eq!(task["policy"], json!({ "timeout_sec": 1800, "timeout_is_default": true, "budget": 0.0 }));
        let id = task["id"].as_str().unwrap();
        browser.ok(&format!("/tasks/{id}")).await.has("<dd>30 min (or its profile’s limit)</dd>");
        browser.ok(&format!("/tasks/new?like={id}")).await.has("name=\"timeout_sec\" value=\"\"");
        let wrong = [&fields[..3], &[("timeout_sec", "86401")]].concat();
        browser.send_form("/tasks/new", "/tasks/new", &wrong).await.expect(400).has("id=\"timeout_sec-wrong\"");
    }

    async fn the_buttons_of_a_task(server) {
        let crew = server.crew();
        let browser = Browser::of(server);
        let task = crew.task().create().await;
        let page = format!("/tasks/{}", task.id);
        let press = async |action: &str| browser.send_form(&page, &format!("{page}/{action}"), &[]).await;
        press("suspend").await.leads_to(&format!("{page}?done=suspend"));
        browser.ok(&page).await.has("Resume");
        press("resume").await.leads_to(&format!("{page}?done=resume"));
        press("cancel").await.leads_to(&format!("{page}?done=cancel"));
        assert_eq!(task.status().await, "cancelled");
        let requeue = async |limit: &str| browser.send_form(&page, &format!("{page}/requeue"), &[("timeout_sec", limit)]).await;
        let refused = requeue("soon").await.expect(400);
        refused.has("The time limit can");
        refused.has("name=\"timeout_sec\" value=\"soon\"");
        for wrong in ["much", "NaN", "inf"] {
            browser.send_form(&page, &format!("{page}/requeue"), &[("budget", wrong), ("timeout_sec", "2h")]).await.expect(400).has("The budget can");
        }
        for wrong in ["0", "86401"] {
            requeue(wrong).await.expect(400).has("timeout_sec: ");
        }
        browser.send_form(&page, &format!("{page}/requeue"), &[("budget", "2.5")]).await.leads_to(&format!("{page}?done=requeue"));
        assert_eq!(task.now().await["policy"]["budget"], 2.5);
        press("cancel").await;
        requeue(" 2h ").await.leads_to(&format!("{page}?done=requeue"));
        assert_eq!((task.status().await.as_str(), &task.now().await["policy"]["timeout_sec"]), ("queued", &json!(7200)));
        press("cancel").await;
        browser.ok(&page).await.has("name=\"timeout_sec\" value=\"\" placeholder=\"2h\"");
        browser.ok(&page).await.has("inputmode=\"decimal\" placeholder=\"2.5\"");
        requeue("").await.leads_to(&format!("{page}?done=requeue"));
        assert_eq!((task.status().await.as_str(), &task.now().await["policy"]["timeout_sec"]), ("queued", &json!(7200)));
        press("requeue").await.expect(409).has("Cannot requeue task with status &#39;queued&#39;");
        press("explode").await.expect(404);
        press("cancel").await;
        browser.ok(&format!("{page}/confirm-delete")).await.has("be undone");
        press("delete").await.leads_to("/tasks?done=1");
        browser.get(&page).await.expect(404).has("There is no such page");
    }

    async fn a_misspelt_filter_changes_no_task(server) {
        let (crew, browser) = (server.crew(), Browser::of(server));
        let task = crew.task().create().await;
        let slug = crew.slug.as_str();
        let page = format!("/tasks?agent_slug={slug}");
        for (wrong, told) in [
            (("statsu", "failed"), "&#39;statsu&#39; is unknown, so nothing was done. Known: status, "),
            (("status", "faild"), "&#39;faild&#39; is unknown, so nothing was done. Known: queued, "),
            (("since", "1d"), "Known: 1h, "),
        ] {
            for confirmed in [&[][..], &[("confirmed", "yes")]] {
                let fields = [&[("action", "cancel"), ("which", "all"), ("agent_slug", slug), wrong], confirmed].concat();
                browser.send_form(&page, "/tasks/bulk", &fields).await.expect(400).has(told);
            }
        }
        for wrong in [("which", "al"), ("confirmed", "y")] {
            let fields = [("action", "cancel"), ("ids", task.id.as_str()), wrong];
            browser.send_form(&page, "/tasks/bulk", &fields).await.expect(400).has("is unknown");
        }
        assert_eq!(task.status().await, "queued");
    }

    async fn all_failed_tasks_are_requeued_the_dead_ones_too(server) {
        let (crew, browser) = (server.crew(), Browser::of(server));
        let worker = crew.worker().slots(2).register().await;
        let mut tasks = Vec::new();
        for (attempts, more) in [(2, json!({ "error_message": "no", "reason": "auth" })), (1, json!({ "error_message": "no", "retryable": true }))] {
            let task = crew.task().with("max_attempts", json!(attempts)).create().await;
            task.lease_to(&worker).await.complete("error", more).await.ok();
            tasks.push(task);
        }
        assert_eq!((tasks[0].status().await, tasks[1].status().await), ("failed".into(), "dead".into()));
        let list = format!("/tasks?status=failed&agent_slug={}", crew.slug);
        let fields = [("action", "requeue"), ("which", "all"), ("status", "failed"), ("agent_slug", crew.slug.as_str())];
        browser.send_form(&list, "/tasks/bulk", &fields).await.expect(200).has("Requeue 2 tasks?");
        browser.send_form(&list, "/tasks/bulk", &[&fields[..], &[("confirmed", "yes")]].concat()).await.leads_to(&format!("{list}&done=2&matched=2"));
        assert_eq!((tasks[0].status().await, tasks[1].status().await), ("queued".into(), "queued".into()));
    }

    async fn a_change_of_many_tasks_that_leaves_some_says_so(server) {
        let (crew, browser) = (server.crew(), Browser::of(server));
        let (first, lease) = crew.leased_task().await;
        lease.complete("error", json!({ "error_message": "no", "reason": "auth" })).await.ok();
        let next = crew.task().with("depends_on", json!([first.id])).create().await;
        next.reaches("cancelled").await;
        let list = format!("/tasks?agent_slug={}", crew.slug);
        let requeue = async |ids: &[&str]| {
            let mut fields = vec![("action", "requeue"), ("confirmed", "yes"), ("agent_slug", crew.slug.as_str())];
            fields.extend(ids.iter().map(|id| ("ids", *id)));
            browser.send_form(&list, "/tasks/bulk", &fields).await
        };
        let left = format!("{list}&done=0&matched=1&depends=1");
        requeue(&[next.id.as_str()]).await.leads_to(&left);
        let told = "0 of 1 tasks were changed. The others depend on tasks that did not complete: requeue these first, or all together.";
        browser.ok(&left).await.has(&format!("<p class=\"warning\" role=\"status\">{told}</p>"));
        let all = format!("{list}&done=2&matched=2");
        requeue(&[next.id.as_str(), first.id.as_str()]).await.leads_to(&all);
        browser.ok(&all).await.has("<p class=\"done\" role=\"status\">2 tasks were changed.</p>");
        browser.ok(&format!("{list}&done=6&matched=8")).await.has("<p class=\"warning\" role=\"status\">6 of 8 tasks were changed.</p>");
    }

    async fn the_buttons_of_a_worker(server) {
        let crew = server.crew();
        let browser = Browser::of(server);
        let worker = crew.worker().register().await;
        let page = format!("/workers/{}", worker.name);
        browser.send_form(&page, &format!("{page}/cordon"), &[]).await.leads_to(&format!("{page}?done=cordon"));
        assert_eq!(worker.now().await["cordoned"], json!(true));
        browser.ok(&page).await.has("cordoned</span> <span class=\"soft\">by ");
        browser.send_form(&page, &format!("{page}/drain"), &[]).await.leads_to(&format!("{page}?done=drain"));
        assert_eq!(worker.now().await["draining"], json!(true));
        browser.send_form(&page, &format!("{page}/uncordon"), &[]).await.leads_to(&format!("{page}?done=uncordon"));
        assert_eq!(worker.now().await["cordoned"], json!(false));
        browser.ok(&format!("{page}/confirm-remove")).await.has("It holds 0 tasks");
        browser.send_form(&page, &format!("{page}/remove"), &[]).await.leads_to("/workers");
        browser.get(&page).await.expect(404);
    }

    async fn a_question_is_answered(server) {
        let (task, lease) = server.crew().leased_task().await;
        let browser = Browser::of(server);
        let page = format!("/tasks/{}", task.id);
        let ask = async |question: Value| {
            let body = json!({ "lease_id": lease.id, "id": ID, "question": question });
            server.post(&task.path("/question"), body).await.ok()
        };
        ask(json!({ "tool": "Bash", "input": { "command": "rm -r <tmp>" }, "limit_sec": 600 })).await;
        let asked = browser.ok(&page).await;
        asked.has("The run asks you");
        browser.ok("/").await.has("<a href=\"/tasks?asks=true\">All that ask</a>");
        let listed = browser.ok("/tasks?asks=true").await;
        listed.has(&format!("href=\"{page}\""));
        listed.has("<a href=\"/tasks?asks=true\" aria-current=\"page\">asks you");
        asked.has("rm -r &#60;tmp&#62;");
        browser.send_form(&page, &format!("{page}/answer"), &[("question_id", ""), ("decision", "allow")]).await.expect(400);
        let answer = [("question_id", ID), ("decision", "deny"), ("message", "not this one")];
        browser.send_form(&page, &format!("{page}/answer"), &answer).await.leads_to(&format!("{page}?done=answer"));
        assert_eq!(ask(json!({ "tool": "Bash", "limit_sec": 600 })).await, json!({ "answer": { "allow": false, "message": "not this one", "answers": [] } }));
        browser.send_form(&page, &format!("{page}/answer"), &answer).await.expect(409).has("is answered already");
    }

    async fn many_tasks_are_changed_after_a_confirmation(server) {
        let crew = server.crew();
        let browser = Browser::of(server);
        let context = unique("bulk");
        let mut tasks = Vec::new();
        for _ in 0..3 {
            tasks.push(crew.task().context(&context).create().await);
        }
        let list = format!("/tasks?context_id={context}");
        let all = [("which", "all"), ("context_id", context.as_str()), ("action", "cancel")];
        let confirm = browser.send_form(&list, "/tasks/bulk", &all).await.expect(200);
        confirm.has("Cancel 3 tasks?");
        confirm.has("name=\"confirmed\"");
        confirm.has(&format!("href=\"{list}\">No, go back"));
        assert_eq!(tasks[0].status().await, "queued", "nothing is done before the confirmation");
        let one = [("ids", tasks[0].id.as_str()), ("action", "cancel")];
        browser.send_form(&list, "/tasks/bulk", &one).await.expect(200).has("Cancel 1 task?");
        let confirmed = [&one[..], &[("confirmed", "yes"), ("context_id", context.as_str())]].concat();
        browser.send_form(&list, "/tasks/bulk", &confirmed).await.leads_to(&format!("{list}&done=1&matched=1"));
        assert_eq!(tasks[1].status().await, "queued");
        let counted = confirm.text.split("name=\"as_of\" value=\"").nth(1).and_then(|rest| rest.split('"').next()).expect("a time").to_owned();
        eventually("the clock goes on", || async { (now_ms() > counted.parse::<i64>().unwrap() + 1).then_some(()) }).await;
        let later = crew.task().context(&context).create().await;
        let wrong = [&all[..], &[("confirmed", "yes"), ("as_of", "yesterday")]].concat();
        browser.send_form(&list, "/tasks/bulk", &wrong).await.expect(400);
        let confirmed = [&all[..], &[("confirmed", "yes"), ("as_of", &counted)]].concat();
        browser.send_form(&list, "/tasks/bulk", &confirmed).await.leads_to(&format!("{list}&done=2&matched=2"));
        assert_eq!((tasks[2].status().await, later.status().await), ("cancelled".into(), "queued".into()), "one that nobody saw is not meant");
        browser.send_form(&list, "/tasks/bulk", &[("action", "cancel"), ("which", "all")]).await.expect(400).has("without one, this would change every task");
        // With nothing selected, nothing is done, and the list says so.
        let unselected = [("action", "cancel"), ("context_id", context.as_str()), ("sort", "cost")];
        let back = format!("{list}&sort=cost&unselected=1");
        browser.send_form(&list, "/tasks/bulk", &unselected).await.leads_to(&back);
        browser.send_form(&list, "/tasks/bulk", &[&unselected[..], &[("confirmed", "yes")]].concat()).await.leads_to(&back);
        browser.ok(&back).await.has("role=\"alert\">Select tasks first.");
        browser.ok(&list).await.has_not("Select tasks first.");
        browser.send_form(&list, "/tasks/bulk", &[("action", "explode")]).await.expect(400);
    }

    async fn a_form_needs_the_token_of_its_browser_and_site(server) {
        let task = server.crew().task().create().await;
        let (browser, other) = (Browser::of(server), Browser::of(server));
        let target = format!("/tasks/{}/cancel", task.id);
        let (token, of_other) = (browser.ok("/tasks/new").await.form_token(), other.ok("/tasks/new").await.form_token());
        assert_ne!(token, of_other);
        for wrong in ["", "x", &of_other] {
            browser.post(&target, &[("form_token", wrong)], &[]).await.expect(403).has("not made for your session");
        }
        Browser::of(server).post(&target, &[("form_token", &token)], &[]).await.expect(403);
        for (name, value) in [("origin", "https://evil.example"), ("origin", "null"), ("sec-fetch-site", "cross-site")] {
            browser.post(&target, &[("form_token", &token)], &[(name, value)]).await.expect(403).has("another site");
        }
        browser.send(reqwest::Method::GET, "/tasks", None, &[("host", "evil.example")]).await.expect(403).has("ALLOWED_HOSTS");
        assert_eq!(task.status().await, "queued");
        let answer = browser.post(&target, &[("form_token", &token)], &[("origin", server.base()), ("sec-fetch-site", "same-origin")]).await;
        assert_eq!(answer.status, 303, "{}", answer.text);
        assert_eq!(task.status().await, "cancelled");
    }
}

on_both! { alone:
    async fn a_form_needs_the_session_that_it_was_made_for(database) {
        let server = keyed(database);
        let admin = server.with_key(ADMIN);
        let task = admin.post("llm-tasks", json!({ "context_id": "c", "agent_slug": "a", "prompt": "p" })).await.created();
        let target = format!("/tasks/{}/cancel", task["id"].as_str().unwrap());
        let (one, other) = (Browser::signed_in(&server, ADMIN).await, Browser::signed_in(&server, ADMIN).await);
        let token = other.ok("/tasks/new").await.form_token();
        one.post(&target, &[("form_token", &token)], &[]).await.expect(403);
        one.post(&target, &[], &[]).await.expect(403);
        Browser::of(&server).post(&target, &[("form_token", &token)], &[]).await.expect(401).has("signed out");
        // Also whose form is still on its way: a proxy in between would say that the server does not answer.
        let large = format!("prompt={}", "a".repeat(4 << 20));
        Browser::of(&server).send_as("/tasks/new", "application/x-www-form-urlencoded", &large).await.expect(401);
        // What was typed is kept by a script, and the sign-in leads back to it.
        let referrer = format!("{}/tasks/new?like=x", server.base());
        let told = Browser::of(&server).post("/tasks/new", &[("prompt", "p")], &[("referer", &referrer)]).await.expect(401);
        told.has("<p id=\"kept\" hidden>");
        told.has("href=\"/sign-in?next=%2Ftasks%2Fnew%3Flike%3Dx\"");
        let stranger = Browser::of(&server);
        stranger.post("/sign-in", &[("key", ADMIN)], &[]).await.expect(403);
        assert_eq!(stranger.cookie("bloom_session"), None, "another site signs nobody in");
        assert_eq!(admin.get(&format!("llm-tasks/{}", task["id"].as_str().unwrap())).await.ok()["status"], json!("queued"));
        other.post(&target, &[("form_token", &token)], &[]).await.leads_to(&target.replace("/cancel", "?done=cancel"));
    }
}
