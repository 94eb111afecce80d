//! What the pages of workers, projects and keys tell of runs, and the lists that they lead to.

use super::browser::Browser;
use crate::keys::{ADMIN, keyed, with_new_key};
use crate::on_both;
use crate::support::*;

/// An answer that cost half a dollar.
fn paid() -> Value {
    json!({ "usage": { "input_tokens": 1, "output_tokens": 1, "cost_usd": 0.5 } })
}

on_both! {
    async fn the_page_of_a_worker_tells_how_its_runs_end_and_what_they_cost(server) {
        let (crew, browser) = (server.crew(), Browser::of(server));
        let worker = crew.worker().slots(4).register().await;
        let (page, name) = (format!("/workers/{}", worker.name), &worker.name);
        browser.ok(&page).await.has_not("In 30 days");
        for _ in 0..2 {
            crew.task().create().await.lease_to(&worker).await.complete("success", paid()).await.ok();
        }
        let refused = json!({ "error_message": "no", "reason": "auth" });
        crew.task().create().await.lease_to(&worker).await.complete("error", refused).await.ok();
        crew.task().create().await.lease_to(&worker).await;
        let shown = browser.ok(&page).await;
        let failed = format!("/tasks?worker_id={name}&amp;status=failed");
        shown.has(&format!("<dt>Its newest runs</dt><dd>2 succeeded, 1 failed · <a href=\"{failed}\">its failed tasks</a></dd><dt>In 30 days</dt><dd>3 runs, $1.00</dd>"));
        assert_eq!(browser.ok(&failed.replace("&amp;", "&")).await.text.matches("name=\"ids\"").count(), 1);
        assert_eq!(shown.text.matches("data-name=\"Cost\">$0.5000</td>").count(), 2, "{}", shown.text);
        for link in [format!("/leases?worker_id={name}"), format!("/audit?worker_id={name}"), format!("/usage?since=30d&amp;by=day&amp;worker_id={name}")] {
            shown.has(&format!("href=\"{link}\""));
            browser.ok(&link.replace("&amp;", "&")).await;
        }
    }

    async fn the_page_of_a_project_tells_what_its_runs_cost(server) {
        let (crew, browser) = (server.crew(), Browser::of(server));
        let name = unique("project");
        let made = server.post("projects", json!({ "name": name, "repo_url": "https://git.example.com/a.git" })).await.created();
        let page = format!("/projects/{}", made["id"].as_str().unwrap());
        browser.ok(&page).await.has_not("In 30 days");
        let worker = crew.worker().able("git", json!(true)).register().await;
        crew.task().with("project", json!(name)).create().await.lease_to(&worker).await.complete("success", paid()).await.ok();
        let shown = browser.ok(&page).await;
        shown.has("<dt>In 30 days</dt><dd>1 run, $0.5000</dd>");
        for link in [format!("/tasks?project={name}"), format!("/tasks/new?project={name}"), format!("/usage?since=30d&amp;by=day&amp;project={name}")] {
            shown.has(&format!("href=\"{link}\""));
            browser.ok(&link.replace("&amp;", "&")).await.has(&name);
        }
    }
}

on_both! { alone:
    async fn the_page_of_a_key_tells_what_its_tasks_cost(database) {
        let server = keyed(database);
        let admin = server.with_key(ADMIN);
        let (ann, ben) = (with_new_key(&admin, &server, "ann", "submit", json!({})).await, with_new_key(&admin, &server, "ben", "submit", json!({})).await);
        let worker = admin.worker().register().await;
        for key in [&ann, &ann, &ben] {
            let task = key.crew().task().create().await;
            admin.task(&task.id).lease_to(&worker).await.complete("success", paid()).await.ok();
        }
        let browser = Browser::signed_in(&server, ADMIN).await;
        browser.ok("/keys/ann").await.has("<dt>In 30 days</dt><dd>2 runs, $1.00</dd>");
        browser.ok(&format!("/workers/{}", worker.name)).await.has("<a href=\"/tasks?owner=ann\">ann</a>");
    }
}
