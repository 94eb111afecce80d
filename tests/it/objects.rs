//! Outputs in an object store: a real MinIO that stops, hangs, or refuses the key.

use bloom_objects::Objects;
use bloom_telemetry::Metrics;
use secrecy::SecretString;
use std::time::Duration;

use crate::on_both;
use crate::support::minio::{self, Minio};
use crate::support::plane::Plane;
use crate::support::proxy::Proxy;
use crate::support::*;

fn large(word: &str) -> String {
    format!("{word} \u{1F600} ").repeat(12_000)
}

fn success(output: &str) -> Value {
    json!({ "output": output })
}

/// The artifact of the task, when it is in the object store.
async fn moved(task: &Task<'_>) -> Value {
    eventually("the output is in the object store", || async {
        let listed = task.api.get(&format!("artifacts?task_id={}", task.id)).await.ok();
        listed[0]["url"].is_string().then(|| listed[0].clone())
    })
    .await
}

async fn download(api: &Api, artifact: &Value, range: Option<&str>) -> Answer {
    let path = format!("artifacts/{}/content", artifact["id"].as_str().unwrap());
    match range {
        Some(range) => api.with_header("range", range).get(&path).await,
        None => api.get(&path).await,
    }
}

on_both! { alone:
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

    async fn while_it_is_down_the_database_keeps_outputs(database) {
        let minio = Minio::start().await;
        let server = Minio::used_by(Server::on(database), &minio.url()).start();
        let (early, lease) = server.crew().leased_task().await;
        lease.complete("success", success(&large("early"))).await.ok();
        minio.kill();
        server.get(&early.path("/result")).await.error(503);
        assert_eq!(server.get(&format!("artifacts?task_id={}", early.id)).await.ok()[0]["content"], Value::Null);
        let mut late = Vec::new();
        for n in 0..5 {
            let (task, lease) = server.crew().leased_task().await;
            let output = large(&format!("late{n}"));
            let answer = lease.complete("success", success(&output)).await.ok();
            assert_eq!((&answer["artifact"]["url"], &answer["artifact"]["content"]), (&Value::Null, &json!(output)));
            late.push((task.id, output));
        }
        minio.start_again().await;
        for (id, output) in late {
            let task = server.task(&id);
            let artifact = moved(&task).await;
            assert_eq!(artifact["content"], json!(output));
            assert_eq!(server.get(&task.path("/result")).await.ok()["output"], json!(output));
            minio.has_for(&id, &[&artifact]).await;
        }
        assert_eq!(server.get(&early.path("/result")).await.ok()["output"], json!(large("early")));
    }

    async fn a_server_that_dies_between_object_and_row_loses_and_doubles_nothing(database) {
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

    async fn an_object_store_that_hangs_delays_no_completion_for_long(database) {
        let minio = Minio::start().await;
        let proxy = Proxy::start(&minio.url()).await;
        let server = Minio::used_by(Server::on(database), &proxy.url).env("REQUEST_TIMEOUT_SECONDS", 3).start();
        let (task, lease) = server.crew().leased_task().await;
        proxy.hold();
        let answer = lease.complete("success", success(&large("slow"))).await.ok();
        assert_eq!((&answer["task"]["status"], &answer["artifact"]["url"]), (&json!("completed"), &Value::Null));
        proxy.release();
        assert_eq!(moved(&task).await["content"], json!(large("slow")));
    }

    async fn with_a_wrong_key_the_database_keeps_outputs(database) {
        let minio = Minio::start().await;
        let plan = Minio::used_by(Server::on(database), &minio.url()).env("MINIO_SECRET_KEY", "not-the-secret");
        let looked = plan.command(&["doctor"]).output().unwrap();
        let text = String::from_utf8(looked.stdout).unwrap();
        assert!(text.contains("can't write an object: access is denied"), "{text}");
        let server = plan.start();
        let (_, lease) = server.crew().leased_task().await;
        let answer = lease.complete("success", success(&large("kept"))).await.ok();
        assert_eq!((&answer["artifact"]["url"], &answer["artifact"]["content"]), (&Value::Null, &json!(large("kept"))));
        assert!(server.log().contains("access is denied") && !server.log().contains("not-the-secret"));
        assert!(minio.objects("").is_empty());
    }
}

async fn the_audit_trail_is_written_by_hour_once(on_postgres: bool) {
    const HOUR: i64 = 3_600_000;
    let minio = Minio::start().await;
    let plane = Plane::start(on_postgres).await;
    let settings = bloom_config::ObjectStore {
        endpoint: Some(minio.url().parse().unwrap()),
        region: "us-east-1".into(),
        bucket: minio::BUCKET.into(),
        access_key: SecretString::from("bloom-tests"),
        secret_key: SecretString::from(minio::SECRET_KEY),
        grace: Duration::from_secs(86_400),
    };
    let objects = Objects::new(settings, Metrics::new().unwrap()).unwrap();
    plane.engine.background.spawn(bloom_objects::run(plane.context.clone(), plane.store.clone(), objects));
    plane.create_many(3, |_| {}).await;
    let entries = plane.store.audit_after(uuid::Uuid::nil(), i64::MAX, 100).await.unwrap();
    let expected = format!("{}-{}.jsonl", entries[0].id, entries.last().unwrap().id);
    plane.pass_leading(2 * HOUR).await;
    let written = eventually("the hour is written", || async {
        // The loop waits by the clock of the test.
        plane.pass_leading(2_500).await;
        let found = minio.objects("audit");
        (!found.is_empty()).then_some(found)
    })
    .await;
    assert_eq!(written.len(), 1, "{written:?}");
    assert!(written[0].ends_with(&expected), "{written:?} has not {expected}");
    eventually("the mark is stored", || async {
        let mark = plane.store.object_mark(bloom_store::AUDIT_FLUSHED).await.unwrap();
        (mark == Some(entries.last().unwrap().id.to_string())).then_some(())
    })
    .await;
    plane.create(|_| {}).await;
    plane.pass_leading(2 * HOUR).await;
    eventually("the next hour is written", || async {
        plane.pass_leading(2_500).await;
        (minio.objects("audit").len() == 2).then_some(())
    })
    .await;
}

crate::on_both_clocks!(the_audit_trail_is_written_by_hour_once);
