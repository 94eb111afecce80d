//! The page of the control plane.

use super::browser::Browser;
use crate::keys::ADMIN;
use crate::on_both;
use crate::support::stub::{Reply, Stub};
use crate::support::*;

/// What control planes call the project `house`.
pub const HOUSE: &str = "d6e21286621a8586";

/// A control plane that knows this project, with two nodes and two versions of its memory.
pub fn house(stub: &Stub) {
    let answer = |path: &str, body: Value| stub.always(path, Reply::new(200, &body.to_string()));
    let listed = json!({
        "canonical_id": HOUSE, "name": "house", "nodes_count": 2, "preferred_primary": "n1", "memory_version": 2,
        "memory_stored_at": 1_772_000_000.5, "last_seen": 1_772_000_000.5,
    });
    answer("/health", json!({ "status": "ok" }));
    answer("/projects", json!([{ "canonical_id": "p0" }, listed]));
    let nodes = json!([{ "node_id": "n1", "role": "primary", "obs_count": 7, "last_seen": 1_772_000_000.5 }, { "node_id": "n2", "role": "secondary" }]);
    answer(&format!("/projects/{HOUSE}/nodes"), nodes);
    let sha256 = "6fe2e0f6071ac2bb8d0b1ef26d1b691e625ba690a06edfd245847a8385aee999";
    let version = |number: i64, size: i64| json!({ "version": number, "node_id": "n1", "sha256": sha256, "size": size, "created_at": 1_772_000_000.5 });
    let leads = json!({ "preferred_primary": "n1", "term": 3, "memory_version": 2, "memory_versions": [version(2, 1_536), version(1, 5)] });
    answer(&format!("/projects/{HOUSE}/leadership"), leads);
    let job = |action: &str, status: &str, project: &str, detail: &str| json!({ "action": action, "status": status, "canonical_id": project, "agent": "n1", "detail": detail, "finished_at": 1_772_000_000.5 });
    let failed = job("pull", "failed", HOUSE, "the disk is full");
    answer("/jobs", json!([failed, job("push", "completed", HOUSE, "stored"), job("push", "completed", "p0", "a job of another project")]));
}

