//! Who may call the control plane, and its limits.

use super::*;
use crate::on_both;

on_both! { alone:
    async fn all_but_the_health_needs_the_key(database) {
        let plane = shared_plane(database);
        let anybody = Api::agent(plane.base());
        let health = anybody.get("/health").await.ok();
        assert_eq!((&health["status"], &health["service"]), (&json!("ok"), &json!("membridge-control-plane")));
        assert!(health["version"].is_string() && health["projects"].is_i64() && health["agents"].is_i64(), "{health}");
        for wrong in [anybody.clone(), anybody.with_header("x-membridge-admin", "wrong"), anybody.with_key(KEY)] {
            for path in ["/agents", "/projects", "/jobs", "/metrics", "/nothing"] {
                let refused = wrong.get(path).await.expect(401).json();
                assert!(refused["detail"].as_str().unwrap().contains("X-MEMBRIDGE-ADMIN"), "{refused}");
            }
            wrong.post("/agents", json!({ "name": "intruder" })).await.expect(401);
            wrong.post("/agent/heartbeat", json!({ "node_id": "intruder", "canonical_id": "x" })).await.expect(401);
        }
        assert!(plane.get("/metrics").await.expect(200).text.contains(r#"route="membridge:/agents""#));
    }
}

#[test]
fn guesses_are_limited_and_the_fleet_is_not() {
    run(async {
        let server = plan(Database::Sqlite).env("RATE_LIMIT_PER_MINUTE", 2).env("WORKER_RATE_LIMIT_PER_MINUTE", 50).start();
        let plane = admin(server.base());
        let guess = Api::agent(server.base()).with_header("x-membridge-admin", "guess");
        guess.get("/agents").await.expect(401);
        guess.get("/agents").await.expect(401);
        let refused = guess.get("/agents").await.expect(429);
        assert!(refused.header("retry-after").is_some() && refused.json()["detail"].is_string());
        Api::agent(server.base()).get("/health").await.expect(429);
        for _ in 0..10 {
            plane.get("/agents").await.expect(200);
        }
    });
}

#[test]
fn without_a_key_only_this_machine_is_served_and_no_page_of_another_site() {
    run(async {
        let open = Server::on(Database::Sqlite).words(&["membridge"]).env("MEMBRIDGE_PORT", 0).start();
        let anybody = Api::agent(open.base());
        anybody.get("/agents").await.expect(200);
        anybody.with_header("host", "evil.example").get("/agents").await.expect(403);
        anybody.with_header("origin", "http://evil.example").post("/agents", json!({ "name": "x" })).await.expect(403);
        let beyond = Server::on(Database::Sqlite).env("MEMBRIDGE_HOST", "0.0.0.0").env("MEMBRIDGE_PORT", 0);
        let said = refusal(&beyond, &["membridge"]);
        assert!(said.contains("membridge_host") && said.contains("MEMBRIDGE_ADMIN_KEY"), "{said}");
        let said = refusal(&beyond.env("WITH_MEMBRIDGE", "true"), &["serve"]);
        assert!(said.contains("membridge_host"), "{said}");
        let said = refusal(&Server::on(Database::Sqlite).env("PORT", 0), &["membridge", "--port", "0"]);
        assert!(said.contains("listens where --membridge-port says"), "{said}");
        let with_keys = Server::on(Database::Sqlite)
            .env("WITH_MEMBRIDGE", "true")
            .env("MEMBRIDGE_PORT", 0)
            .env("RUNTIME_API_KEY", "a-key-of-16-letters");
        let said = refusal(&with_keys, &["serve"]);
        assert!(said.contains("membridge_admin_key") && said.contains("openssl rand"), "{said}");
    });
}

#[test]
fn one_control_plane_is_enough() {
    let both = Server::on(Database::Sqlite).env("WITH_MEMBRIDGE", "true").env("MEMBRIDGE_SERVER_URL", "http://127.0.0.1:8000");
    let said = refusal(&both, &["serve"]);
    assert!(said.contains("membridge_server_url") && said.contains("WITH_MEMBRIDGE"), "{said}");
}

#[test]
fn the_database_of_a_server_is_left_to_it() {
    run(async {
        let url = postgres::database();
        let server = Server::on_url(&url).start();
        server.crew().task().create().await;
        let said = refusal(&plan(Database::Sqlite).env("MEMBRIDGE_DATABASE_URL", url), &["membridge"]);
        assert!(said.contains("is that of a server") && said.contains("--with-membridge"), "{said}");
    });
}

/// What the program says when it refuses to start.
fn refusal(plan: &Plan, words: &[&str]) -> String {
    let output = plan.command(words).output().unwrap();
    assert!(!output.status.success());
    String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
}
