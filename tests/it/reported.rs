//! What workers report: how much of it is taken, and that what stands in the database already does no harm.

use crate::on_both;
use crate::support::checker::{Link, plain};
use crate::support::*;

/// JSON nested so deep.
fn nested(depth: usize) -> String {
    format!("{}{}", "[".repeat(depth), "]".repeat(depth))
}

async fn refuses(api: &Api, path: &str, body: Value, key: &str, says: &str) {
    let complaints = api.post(path, body).await.refuses(&[key]);
    assert!(complaints[key].to_string().contains(says), "{complaints}");
}

/// The condition that names a row by its id.
fn of(link: &Link, column: &str, id: &str) -> String {
    match link {
        Link::Sqlite(_) => format!("{column} = unhex('{}')", plain(id)),
        Link::Postgres(_) => format!("{column} = '{id}'"),
    }
}

on_both! {
    async fn what_a_registration_tells_is_limited(server) {
        let long = |length: usize| json!("ü".repeat(length));
        for (key, most, more, says) in [
            ("url", long(2048), long(2049), "at most 2048"),
            ("agent_version", long(128), long(129), "at most 128"),
            ("os_info", long(512), long(513), "at most 512"),
            ("install_method", long(64), long(65), "at most 64"),
            ("ip_addrs", json!(vec![long(64); 32]), json!(vec!["a"; 33]), "at most 32"),
            ("ip_addrs", json!([]), json!([long(65)]), "0: String must contain at most 64"),
            ("capabilities", json!({ "labels": vec![long(64); 64] }), json!({ "labels": vec!["a"; 65] }), "labels: Array must contain at most 64"),
            ("capabilities", json!({}), json!({ "labels": [long(65)] }), "labels.0: String must contain at most 64"),
            ("capabilities", json!({ "agents": vec!["a".repeat(32); 512] }), json!({ "agents": vec!["a"; 513] }), "agents: Array must contain at most 512"),
            ("capabilities", json!({}), json!({ "agents": [long(129)] }), "agents.0: String must contain at most 128"),
            ("capabilities", json!({ "namespaces": vec!["n".repeat(32); 512] }), json!({ "namespaces": vec!["a"; 513] }), "namespaces: Array must contain at most 512"),
            ("capabilities", json!({}), json!({ "namespaces": ["n".repeat(64)] }), "namespaces.0: Expected the name of a Kubernetes namespace"),
            ("capabilities", json!({ "agents": vec!["a"; 32], "namespaces": vec!["n"; 16] }), json!({ "agents": vec!["a"; 27], "namespaces": vec!["n"; 19] }), "The worker would serve 513 combinations"),
            ("capabilities", json!({ "projects": vec!["p".repeat(256); 100] }), json!({ "projects": vec!["p"; 101] }), "projects: Array must contain at most 100"),
            ("capabilities", json!({ "agents": vec!["a"; 5], "projects": vec!["p"; 100] }), json!({ "agents": vec!["a"; 6], "projects": vec!["p"; 100] }), "The worker would serve 606 combinations"),
            ("capabilities", json!({ "agents": vec![long(128); 64] }), json!({ "agents": vec![long(128); 65] }), "at most 16384 bytes together"),
        ] {
            let name = unique("reporter");
            refuses(server, "workers", json!({ "name": name, key: more }), key, says).await;
            server.post("workers", json!({ "name": name, "status": "offline", key: most })).await.created();
        }
    }

    async fn what_a_completion_tells_is_limited(server) {
        const TOKENS: i64 = 1_000_000_000_000;
        const YEAR_MS: i64 = 366 * 24 * 60 * 60 * 1000;
        let long = |length: usize| json!("ü".repeat(length));
        let (task, lease) = server.crew().leased_task().await;
        let path = task.path("/complete");
        let body = |key: &str, value: Value| {
            let mut body = json!({ "status": "error", "metrics": { "duration_ms": 1 }, "lease_id": lease.id });
            body[key] = value;
            body
        };
        for (key, more, says) in [
            ("metrics", json!({ "duration_ms": YEAR_MS + 1 }), "duration_ms: Number must be less than or equal to 31622400000"),
            ("metrics", json!({ "duration_ms": 1, "tokens_used": 2 * TOKENS + 1 }), "tokens_used: Number must be less than or equal to 2000000000000"),
            ("usage", json!({ "input_tokens": TOKENS + 1 }), "input_tokens: Number must be less than or equal to 1000000000000"),
            ("usage", json!({ "output_tokens": TOKENS + 1 }), "output_tokens: Number"),
            ("usage", json!({ "cost_usd": 1e6 + 1.0 }), "cost_usd: Number"),
            ("error_message", long(65_537), "at most 65536"),
            ("artifact_type", long(129), "at most 128"),
            ("artifact_tags", json!(vec!["t"; 65]), "at most 64"),
            ("artifact_tags", json!([long(256)]), "0: String must contain at most 255"),
            ("worker_id", long(129), "at most 128"),
            ("session_id", long(256), "at most 255"),
            ("model", long(129), "at most 128"),
        ] {
            refuses(server, &path, body(key, more), key, says).await;
        }
        refuses(server, &task.path("/heartbeat"), json!({ "worker_id": long(129) }), "worker_id", "at most 128").await;
        assert_eq!(task.now().await["status"], "leased", "what is refused changes nothing");
        let usage = json!({ "input_tokens": TOKENS, "output_tokens": TOKENS, "cost_usd": 1e6 });
        server.post(&path, json!({
            "status": "error", "lease_id": lease.id, "usage": usage, "metrics": { "duration_ms": YEAR_MS, "tokens_used": 2 * TOKENS },
            "error_message": long(65_536), "artifact_tags": vec![long(255); 64],
        })).await.ok();
        let answer = server.get(&task.path("/result")).await.ok();
        assert_eq!(answer["error_message"], long(65_536));
    }

    async fn json_has_a_limited_depth(server) {
        let (task, lease) = server.crew().leased_task().await;
        let path = task.path("/events");
        let send = async |data: String| {
            let body = format!(r#"{{"lease_id": "{}", "events": [{{"seq": 1, "kind": "log", "at": 1, "data": {data}}}]}}"#, lease.id);
            server.post_bytes(&path, body).await
        };
        for data in [nested(65), nested(99_999), format!(r#"{{"a": {}}}"#, nested(64))] {
            let complaints = send(data).await.refuses(&["events"]);
            assert_eq!(complaints["events"][0], "0.data: JSON must be nested at most 64 levels deep");
        }
        let brackets = "[".repeat(1_000);
        send(format!(r#"["\"{brackets}", {}]"#, nested(63))).await.ok();
        // Many readers can't parse these, though they are valid by the grammar.
        for data in [r#"{"text": "\ud800"}"#, r#"{"\udfff": 1}"#, r#"{"text": 1e400}"#] {
            let complaints = send(data.to_owned()).await.refuses(&["events"]);
            assert!(complaints["events"][0].as_str().unwrap().starts_with("0.data: JSON that readers can't parse"), "{complaints}");
        }
        assert_eq!(server.get(&path).await.ok()[0]["data"][0], format!("\"{brackets}"));
    }

    async fn an_event_that_is_too_deep_is_shown_as_text(server) {
        let (task, lease) = server.crew().leased_task().await;
        server.post(&task.path("/events"), json!({ "lease_id": lease.id, "events": [{ "seq": 1, "kind": "log", "at": 1, "data": 1 }] })).await.ok();
        // As earlier versions took it.
        let mut link = Link::open(&server.database_url()).await;
        let set = format!("UPDATE task_events SET data = '{}' WHERE {}", nested(99_999), of(&link, "task_id", &task.id));
        link.rows(&set).await;
        assert_eq!(server.get(&task.path("/events")).await.ok()[0]["data"], nested(99_999));
    }
}

on_both! { alone:
    /// Sums that no 64-bit number holds, as rows of earlier versions can make them.
    async fn huge_counts_stop_neither_reports_nor_retention(database) {
        const MOST: i64 = 9_007_199_254_740_991;
        let server = Server::on(database).start();
        let crew = server.crew();
        let worker = crew.worker().slots(4).register().await;
        let context = unique("huge");
        let mut tasks = Vec::new();
        for _ in 0..4 {
            let task = crew.task().context(&context).with("session", json!("none")).with("ttl_after_finished_sec", json!(3_600)).create().await;
            task.lease_to(&worker).await.complete("success", json!({ "usage": { "input_tokens": 1, "output_tokens": 2 } })).await.ok();
            tasks.push(task);
        }
        let mut link = Link::open(&server.database_url()).await;
        link.rows(&format!("UPDATE leases SET input_tokens = {}, output_tokens = {MOST}", i64::MAX)).await;
        let report = async || {
            let rows = server.get("usage?by=context_id").await.ok();
            (rows[0]["runs"].clone(), rows[0]["input_tokens"].clone(), rows[0]["output_tokens"].clone())
        };
        assert_eq!(report().await, (json!(4), json!(MOST), json!(MOST)));
        // One after the other, so that sums are added to sums.
        for task in &tasks {
            link.rows(&format!("UPDATE task_state SET remove_at = 1 WHERE {}", of(&link, "id", &task.id))).await;
            eventually("it is removed", || async { (server.get(&task.path("")).await.status == 404).then_some(()) }).await;
        }
        assert_eq!(report().await, (json!(4), json!(MOST), json!(MOST)));
    }

    /// A task that the database does not let go.
    async fn a_task_that_cannot_be_removed_stops_no_other(database) {
        let server = Server::on(database).start();
        let crew = server.crew();
        let mut tasks = Vec::new();
        for _ in 0..8 {
            let task = crew.task().with("session", json!("none")).with("ttl_after_finished_sec", json!(3_600)).create().await;
            server.poke(&task.path("/cancel")).await.ok();
            tasks.push(task);
        }
        let bad = tasks.remove(3);
        let mut link = Link::open(&server.database_url()).await;
        let is_bad = of(&link, "OLD.id", &bad.id);
        match link {
            Link::Sqlite(_) => {
                link.rows(&format!("CREATE TRIGGER keep BEFORE DELETE ON task_state WHEN {is_bad} BEGIN SELECT RAISE(ABORT, 'kept'); END")).await;
            }
            Link::Postgres(_) => {
                link.rows("CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'kept'; END $$").await;
                link.rows(&format!("CREATE TRIGGER keep BEFORE DELETE ON task_state FOR EACH ROW WHEN ({is_bad}) EXECUTE FUNCTION keep()")).await;
            }
        }
        link.rows("UPDATE task_state SET remove_at = 1").await;
        for task in &tasks {
            eventually("it is removed", || async { (server.get(&task.path("")).await.status == 404).then_some(()) }).await;
        }
        bad.reaches("cancelled").await;
        eventually("the log names it", || async { server.log().contains(&format!("task={}", bad.id)).then_some(()) }).await;
        link.rows("UPDATE task_state SET remove_at = 2").await;
        let later = crew.task().with("ttl_after_finished_sec", json!(0)).create().await;
        server.poke(&later.path("/cancel")).await.ok();
        eventually("later ones are removed", || async { (server.get(&later.path("")).await.status == 404).then_some(()) }).await;
    }
}

#[test]
fn there_is_a_limit_of_workers() {
    let url = postgres::database();
    let before = Server::on_url(&url).start();
    run(async {
        before.post("workers", json!({ "name": "first" })).await.created();
        before.stop();
        let more = "INSERT INTO workers SELECT (jsonb_populate_record(w, jsonb_build_object('id', 'w' || n))).* \
                    FROM workers w, generate_series(2, 10000) n";
        direct::execute(&url, more).await;
        let seen = "INSERT INTO worker_seen SELECT (jsonb_populate_record(s, jsonb_build_object('worker_id', 'w' || n))).* \
                    FROM worker_seen s, generate_series(2, 10000) n";
        direct::execute(&url, seen).await;
        let server = Server::on_url(&url).start();
        let refused = server.post("workers", json!({ "name": "one-more" })).await.error(409);
        assert!(refused.contains("10,000") && refused.contains("worker rm"), "{refused}");
        server.post("workers", json!({ "name": "w7" })).await.ok();
        server.delete("workers/w8").await.ok();
        server.post("workers", json!({ "name": "one-more" })).await.created();
    });
}
