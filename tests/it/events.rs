//! The events of a run.

use crate::on_both;
use crate::support::*;

fn event(seq: i64, kind: &str) -> Value {
    json!({ "seq": seq, "kind": kind, "at": 1_700_000_000_000_i64 + seq, "data": { "n": seq } })
}

/// The `n` in the data of each event.
fn numbers(events: &Value) -> Vec<i64> {
    events.as_array().expect("a bare array").iter().map(|event| event["data"]["n"].as_i64().unwrap()).collect()
}

async fn send(lease: &Lease<'_>, events: Value) -> Answer {
    lease.task.api.post(&lease.task.path("/events"), json!({ "lease_id": lease.id, "events": events })).await
}

on_both! {
    async fn events_are_kept_in_order(server) {
        let (task, lease) = server.crew().leased_task().await;
        assert_eq!(server.get(&task.path("/events")).await.ok(), json!([]));
        let kinds = ["lifecycle", "text", "tool_use", "tool_result", "usage", "rate_limit", "log", "stderr", "permission_denied", "question", "answer"];
        for (i, kind) in kinds.into_iter().enumerate() {
            send(&lease, json!([event(i64::try_from(i).unwrap() + 1, kind)])).await.ok();
        }
        let events = server.get(&task.path("/events")).await.ok();
        assert_eq!(numbers(&events), [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]);
        let first = &events[0];
        assert_eq!((&first["seq"], &first["kind"], &first["at"]), (&json!(1), &json!("lifecycle"), &json!(1_700_000_000_001_i64)));
        assert_eq!(first["lease_id"], json!(lease.id));
    }

    async fn a_repeat_is_ignored(server) {
        let (task, lease) = server.crew().leased_task().await;
        send(&lease, json!([event(1, "text"), event(2, "text")])).await.ok();
        send(&lease, json!([event(1, "text"), event(2, "text"), event(3, "text")])).await.ok();
        send(&lease, json!([event(2, "text")])).await.ok();
        assert_eq!(numbers(&server.get(&task.path("/events")).await.ok()), [1, 2, 3]);
    }

    async fn each_lease_counts_from_its_own_start(server) {
        let crew = server.crew();
        let worker = crew.worker().slots(2).register().await;
        let task = crew.task().create().await;
        let first = task.lease_to(&worker).await;
        send(&first, json!([event(1, "text"), event(2, "text")])).await.ok();
        server.post(&task.path("/release"), json!({ "lease_id": first.id, "reason": "x" })).await.ok();
        let second = task.lease_to(&worker).await;
        send(&second, json!([event(1, "text")])).await.ok();
        send(&first, json!([event(3, "text")])).await.error(409);
        assert_eq!(numbers(&server.get(&task.path("/events")).await.ok()), [1, 2, 1]);
    }

    async fn any_json_may_be_the_data(server) {
        let (task, lease) = server.crew().leased_task().await;
        let data = [json!("text"), json!(null), json!([1, { "a": "b" }]), json!({ "deep": { "er": "Grüße" } })];
        let events = data.iter().enumerate().map(|(i, data)| json!({ "seq": i + 1, "kind": "log", "at": 0, "data": data })).collect::<Vec<_>>();
        send(&lease, json!(events)).await.ok();
        let kept = server.get(&task.path("/events")).await.ok();
        assert_eq!(kept.as_array().unwrap().iter().map(|event| event["data"].clone()).collect::<Vec<_>>(), data);
    }

    async fn events_are_checked(server) {
        server.post(&format!("llm-tasks/{NO_ID}/events"), json!({})).await.fails(404, "Task not found");
        server.get(&format!("llm-tasks/{NO_ID}/events")).await.fails(404, "Task not found");
        let (task, lease) = server.crew().leased_task().await;
        send(&lease, json!("none")).await.refuses(&["events"]);
        send(&lease, json!(vec![event(1, "log"); 501])).await.refuses(&["events"]);
        for bad in [
            json!({ "seq": "1", "kind": "log", "at": 0, "data": 1 }), json!({ "seq": 1, "kind": "other", "at": 0, "data": 1 }),
            json!({ "seq": 1, "kind": "log", "data": 1 }), json!({ "kind": "log", "at": 0, "data": 1 }), json!(5),
        ] {
            send(&lease, json!([bad])).await.refuses(&["events"]);
        }
        send(&lease, json!([{ "seq": 1, "kind": "log", "at": 0, "data": "x".repeat(256 * 1024 + 1) }])).await.expect(400);
        server.post(&task.path("/events"), json!({ "events": [] })).await.refuses(&["lease_id"]);
        server.post(&task.path("/events"), json!({ "lease_id": NO_ID, "events": [event(1, "log")] })).await
            .fails(409, &format!("Lease '{NO_ID}' is not the task's active lease"));
        assert_eq!(server.get(&task.path("/events")).await.ok(), json!([]));
        let most = (1..=500).map(|seq| event(seq, "log")).collect::<Vec<_>>();
        send(&lease, json!(most)).await.ok();
    }

    async fn a_worker_sends_events_of_many_runs_at_once(server) {
        let crew = server.crew();
        let (worker, other) = (crew.worker().slots(3).register().await, crew.worker().register().await);
        let (first, second, foreign) = (crew.task().create().await, crew.task().create().await, crew.task().create().await);
        let (lease, ended, theirs) = (first.lease_to(&worker).await, second.lease_to(&worker).await, foreign.lease_to(&other).await);
        let run = |task: &Task<'_>, lease: &Lease<'_>, events: Value| json!({ "task_id": task.id, "lease_id": lease.id, "events": events });
        server.post(&second.path("/release"), json!({ "lease_id": ended.id, "reason": "x" })).await.ok();
        let runs = json!([
            run(&first, &lease, json!([event(1, "text"), event(2, "text")])),
            run(&foreign, &theirs, json!([event(1, "text")])),
            run(&second, &ended, json!([event(1, "text")])),
            { "task_id": NO_ID, "lease_id": NO_ID, "events": [] },
        ]);
        for _ in 0..2 {
            let results = server.post(&worker.path("/events"), json!({ "runs": runs })).await.ok()["results"].clone();
            let outcomes: Vec<_> = results.as_array().unwrap().iter().map(|result| (result["task_id"].as_str().unwrap(), result["status"].as_i64().unwrap())).collect();
            assert_eq!(outcomes, [(first.id.as_str(), 200), (foreign.id.as_str(), 409), (second.id.as_str(), 200), (NO_ID, 404)]);
            assert_eq!(results[1]["error"], json!(format!("Lease '{}' is not the task's active lease", theirs.id)));
        }
        for (task, told) in [(&first, vec![1, 2]), (&second, vec![1]), (&foreign, vec![])] {
            assert_eq!(numbers(&server.get(&task.path("/events")).await.ok()), told);
        }
        // The lease has ended, and the other worker never had it.
        let results = server.post(&other.path("/events"), json!({ "runs": [run(&second, &ended, json!([event(2, "text")]))] })).await.ok()["results"].clone();
        assert_eq!(results[0]["status"], 409);
    }

    async fn events_of_many_runs_are_checked(server) {
        let (task, lease) = server.crew().leased_task().await;
        let worker = server.crew().worker().register().await;
        let run = |events: Value| json!({ "task_id": task.id, "lease_id": lease.id, "events": events });
        let post = async |runs: Value| server.post(&worker.path("/events"), json!({ "runs": runs })).await;
        post(json!("none")).await.refuses(&["runs"]);
        post(json!([run(json!([event(1, "log")])), run(json!([event(1, "other")]))])).await.refuses(&["runs"]);
        post(json!([run(json!(vec![event(1, "log"); 501]))])).await.refuses(&["runs"]);
        post(json!(vec![run(json!([])); 1001])).await.refuses(&["runs"]);
        post(json!([{ "task_id": "x", "lease_id": lease.id, "events": [] }])).await.refuses(&["runs"]);
        assert_eq!(server.get(&task.path("/events")).await.ok(), json!([]));
        server.post("workers/unknown/events", json!({ "runs": [] })).await.error(404);
    }

    async fn only_the_newest_are_kept(server) {
        let (task, lease) = server.crew().leased_task().await;
        for from in (0..11_000).step_by(500) {
            let events = (from + 1..=from + 500).map(|seq| event(seq, "log")).collect::<Vec<_>>();
            send(&lease, json!(events)).await.ok();
        }
        let mut stream = sse::open(server, &task.path("/events"), None).await;
        let first = stream.next().await.unwrap().json()["data"]["n"].as_i64().unwrap();
        assert_eq!(first, 1001, "the newest 10,000 events are kept");
        let last = stream.find(|event| event.json()["data"]["n"] == 11_000).await;
        assert!(!last.id.is_empty());
    }

    async fn a_stream_goes_on_where_it_stopped(server) {
        let (task, lease) = server.crew().leased_task().await;
        send(&lease, json!([event(1, "text"), event(2, "text")])).await.ok();
        let mut stream = sse::open(server, &task.path("/events"), None).await;
        assert_eq!(stream.headers.get("x-accel-buffering").unwrap(), "no");
        let first = stream.next().await.unwrap();
        assert_eq!((first.json()["data"]["n"].as_i64(), first.id.is_empty()), (Some(1), false));
        assert_eq!(stream.next().await.unwrap().json()["data"]["n"], 2);
        send(&lease, json!([event(3, "text")])).await.ok();
        assert_eq!(stream.next().await.unwrap().json()["data"]["n"], 3, "an event is streamed when it arrives");
        let mut again = sse::open(server, &task.path("/events"), Some(&first.id)).await;
        assert_eq!(again.next().await.unwrap().json()["data"]["n"], 2);
        assert_eq!(again.next().await.unwrap().json()["data"]["n"], 3);
    }

    async fn a_stream_waits_for_the_last_events_of_a_run(server) {
        let (task, lease) = server.crew().leased_task().await;
        send(&lease, json!([event(1, "text")])).await.ok();
        lease.complete("success", json!({ "last_event_seq": 3 })).await.ok();
        let mut stream = sse::open(server, &task.path("/events"), None).await;
        assert_eq!(stream.next().await.unwrap().json()["data"]["n"], 1);
        send(&lease, json!([event(2, "text")])).await.ok();
        assert_eq!(stream.next().await.unwrap().json()["data"]["n"], 2);
        send(&lease, json!([event(3, "text")])).await.ok();
        assert_eq!(stream.next().await.unwrap().json()["data"]["n"], 3, "the task has finished, and its events have not");
        assert_eq!(stream.next().await.unwrap().kind, "end");
    }

    async fn a_stream_comes_in_pieces_of_a_megabyte(server) {
        let (task, lease) = server.crew().leased_task().await;
        let data = "x".repeat(200_000);
        for first in (1..=40).step_by(4) {
            let events = (first..first + 4).map(|seq| json!({ "seq": seq, "kind": "log", "at": 0, "data": data })).collect::<Vec<_>>();
            send(&lease, json!(events)).await.ok();
        }
        let mut stream = pieces::open(server, &task.path("/events")).await;
        let (mut events, mut longest) = (0, 0);
        while events < 40 {
            let piece = stream.next().await;
            events += piece.matches("\ndata: ").count();
            longest = longest.max(piece.len());
        }
        // This is the memory that a stream holds while its client does not read.
        assert!((200_000..(1 << 20) + 10_000).contains(&longest), "{longest} bytes in one chunk");
    }

    async fn an_event_renews_nothing_but_shows_life(server) {
        let (task, lease) = server.crew().leased_task().await;
        send(&lease, json!([event(1, "text")])).await.ok();
        assert_eq!(lease.now().await["expires_at"], lease.json["expires_at"]);
        assert_eq!(task.status().await, "leased");
    }
}
