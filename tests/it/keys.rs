//! Named keys: what each scope opens, how long a key lasts, and on which servers.

use reqwest::Method;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::on_both;
use crate::support::checker::Link;
use crate::support::pushed::nowhere;
use crate::support::*;

pub const ADMIN: &str = "admin-key-0123456789";

/// A server on which named keys count.
pub fn keyed(database: Database) -> Server {
    Server::on(database).env("RUNTIME_API_KEY", ADMIN).env("RUNTIME_WORKER_KEY", "worker-key-0123456789").start()
}

/// Creates a key; the fields of `more` are added.
pub async fn create(admin: &Api, name: &str, scope: &str, more: Value) -> String {
    let mut body = json!({ "name": name, "scope": scope });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let created = admin.post("keys", body).await.created();
    created["key"].as_str().expect("a key").to_owned()
}

/// The same server with a new named key.
pub async fn with_new_key(admin: &Api, server: &Api, name: &str, scope: &str, more: Value) -> Api {
    server.with_key(&create(admin, name, scope, more).await)
}

const WORKER: [&str; 14] = [
    "GET artifacts/{id}/content",
    "GET whoami",
    "POST artifacts",
    "POST llm-tasks/{id}/complete",
    "POST llm-tasks/{id}/events",
    "POST llm-tasks/{id}/heartbeat",
    "POST llm-tasks/{id}/question",
    "POST llm-tasks/{id}/release",
    "POST workers",
    "POST workers/{id}/claim",
    "POST workers/{id}/complete",
    "POST workers/{id}/contexts",
    "POST workers/{id}/events",
    "POST workers/{id}/heartbeat",
];
const SUBMIT: [&str; 28] = [
    "DELETE artifacts/{id}",
    "DELETE llm-tasks/{id}",
    "GET artifacts",
    "GET artifacts/{id}/content",
    "GET contexts",
    "GET contexts/{context_id}",
    "GET leases",
    "GET llm-tasks",
    "GET llm-tasks/{id}",
    "GET llm-tasks/{id}/events",
    "GET llm-tasks/{id}/question",
    "GET llm-tasks/{id}/result",
    "GET llm-tasks/{id}/wait",
    "GET usage",
    "GET watch",
    "GET whoami",
    "PATCH llm-tasks/{id}",
    "POST artifacts",
    "POST contexts/{context_id}/reset",
    "POST llm-tasks",
    "POST llm-tasks/{id}/answer",
    "POST llm-tasks/{id}/cancel",
    "POST llm-tasks/{id}/requeue",
    "POST llm-tasks/{id}/resume",
    "POST llm-tasks/{id}/suspend",
    "POST llm-tasks:batch",
    "POST llm-tasks:cancel",
    "POST llm-tasks:requeue",
];
/// What a member key reads besides.
const MEMBER: [&str; 5] = ["GET projects", "GET projects/{id}", "GET queues", "GET workers", "GET workers/{id}"];
const OPEN: [&str; 5] = ["GET /healthz", "GET /readyz", "GET /health", "GET health", "POST test-connection"];

pub fn opens(scope: &str, route: &str) -> bool {
    if OPEN.contains(&route) {
        return true;
    }
    if route == "POST enroll" {
        return scope == "join";
    }
    let is_for_admins = ["GET workers/{id}/agent-health", "GET keys"].contains(&route);
    match scope {
        "admin" => true,
        "submit" => SUBMIT.contains(&route),
        "member" => SUBMIT.contains(&route) || MEMBER.contains(&route),
        "worker" => WORKER.contains(&route),
        "read" => route.starts_with("GET ") && !is_for_admins,
        _ => false,
    }
}

pub async fn routes(server: &Api) -> Vec<(Method, String)> {
    let described = server.get("/openapi.json").await.ok();
    let mut all = Vec::new();
    for (path, methods) in described["paths"].as_object().unwrap() {
        let path = path.strip_prefix("/api/runtime/").unwrap_or(path);
        all.extend(methods.as_object().unwrap().keys().map(|method| (method.to_uppercase().parse().unwrap(), path.to_owned())));
    }
    all
}

