//! Leases, artifacts and the audit trail, and what the lists of them leave out.

use super::browser::Browser;
use crate::keys::{ADMIN, create, keyed};
use crate::on_both;
use crate::support::*;

on_both! {
    async fn records_are_shown_with_filters(server) {
        let (crew, browser) = (server.crew(), Browser::of(server));
        let worker = crew.worker().slots(4).able("labels", json!(["rack=1"])).register().await;
        let task = crew.task().prompt("answer me").create().await;
        task.lease_to(&worker).await;
        let worker_page = browser.ok(&format!("/workers/{}", worker.name)).await;
        worker_page.has("answer me");
        worker_page.has("its lease ends");
        worker_page.has("<dt>Labels</dt><dd>rack=1</dd>");
        worker_page.has("<span>1 of 4<svg");
        browser.ok(&format!("/leases?status=active&worker_id={}", worker.name)).await.has(&task.id);
        task.succeed("forty-two").await;
        browser.ok(&format!("/leases?status=active&worker_id={}", worker.name)).await.has_not(&task.id);
        let lease = browser.ok(&format!("/leases?worker_id={}", worker.name)).await;
        lease.has(&format!("title=\"{}\">answer me</a>", task.id));
        lease.has("<span class=\"badge s-completed\">completed</span>");
        let of_task = format!("/leases?worker_id={}&task_id={}", worker.name, task.id);
        browser.get(&of_task.replace(&task.id, &task.id[28..])).await.leads_to(&of_task);
        let stopped = crew.task().create().await;
        let run = stopped.lease_to(&worker).await;
        stopped.cancel().await.ok();
        run.complete("error", json!({ "error_message": "cancelled on request", "reason": "cancelled" })).await.ok();
        browser.ok(&of_task).await.has_not(&stopped.id);
        for (outcome, shown, hidden) in [("success", &task, &stopped), ("interrupted", &stopped, &task)] {
            let listed = browser.ok(&format!("/leases?outcome={outcome}&worker_id={}", worker.name)).await;
            listed.has(&shown.id);
            listed.has_not(&hidden.id);
            listed.has(&format!("href=\"/leases?outcome={outcome}&amp;worker_id={}\" aria-current=\"page\"", worker.name));
            listed.has(&format!("<input type=\"hidden\" name=\"outcome\" value=\"{outcome}\">"));
        }
        // As on the page of its task.
        for page in [format!("/leases?worker_id={}", worker.name), format!("/tasks/{}", stopped.id)] {
            browser.ok(&page).await.has("<span class=\"badge s-cancelled\">stopped</span>");
        }
        let artifacts = browser.ok(&format!("/artifacts?task_id={}", task.id)).await;
        artifacts.has(&format!("<a href=\"/tasks/{}\">forty-two</a>", task.id));
        artifacts.has("<td class=\"tight\">9 bytes</td><td>answer</td>");
        let report = crew.task().create().await;
        report.lease_to(&worker).await;
        report.succeed("# The **report**\n\n- see [it](https://x.example/)").await;
        browser.ok(&format!("/artifacts?task_id={}", report.id)).await.has(">The report see it</a>");
        // The end of the id, as lists show it, is enough.
        browser.get(&format!("/artifacts?task_id=%E2%80%A6{}", &task.id[28..])).await.leads_to(&format!("/artifacts?task_id={}", task.id));
        artifacts.has(&format!("title=\"{}\">answer me</a>", task.id));
        artifacts.has_not("<th>Tags</th>");
        let tagged = crew.task().create().await;
        tagged.lease_to(&worker).await.complete("success", json!({ "output": "b", "artifact_tags": ["nightly", "tools_denied"] })).await.ok();
        browser.ok(&format!("/artifacts?task_id={}", tagged.id)).await.has("<td data-name=\"Tags\">nightly, tools denied</td>");
        let silent = crew.task().create().await;
        silent.lease_to(&worker).await.complete("error", json!({ "error_message": "no", "reason": "auth" })).await.ok();
        browser.ok(&format!("/artifacts?task_id={}", silent.id)).await.has("no answer");
        browser.ok("/artifacts").await.has_not("no answer");
        browser.ok(&format!("/audit?task_id={}&action=task_completed", task.id)).await.has(&format!("title=\"{}\">answer me</a>", task.id));
        browser.ok(&format!("/audit?task_id={}&action=task_dead", task.id)).await.has("no entries that match");
        for field in ["task_id", "since", "until"] {
            let wrong = browser.get(&format!("/audit?{field}=nonsense")).await.expect(400);
            wrong.has(&format!("name=\"{field}\" value=\"nonsense\" aria-invalid=\"true\" aria-describedby=\"{field}-wrong\""));
            wrong.has(&format!("role=\"alert\" id=\"{field}-wrong\""));
            wrong.has_not("no entries that match");
        }
        browser.ok("/audit").await.has("is a named key");
        let none = browser.ok("/audit?actor=no+one&since=1h").await;
        none.has("<a href=\"/audit?actor=key%3Ano%20one&#38;since=1h\"><code>key:no one</code></a>");
        browser.ok("/audit?actor=key%3Ano+one").await.has_not("Keys are written");
        browser.ok(&format!("/audit?task_id={}&until=2026-01-01", task.id)).await.has("no entries that match");
        let created = browser.ok(&format!("/audit?task_id={}&since=1h", task.id)).await;
        created.has("task created");
        created.has(&format!("<td class=\"wide\">agent {}</td>", crew.slug));
        let page = browser.ok(&format!("/tasks/{}", task.id)).await;
        page.has("forty-two");
        page.has("run ended");
        page.has(&format!("href=\"/workers/{}\"", worker.name));
    }

    async fn the_audit_trail_leads_to_what_its_entries_are_about(server) {
        let browser = Browser::of(server);
        let (name, context) = (unique("project"), unique("talk"));
        let project = server.post("projects", json!({ "name": name, "repo_url": "https://git.example.com/a.git" })).await.created();
        let id = project["id"].as_str().unwrap();
        browser.ok("/audit?action=project_created").await.has(&format!("<a href=\"/projects/{id}\">…{}</a>", &id[28..]));
        let crew = server.crew();
        crew.task().context(&context).create().await;
        server.post(&format!("contexts/{context}/reset"), json!({})).await.ok();
        browser.ok("/audit?action=context_reset").await.has(&format!("<a href=\"/contexts/{context}\">{context}</a>"));
        server.post(&format!("queues/{}/pause", crew.slug), json!({})).await.ok();
        browser.ok("/audit?action=queue_paused").await.has(&format!("<a href=\"/queues\">{}</a>", crew.slug));
        let worker = crew.worker().register().await;
        let task = crew.task().create().await;
        server.post(&format!("queues/{}/resume", crew.slug), json!({})).await.ok();
        task.lease_to(&worker).await.complete("success", json!({ "output": "done" })).await.ok();
        let ended = browser.ok(&format!("/audit?task_id={}&action=task_completed", task.id)).await;
        ended.has(&format!("<td data-name=\"Who\"><a href=\"/workers/{0}\">{0}</a></td>", worker.name));
    }
}

