//! A control plane, on loopback, that answers as the test says.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, Method, Response, Uri};
use axum::{Router, body::Body};

use super::beside;

#[derive(Clone, Debug)]
pub struct Reply {
    pub status: u16,
    pub body: String,
    /// `None`: it does not say.
    pub content_type: Option<&'static str>,
    pub after: Duration,
}

impl Reply {
    pub fn new(status: u16, body: &str) -> Self {
        Self { status, body: body.to_owned(), content_type: Some("application/json"), after: Duration::ZERO }
    }
}

#[derive(Clone, Debug)]
pub struct Request {
    pub method: Method,
    pub path: String,
    pub headers: HeaderMap,
    pub body: String,
}

#[derive(Default)]
struct Script {
    /// Replies that are given once, in order, before `always`.
    next: HashMap<String, VecDeque<Reply>>,
    always: HashMap<String, Reply>,
    seen: Vec<Request>,
}

#[derive(Clone)]
pub struct Stub {
    pub url: String,
    script: Arc<Mutex<Script>>,
}

impl Stub {
    /// Starts a stub that knows only an empty `/agents`.
    pub async fn start() -> Stub {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let script = Arc::new(Mutex::new(Script::default()));
        let app = Router::new().fallback(answer).with_state(Arc::clone(&script));
        beside(async move { axum::serve(listener, app).await });
        let stub = Stub { url, script };
        stub.always("/agents", Reply::new(200, "[]"));
        stub
    }

    pub fn always(&self, path: &str, reply: Reply) {
        self.script.lock().expect("the script").always.insert(path.to_owned(), reply);
    }

    /// Gives this reply once, before the others at this path.
    pub fn once(&self, path: &str, reply: Reply) {
        self.script.lock().expect("the script").next.entry(path.to_owned()).or_default().push_back(reply);
    }

    /// The requests at this path.
    pub fn seen(&self, path: &str) -> Vec<Request> {
        self.script.lock().expect("the script").seen.iter().filter(|request| request.path == path).cloned().collect()
    }
}

async fn answer(State(script): State<Arc<Mutex<Script>>>, method: Method, uri: Uri, headers: HeaderMap, body: Bytes) -> Response<Body> {
    let path = uri.path().to_owned();
    let reply = {
        let mut script = script.lock().expect("the script");
        let text = String::from_utf8_lossy(&body).into_owned();
        script.seen.push(Request { method, path: path.clone(), headers, body: text });
        let once = script.next.get_mut(&path).and_then(VecDeque::pop_front);
        once.or_else(|| script.always.get(&path).cloned()).unwrap_or_else(|| Reply::new(404, r#"{"detail":"Not Found"}"#))
    };
    tokio::time::sleep(reply.after).await;
    let answer = Response::builder().status(reply.status);
    let answer = reply.content_type.into_iter().fold(answer, |answer, kind| answer.header("content-type", kind));
    answer.body(Body::from(reply.body)).expect("an answer")
}
