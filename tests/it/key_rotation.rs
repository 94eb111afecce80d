//! Keys that get another secret, and when keys were used last.

use crate::keys::{ADMIN, create, keyed};
use crate::on_both;
use crate::support::*;

on_both! { alone:
    async fn a_key_is_rotated_without_refusing_who_has_it(database) {
        let server = keyed(database);
        let admin = server.with_key(ADMIN);
        let former = create(&admin, "ci", "submit", json!({ "quota": { "max_open_tasks": 2 } })).await;
        let own = server.with_key(&former);
        let task = own.crew().task().create().await;
        let rotated = admin.post("keys/ci/rotate", json!({ "overlap_sec": 3600 })).await.ok();
        let (key, until) = (rotated["key"].as_str().unwrap().to_owned(), rotated["former_until"].as_i64().unwrap());
        assert!(key != former && until > now_ms() + 3_000_000, "{rotated}");
        // Both are the same key.
        for api in [&own, &server.with_key(&key)] {
            assert_eq!(api.get(&task.path("")).await.ok()["owner"], "ci");
        }
        assert_eq!(admin.get("keys").await.ok()[0]["quota"], json!({ "max_open_tasks": 2, "max_tasks_per_minute": null, "max_stored_bytes": null, "open_tasks": 1, "stored_bytes": null }));
        let waiting = {
            let (api, path) = (own.clone(), task.path("/wait?timeout_sec=60"));
            beside(async move { api.get(&path).await.status })
        };
        admin.post("keys/ci/rotate", json!({ "overlap_sec": 0 })).await.ok();
        assert_eq!((own.get("llm-tasks").await.status, server.with_key(&key).get("llm-tasks").await.status), (401, 401));
        assert_eq!(waiting.await.unwrap(), 401, "the wait ended with its key");
        // A short overlap ends by itself.
        let last = admin.post("keys/ci/rotate", json!({ "overlap_sec": 3600, "expires_in_sec": 60 })).await.ok();
        let last = server.with_key(last["key"].as_str().unwrap());
        let mut stream = sse::open(&last, "watch", None).await;
        let newest = admin.post("keys/ci/rotate", json!({ "overlap_sec": 1 })).await.ok();
        while stream.next().await.is_some() {}
        eventually("the former key ends", || async { (last.get("llm-tasks").await.status == 401).then_some(()) }).await;
        server.with_key(newest["key"].as_str().unwrap()).get("llm-tasks").await.ok();

        // The end of a former key is never after that of the key.
        let short = create(&admin, "short", "read", json!({ "expires_in_sec": 60 })).await;
        let rotated = admin.post("keys/short/rotate", json!({ "overlap_sec": 600 })).await.ok();
        assert_eq!(rotated["former_until"], rotated["expires_at"], "{short}");

        admin.post("keys/nobody/rotate", json!({})).await.fails(404, "Key not found");
        create(&admin, "join", "join", json!({})).await;
        admin.post("keys/join/rotate", json!({})).await.error(409);
        for (field, value) in [("overlap_sec", json!(-1)), ("overlap_sec", json!(2_592_001)), ("expires_in_sec", json!(0)), ("other", json!(1))] {
            admin.post("keys/ci/rotate", json!({ field: value })).await.refuses(&[field]);
        }
        own.post("keys/ci/rotate", json!({})).await.error(401);
        assert!(!server.log().contains(&key), "{}", server.log());
    }

    async fn the_last_use_of_a_key_is_told(database) {
        let server = keyed(database);
        let admin = server.with_key(ADMIN);
        let key = create(&admin, "ci", "read", json!({})).await;
        let used = |keys: Value| keys[0]["last_used_at"].as_i64();
        assert_eq!(used(admin.get("keys").await.ok()), None);
        let before = now_ms();
        server.with_key(&key).get("stats").await.ok();
        let told = used(admin.get("keys").await.ok()).expect("this replica knows it at once");
        assert!(told >= before - 1_000 && told <= now_ms() + 1_000, "{told} {before}");
        // A key that gets the same name is another key.
        admin.delete("keys/ci").await.ok();
        create(&admin, "ci", "read", json!({})).await;
        assert_eq!(used(admin.get("keys").await.ok()), None);
    }
}

#[test]
fn a_rotated_key_and_its_last_use_are_known_to_all_replicas() {
    let url = postgres::database();
    let start = || Server::on_url(&url).env("RUNTIME_API_KEY", ADMIN).start();
    let (here, there) = (start(), start());
    run(async {
        let (admin, other) = (here.with_key(ADMIN), there.with_key(ADMIN));
        let former = create(&admin, "shared", "read", json!({})).await;
        there.with_key(&former).get("stats").await.ok();
        let rotated = admin.post("keys/shared/rotate", json!({})).await.ok();
        let key = rotated["key"].as_str().unwrap();
        for api in [here.with_key(&former), there.with_key(&former), here.with_key(key), there.with_key(key)] {
            api.get("stats").await.ok();
        }
        let last = other.get("keys").await.ok()[0]["last_used_at"].as_i64().expect("the last use");
        eventually("the other replica records it", || async {
            (admin.get("keys").await.ok()[0]["last_used_at"].as_i64()? >= last).then_some(())
        })
        .await;
        other.post("keys/shared/rotate", json!({ "overlap_sec": 0 })).await.ok();
        for old in [&former, key] {
            there.with_key(old).get("stats").await.fails(401, "Unauthorized");
            eventually("this replica has learnt it", || async { (here.with_key(old).get("stats").await.status == 401).then_some(()) })
                .await;
        }
    });
}
