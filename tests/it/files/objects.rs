//! Files in the object store: small ones stay in the database, others go there, at once or when it is back.

use super::{bytes, content, id, upload};
use crate::on_both;
use crate::support::minio::{Minio, Policy};
use crate::support::proxy::Proxy;
use crate::support::*;

/// Waits until the bucket has exactly these files.
async fn has(minio: &Minio, files: &[&Value]) {
    let mut expected: Vec<&str> = files.iter().map(|file| id(file)).collect();
    expected.sort_unstable();
    eventually("the bucket has the files", || async { (minio.objects("files") == expected).then_some(()) }).await;
}

on_both! { alone:
    async fn large_files_are_objects_until_they_go(database) {
        let minio = Minio::start().await;
        let server = Minio::used_by(Server::on(database), &minio.url()).start();
        let small = upload(&server, "name=small", &bytes(65_536)).await.created();
        let (sent, huge) = (bytes(300_000), bytes((17 << 20) + 11));
        let large = upload(&server, "name=large.bin", &sent).await.created();
        assert_eq!(small["url"], Value::Null);
        assert_eq!(large["url"], json!(format!("minio://bloom-artifacts/files/{}", id(&large))));
        // It is too large to be kept in memory: the leader moves it, in parts.
        let moved = upload(&server, "name=huge", &huge).await.created();
        has(&minio, &[&large, &moved]).await;
        assert_eq!(content(&server, &large).await, sent);
        assert_eq!(content(&server, &moved).await, huge);
        let path = format!("artifacts/{}/content", id(&moved));
        let part = server.request(reqwest::Method::GET, &path).header("range", "bytes=8388600-8388620").send().await.unwrap();
        assert_eq!((part.status().as_u16(), &*part.bytes().await.unwrap()), (206, &huge[8_388_600..8_388_621]));
        server.crew().task().with("inputs", json!([{ "artifact_id": id(&large) }])).create().await;
        server.delete(&format!("artifacts/{}", id(&large))).await.error(409);
        server.delete(&format!("artifacts/{}", id(&moved))).await.ok();
        has(&minio, &[&large]).await;
    }

    async fn the_database_keeps_files_while_the_store_is_away(database) {
        let minio = Minio::start().await;
        let proxy = Proxy::start(&minio.url()).await;
        let server = Minio::used_by(Server::on(database), &proxy.url).start();
        let sent = bytes(200_000);
        upload(&server, "name=first", &sent).await.created();
        minio.kill();
        let file = upload(&server, "name=a", &sent).await.created();
        assert_eq!(file["url"], Value::Null);
        assert_eq!(content(&server, &file).await, sent);
        let (task, lease) = server.crew().leased_task().await;
        let of_run = upload(&server, &format!("name=o&task_id={}&lease_id={}", task.id, lease.id), &sent).await.created();
        minio.start_again().await;
        eventually("they are moved", || async {
            let there = minio.objects("files");
            [&file, &of_run].iter().all(|file| there.contains(&id(file).to_owned())).then_some(())
        })
        .await;
        let shown = eventually("the list shows where it is", || async {
            let listed = server.get(&format!("artifacts?task_id={}", task.id)).await.ok();
            listed[0]["url"].is_string().then_some(listed)
        })
        .await;
        assert_eq!(shown[0]["url"], json!(format!("minio://bloom-artifacts/files/{}", id(&of_run))));
        assert_eq!(content(&server, &of_run).await, sent);
        lease.complete("success", json!({ "output": "done" })).await.ok();
        server.delete(&task.path("")).await.ok();
        eventually("the object is removed", || async { (!minio.objects("files").contains(&id(&of_run).to_owned())).then_some(()) }).await;
        assert_eq!(content(&server, &file).await, sent);
    }

    async fn a_file_that_can_not_be_moved_holds_up_no_other(database) {
        let policy = Policy::start().await;
        let minio = Minio::with_policy(&policy).await;
        let server = Minio::used_by(Server::on(database), &minio.url()).start();
        let removed = upload(&server, "name=removed", &bytes(200_000)).await.created();
        has(&minio, &[&removed]).await;
        policy.deny_writes();
        let blocked = upload(&server, "name=blocked", &bytes(200_001)).await.created();
        let other = upload(&server, "name=other", &bytes(200_002)).await.created();
        policy.deny_writes_of(id(&blocked));
        server.delete(&format!("artifacts/{}", id(&removed))).await.ok();
        has(&minio, &[&other]).await;
        assert_eq!(content(&server, &blocked).await, bytes(200_001));
        policy.allow_writes();
        has(&minio, &[&blocked, &other]).await;
    }

    async fn a_task_whose_input_is_gone_fails_and_says_so(database) {
        let minio = Minio::start().await;
        let server = Minio::used_by(Server::on(database), &minio.url()).start();
        let file = upload(&server, "name=report", &bytes(200_000)).await.created();
        let task = server.crew().task().with("inputs", json!([{ "artifact_id": id(&file) }])).create().await;
        minio.remove(&format!("files/{}", id(&file))).await;
        server.get(&format!("artifacts/{}/content", id(&file))).await.expect(410);
        let _agent = server.agent("box").echo().start();
        let failed = task.reaches("failed").await;
        assert_eq!(failed["failure"]["reason"], "bad_input", "{failed}");
        assert!(failed["failure"]["message"].as_str().unwrap().contains("upload a file again"), "{failed}");
        // A bucket that is away may come back.
        minio.kill();
        server.get(&format!("artifacts/{}/content", id(&file))).await.error(503);
    }
}
