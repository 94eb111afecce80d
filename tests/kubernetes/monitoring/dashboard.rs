//! The queries of the dashboard and the recorded series, against what Prometheus has scraped, and the scraped text itself.

use std::io::Write as _;
use std::process::{Command, Stdio};

use serde_json::Value;

use super::prometheus::Prometheus;
use super::rules;
use crate::chart::{root, text};
use crate::support::pushed::nowhere;
use crate::support::{Server, eventually, json};

/// No panel is empty, for this job of one server, whose runs have been reported.
pub async fn is_whole(prometheus: &Prometheus, job: &str, server: &Server) {
    // What the other parts of the test do not do: a push, a refused request, a task that waits.
    let crew = server.crew();
    let worker = server.worker().with("url", json!(nowhere())).register().await;
    crew.task().create().await.dispatch(json!({ "worker_id": worker.name })).await;
    server.with_header("origin", "https://elsewhere.example").post("llm-tasks", json!({})).await.expect(403);
    let dashboard: Value = serde_json::from_str(&text(&root().join("manifests/grafana/dashboard.json"))).unwrap();
    let targets = |panel: &Value| panel["targets"].as_array().cloned().unwrap_or_default();
    let mut queries = 0;
    for panel in dashboard["panels"].as_array().unwrap() {
        for target in targets(panel) {
            let query = target["expr"].as_str().unwrap().replace("$namespace", "").replace("$job", job).replace("$__rate_interval", "1m");
            let shown = || async { prometheus.values(&query).await.iter().any(|value| value.is_finite()).then_some(()) };
            eventually(&format!("the panel {} shows {query}", panel["title"]), shown).await;
            queries += 1;
        }
    }
    assert!(queries > 30, "{queries}");
    for record in rules::records() {
        let shown = || async { (!prometheus.values(&format!("{record}{{job=\"{job}\"}}")).await.is_empty()).then_some(()) };
        eventually(&format!("{record} has a value"), shown).await;
    }
    assert_eq!(complaints(&server.get("/metrics").await.expect(200).text), "");
}

/// What `promtool check metrics` says of a scrape.
fn complaints(scrape: &str) -> String {
    let mut check = Command::new("promtool");
    check.args(["check", "metrics"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut check = check.spawn().expect("promtool (Debian: apt-get install prometheus; tests/run does it)");
    check.stdin.take().unwrap().write_all(scrape.as_bytes()).unwrap();
    let output = check.wait_with_output().unwrap();
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}
