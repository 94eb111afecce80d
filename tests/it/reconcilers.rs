//! What the reconcilers tell of their last runs: over HTTP at every replica, on a page, in the metrics and by `doctor`.

use std::collections::BTreeMap;

use crate::doctor;
use crate::on_both;
use crate::support::*;
use crate::web::browser::Browser;

const NAMES: [&str; 10] =
    ["compaction", "counts", "lease_expiry", "membridge_sync", "push", "quotas", "retention", "task_timers", "wakeups", "worker_liveness"];

/// The reconcilers by their names, as soon as all of them have run.
async fn listed(api: &Api) -> BTreeMap<String, Value> {
    eventually("all reconcilers have run", || async {
        let all = api.get("reconcilers").await.ok();
        let all: BTreeMap<String, Value> =
            all.as_array().unwrap().iter().map(|one| (one["name"].as_str().unwrap().to_owned(), one.clone())).collect();
        (all.len() == NAMES.len() && all.values().all(|one| one["runs"] != 0)).then_some(all)
    })
    .await
}

on_both! { alone:
    async fn each_reconciler_tells_what_it_did_last(database) {
        let nowhere = format!("http://127.0.0.1:{}", janitor::free_port());
        let server = Server::on(database).env("MEMBRIDGE_SERVER_URL", &nowhere).env("MEMBRIDGE_ADMIN_KEY", "0123456789012345").env("WORKER_SYNC_SECONDS", 1).start();
        let second = server.is_postgres().then(|| Server::on_url(&server.database_url()).start());
        let crew = server.crew();
        let worker = crew.worker().register().await;
        let task = crew.task().attempts(1).create().await;
        task.lease_for(&worker, 1).await;
        task.reaches("dead").await;
        for api in [Some(&server), second.as_ref()].into_iter().flatten() {
            let all = listed(api).await;
            assert_eq!(all.keys().collect::<Vec<_>>(), NAMES);
            for (name, one) in &all {
                let is_failing = name == "membridge_sync";
                assert_eq!(one["state"], if is_failing { "failing" } else { "ok" }, "{one}");
                assert_eq!(one["failures"] == 0, !is_failing, "{one}");
                assert_eq!(one["error"].is_null(), !is_failing, "{one}");
                let [started_at, duration_ms, recorded_at] = ["started_at", "duration_ms", "recorded_at"].map(|field| one[field].as_i64().unwrap());
                assert!(duration_ms >= 0 && started_at <= recorded_at && recorded_at - started_at < 600_000, "{one}");
            }
            assert_eq!(all["lease_expiry"]["every_ms"], 1_000);
        }
        let metrics = server.get("/metrics").await.expect(200).text;
        let of_second = match &second {
            Some(second) => second.get("/metrics").await.expect(200).text,
            None => String::new(),
        };
        let ended = "bloom_reconcile_items_total{loop=\"lease_expiry\"} 1";
        assert!(metrics.contains(ended) || of_second.contains(ended), "{metrics}{of_second}");
        let page = Browser::of(&server).ok("/reconcilers").await;
        page.has("<code lang=\"en\">lease_expiry</code><br><span class=\"soft\">Ends leases that were not renewed in time.</span>");
        page.has("<span class=\"badge s-failed\">failing</span>");
        page.has("Last error, ");
        doctor::has(&doctor::found(&server, &[]).1, "reconcilers", "warning", "membridge_sync fails: ");
    }
}
