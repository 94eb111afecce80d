//! The stream of changes.

use crate::on_both;
use crate::support::*;

on_both! {
    async fn watchers_are_told_of_every_change(server) {
        let mut stream = sse::open(server, "watch", None).await;
        assert_eq!(stream.headers.get("x-accel-buffering").unwrap(), "no");
        assert_eq!(stream.headers.get("cache-control").map(|value| value.to_str().unwrap().contains("no-cache")), Some(true));
        let crew = server.crew();
        let worker = crew.worker().register().await;
        let told = stream.find(|event| event.kind == "worker" && event.json()["id"] == json!(worker.name)).await.json();
        assert_eq!((&told["status"], &told["active_leases"]), (&json!("online"), &json!(0)), "the event contains the whole object");
        let task = crew.task().create().await;
        let told = stream.find(|event| event.kind == "task" && event.json()["id"] == json!(task.id)).await.json();
        assert_eq!((&told["status"], &told["prompt"]), (&json!("queued"), &json!("Say hello")));
        let lease = task.lease_to(&worker).await;
        let (mut task_told, mut lease_told) = (false, false);
        while !(task_told && lease_told) {
            let event = stream.next().await.expect("the stream goes on");
            match event.kind.as_str() {
                "task" if event.json()["id"] == json!(task.id) => task_told |= event.json()["status"] == "leased",
                "lease" if event.json()["id"] == json!(lease.id) => lease_told |= event.json()["status"] == "active",
                _ => {}
            }
        }
        task.succeed("x").await;
        stream.find(|event| event.kind == "task" && event.json()["id"] == json!(task.id) && event.json()["status"] == "completed").await;
    }
}

on_both! { alone:
    async fn streams_and_long_polls_end_when_the_server_stops(database) {
        let server = Server::on(database).start();
        let worker = server.crew().worker().register().await;
        let mut stream = sse::open(&server, "watch", None).await;
        let path = worker.path("/claim");
        let api = (*server).clone();
        let mut second = sse::open(&server, "watch", None).await;
        let claim = beside(async move { api.try_post(&path, json!({ "max": 1, "wait_sec": 60 })).await });
        let task = server.crew().task().create().await;
        second.find(|event| event.kind == "task" && event.json()["id"] == json!(task.id)).await;
        let asked = std::time::Instant::now();
        let end = server.stop();
        assert!(end.success(), "{end:?}: {}", server.log());
        assert!(asked.elapsed().as_secs() < 10, "{:?}", asked.elapsed());
        if let Ok(answer) = claim.await.unwrap() {
            assert!(matches!(answer.status, 200 | 503), "{answer:?}");
        }
        while stream.next().await.is_some() {}
    }
}

/// More bytes than the buffers of both sockets hold.
const UNREAD_BYTES: usize = 60 << 20;
/// Few enough that their number alone causes no gap.
const UNREAD_COMMITS: usize = 100;
/// The maximum number of bytes that the server keeps for streams that lag.
const KEPT_BYTES: usize = 8 << 20;

