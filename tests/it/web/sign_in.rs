//! Signing in and out, sessions, and who may do what.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;

use super::browser::Browser;
use crate::keys::{ADMIN, create};
use crate::on_both;
use crate::support::*;

const READER: &str = "reader-key-0123456789";
const WORKER: &str = "worker-key-0123456789";
const SESSION: &str = "bloom_session";
const PAGES: [&str; 11] =
    ["/", "/tasks", "/tasks/new", "/workers", "/projects", "/leases", "/artifacts", "/audit", "/reconcilers", "/membridge", "/live"];

fn guarded(database: Database) -> Server {
    Server::on(database).env("RUNTIME_API_KEY", ADMIN).env("RUNTIME_READ_KEY", READER).env("RUNTIME_WORKER_KEY", WORKER).start()
}

on_both! { alone:
    async fn a_person_signs_in_and_out(database) {
        let server = guarded(database);
        let browser = Browser::of(&server);
        for page in PAGES {
            let answer = browser.get(page).await;
            assert!(answer.status == 303 && answer.header("location").starts_with("/sign-in"), "{page}: {}", answer.status);
            assert!(!answer.text.contains("queued"), "{page}");
        }
        browser.ok("/sign-in").await.has("admin, submit, member or read");
        browser.sign_in("wrong-key").await.expect(401).has("not a key of this server");
        browser.sign_in("").await.expect(400);
        assert_eq!(browser.cookie(SESSION), None);
        let signed_in = browser.sign_in(ADMIN).await;
        signed_in.leads_to("/");
        let cookie = signed_in.header("set-cookie");
        assert!(cookie.contains("HttpOnly") && cookie.contains("SameSite=Strict") && cookie.contains("Path=/"), "{cookie}");
        assert!(!cookie.contains(ADMIN), "{cookie}");
        browser.ok("/").await.has("Overview");
        browser.send_form("/", "/sign-out", &[]).await.leads_to("/sign-in");
        browser.get("/").await.leads_to("/sign-in");
        let deep = Browser::of(&server);
        deep.get("/tasks?status=dead").await.leads_to("/sign-in?next=%2Ftasks%3Fstatus%3Ddead");
        deep.send_form("/sign-in", "/sign-in", &[("key", ADMIN), ("next", "/tasks?status=dead")]).await.leads_to("/tasks?status=dead");
        let fooled = Browser::of(&server);
        fooled.send_form("/sign-in", "/sign-in", &[("key", ADMIN), ("next", "//evil.example")]).await.leads_to("/");
    }

    async fn who_is_not_signed_in_takes_no_memory_for_bodies(database) {
        let server = guarded(database);
        let browser = Browser::of(&server);
        browser.send_form("/sign-in", "/sign-in", &[("key", &"x".repeat(20_000))]).await.expect(413);
        browser.post("/tasks/new", &[("prompt", &"x".repeat(500_000))], &[]).await.expect(401).has("You are signed out");
        // Answered before the body is there.
        let head = "Host: localhost\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: 1000000\r\n\r\n";
        for (path, status) in [("/tasks/new", 401), ("/leases", 405), ("/sign-out", 401)] {
            let mut stream = TcpStream::connect(server.base().trim_start_matches("http://")).unwrap();
            stream.write_all(format!("POST {path} HTTP/1.1\r\n{head}").as_bytes()).unwrap();
            let mut line = String::new();
            BufReader::new(stream).read_line(&mut line).unwrap();
            assert!(line.starts_with(&format!("HTTP/1.1 {status} ")), "{path}: {line}");
        }
    }

    async fn a_worker_key_is_refused_with_a_sentence(database) {
        let server = guarded(database);
        let browser = Browser::of(&server);
        browser.sign_in(WORKER).await.expect(403).has("This is the key of a worker");
        let join = create(&server.with_key(ADMIN), "joiner", "join", json!({ "worker": "w" })).await;
        browser.sign_in(&join).await.expect(403).has("This is a join token");
        assert_eq!(browser.cookie(SESSION), None);
    }

    async fn a_read_key_sees_everything_and_has_no_buttons(database) {
        let server = guarded(database);
        let admin = server.with_key(ADMIN);
        let task = admin.post("llm-tasks", json!({ "context_id": "c", "agent_slug": "a", "prompt": "read me" })).await.created();
        admin.post("workers", json!({ "name": "w1" })).await.created();
        let id = task["id"].as_str().unwrap();
        let reader = Browser::signed_in(&server, READER).await;
        let task_page = format!("/tasks/{id}");
        for page in ["/", "/tasks", &task_page, "/workers", "/workers/w1", "/leases", "/artifacts", "/audit", "/reconcilers", "/membridge"] {
            let shown = reader.ok(page).await;
            shown.has("read only");
            let buttons = shown.text.matches("method=\"post\"").count();
            // Signing out, and the list of tasks, which has no button that acts.
            assert!(buttons <= if page == "/tasks" { 2 } else { 1 }, "{page}: {}", shown.text);
            shown.has_not("value=\"cancel\"");
        }
        reader.get("/tasks/new").await.expect(403);
        let token = reader.ok("/").await.form_token();
        for target in [format!("{task_page}/cancel"), format!("{task_page}/delete"), "/workers/w1/cordon".into(), "/workers/w1/remove".into()] {
            reader.post(&target, &[("form_token", &token)], &[]).await.expect(403).has("scope read");
        }
        let form = [("form_token", token.as_str()), ("prompt", "p"), ("agent_slug", "a"), ("context_id", "c")];
        reader.post("/tasks/new", &form, &[]).await.expect(403);
        assert_eq!(admin.get(&format!("llm-tasks/{id}")).await.ok()["status"], json!("queued"));
        assert_eq!(admin.get("llm-tasks").await.ok().as_array().unwrap().len(), 1);
    }

    async fn a_submit_key_sees_and_changes_only_its_own_tasks(database) {
        let server = guarded(database);
        let admin = server.with_key(ADMIN);
        let other = admin.post("llm-tasks", json!({ "context_id": "c", "agent_slug": "a", "prompt": "not yours" })).await.created();
        let key = create(&admin, "team", "submit", json!({})).await;
        let browser = Browser::signed_in(&server, &key).await;
        let created = browser.send_form("/tasks/new", "/tasks/new", &[("prompt", "my own"), ("agent_slug", "a"), ("context_id", "c")]).await;
        assert_eq!(created.status, 303, "{}", created.text);
        let own = created.header("location").split('?').next().unwrap().to_owned();
        browser.ok(&own).await.has("my own");
        for page in ["/", "/tasks"] {
            let shown = browser.ok(page).await;
            shown.has_not("not yours");
            shown.has_not("href=\"/workers\"");
        }
        let other = format!("/tasks/{}", other["id"].as_str().unwrap());
        browser.get(&other).await.expect(404);
        browser.send_form("/tasks", &format!("{other}/cancel"), &[]).await.expect(404);
        browser.ok("/artifacts").await.has("You have uploaded no files.");
        let shown = browser.ok(&own).await;
        shown.has_not("Your key does not show them.");
        for page in ["/workers", "/audit", "/reconcilers", "/leases"] {
            browser.get(page).await.expect(403);
        }
        browser.send_form(&own, &format!("{own}/cancel"), &[]).await.leads_to(&format!("{own}?done=cancel"));
    }

    async fn the_worker_of_a_task_is_a_link_for_who_may_see_workers(database) {
        let server = guarded(database);
        let admin = server.with_key(ADMIN);
        let worker = admin.worker().slots(2).register().await;
        for (scope, more, links) in [("submit", json!({}), 0), ("member", json!({ "team": "docs" }), 3)] {
            let key = create(&admin, scope, scope, more).await;
            let task = server.with_key(&key).crew().task().create().await.id;
            admin.task(&task).lease_to(&worker).await;
            let shown = Browser::signed_in(&server, &key).await.ok(&format!("/tasks/{task}")).await;
            shown.has(&worker.name);
            // In the head, at its attempt, and in what is told about it.
            assert_eq!(shown.text.matches(&format!("href=\"/workers/{}\"", worker.name)).count(), links, "{scope}: {}", shown.text);
        }
    }

    async fn a_session_ends_with_its_key(database) {
        let server = guarded(database);
        let admin = server.with_key(ADMIN);
        let key = create(&admin, "passing", "read", json!({})).await;
        let browser = Browser::signed_in(&server, &key).await;
        browser.ok("/").await.has("passing");
        admin.delete("keys/passing").await.ok();
        browser.get("/").await.leads_to("/sign-in");
        let again = create(&admin, "passing", "admin", json!({})).await;
        browser.get("/").await.leads_to("/sign-in");
        browser.sign_in(&again).await.leads_to("/");
        browser.ok("/").await;
    }

    async fn a_changed_cookie_is_no_session(database) {
        let server = guarded(database);
        let browser = Browser::signed_in(&server, READER).await;
        let cookie = browser.cookie(SESSION).unwrap();
        // base64 of `read` and `admin`.
        assert!(cookie.contains(".cmVhZA."), "{cookie}");
        for wrong in [cookie.replace(".cmVhZA.", ".YWRtaW4."), format!("{cookie}x"), cookie.split('.').next().unwrap().to_owned(), "..".into()] {
            browser.set_cookie(SESSION, &wrong);
            browser.get("/").await.leads_to("/sign-in");
        }
        browser.set_cookie(SESSION, &cookie);
        browser.ok("/").await;
        // The session is nothing that the API takes.
        server.with_header("cookie", &format!("{SESSION}={cookie}")).get("stats").await.fails(401, "Unauthorized");
        server.with_key(&cookie).get("stats").await.fails(401, "Unauthorized");
    }

    async fn attempts_to_sign_in_are_limited(database) {
        let server = Server::on(database).env("RUNTIME_API_KEY", ADMIN).env("RATE_LIMIT_PER_MINUTE", 5).start();
        let browser = Browser::of(&server);
        for _ in 0..5 {
            browser.sign_in("guess").await.expect(401);
        }
        let refused = browser.sign_in(ADMIN).await.expect(429);
        refused.has("<h1>");
        assert!(!refused.header("retry-after").is_empty());
    }
}
