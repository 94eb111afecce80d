//! The client of the control plane against a server that misbehaves, with timeouts that the test sets.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bloom_core::audit::Actor;
use bloom_core::worker::WorkerStatus;
use bloom_membridge::{Call, Membridge, MembridgeOptions, Upstream};
use secrecy::SecretString;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::support::pushed::Mute;
use crate::support::stub::{Reply, Stub};
use crate::support::{json, run};

const KEY: &str = "membridge-admin-key";
/// Long enough for a busy machine to answer, and short enough for the test.
const ATTEMPT: Duration = Duration::from_millis(400);

fn client(url: &str) -> Membridge {
    let options = MembridgeOptions { attempt_timeout: ATTEMPT, first_wait: Duration::from_millis(2) };
    Membridge::with_options(Some(url.to_owned()), Some(SecretString::from(KEY)), options)
}

/// A server that answers every connection with these bytes, or not at all.
async fn raw_server(answer: &'static str) -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let count = Arc::new(AtomicUsize::new(0));
    let counted = count.clone();
    crate::support::beside(async move {
        let mut open = Vec::new();
        while let Ok((mut stream, _)) = listener.accept().await {
            counted.fetch_add(1, Ordering::SeqCst);
            let _ = stream.read(&mut [0; 4096]).await;
            let _ = stream.write_all(answer.as_bytes()).await;
            // The connection is kept open, so that the client can't tell the end of the answer.
            open.push(stream);
        }
    });
    (url, count)
}

#[track_caller]
fn down(answer: Upstream) -> String {
    match answer {
        Upstream::Down(error) => error,
        Upstream::Reply(reply) => panic!("the server answered: {reply:?}"),
    }
}

#[track_caller]
fn status(answer: Upstream) -> u16 {
    match answer {
        Upstream::Reply(reply) => reply.status,
        Upstream::Down(error) => panic!("no answer: {error}"),
    }
}

#[test]
fn a_silent_server_costs_the_tries_and_no_more() {
    run(async {
        let (url, tries) = raw_server("").await;
        let membridge = client(&url);
        let started = Instant::now();
        let error = down(membridge.call(Call::Health).await);
        assert!(error.contains("no answer within 0.4 s"), "{error}");
        assert!(started.elapsed() >= 2 * ATTEMPT);
        assert_eq!(tries.load(Ordering::SeqCst), 2, "health is retried once");
        let state = membridge.state();
        assert_eq!((state.consecutive_failures, state.connected, state.last_success), (1, false, None), "one call, one failure");
        assert!(state.last_error.is_some());
    });
}

#[test]
fn server_errors_are_tried_again_and_refusals_are_not() {
    run(async {
        let stub = Stub::start().await;
        let membridge = client(&stub.url);
        stub.always("/projects", Reply::new(500, "oops"));
        assert_eq!(status(membridge.call(Call::Projects).await), 500, "the answer is passed on");
        assert_eq!(stub.seen("/projects").len(), 4, "three retries");
        assert_eq!(membridge.state().last_error.as_deref(), Some("HTTP 500"));
        stub.always("/projects/p/nodes", Reply::new(404, "{}"));
        assert_eq!(status(membridge.call(Call::Nodes { project: "p" }).await), 404);
        assert_eq!(stub.seen("/projects/p/nodes").len(), 1);
        assert!(membridge.state().connected, "a 404 is an answer");
        stub.once("/projects", Reply::new(503, "later"));
        stub.always("/projects", Reply::new(200, "[]"));
        assert_eq!(status(membridge.call(Call::Projects).await), 200);
        let state = membridge.state();
        assert_eq!((state.consecutive_failures, state.connected, &state.last_error), (0, true, &None));
        assert!(state.last_success.is_some());
        assert!(stub.seen("/projects").iter().all(|request| request.headers.get("x-membridge-admin").unwrap() == KEY));
    });
}

#[test]
fn a_selection_goes_as_it_is_and_its_project_stays_one_part_of_the_address() {
    run(async {
        let stub = Stub::start().await;
        let membridge = client(&format!("{}/base/", stub.url));
        let path = "/base/projects/a%2F..%2Fb/leadership/select";
        stub.always(path, Reply::new(200, "{}"));
        let body = json!({ "primary_node_id": "n1", "lease_seconds": 60 });
        assert_eq!(status(membridge.call(Call::SelectLeader { project: "a/../b", body: &body }).await), 200);
        assert_eq!(serde_json::from_str::<serde_json::Value>(&stub.seen(path)[0].body).unwrap(), body);
        down(membridge.call(Call::Leadership { project: ".." }).await);
    });
}

