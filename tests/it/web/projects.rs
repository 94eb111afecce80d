//! The pages of projects, and their buttons.

use super::browser::Browser;
use crate::keys::{ADMIN, create};
use crate::on_both;
use crate::support::stub::{Reply, Stub};
use crate::support::*;

const READER: &str = "reader-key-0123456789";
const REPO: &str = "https://git.example.com/team/docs.git";

on_both! {
    async fn a_project_is_added_cloned_and_deleted(server) {
        let stub = Stub::start().await;
        let worker = server.crew().worker_at(&stub.url).register().await;
        let browser = Browser::of(server);
        let name = worker.name.as_str();
        let made = browser.send_form("/projects", "/projects", &[("name", name), ("repo_url", REPO), ("target_path", "a/b"), ("branch_prefix", "bots")]).await;
        let page = made.header("location").to_owned();
        assert_eq!((made.status, page.starts_with("/projects/")), (303, true), "{}", made.text);
        browser.ok("/projects").await.has(&format!("href=\"{page}\""));
        browser.ok("/projects").await.has("No worker has it yet: its first task clones it.");
        browser.ok("/projects").await.has("<code>bloom-runtime project add NAME .</code>");
        let shown = browser.ok(&page).await;
        shown.has("Pending: no worker has cloned it yet.");
        shown.has("No task needs it: a worker clones the project when it runs a task of it.");
        shown.has(REPO);
        shown.has("value=\"bots\"");
        assert_eq!(shown.text.matches("Prefix of branches").count(), 1, "{}", shown.text);
        browser.send_form(&page, &format!("{page}/edit"), &[("branch_prefix", "-x")]).await.expect(400).has("branch_prefix");
        browser.send_form(&page, &format!("{page}/edit"), &[("branch_prefix", "team/bots")]).await.leads_to(&format!("{page}?done=edit"));
        browser.ok(&page).await.has("value=\"team/bots\"");
        shown.has(&format!("href=\"/workers/{name}\""));

        stub.once("/clone", Reply::new(409, r#"{"error":"<b>it exists</b>"}"#));
        let refused = browser.send_form(&page, &format!("{page}/clone"), &[("node", name)]).await.expect(502);
        refused.has("it exists");
        refused.has_not("<b>");
        let failed = browser.ok(&page).await;
        failed.has("s-failed");
        failed.has("The last clone that was asked for failed:");
        failed.has("Once the cause is gone, clone it again.");
        failed.has("it exists");
        failed.has_not("<b>");

        stub.always("/clone", Reply::new(200, r#"{"status":"cloned","path":"/w/projects/a/b"}"#));
        browser.send_form(&page, &format!("{page}/clone"), &[("node", name)]).await.leads_to(&format!("{page}?done=clone"));
        let cloned = browser.ok(&format!("{page}?done=clone")).await;
        cloned.has("s-cloned");
        cloned.has("/w/projects/a/b");
        cloned.has_not("the copy that its runs use");
        assert_eq!(stub.seen("/clone").len(), 2);

        browser.ok(&format!("{page}/confirm-delete")).await.has(&format!("Delete the project {name}?"));
        browser.send_form(&page, &format!("{page}/delete"), &[]).await.leads_to("/projects?done=1");
        browser.get(&page).await.expect(404);
    }

    async fn only_workers_that_can_be_called_are_asked(server) {
        let stub = Stub::start().await;
        let crew = server.crew();
        let (callable, by_itself) = (crew.worker_at(&stub.url).register().await, crew.worker().able("git", json!(true)).register().await);
        let made = server.post("projects", json!({ "name": callable.name, "repo_url": REPO })).await.created();
        let (page, browser) = (format!("/projects/{}", made["id"].as_str().unwrap()), Browser::of(server));
        let refused = browser.send_form(&page, &format!("{page}/clone"), &[("node", &by_itself.name)]).await.expect(502);
        refused.has("takes its tasks by itself (no URL)");
        let shown = browser.ok(&page).await;
        shown.has(&format!("aria-label=\"Clone to {}\"", callable.name));
        shown.has(&format!("href=\"/workers/{}\"", by_itself.name));
        shown.has_not(&format!("aria-label=\"Clone to {}\"", by_itself.name));
        shown.has("with its first task");
        shown.has("<th>Since</th>");
        shown.has_not("<th>Directory</th>");
    }

    async fn a_run_that_gets_no_clone_is_told(server) {
        let (crew, browser, name) = (server.crew(), Browser::of(server), unique("project"));
        let made = server.post("projects", json!({ "name": name, "repo_url": REPO })).await.created();
        let page = format!("/projects/{}", made["id"].as_str().unwrap());
        browser.ok(&page).await.has("Nothing needs to be done");
        let worker = crew.worker().slots(4).able("git", json!(true)).register().await;
        let run = async || {
            let task = crew.task().with("project", json!(name)).create().await;
            (task.lease_to(&worker).await, task.id)
        };
        let (lease, id) = run().await;
        lease.complete("error", json!({ "error_message": "the project's repository can't be fetched: <b> not found", "reason": "project" })).await.ok();
        let failed = browser.ok(&page).await;
        failed.has("The newest run failed:</strong> <span lang=\"en\">the project&#39;s repository can&#39;t be fetched: &#60;b&#62; not found</span>");
        failed.has(&format!("href=\"/tasks/{id}\""));
        failed.has_not("Nothing needs to be done");
        failed.has("<span class=\"badge s-failed\">failed</span>");
        browser.ok("/projects").await.has(&format!("<span lang=\"en\">the project&#39;s repository can&#39;t be fetched: &#60;b&#62; not found</span> <a href=\"/tasks/{id}\">Its task</a>"));
        // Another failure says nothing about the clone, and a success that it is there.
        run().await.0.complete("error", json!({ "error_message": "no", "reason": "auth" })).await.ok();
        browser.ok(&page).await.has("The newest run failed:");
        run().await.0.complete("success", json!({ "output": "o", "branch": "bloom/c" })).await.ok();
        let noted = async || server.get(&format!("projects/{}", made["id"].as_str().unwrap())).await.ok();
        eventually("the clone is noted", || async { (noted().await["clone_status"] == "cloned").then_some(()) }).await;
        let cloned = browser.ok(&page).await;
        cloned.has_not("The newest run failed:");
        // Nobody asked the worker for a clone, so it has no path.
        cloned.has("<span class=\"soft\">the copy that its runs use</span>");
    }

    async fn what_is_wrong_is_told_at_its_field(server) {
        let browser = Browser::of(server);
        // The hint has what the error offers.
        browser.ok("/projects").await.has("https://…, ssh://…, git@HOST:PATH or file:///PATH, without a password");
        let typed = [("name", "a/b"), ("repo_url", "file://etc"), ("primary_node_id", "w-typed")];
        let refused = browser.send_form("/projects", "/projects", &typed).await.expect(400);
        for text in ["id=\"name-wrong\"", "id=\"repo_url-wrong\"", "value=\"w-typed\"", "value=\"file://etc\""] {
            refused.has(text);
        }
        let name = unique("twice");
        let form = [("name", name.as_str()), ("repo_url", REPO)];
        assert_eq!(browser.send_form("/projects", "/projects", &form).await.status, 303);
        browser.send_form("/projects", "/projects", &form).await.expect(409).has("exists: delete it first");
    }

    async fn a_clone_that_takes_long_goes_on(server) {
        let stub = Stub::start().await;
        stub.always("/clone", Reply { after: std::time::Duration::from_secs(8), ..Reply::new(200, "{}") });
        let worker = server.crew().worker_at(&stub.url).register().await;
        let made = server.post("projects", json!({ "name": worker.name, "repo_url": REPO })).await.created();
        let page = format!("/projects/{}", made["id"].as_str().unwrap());
        let browser = Browser::of(server);
        browser.send_form(&page, &format!("{page}/clone"), &[("node", &worker.name)]).await.leads_to(&format!("{page}?done=asked"));
        eventually("the page shows the clone", || async { browser.ok(&page).await.text.contains("s-cloned").then_some(()) }).await;
    }
}

on_both! { alone:
    async fn nobody_is_asked_where_all_have_a_clone(database) {
        let stub = Stub::start().await;
        stub.always("/clone", Reply::new(200, "{}"));
        let server = Server::on(database).start();
        let made = server.post("projects", json!({ "name": "docs", "repo_url": REPO })).await.created();
        let (page, browser) = (format!("/projects/{}", made["id"].as_str().unwrap()), Browser::of(&server));
        let all = "Clone to all workers that lack it";
        browser.ok(&page).await.has_not(all);
        browser.ok(&page).await.has_not("No task needs it");
        browser.ok("/projects").await.has_not("<th>Primary worker</th>");
        let worker = server.crew().worker_at(&stub.url).register().await;
        browser.ok(&page).await.has(&format!("<button>{all}</button>"));
        let propagate = async || browser.send_form("/projects", &format!("{page}/propagate"), &[]).await;
        propagate().await.leads_to(&format!("{page}?done=propagate"));
        let shown = browser.ok(&format!("{page}?done=propagate")).await;
        shown.has("The workers were asked.");
        shown.has_not(all);
        propagate().await.leads_to(&format!("{page}?done=nobody"));
        browser.ok(&format!("{page}?done=nobody")).await.has("Nobody was asked");
        let with_primary = json!({ "name": "web", "repo_url": REPO, "primary_node_id": worker.name });
        server.post("projects", with_primary).await.created();
        browser.ok("/projects").await.has("<th>Primary worker</th>");
    }

    async fn a_read_key_sees_projects_and_has_no_buttons(database) {
        let server = Server::on(database).env("RUNTIME_API_KEY", ADMIN).env("RUNTIME_READ_KEY", READER).start();
        let made = server.with_key(ADMIN).post("projects", json!({ "name": "docs", "repo_url": REPO })).await.created();
        let page = format!("/projects/{}", made["id"].as_str().unwrap());
        let reader = Browser::signed_in(&server, READER).await;
        for shown in [reader.ok("/projects").await, reader.ok(&page).await] {
            shown.has("docs");
            assert_eq!(shown.text.matches("method=\"post\"").count(), 1, "only signing out: {}", shown.text);
        }
        reader.get(&format!("{page}/confirm-delete")).await.expect(403).has("Only an administrator");
        let member = create(&server.with_key(ADMIN), "ann", "member", json!({ "team": "web" })).await;
        Browser::signed_in(&server, &member).await.ok(&page).await.has_not("Clones");
        let token = reader.ok("/").await.form_token();
        for target in ["/projects".to_owned(), format!("{page}/clone"), format!("{page}/propagate"), format!("{page}/delete")] {
            let form = [("form_token", token.as_str()), ("name", "x"), ("repo_url", REPO)];
            reader.post(&target, &form, &[]).await.expect(403).has("scope read");
        }
        let admin = Browser::signed_in(&server, ADMIN).await;
        admin.post(&format!("{page}/delete"), &[("form_token", "wrong")], &[]).await.expect(403);
        admin.ok(&page).await.has("docs");
    }
}
