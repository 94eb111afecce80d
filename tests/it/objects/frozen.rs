//! A server that is frozen between an object and its row, for longer than another replica spares objects without an artifact.

use super::{are_moved, large, success};
use crate::replicas::{leader, replicas_of};
use crate::support::minio::Minio;
use crate::support::proxy::Proxy;
use crate::support::*;

#[test]
fn no_artifact_refers_to_an_object_that_was_removed() {
    run(async {
        let minio = Minio::start().await;
        let proxy = Proxy::start(&minio.url()).await;
        let url = postgres::database();
        let servers = replicas_of(2, || Minio::used_by(Server::on_url(&url), &proxy.url));
        let leading = eventually("one replica leads", || async { leader(&servers).await }).await;
        let (sweeper, frozen) = (&servers[leading], &servers[1 - leading]);
        let (task, lease) = sweeper.crew().leased_task().await;
        let output = large("frozen");
        proxy.hold_answers_from("PUT /bloom-artifacts/artifacts/");
        let body = json!({ "status": "success", "lease_id": lease.id, "output": output, "metrics": { "duration_ms": 5 } });
        let (api, path) = (Api::new(frozen.base()), task.path("/complete"));
        let completing = beside(async move { api.post(&path, body).await });
        let objects = || minio.objects(&format!("artifacts/{}", task.id));
        eventually("the object is written", || async { (!objects().is_empty()).then_some(()) }).await;
        frozen.pause();
        proxy.release();
        eventually("the object is removed", || async { objects().is_empty().then_some(()) }).await;
        frozen.resume();
        let answer = completing.await.unwrap();
        // If the server takes the write for too slow, the database keeps the output. Else it has read the answer first, and must not rely on it.
        if answer.status != 200 {
            assert_eq!(answer.status, 503, "{}", answer.text);
            // It was frozen for about as long as a request may take, so that time may be over first. Then nobody knows yet.
            let is_over = answer.text.contains("it may still take effect");
            assert!(is_over || answer.text.contains("send the completion again"), "{}", answer.text);
            assert!(is_over || ["leased", "running"].contains(&&*task.status().await));
            lease.complete("success", success(&output)).await.ok();
        }
        are_moved(&minio, sweeper, &[(task.id.clone(), output)]).await;
    });
}
