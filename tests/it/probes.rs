//! Health, readiness and the API explorer.

use crate::on_both;
use crate::support::*;

on_both! {
    async fn health_has_the_documented_shape(server) {
        let health = server.get("/health").await.ok();
        let documented = server.get("health").await.ok();
        assert!(health.as_object().unwrap().keys().eq(documented.as_object().unwrap().keys()), "{health} {documented}");
        let word = if server.is_postgres() { "postgresql" } else { "sqlite" };
        assert_eq!((&health["status"], &health["service"], &health["storage"]), (&json!("ok"), &json!("bloom-runtime"), &json!(word)));
        assert!(health["uptime"].as_f64().is_some_and(|seconds| (0.0..10_000.0).contains(&seconds)), "{health}");
        let membridge = health["membridge"].as_object().unwrap();
        for key in ["consecutiveFailures", "lastSuccess", "lastError", "connected"] {
            assert!(membridge.contains_key(key), "{key}: {health}");
        }
    }

    async fn probes_answer(server) {
        server.get("/healthz").await.expect(200);
        server.get("/readyz").await.expect(200);
    }

    async fn the_explorer_needs_nothing_from_outside(server) {
        let mut page = server.get("/docs").await;
        if let Some(target) = page.header("location").map(ToOwned::to_owned) {
            let target = if target.starts_with('/') { target } else { format!("/docs/{}", target.trim_start_matches("./")) };
            page = server.get(&target).await;
        }
        let page = page.expect(200);
        assert!(page.header("content-type").is_some_and(|kind| kind.starts_with("text/html")));
        assert!(!page.text.contains("https://") && !page.text.contains("//cdn"), "{}", page.text);
        server.get("/").await.expect(200);
    }
}

on_both! { alone:
    async fn health_names_the_database(database) {
        let server = Server::on(database).start();
        assert_eq!(server.get("health").await.ok()["storage"], database.word());
    }
}

#[test]
fn without_its_database_a_server_lives_but_is_not_ready() {
    let cluster = postgres::Cluster::start();
    let server = Server::on_url(&cluster.database()).start();
    run(async {
        server.get("/readyz").await.expect(200);
        cluster.stop();
        server.get("/healthz").await.expect(200);
        eventually("the server is not ready", || async { (server.get("/readyz").await.status == 503).then_some(()) }).await;
        let answer = server.crew().task().answer().await;
        assert_eq!(answer.status, 503, "{answer:?}");
        assert!(answer.number("retry-after") >= 1);
        answer.error(503);
        cluster.resume();
        eventually("the server is ready again", || async { (server.get("/readyz").await.status == 200).then_some(()) }).await;
        eventually("a write succeeds again", || async { (server.crew().task().answer().await.status == 201).then_some(()) }).await;
    });
}