on_both! { alone:
    async fn each_scope_opens_its_routes_and_no_others(database) {
        let server = keyed(database);
        let admin = server.with_key(ADMIN);
        let routes = routes(&server).await;
        assert!(routes.len() > 45, "{routes:?}");
        let worker = unique("worker");
        for scope in ["admin", "submit", "member", "worker", "read", "join"] {
            let more = match scope {
                "worker" => json!({ "worker": worker }),
                "member" => json!({ "team": "web" }),
                _ => json!({}),
            };
            let api = with_new_key(&admin, &server, &format!("a-{scope}"), scope, more).await;
            for (method, path) in &routes {
                let route = format!("{method} {path}");
                let id = if path.starts_with("workers/") { &worker } else { NO_ID };
                let path = path.replace("{id}", id).replace("{cid}", "project");
                // The watch stream does not end, so only the head of the answer is read.
                let answer = api.request(method.clone(), &path).send().await.unwrap();
                let refused = matches!(answer.status().as_u16(), 401 | 403);
                assert_eq!(refused, !opens(scope, &route), "{scope}: {route}: {}", answer.status());
            }
        }
    }

    async fn a_key_is_shown_once_and_stored_as_a_digest(database) {
        let server = keyed(database);
        let admin = server.with_key(ADMIN);
        let created = admin.post("keys", json!({ "name": "ci", "scope": "read", "expires_in_sec": 60 })).await.created();
        let key = created["key"].as_str().unwrap().to_owned();
        assert!(key.starts_with("bloom_") && key.len() == 49, "{key}");
        assert_eq!(created["created_by"], "admin");
        assert_eq!(created["expires_at"].as_i64().unwrap() - created["created_at"].as_i64().unwrap(), 60_000);
        server.with_key(&key).get("stats").await.ok();
        server.with_header("authorization", &format!("Bearer {key}")).get("stats").await.ok();
        let listed = admin.get("keys").await.expect(200);
        assert!(!listed.text.contains(&key) && !listed.text.contains("digest"), "{}", listed.text);
        let listed = listed.json();
        assert_eq!((&listed[0]["name"], &listed[0]["scope"], &listed[0]["worker"]), (&json!("ci"), &json!("read"), &json!(null)));
        admin.post("keys", json!({ "name": "ci", "scope": "admin" })).await.error(409);
        let other = with_new_key(&admin, &server, "second", "admin", json!({})).await;
        let third = other.post("keys", json!({ "name": "third", "scope": "read" })).await.created();
        assert_eq!(third["created_by"], "key:second");
        assert_eq!(admin.delete("keys/ci").await.ok(), json!({ "removed": true, "id": "ci" }));
        server.with_key(&key).get("stats").await.fails(401, "Unauthorized");
        admin.delete("keys/ci").await.fails(404, "Key not found");
        admin.delete("keys/no%20key%00").await.fails(404, "Key not found");
        let trail = admin.get("audit").await.ok();
        let of_keys: Vec<_> = trail.as_array().unwrap().iter().filter(|entry| entry["entity_type"] == "key").collect();
        let told = |entry: &Value| format!("{} {} {}", entry["action"], entry["entity_id"], entry["actor"]).replace('"', "");
        assert_eq!(
            of_keys.into_iter().map(told).collect::<Vec<_>>(),
            ["key_revoked ci admin", "key_created third key:second", "key_created second admin", "key_created ci admin"]
        );
        assert!(!server.log().contains(&key), "{}", server.log());
    }

    async fn keys_are_refused_with_the_field_that_is_wrong(database) {
        let server = keyed(database);
        let admin = server.with_key(ADMIN);
        let refuses = async |body: Value, field: &str| {
            admin.post("keys", body).await.refuses(&[field]);
        };
        refuses(json!({ "name": "a/b", "scope": "read" }), "name").await;
        refuses(json!({ "name": "-a", "scope": "read" }), "name").await;
        refuses(json!({ "name": "a".repeat(64), "scope": "read" }), "name").await;
        refuses(json!({ "name": "a", "scope": "root" }), "scope").await;
        refuses(json!({ "name": "a", "scope": "worker" }), "worker").await;
        refuses(json!({ "name": "a", "scope": "submit", "worker": "w" }), "worker").await;
        refuses(json!({ "name": "a", "scope": "member" }), "team").await;
        refuses(json!({ "name": "a", "scope": "member", "team": "a/b" }), "team").await;
        refuses(json!({ "name": "a", "scope": "member", "team": "web", "worker": "w" }), "worker").await;
        refuses(json!({ "name": "a", "scope": "read", "team": "web" }), "team").await;
        refuses(json!({ "name": "a", "scope": "read", "quota": { "max_open_tasks": 1 } }), "quota").await;
        refuses(json!({ "name": "a", "scope": "join", "worker": "not fit" }), "worker").await;
        refuses(json!({ "name": "a", "scope": "join", "expires_in_sec": 30 * 86_400 + 1 }), "expires_in_sec").await;
        refuses(json!({ "name": "a", "scope": "read", "expires_in_sec": 0 }), "expires_in_sec").await;
        assert_eq!(admin.get("keys").await.ok(), json!([]));
        let created = admin.post("keys", json!({ "name": "j", "scope": "join" })).await.created();
        assert_eq!(created["expires_at"].as_i64().unwrap() - created["created_at"].as_i64().unwrap(), 86_400_000);
    }

    async fn an_expired_key_opens_nothing_and_ends_what_waits(database) {
        let server = keyed(database);
        let admin = server.with_key(ADMIN);
        let reader = with_new_key(&admin, &server, "short", "read", json!({ "expires_in_sec": 3 })).await;
        reader.get("stats").await.ok();
        let mut stream = sse::open(&reader, "watch", None).await;
        let task = admin.crew().task().create().await;
        reader.get(&task.path("/wait?timeout_sec=60")).await.fails(401, "Unauthorized");
        while stream.next().await.is_some() {}
        reader.get("stats").await.fails(401, "Unauthorized");
        assert_eq!(admin.get("keys").await.ok()[0]["name"], "short", "an expired key stays in the list");
    }

    async fn a_request_that_is_still_being_sent_does_not_outlive_its_key(database) {
        let server = keyed(database);
        let admin = server.with_key(ADMIN);
        let key = create(&admin, "gone", "admin", json!({})).await;
        let body = r#"{"name":"planted","scope":"admin"}"#;
        let (first, last) = body.split_at(10);
        let mut stream = TcpStream::connect(server.base().trim_start_matches("http://")).await.unwrap();
        let head = format!("POST /api/runtime/keys HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\nx-runtime-api-key: {key}\r\ncontent-length: {}\r\nexpect: 100-continue\r\n\r\n", body.len());
        stream.write_all(head.as_bytes()).await.unwrap();
        // The server asks for the body when it has accepted the key.
        let mut asked = [0; 12];
        stream.read_exact(&mut asked).await.unwrap();
        assert_eq!(&asked, b"HTTP/1.1 100");
        stream.write_all(first.as_bytes()).await.unwrap();
        admin.delete("keys/gone").await.ok();
        stream.write_all(last.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert!(answer.contains("HTTP/1.1 401"), "{answer}");
        assert_eq!(admin.get("keys").await.ok(), json!([]));
    }

    async fn no_worker_has_the_name_of_another_actor(database) {
        let server = keyed(database);
        let admin = server.with_key(ADMIN);
        for name in ["admin", "api", "router", "reconciler", "key:red"] {
            let refused = admin.post("workers", json!({ "name": name })).await.refuses(&["name"]);
            assert!(refused["name"][0].as_str().unwrap().contains("audit trail"), "{refused}");
        }
        let token = with_new_key(&admin, &server, "token", "join", json!({})).await;
        token.post("enroll", json!({ "worker": "admin" })).await.refuses(&["worker"]);
        let named = with_new_key(&admin, &server, "second", "admin", json!({})).await;
        named.post("test-connection", json!({})).await;
        assert_eq!(admin.get("audit?action=connection_test").await.ok()[0]["actor"], "key:second");
    }

    async fn the_audit_trail_names_the_key_of_each_call(database) {
        let server = keyed(database);
        let admin = server.with_key(ADMIN);
        let named = with_new_key(&admin, &server, "ci", "admin", json!({})).await;
        let crew = named.crew();
        let worker = crew.worker().slots(8).register().await;
        let end = |lease: &str, more: Value| {
            let mut end = json!({ "status": "error", "lease_id": lease, "metrics": { "duration_ms": 1 } });
            end.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            end
        };
        let claimed = async || {
            crew.task().create().await;
            let claimed = worker.claim(1).await;
            let text = |field: &str| claimed[0]["lease"][field].as_str().unwrap().to_owned();
            (named.task(&text("task_id")), text("id"))
        };
        let called = crew.task().create().await;
        called.lease_to(&worker).await;
        called.heartbeat(json!({})).await.ok();
        called.succeed("x").await;
        let (task, lease) = claimed().await;
        let later = now_ms() + 3_600_000;
        task.complete(end(&lease, json!({ "retryable": true, "retry_at": later }))).await.ok();
        let (task, lease) = claimed().await;
        let one = end(&lease, json!({ "task_id": task.id }));
        let answer = named.post(&worker.path("/complete"), json!({ "completions": [one] })).await.ok();
        assert_eq!(answer["results"][0]["status"], 200, "{answer}");
        let (task, lease) = claimed().await;
        named.post(&task.path("/release"), json!({ "lease_id": lease, "reason": "shutdown" })).await.ok();
        let gone = crew.worker_at(&nowhere()).register().await;
        crew.task().create().await.dispatch(json!({ "worker_id": gone.name })).await.expect(502);

        let trail = admin.get("audit?limit=1000").await.ok();
        let trail = trail.as_array().unwrap();
        let actors = |action: &str| -> Vec<&str> {
            trail.iter().filter(|entry| entry["action"] == action).map(|entry| entry["actor"].as_str().unwrap()).collect()
        };
        for (action, times) in
            [("task_leased", 5), ("task_completed", 2), ("task_retried", 1), ("task_released", 1), ("task_dispatched", 1), ("worker_registered", 2)]
        {
            assert_eq!(actors(action), vec!["key:ci"; times], "{action}");
        }
        assert_eq!(actors("dispatch_failed"), ["router"], "the server has found that out");
        let of_worker = admin.get(&format!("audit?action=task_completed&worker_id={}", worker.name)).await.ok();
        assert_eq!(of_worker.as_array().unwrap().len(), 2, "what its key did is still what the worker did");
    }

    async fn a_server_without_an_admin_key_takes_no_named_keys(database) {
        let server = keyed(database);
        let key = create(&server.with_key(ADMIN), "kept", "read", json!({})).await;
        let plan = server.plan().clone();
        server.stop();
        let open = plan.clone().env("RUNTIME_API_KEY", "").env("RUNTIME_WORKER_KEY", "").start();
        assert!(open.log().contains("the stored keys have no effect"), "{}", open.log());
        let refused = open.post("keys", json!({ "name": "more", "scope": "read" })).await.error(409);
        assert!(refused.contains("RUNTIME_API_KEY"), "{refused}");
        assert!(open.post("enroll", json!({ "worker": "w" })).await.error(409).contains("RUNTIME_API_KEY"));
        open.with_key(&key).get("keys").await.ok();
        assert_eq!(open.get("whoami").await.ok(), json!({ "scope": "admin", "key": null, "open": true }));
        open.stop();
        let keyed = plan.start();
        keyed.with_key(&key).get("stats").await.ok();
        keyed.with_key(&key).get("keys").await.error(403);
    }
}

#[test]
fn a_key_counts_on_all_replicas_until_it_is_revoked_on_one() {
    let url = postgres::database();
    let start = || Server::on_url(&url).env("RUNTIME_API_KEY", ADMIN).start();
    let (here, there) = (start(), start());
    run(async {
        let admin = here.with_key(ADMIN);
        let key = create(&admin, "shared", "read", json!({})).await;
        here.with_key(&key).get("stats").await.ok();
        let reader = there.with_key(&key);
        reader.get("stats").await.ok();
        let mut stream = sse::open(&reader, "watch", None).await;
        let task = admin.crew().task().create().await;
        let (waits, path) = (reader.clone(), task.path("/wait?timeout_sec=60"));
        let waiting = beside(async move { waits.get(&path).await });
        admin.delete("keys/shared").await.ok();
        here.with_key(&key).get("stats").await.fails(401, "Unauthorized");
        waiting.await.unwrap().fails(401, "Unauthorized");
        while stream.next().await.is_some() {}
        reader.get("stats").await.fails(401, "Unauthorized");
    });
}

#[test]
fn a_key_that_can_not_be_checked_for_long_opens_nothing() {
    let url = postgres::database();
    let server = Server::on_url(&url).env("RUNTIME_API_KEY", ADMIN).start();
    run(async {
        let reader = with_new_key(&server.with_key(ADMIN), &server, "reader", "read", json!({})).await;
        reader.get("stats").await.ok();
        // The server can't read its keys while they are revoked in a transaction that takes its time.
        let waits = server.with_key(ADMIN).crew().task().create().await.path("/wait?timeout_sec=60");
        let waiting = {
            let reader = reader.clone();
            beside(async move { reader.get(&waits).await })
        };
        let mut other = Link::open(&url).await;
        other.rows("BEGIN").await;
        other.rows("LOCK TABLE api_keys IN ACCESS EXCLUSIVE MODE").await;
        other.rows("DELETE FROM api_keys").await;
        let refused = eventually("the copy of the keys is too old", || async {
            let answer = reader.get("stats").await;
            (answer.status != 200).then_some(answer)
        })
        .await;
        refused.error(503);
        waiting.await.unwrap().error(503);
        server.with_key(ADMIN).get("stats").await.ok();
        other.rows("COMMIT").await;
        let refused = eventually("the keys are read again", || async {
            let answer = reader.get("stats").await;
            (answer.status != 503).then_some(answer)
        })
        .await;
        refused.fails(401, "Unauthorized");
    });
}

#[test]
fn a_replica_that_starts_waits_for_a_lock_on_a_table() {
    for table in ["api_keys", "task_state", "lanes"] {
        starts_after_a_lock_on(table);
    }
}

fn starts_after_a_lock_on(table: &str) {
    let url = postgres::database();
    let first = Server::on_url(&url).env("RUNTIME_API_KEY", ADMIN).start();
    run(async {
        let (mut other, observer) = (Link::open(&url).await, tokio::sync::Mutex::new(Link::open(&url).await));
        first.stop();
        other.rows("BEGIN").await;
        other.rows(&format!("LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE")).await;
        let plan = Server::on_url(&url).env("RUNTIME_API_KEY", ADMIN);
        let starting = std::thread::spawn(move || plan.start());
        // Its first try has failed when another one waits, which began after the lock timeout.
        let first = std::cell::Cell::new(None);
        eventually("a second try", || async {
            assert!(!starting.is_finished(), "the replica has given up: {table}");
            let waiting = "SELECT floor(extract(epoch FROM max(query_start)) * 1000)::bigint::text FROM pg_stat_activity \
                           WHERE wait_event_type = 'Lock' AND datname = current_database()";
            let began: i64 = observer.lock().await.rows(waiting).await[0][0].as_ref()?.parse().unwrap();
            let first = first.get().unwrap_or_else(|| {
                first.set(Some(began));
                began
            });
            (began > first + 2_000).then_some(())
        })
        .await;
        other.rows("COMMIT").await;
        let server = starting.join().expect("it starts");
        server.with_key(ADMIN).get("keys").await.ok();
    });
}
