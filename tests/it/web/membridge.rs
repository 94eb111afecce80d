//! The page of the control plane.

use super::browser::Browser;
use crate::on_both;
use crate::support::stub::{Reply, Stub};
use crate::support::*;

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
        set.has("anot****9999");
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
        browser.send_form(page, page, &[("node", "n2")]).await.leads_to("/membridge/projects/p1?done=1");
        let sent = &stub.seen("/projects/p1/leadership/select")[0];
        assert!(sent.body.contains("\"n2\""), "{}", sent.body);
        stub.always("/health", Reply::new(401, "{}"));
        browser.send_form("/membridge", "/membridge/test", &[]).await.expect(200).has("HTTP 401");
    }
}
