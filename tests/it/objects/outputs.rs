//! Where an output is, and how it is read.

use super::{large, success};
use crate::on_both;
use crate::support::minio::Minio;
use crate::support::proxy::Proxy;
use crate::support::*;

async fn download(api: &Api, artifact: &Value, range: Option<&str>) -> Answer {
    let path = format!("artifacts/{}/content", artifact["id"].as_str().unwrap());
    match range {
        Some(range) => api.with_header("range", range).get(&path).await,
        None => api.get(&path).await,
    }
}

on_both! { alone:
    async fn a_completion_is_answered_although_its_task_is_removed_meanwhile(database) {
        let minio = Minio::start().await;
        let proxy = Proxy::start(&minio.url()).await;
        let server = Minio::used_by(Server::on(database), &proxy.url).start();
        let (task, lease) = server.crew().leased_task().await;
        let output = large("removed");
        let first = lease.complete("success", success(&output)).await.ok();
        assert!(first["artifact"]["url"].is_string(), "{first}");
        proxy.hold_answers_from("GET /bloom-artifacts/artifacts/");
        let body = json!({ "status": "success", "lease_id": lease.id, "output": output, "metrics": { "duration_ms": 5 } });
        let (api, path) = (Api::new(server.base()), task.path("/complete"));
        let repeated = beside(async move { api.post(&path, body).await });
        proxy.has_caught().await;
        server.delete(&task.path("")).await.ok();
        proxy.release();
        let answer = repeated.await.unwrap().ok();
        assert_eq!((&answer["task"], &answer["result"]), (&first["task"], &first["result"]));
    }

    async fn a_large_output_is_an_object_until_its_task_goes(database) {
        let minio = Minio::start().await;
        let server = Minio::used_by(Server::on(database), &minio.url()).start();
        let (task, lease) = server.crew().leased_task().await;
        let output = large("all");
        let answer = lease.complete("success", success(&output)).await.ok();
        let artifact = &answer["artifact"];
        let key = format!("artifacts/{}/{}", task.id, artifact["id"].as_str().unwrap());
        assert_eq!(artifact["url"], json!(format!("minio://bloom-artifacts/{key}")));
        assert_eq!((&artifact["content"], &answer["result"]["output"]), (&json!(output), &json!(output)));
        minio.has_for(&task.id, &[artifact]).await;
        assert_eq!(server.get(&task.path("/result")).await.ok()["output"], json!(output));
        assert_eq!(server.get(&format!("artifacts?task_id={}", task.id)).await.ok(), json!([artifact]));
        assert_eq!(lease.complete("success", success(&output)).await.ok()["result"], answer["result"], "a repeated call");
        minio.has_for(&task.id, &[artifact]).await;

        let whole = download(&server, artifact, None).await.expect(200);
        assert_eq!(whole.text, output);
        assert_eq!(whole.header("content-type"), Some("text/plain; charset=utf-8"));
        assert_eq!(whole.header("x-content-type-options"), Some("nosniff"));
        assert!(whole.header("content-disposition").unwrap().starts_with("attachment; filename=\"artifact-"));
        let part = download(&server, artifact, Some("bytes=4-7")).await.expect(206);
        assert_eq!((&*part.text, part.header("content-range")), ("\u{1F600}", Some(&*format!("bytes 4-7/{}", output.len()))));
        download(&server, artifact, Some("bytes=99999999-")).await.error(416);

        let (small, of_small) = server.crew().leased_task().await;
        let answer = of_small.complete("success", success("small")).await.ok();
        assert_eq!(answer["artifact"]["url"], Value::Null);
        assert_eq!(download(&server, &answer["artifact"], Some("bytes=-2")).await.expect(206).text, "ll");
        minio.has_for(&small.id, &[]).await;

        server.delete(&task.path("")).await.ok();
        minio.has_for(&task.id, &[]).await;
    }
}