on_both! { alone:
    async fn a_watcher_that_falls_too_far_behind_is_told_to_list_again(database) {
        let server = Server::on(database).start();
        let crew = server.crew();
        let mut slow = sse::open(&server, "watch", None).await;
        let mut quick = sse::open(&server, "watch", None).await;
        let (seen, mut has_seen) = tokio::sync::watch::channel(0);
        let follow = beside(async move {
            let mut resets = 0;
            while let Some(event) = quick.next().await {
                seen.send_modify(|news| *news += usize::from(event.kind == "task"));
                resets += usize::from(event.kind == "reset");
                if event.data.contains("the last one") {
                    break;
                }
            }
            resets
        });
        let long = "p".repeat(1_000_000);
        let (mut created, mut read) = (Vec::new(), Vec::new());
        for _ in 0..UNREAD_BYTES / long.len() {
            created.push(crew.task().prompt(&long).create().await.id);
            // A client that reads nothing for 30 s is disconnected.
            if created.len().is_multiple_of(8) {
                read.push(slow.next().await.expect("the stream goes on"));
            }
            // The quick stream has read this task before the next one is created.
            has_seen.wait_for(|news| *news == created.len()).await.unwrap();
        }
        for _ in 0..UNREAD_COMMITS {
            created.push(crew.task().create().await.id);
            has_seen.wait_for(|news| *news == created.len()).await.unwrap();
        }
        let last = crew.task().prompt("the last one").create().await;
        created.push(last.id.clone());
        let resets = follow.await.unwrap();
        assert_eq!((*has_seen.borrow(), resets), (created.len(), 0), "a stream that is read in time misses nothing");

        while !read.last().is_some_and(|event| event.kind == "task" && event.json()["id"] == last.id.as_str()) {
            read.push(slow.next().await.expect("the stream goes on"));
        }
        let (mut next, mut tasks, mut is_reset, mut kept) = (0, 0, false, None);
        for event in &read {
            match event.kind.as_str() {
                "reset" => (is_reset, kept) = (true, Some(0)),
                "task" => {
                    let id = event.json()["id"].as_str().unwrap().to_owned();
                    let missing = created[next..].iter().position(|created| *created == id).expect("tasks arrive in order, each once");
                    assert!(is_reset || missing == 0, "{missing} tasks are missing without a reset");
                    (next, tasks, is_reset) = (next + missing + 1, tasks + 1, false);
                    kept = kept.map(|kept| kept + event.data.len());
                }
                other => panic!("{other}"),
            }
        }
        let kept = kept.unwrap_or_else(|| panic!("{tasks} of {} changes arrived, without a reset for the others", created.len()));
        assert!(kept <= KEPT_BYTES, "the server kept {kept} bytes");
        assert_eq!(next, created.len());
        assert!(tasks < created.len());
    }
}

on_both! { alone:
    async fn one_client_does_not_take_all_places(database) {
        let server = Server::on(database).env("TRUSTED_PROXIES", "127.0.0.1").start();
        let (one, other) = (server.with_header("x-forwarded-for", "2001:db8::1"), server.with_header("x-forwarded-for", "2001:db8:0:1::1"));
        let mut streams = Vec::new();
        for _ in 0..128 {
            streams.push(sse::open(&one, "watch", None).await);
        }
        let neighbour = server.with_header("x-forwarded-for", "2001:db8::2");
        for client in [&one, &neighbour] {
            let text = client.get("watch").await.error(503);
            assert!(text.contains("this client"), "{text}");
        }
        streams.push(sse::open(&other, "watch", None).await);
        // Other waits have limits of their own.
        let task = one.crew().task().create().await;
        one.get(&task.path("/wait?timeout_sec=0")).await.ok();
        streams.truncate(127);
        streams.remove(0);
        eventually("a permit is free again", || async {
            let answer = one.request(reqwest::Method::GET, "watch").send().await.unwrap();
            (answer.status() == 200).then_some(())
        }).await;
    }

    async fn changes_come_in_small_pieces(database) {
        let server = Server::on(database).start();
        let crew = server.crew();
        let mut stream = pieces::open(&server, "watch").await;
        let prompt = "p".repeat(9_000);
        let tasks = (0..100).map(|_| crew.task().prompt(&prompt).json()).collect::<Vec<_>>();
        server.post("llm-tasks:batch", json!({ "tasks": tasks })).await.created();
        let (mut told, mut longest) = (0, 0);
        while told < 100 {
            let piece = stream.next().await;
            told += piece.matches("event: task\n").count();
            longest = longest.max(piece.len());
        }
        // This is the memory that a stream holds while its client does not read.
        assert!((9_000..=256 << 10).contains(&longest), "{longest} bytes in one chunk");
    }

    async fn a_change_that_is_too_large_to_send_is_to_be_listed(database) {
        let server = Server::on(database).start();
        let crew = server.crew();
        let long = "p".repeat(1_000_000);
        let mut ids = Vec::new();
        for _ in 0..12 {
            ids.push(crew.task().prompt(&long).create().await.id);
        }
        let mut stream = sse::open(&server, "watch", None).await;
        assert_eq!(server.post("llm-tasks:cancel", json!({ "ids": ids })).await.ok()["changed"], 12);
        let last = crew.task().prompt("the last one").create().await;
        let mut told = 0;
        stream.find(|event| { told += usize::from(event.kind == "task"); event.kind == "reset" }).await;
        assert!(told < 12, "a reset after all changes is useless");
        stream.find(|event| event.kind == "task" && event.json()["id"] == json!(last.id)).await;
    }
}
