//! Many objects at once.

use futures_util::future::join_all;
use futures_util::{StreamExt, stream};
use serde_json::json;

use crate::cluster::shared;
use crate::objects::{phase, writes};
use crate::support::{Database, Server, eventually, run, unique};
use bloom_operator::crds::LLMTask;
use bloom_test_support::waiting::finish;

/// The most memory that the process has had, in bytes.
fn peak_memory(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.split_whitespace().next().unwrap().parse::<u64>().unwrap() * 1024
}

/// How often the operator has looked at an LLMTask.
async fn runs(server: &Server) -> usize {
    let metrics = server.get("/metrics").await.text;
    let line = metrics.lines().find(|line| line.starts_with("bloom_reconcile_runs_total{loop=\"llm_tasks\"}"));
    line.and_then(|line| line.rsplit(' ').next()?.parse().ok()).unwrap_or(0)
}

#[test]
fn a_list_of_five_thousand_takes_little_memory() {
    const COUNT: usize = 5_000;
    // Longer than tests may take: each object is created, and gets its finalizer and its status.
    finish(async {
        let team = shared().await.namespace().await;
        let prompt = "x".repeat(4_000);
        let creations = (0..COUNT).map(|_| team.create("nobody", json!({ "prompt": prompt })));
        let created = stream::iter(creations).buffer_unordered(32).count().await;
        assert_eq!(created, COUNT);
        let server = team.server(Database::Sqlite).env("LOG_LEVEL", "warn").start();
        let mut looked_at = 0;
        while looked_at < COUNT {
            let more = || async { Some(runs(&server).await).filter(|runs| *runs > looked_at) };
            looked_at = eventually("more are looked at", more).await;
        }
        let peak = peak_memory(server.pid());
        println!("{} MiB for {COUNT} LLMTasks", peak >> 20);
        assert!(peak < 150 << 20, "{} MiB", peak >> 20);
    });
}

#[test]
fn five_hundred_tasks_at_once() {
    const COUNT: usize = 500;
    run(async {
        let team = shared().await.namespace().await;
        let server = team.server(Database::Sqlite).start();
        let slug = unique("agent");
        let agent = server.agent(&unique("runner")).slots(32).echo().start();
        let names = (0..COUNT).map(|_| team.create(&slug, json!({})));
        assert_eq!(join_all(names).await.len(), COUNT);
        let api = team.api::<LLMTask>();
        let done = || async {
            let all = api.list(&kube::api::ListParams::default()).await.ok()?;
            Some(all.items.iter().filter(|object| phase(object) == Some("Completed")).count())
        };
        let mut count = 0;
        while count < COUNT {
            count = eventually("more are done", || async { done().await.filter(|more| *more > count) }).await;
        }
        let each = writes(&server).await / COUNT as f64;
        assert!(each <= 7.0, "{each} writes for each task");
        println!("{each} writes for each task");
        drop(agent);
    });
}
