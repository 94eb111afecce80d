//! The metrics for Prometheus.

use std::io::Write;
use std::process::{Command, Stdio};

use crate::on_both;
use crate::support::*;

/// The value of the first sample whose line starts with this text.
fn sample(text: &str, start: &str) -> Option<f64> {
    text.lines().find(|line| line.starts_with(start))?.rsplit(' ').next()?.parse().ok()
}

/// The sum of all samples of a metric whose lines contain all of these labels.
fn sum(text: &str, metric: &str, labels: &[&str]) -> f64 {
    let lines = text.lines().filter(|line| line.starts_with(&format!("{metric}{{")) || line.starts_with(&format!("{metric} ")));
    lines
        .filter(|line| labels.iter().all(|label| line.contains(label)))
        .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
        .sum()
}

async fn metrics(api: &Api) -> String {
    api.get("/metrics").await.expect(200).text
}

on_both! { alone:
    async fn the_metrics_tell_what_happened(database) {
        let server = Server::on(database).start();
        let crew = server.crew();
        let worker = crew.worker().slots(8).register().await;
        let (done, failed) = (crew.task().create().await, crew.task().create().await);
        crew.task().with("not_before", json!(now_ms() + 3_600_000)).create().await;
        done.lease_to(&worker).await;
        done.succeed("x").await;
        failed.lease_to(&worker).await;
        failed.fail("x").await;
        let dying = crew.task().attempts(1).create().await;
        dying.lease_for(&worker, 1).await;
        dying.reaches("dead").await;
        server.get(&format!("llm-tasks/{NO_ID}")).await.expect(404);
        let text = eventually("the counts are up to date", || async {
            let text = metrics(&server).await;
            (sum(&text, "bloom_tasks", &["status=\"dead\""]) == 1.0).then_some(text)
        }).await;
        for (status, count) in [("queued", 1.0), ("completed", 1.0), ("failed", 1.0)] {
            assert_eq!(sum(&text, "bloom_tasks", &[&format!("status=\"{status}\"")]), count, "{status}:\n{text}");
        }
        let requests = text.lines().filter(|line| line.starts_with("bloom_http_requests_total{")).collect::<Vec<_>>();
        assert!(requests.iter().any(|line| line.contains("404") && line.contains("{id}")), "routes are templates: {requests:#?}");
        assert!(!text.contains(NO_ID), "never raw paths");
        for part in ["_http_request_duration_seconds_bucket", "lease_expir", "leader", "process_cpu_seconds_total", "batch", "commit", "membridge", "reconcile"] {
            assert!(text.contains(part), "{part} is missing");
        }
        assert_eq!(sample(&text, "bloom_leader"), Some(1.0), "the only replica leads");
    }

    async fn promtool_finds_nothing_to_say(database) {
        let server = Server::on(database).start();
        let (task, _) = server.crew().leased_task().await;
        task.succeed("x").await;
        let text = metrics(&server).await;
        let mut check = Command::new("promtool").args(["check", "metrics"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped())
            .spawn().expect("promtool (Debian: apt-get install prometheus; tests/run does it)");
        check.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
        let output = check.wait_with_output().unwrap();
        let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success() && said.trim().is_empty(), "{said}");
    }

    async fn labels_are_bounded(database) {
        let server = Server::on(database).start();
        for i in 0..120 {
            server.get(&format!("/api/nobody/knows/{i}")).await.expect(404);
        }
        let tasks = (0..120).map(|_| server.crew().task().json()).collect::<Vec<_>>();
        server.post("llm-tasks:batch", json!({ "tasks": tasks })).await.created();
        let text = eventually("the queue's metrics are up to date", || async {
            let text = metrics(&server).await;
            (sum(&text, "bloom_tasks", &["status=\"queued\""]) == 120.0).then_some(text)
        }).await;
        let agents = text.lines().filter(|line| line.contains("agent=\"agent-") || line.contains("agent_slug=\"agent-")).count();
        assert!(agents <= 51 * 8, "{agents} lines with an agent");
        assert!(text.lines().filter(|line| line.starts_with("bloom_http_requests_total{") && line.contains("404")).count() <= 3, "{text}");
    }
}
