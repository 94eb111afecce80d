//! A server that is killed between an object and the row that refers to it: nothing is lost, nothing is there twice.

use super::{are_moved, ended, kept, large, moved, success};
use crate::on_both;
use crate::support::minio::Minio;
use crate::support::proxy::Proxy;
use crate::support::*;

on_both! { alone:
    async fn in_a_completion(database) {
        let minio = Minio::start().await;
        let proxy = Proxy::start(&minio.url()).await;
        let server = Minio::used_by(Server::on(database), &proxy.url).env("OBJECT_GRACE_SECONDS", 3600).start();
        let (task, lease) = server.crew().leased_task().await;
        let output = large("twice");
        proxy.hold_answers();
        let id = task.id.clone();
        let (api, body) = (Api::new(server.base()), json!({ "status": "success", "lease_id": lease.id, "output": output, "metrics": { "duration_ms": 5 } }));
        beside(async move { drop(api.try_post(&format!("llm-tasks/{id}/complete"), body).await) });
        eventually("the object is written", || async { (!minio.objects(&format!("artifacts/{}", task.id)).is_empty()).then_some(()) }).await;
        server.kill9();
        proxy.release();
        let orphans = minio.objects(&format!("artifacts/{}", task.id));
        server.start_again();
        assert!(["leased", "running"].contains(&&*task.status().await));
        let answer = lease.complete("success", success(&output)).await.ok();
        assert_eq!(answer["artifact"]["content"], json!(output));
        let artifact = moved(&task).await;
        assert_eq!(minio.objects(&format!("artifacts/{}", task.id)).len(), orphans.len() + 1, "an orphan stays for its grace");
        server.stop();
        let again = Minio::used_by(Server::on_url(&server.database_url()), &minio.url()).start();
        minio.has_for(&task.id, &[&artifact]).await;
        assert_eq!(again.get(&task.path("/result")).await.ok()["output"], json!(output));
    }

    async fn in_a_move(database) {
        let before = Server::on(database).start();
        let mut outputs = Vec::new();
        for n in 0..3 {
            let output = large(&format!("moved{n}"));
            outputs.push((ended(&before, &output).await.id, output));
        }
        let url = before.database_url();
        before.stop();
        let minio = Minio::start().await;
        let proxy = Proxy::start(&minio.url()).await;
        proxy.hold_answers_from("PUT /bloom-artifacts/artifacts/");
        let server = Minio::used_by(Server::on_url(&url), &proxy.url).env("OBJECT_GRACE_SECONDS", 3600).start();
        eventually("an object is written", || async { (!minio.objects("artifacts").is_empty()).then_some(()) }).await;
        server.kill9();
        assert_eq!((minio.objects("artifacts").len(), kept(&url).await), (1, 3), "it died between the object and the row");
        proxy.release();
        server.start_again();
        // The same object is written again, so there is no orphan, whose grace would not be over.
        are_moved(&minio, &server, &outputs).await;
        assert_eq!((minio.objects("artifacts").len(), kept(&url).await), (3, 0));
    }
}