#[test]
fn a_connection_test_tells_what_it_met() {
    run(async {
        let stub = Stub::start().await;
        let membridge = client(&stub.url);
        assert_eq!(membridge.config().last_test, None);
        stub.always("/health", Reply::new(200, r#"{"status":"ok"}"#));
        assert_eq!(membridge.test_connection().await, Ok(json!({ "status": "ok" })));
        assert!(membridge.config().connected && membridge.config().last_test.is_some());
        stub.always("/health", Reply::new(401, "no"));
        assert_eq!(membridge.test_connection().await, Err("HTTP 401".to_owned()));
        assert!(!membridge.config().connected);
        stub.always("/health", Reply::new(200, "<html>hello</html>"));
        let error = membridge.test_connection().await.unwrap_err();
        assert!(error.contains("not JSON"), "{error}");
        assert!(!membridge.config().connected);
    });
}

#[test]
fn garbage_and_closed_doors_are_told_in_words_without_the_address() {
    run(async {
        let (url, _) = raw_server("this is no HTTP\r\n\r\n").await;
        let garbage = down(client(&url).call(Call::Health).await);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let closed = format!("http://user:hidden@{}", listener.local_addr().unwrap());
        drop(listener);
        let refused = down(client(&closed).call(Call::Health).await);
        assert!(refused.contains("can't connect"), "{refused}");
        for error in [garbage, refused] {
            assert!(!error.is_empty() && !error.contains("http://") && !error.contains("hidden"), "{error}");
        }
        assert!(down(Membridge::new(None, None).call(Call::Health).await).contains("MEMBRIDGE_SERVER_URL"));
        assert!(down(client("no url").call(Call::Health).await).contains("not an http or https URL"));
    });
}

#[test]
fn redirects_and_endless_answers_are_not_followed() {
    run(async {
        let stub = Stub::start().await;
        let (url, visits) =
            raw_server("HTTP/1.1 302 Found\r\nlocation: /elsewhere\r\ncontent-length: 0\r\nconnection: close\r\n\r\n").await;
        assert_eq!(status(client(&url).call(Call::Projects).await), 302);
        assert_eq!(visits.load(Ordering::SeqCst), 1);
        stub.always("/projects", Reply::new(200, &"x".repeat(9 * 1024 * 1024)));
        let error = down(client(&stub.url).call(Call::Projects).await);
        assert!(error.contains("longer than") || error.contains("no answer within"), "{error}");
    });
}

#[test]
fn a_sync_is_sent_once_and_may_take_long() {
    run(async {
        let (stub, slow) = (Stub::start().await, Mute::start("HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nnull").await);
        let body = json!({ "project": "house", "agent": "box" });
        stub.always("/sync/push", Reply::new(503, "busy"));
        assert_eq!(status(client(&stub.url).call(Call::SyncMemory { direction: "push", body: &body }).await), 503);
        assert_eq!(stub.seen("/sync/push").len(), 1);
        let membridge = client(&slow.url);
        let syncing = membridge.call(Call::SyncMemory { direction: "pull", body: &body });
        let after_the_limit_of_other_calls = async {
            slow.has_a_request().await;
            down(client(&slow.url).call(Call::Health).await);
            slow.let_go();
        };
        let (synced, ()) = tokio::join!(syncing, after_the_limit_of_other_calls);
        assert_eq!(status(synced), 200);
    });
}

#[test]
fn a_listing_gives_all_its_good_entries() {
    run(async {
        let stub = Stub::start().await;
        let membridge = client(&stub.url);
        assert!(membridge.agents().await.unwrap().is_empty());
        let listing = json!({ "agents": [
            { "name": "one", "url": "http://127.0.0.1:9", "status": "online", "last_seen": 1_772_042_245.25,
              "capabilities": { "claude_cli": true, "max_concurrency": 4, "labels": ["gpu"], "agents": ["coder"] },
              "ip_addrs": ["10.0.0.1"], "agent_version": "1.2", "os_info": "linux", "install_method": "apk", "obs_count": 7, "db_sha": "abc",
              "instance": uuid::Uuid::from_u128(7) },
            { "name": "bad", "capabilities": { "max_concurrency": "many" } },
            { "node_id": "two", "instance": "no id", "status": "dreaming", "last_seen": 1_772_042_245_250_i64 },
            { "id": "three", "last_seen": null },
        ] });
        stub.always("/agents", Reply::new(200, &listing.to_string()));
        let agents = membridge.agents().await.unwrap();
        assert_eq!(agents.iter().map(|agent| agent.id.as_str()).collect::<Vec<_>>(), ["one", "two", "three"]);
        let one = &agents[0];
        assert_eq!((one.instance, agents[1].instance), (Some(uuid::Uuid::from_u128(7)), None));
        assert_eq!((one.max_concurrency, one.claude_cli, one.obs_count, &one.actor), (Some(4), Some(true), Some(7), &Actor::Reconciler));
        assert_eq!((&one.labels, &one.agents), (&Some(vec!["gpu".into()]), &Some(Some(vec!["coder".into()]))));
        assert_eq!((one.status, agents[1].status, agents[2].status), (Some(WorkerStatus::Online), Some(WorkerStatus::Unknown), None));
        for (code, body) in [(200, "<html>"), (200, r#"{"agents": 5}"#), (401, "no"), (500, "oops")] {
            stub.always("/agents", Reply::new(code, body));
            assert!(membridge.agents().await.is_err(), "{code} {body}");
        }
    });
}

#[test]
fn a_new_address_counts_from_the_next_call_and_the_key_stays_hidden() {
    run(async {
        let (old, new) = (Stub::start().await, Stub::start().await);
        let membridge = client(&old.url);
        membridge.agents().await.unwrap();
        let state = membridge.state();
        membridge.configure(old.url.clone(), SecretString::from(KEY));
        assert_eq!(membridge.state(), state, "the same settings keep the state");
        membridge.configure(new.url.clone(), SecretString::from("another-key-9999"));
        assert!(!membridge.state().connected);
        let config = membridge.config();
        assert_eq!((config.membridge_server_url, config.admin_key_masked.as_str()), (new.url.clone(), "anot****9999"));
        membridge.agents().await.unwrap();
        assert_eq!((old.seen("/agents").len(), new.seen("/agents").len()), (1, 1));
        assert_eq!(new.seen("/agents")[0].headers.get("x-membridge-admin").unwrap(), "another-key-9999");
    });
}