on_both! { alone:
    async fn what_one_request_did_is_one_row_of_the_audit_trail(database) {
        let server = Server::on(database).start();
        let (crew, browser) = (server.crew(), Browser::of(&server));
        let mut ids = Vec::new();
        for number in 0..3 {
            ids.push(crew.task().prompt(&format!("number {number} of one call")).create().await.id);
        }
        server.post("llm-tasks:cancel", json!({ "ids": ids })).await.ok();
        let shown = browser.ok("/audit?action=task_cancelled").await;
        shown.has("<strong>3 × task cancelled</strong>");
        for (number, id) in ids.iter().enumerate() {
            shown.has(&format!("<li><a href=\"/tasks/{id}\" title=\"{id}\">number {number} of one call</a>"));
        }
        // Each task was created by a request of its own.
        browser.ok("/audit?action=task_created").await.has_not(" × ");
    }

    async fn columns_that_the_visitor_is_not_told_are_left_out(database) {
        let server = keyed(database);
        let admin = server.with_key(ADMIN);
        let instance = "0190a0a0-0000-7000-8000-00000000000b";
        admin.post("workers", json!({ "name": "w1", "os_info": "Linux 6", "instance": instance })).await.created();
        let member = create(&admin, "ann", "member", json!({ "team": "docs" })).await;
        server.with_key(&member).post_bytes("artifacts?name=notes.txt", "notes").await.expect(201);
        let (lead, member) = (Browser::signed_in(&server, ADMIN).await, Browser::signed_in(&server, &member).await);
        lead.ok("/workers").await.has("<td data-name=\"System\">Linux 6</td>");
        lead.ok("/workers/w1").await.has(&format!("<dt>Instance</dt><dd><span class=\"mono\">{instance}</span>, <time "));
        let workers = member.ok("/workers").await;
        workers.has("w1");
        workers.has_not("<th>System</th>");
        member.ok("/workers/w1").await.has_not(instance);
        let files = member.ok("/artifacts").await;
        files.has("notes.txt");
        files.has_not("<th>Task</th>");
        files.has_not("<th>Tags</th>");
    }
}