on_both! { alone:
    async fn the_control_plane_of_the_server_itself_is_told_as_such(database) {
        let server = Server::on(database).env("WITH_MEMBRIDGE", "true").env("MEMBRIDGE_PORT", 0).env("MEMBRIDGE_ADMIN_KEY", "a-key-0123456789").start();
        let page = Browser::of(&server).ok("/membridge").await;
        page.has("built into this server; for others it listens on http");
        page.has("name=\"membridge_server_url\" value=\"\"");
    }

    async fn the_connection_is_set_and_tested(database) {
        let stub = Stub::start().await;
        let server = Server::on(database).start();
        let browser = Browser::of(&server);
        browser.ok("/membridge").await.has("They are shown when");
        let send = async |url: &str, key: &str| {
            browser.send_form("/membridge", "/membridge", &[("membridge_server_url", url), ("admin_key", key)]).await
        };
        let wrong = send("no <url>", "").await.expect(400);
        wrong.has("id=\"url-wrong\"");
        wrong.has("id=\"key-wrong\"");
        wrong.has("value=\"no &#60;url&#62;\"");
        send(&stub.url, "another-key-9999").await.leads_to("/membridge?done=1");
        let set = browser.ok("/membridge?done=1").await;
        // The API tells the ends of the key, as its contract says; the page needs none of it.
        set.has("<dt>Key</dt><dd class=\"mono\">****</dd>");
        set.has_not("anot");
        set.has_not("another-key-9999");
        stub.always("/health", Reply::new(200, r#"{"status":"ok"}"#));
        stub.always("/projects", Reply::new(200, r#"[{"canonical_id":"p1","name":"<i>one"}]"#));
        let tested = browser.send_form("/membridge", "/membridge/test", &[]).await.expect(200);
        tested.has("The control plane has answered.");
        tested.has("href=\"/membridge/projects/p1\">&#60;i&#62;one</a>");
        stub.always("/projects/p1/nodes", Reply::new(200, r#"[{"node_id":"n1","role":"primary","obs_count":7,"last_seen":1772000000.5},{"node_id":"n2"},5]"#));
        stub.always("/projects/p1/leadership", Reply::new(200, r#"{"preferred_primary":"n1","term":3,"lease_expires_at":1772003600000}"#));
        stub.always("/projects/p1/leadership/select", Reply::new(200, r#"{"ok":true}"#));
        let page = "/membridge/projects/p1";
        let project = browser.ok(page).await;
        project.has("<dt>Leader</dt><dd>n1</dd>");
        project.has("2026-02-25 07:13");
        project.has("aria-label=\"Make leader for an hour: n2\"");
        project.has_not("aria-label=\"Make leader for an hour: n1\"");
        browser.send_form(page, page, &[("node", "n2")]).await.leads_to("/membridge/projects/p1?done=leader");
        let sent = &stub.seen("/projects/p1/leadership/select")[0];
        assert!(sent.body.contains("\"n2\""), "{}", sent.body);
        stub.always("/health", Reply::new(401, "{}"));
        browser.send_form("/membridge", "/membridge/test", &[]).await.expect(200).has("HTTP 401");
    }

    async fn the_memory_of_a_project_is_shown_pushed_and_pulled(database) {
        let stub = Stub::start().await;
        let server = Server::on(database).env("MEMBRIDGE_SERVER_URL", &stub.url).env("MEMBRIDGE_ADMIN_KEY", "a-key-0123456789").start();
        let browser = Browser::of(&server);
        house(&stub);
        server.post("workers", json!({ "name": "n1" })).await.created();
        let list = browser.send_form("/membridge", "/membridge/test", &[]).await.expect(200);
        list.has(&format!("<a href=\"/membridge/projects/{HOUSE}\">house</a>"));
        list.has("<a href=\"/workers/n1\">n1</a>");
        list.has("version 2");
        let page = format!("/membridge/projects/{HOUSE}");
        let shown = browser.ok(&page).await;
        for text in ["<h1>house</h1>", &format!("<span class=\"mono\">{HOUSE}</span>"), "1.5 KiB", "6fe2e0f6071a</span>", "the disk is full"] {
            shown.has(text);
        }
        shown.has_not("a job of another project");
        // The server pushes and pulls the memories of its own projects.
        shown.has("add a project with this name");
        shown.has_not("Push its memory");
        let push = format!("{page}/push");
        browser.send_form(&page, &push, &[("node", "n1")]).await.expect(404).has("no project of this name");
        server.post("projects", json!({ "name": "house", "repo_url": "https://git.example/house.git" })).await.created();
        browser.ok(&page).await.has("Push its memory");

        stub.always("/sync/push", Reply::new(502, r#"{"detail":"Agent returned 401: {}"}"#));
        let refused = browser.send_form(&page, &push, &[("node", "n1")]).await.expect(502);
        refused.has("<h1>house</h1>");
        refused.has("<p lang=\"en\">Agent returned 401: {}</p>");
        refused.has("<code>MEMBRIDGE_AGENT_KEY</code>");
        stub.always("/sync/push", Reply::new(200, r#"{"ok":true}"#));
        browser.send_form(&page, &push, &[("node", "n1")]).await.leads_to(&format!("{page}?done=push"));
        let confirm = format!("{page}/confirm-pull?node=n2");
        browser.ok(&page).await.has(&format!("href=\"{confirm}\""));
        browser.ok(&confirm).await.has("Replace the memory on n2?");
        stub.always("/sync/pull", Reply::new(200, r#"{"ok":true}"#));
        browser.send_form(&confirm, &format!("{page}/pull?node=n2"), &[]).await.leads_to(&format!("{page}?done=pull"));
        let sent = &stub.seen("/sync/pull")[0];
        assert_eq!(serde_json::from_str::<Value>(&sent.body).unwrap(), json!({ "project": "house", "agent": "n2" }));
    }

    async fn what_a_control_plane_answers_is_no_answer_of_the_server(database) {
        let stub = Stub::start().await;
        let server = Server::on(database).env("MEMBRIDGE_SERVER_URL", &stub.url).env("MEMBRIDGE_ADMIN_KEY", "a-key-0123456789");
        let server = server.env("RUNTIME_API_KEY", ADMIN).start();
        let browser = Browser::signed_in(&server, ADMIN).await;
        house(&stub);
        let page = format!("/membridge/projects/{HOUSE}");
        let deep = "[".repeat(1_000);
        for (status, body) in [(401, "{}"), (403, "{}"), (302, "{}"), (304, ""), (204, ""), (200, "<html>"), (200, deep.as_str()), (200, r#"{"term":NaN}"#)] {
            stub.always(&format!("/projects/{HOUSE}/leadership"), Reply::new(status, body));
            let refused = browser.get(&page).await.expect(502);
            refused.has(&format!("The control plane at {}", stub.url));
            refused.has(" does not work: it");
            refused.has("Check its address and its key: <a href=\"/membridge\">");
            refused.has_not("Sign in with");
            // The list of projects, too, is not empty then.
            browser.send_form("/membridge", "/membridge/test", &[]).await.expect(200).has(">house</a>");
            stub.once("/projects", Reply::new(status, body));
            let list = browser.ok("/membridge").await;
            list.has(&format!("<span lang=\"en\">The control plane at {}", stub.url));
            list.has("name=\"membridge_server_url\"");
            list.has_not("The control plane has none");
        }
        house(&stub);
        stub.always(&format!("/projects/{HOUSE}/leadership/select"), Reply::new(401, "{}"));
        let refused = browser.send_form(&page, &page, &[("node", "n2")]).await.expect(502);
        refused.has("it answered with status 401");
        refused.has("<h1>house</h1>");
        stub.always(&format!("/projects/{HOUSE}/nodes"), Reply::new(404, "{}"));
        browser.get(&page).await.expect(404);
    }

    async fn the_form_comes_also_if_the_control_plane_hangs(database) {
        let stub = Stub::start().await;
        let server = Server::on(database).env("MEMBRIDGE_SERVER_URL", &stub.url).env("MEMBRIDGE_ADMIN_KEY", "a-key-0123456789").start();
        let browser = Browser::of(&server);
        house(&stub);
        browser.send_form("/membridge", "/membridge/test", &[]).await.expect(200);
        let hanging = || Reply { after: std::time::Duration::from_secs(60), ..Reply::new(200, "[]") };
        for path in ["/projects".to_owned(), "/jobs".into(), format!("/projects/{HOUSE}/nodes"), format!("/projects/{HOUSE}/leadership")] {
            stub.always(&path, hanging());
        }
        let list = browser.ok("/membridge").await;
        list.has("it did not answer within 5 s");
        list.has("name=\"membridge_server_url\"");
        browser.get(&format!("/membridge/projects/{HOUSE}")).await.expect(502).has("it did not answer within 5 s");
    }

    async fn who_only_reads_gets_no_buttons_of_memories(database) {
        let stub = Stub::start().await;
        let server = Server::on(database).env("MEMBRIDGE_SERVER_URL", &stub.url).env("MEMBRIDGE_ADMIN_KEY", "a-key-0123456789");
        let server = server.env("RUNTIME_API_KEY", ADMIN).env("RUNTIME_READ_KEY", "reader-key-0123456789").start();
        let reader = Browser::signed_in(&server, "reader-key-0123456789").await;
        house(&stub);
        server.with_key(ADMIN).post("projects", json!({ "name": "house", "repo_url": "https://git.example/house.git" })).await.created();
        let page = format!("/membridge/projects/{HOUSE}");
        let shown = reader.ok(&page).await;
        for button in ["Push its memory", "confirm-pull", "Make leader"] {
            shown.has_not(button);
        }
        reader.get(&format!("{page}/confirm-pull?node=n2")).await.expect(403);
    }
}
