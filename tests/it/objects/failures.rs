//! An object store that is down, hangs, is slow, or refuses calls: the database keeps the outputs until it can take them.

use std::time::Duration;

use super::{are_moved, ended, kept, large, moved, success};
use crate::on_both;
use crate::support::minio::{Minio, Policy};
use crate::support::proxy::Proxy;
use crate::support::server::Plan;
use crate::support::*;

on_both! { alone:
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
        are_moved(&minio, &server, &late).await;
        assert_eq!(server.get(&early.path("/result")).await.ok()["output"], json!(large("early")));
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

    async fn an_object_store_that_stops_in_mid_answer_delays_no_list_for_long(database) {
        let minio = Minio::start().await;
        let proxy = Proxy::start(&minio.url()).await;
        let server = Minio::used_by(Server::on(database), &proxy.url).env("REQUEST_TIMEOUT_SECONDS", 9).start();
        let output = large("long ").repeat(20);
        let (task, lease) = server.crew().leased_task().await;
        lease.complete("success", success(&output)).await.ok();
        assert_eq!(moved(&task).await["content"], json!(output));
        proxy.hold_answers_after(100_000);
        let listed = server.get(&format!("artifacts?task_id={}", task.id)).await.ok();
        assert_eq!(listed[0]["content"], Value::Null);
        // The agent repeats a completion whose answer was lost.
        let again = lease.complete("success", success(&output)).await.ok();
        assert_eq!(again["task"]["status"], "completed");
        let late = server.get(&task.path("/result")).await.error(503);
        assert!(late.ends_with("try again"), "{late}");
        proxy.release();
        assert_eq!(server.get(&task.path("/result")).await.ok()["output"], json!(output));
    }

    async fn while_it_is_slow_leases_are_renewed(database) {
        let minio = Minio::start().await;
        let proxy = Proxy::with_latency(&minio.url(), Duration::from_millis(700)).await;
        let server = Minio::used_by(Server::on(database), &proxy.url).start();
        let crew = server.crew();
        let worker = crew.worker().slots(8).register().await;
        let renewed = crew.task().create().await.lease_for(&worker, 2).await;
        let (mut completions, mut outputs) = (Vec::new(), Vec::new());
        for n in 0..4 {
            let task = crew.task().create().await;
            let lease = task.lease_to(&worker).await;
            let output = large(&format!("slow{n}"));
            completions.push(json!({
                "task_id": task.id, "lease_id": lease.id, "status": "success", "output": output, "metrics": { "duration_ms": 5 },
            }));
            outputs.push((task.id, output));
        }
        let (api, path) = ((*server).clone(), worker.path("/complete"));
        let completing = beside(async move { api.post(&path, json!({ "completions": completions })).await.ok() });
        // Its TTL is shorter than the time that the four writes take.
        while !completing.is_finished() {
            renewed.heartbeat().await.ok();
            assert_eq!(renewed.task.status().await, "running");
        }
        for result in completing.await.unwrap()["results"].as_array().unwrap() {
            assert_eq!(result["status"], json!(200), "{result}");
        }
        assert_eq!(renewed.heartbeat().await.ok()["lease"]["status"], json!("active"));
        are_moved(&minio, &server, &outputs).await;
    }

    async fn while_its_policy_denies_writes_the_database_keeps_outputs(database) {
        let policy = Policy::start().await;
        let minio = Minio::with_policy(&policy).await;
        let server = Minio::used_by(Server::on(database), &minio.url()).start();
        let early = ended(&server, &large("early")).await;
        let before = moved(&early).await;
        policy.deny_writes();
        let mut late = Vec::new();
        for n in 0..3 {
            let output = large(&format!("late{n}"));
            late.push((ended(&server, &output).await.id, output));
        }
        assert_eq!(kept(&server.database_url()).await, 3);
        assert!(server.log().contains("access is denied"), "{}", server.log());
        // What is there can still be read.
        assert_eq!(server.get(&early.path("/result")).await.ok()["output"], json!(large("early")));
        minio.has_for(&early.id, &[&before]).await;
        policy.allow_writes();
        are_moved(&minio, &server, &late).await;
        assert_eq!(kept(&server.database_url()).await, 0);
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

    async fn a_bucket_of_another_database_is_left_alone(database) {
        let minio = Minio::start().await;
        let first = Minio::used_by(Server::on(database), &minio.url()).start();
        let task = ended(&first, &large("first")).await;
        let artifact = moved(&task).await;
        let plan = Minio::used_by(Server::on(database), &minio.url());
        let doctor = |plan: &Plan| String::from_utf8(plan.command(&["doctor"]).output().unwrap().stdout).unwrap();
        let found = doctor(&plan);
        assert!(found.contains("another database writes there"), "{found}");
        let own = doctor(&Minio::used_by(Server::on_url(&first.database_url()), &minio.url()));
        assert!(own.contains("objects can be written, read, listed and removed"), "{own}");
        let second = plan.start();
        let elsewhere = ended(&second, &large("second")).await;
        eventually("the second server knows the owner", || async { second.log().contains("another database writes to this bucket").then_some(()) })
            .await;
        assert_eq!(elsewhere.api.get(&elsewhere.path("/result")).await.ok()["output"], json!(large("second")));
        assert_eq!(kept(&second.database_url()).await, 1);
        minio.has_for(&elsewhere.id, &[]).await;
        minio.has_for(&task.id, &[&artifact]).await;
        assert_eq!(first.get(&task.path("/result")).await.ok()["output"], json!(large("first")));
    }
}
