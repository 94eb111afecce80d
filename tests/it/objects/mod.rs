//! Outputs and the audit trail in an object store: a real MinIO that stops, hangs, is slow, or refuses calls.

mod audit_trail;
mod failures;
mod frozen;
mod killed;
mod outputs;
mod replicas;

use crate::support::checker::Link;
use crate::support::minio::Minio;
use crate::support::*;

/// An output that belongs into the object store.
fn large(word: &str) -> String {
    format!("{word} \u{1F600} ").repeat(12_000)
}

fn success(output: &str) -> Value {
    json!({ "output": output })
}

/// A task that has ended with this output.
async fn ended<'a>(api: &'a Api, output: &str) -> Task<'a> {
    let (task, lease) = api.crew().leased_task().await;
    lease.complete("success", success(output)).await.ok();
    task
}

/// The artifact of the task, when it is in the object store.
async fn moved(task: &Task<'_>) -> Value {
    eventually("the output is in the object store", || async {
        let listed = task.api.get(&format!("artifacts?task_id={}", task.id)).await.ok();
        listed[0]["url"].is_string().then(|| listed[0].clone())
    })
    .await
}

/// The outputs of these tasks are in the bucket, each once, and the API delivers them.
async fn are_moved(minio: &Minio, api: &Api, outputs: &[(String, String)]) {
    for (id, output) in outputs {
        let task = api.task(id);
        let artifact = moved(&task).await;
        assert_eq!(artifact["content"], json!(output));
        assert_eq!(api.get(&task.path("/result")).await.ok()["output"], json!(output));
        minio.has_for(id, &[&artifact]).await;
    }
}

/// The number of outputs in the database that belong into the object store.
async fn kept(url: &str) -> i64 {
    Link::open(url).await.count("results WHERE octet_length(output) > 65536").await
}
