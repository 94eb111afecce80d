//! Answers of the server that come late: what they order is for the leases of then.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, Method, Response, Uri};

use super::*;
use crate::support::{Database, Server};

/// A proxy that repeats the first order to cancel with every later answer that has none.
#[derive(Clone)]
struct Repeating {
    server: String,
    order: Arc<Mutex<Option<Value>>>,
    repeated: Arc<AtomicUsize>,
}

async fn forward(State(proxy): State<Repeating>, method: Method, uri: Uri, headers: HeaderMap, body: Bytes) -> Response<Body> {
    let mut call = crate::support::client::builder().build().unwrap().request(method, format!("{}{uri}", proxy.server)).body(body);
    for (name, value) in headers.iter().filter(|(name, _)| *name != "host" && *name != "content-length") {
        call = call.header(name, value);
    }
    let Ok(answer) = call.send().await else { return Response::builder().status(502).body(Body::empty()).unwrap() };
    let (status, text) = (answer.status(), answer.bytes().await.unwrap_or_default());
    let mut json: Value = serde_json::from_slice(&text).unwrap_or_default();
    let mut order = proxy.order.lock().unwrap();
    let is_order = json["directives"]["cancel"].as_array().is_some_and(|tasks| !tasks.is_empty());
    let text = match &*order {
        _ if is_order => {
            order.get_or_insert(json["directives"].clone());
            text.to_vec()
        }
        Some(order) if json["directives"].is_object() => {
            json["directives"] = order.clone();
            proxy.repeated.fetch_add(1, Ordering::Relaxed);
            json.to_string().into_bytes()
        }
        _ => text.to_vec(),
    };
    Response::builder().status(status).header("content-type", "application/json").body(Body::from(text)).unwrap()
}

#[test]
fn a_late_order_to_cancel_ends_no_later_run() {
    run(async {
        let server = Server::on(Database::Sqlite).start();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let proxy = Repeating { server: server.base().into(), order: Arc::default(), repeated: Arc::default() };
        let app = Router::new().fallback(forward).with_state(proxy.clone());
        beside(async move { axum::serve(listener, app).await });
        let _agent = server.agent("box").env("BLOOM_SERVER", url).shell().start();
        let (latch, tally) = (Latch::new(), Tally::new());
        let task = server.crew().task().prompt(&format!("{}; {}", tally.mark(), latch.wait())).create().await;
        tally.reaches(1).await;
        task.cancel().await.ok();
        task.reaches("cancelled").await;
        server.poke(&task.path("/requeue")).await.ok();
        tally.reaches(2).await;
        let before = proxy.repeated.load(Ordering::Relaxed);
        eventually("old orders come again", || async { (proxy.repeated.load(Ordering::Relaxed) > before + 1).then_some(()) }).await;
        latch.open();
        task.reaches("completed").await;
    });
}
