//! Many objects at once.

use futures_util::future::join_all;
use serde_json::json;

use crate::cluster::shared;
use crate::objects::{phase, writes};
use crate::support::{Database, eventually, run, unique};
use bloom_operator::crds::LLMTask;

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
            all.items.iter().all(|object| phase(object) == Some("Completed")).then_some(())
        };
        eventually("all are done", done).await;
        let each = writes(&server).await / COUNT as f64;
        assert!(each <= 7.0, "{each} writes for each task");
        println!("{each} writes for each task");
        drop(agent);
    });
}
