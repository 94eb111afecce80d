//! A small JSON client, whose answers have methods to check them.

use std::sync::LazyLock;
use std::time::Duration;

use reqwest::Method;
use reqwest::header::HeaderMap;
use serde_json::Value;

/// One connection pool for all tests.
static CLIENT: LazyLock<reqwest::Client> = LazyLock::new(|| builder().build().expect("a client"));

pub fn builder() -> reqwest::ClientBuilder {
    // Fails only if a provider was installed before, which can be used as well.
    let _ = rustls::crypto::ring::default_provider().install_default();
    // A connection that a server is about to close, because no request came within its `head_timeout`, must not be used for one.
    reqwest::Client::builder()
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .pool_idle_timeout(Duration::from_secs(5))
        .timeout(Duration::from_secs(90))
}

/// A server's address, and the headers of every request to it.
#[derive(Clone, Debug)]
pub struct Api {
    base: String,
    client: reqwest::Client,
    headers: Vec<(String, String)>,
    /// Whether each error answer has a code.
    has_codes: bool,
}

impl Api {
    pub fn new(base: &str) -> Self {
        Self { base: base.to_owned(), client: CLIENT.clone(), headers: Vec::new(), has_codes: true }
    }

    /// An agent, whose answers are not those of the API.
    pub fn agent(base: &str) -> Self {
        Self { has_codes: false, ..Self::new(base) }
    }

    /// `http://127.0.0.1:PORT`.
    pub fn base(&self) -> &str {
        &self.base
    }

    /// The same server, with one more header in each request.
    pub fn with_header(&self, name: &str, value: &str) -> Self {
        let mut api = self.clone();
        api.headers.push((name.to_owned(), value.to_owned()));
        api
    }

    /// The same server, called by this client.
    pub fn with_client(&self, client: reqwest::Client) -> Self {
        Self { client, ..self.clone() }
    }

    /// The same server, with this key.
    pub fn with_key(&self, key: &str) -> Self {
        self.with_header("x-runtime-api-key", key)
    }

    /// The key of its requests.
    pub fn key(&self) -> Option<&str> {
        self.headers.iter().find(|(name, _)| name == "x-runtime-api-key").map(|(_, key)| key.as_str())
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.send(Method::GET, path, None).await
    }

    pub async fn patch(&self, path: &str, body: Value) -> Answer {
        self.send(Method::PATCH, path, Some(body.to_string().into_bytes())).await
    }

    pub async fn delete(&self, path: &str) -> Answer {
        self.send(Method::DELETE, path, None).await
    }

    pub async fn post(&self, path: &str, body: Value) -> Answer {
        self.send(Method::POST, path, Some(body.to_string().into_bytes())).await
    }

    /// A POST without a body.
    pub async fn poke(&self, path: &str) -> Answer {
        self.send(Method::POST, path, None).await
    }

    pub async fn post_bytes(&self, path: &str, body: impl Into<Vec<u8>>) -> Answer {
        self.send(Method::POST, path, Some(body.into())).await
    }

    pub async fn send(&self, method: Method, path: &str, body: Option<Vec<u8>>) -> Answer {
        match self.try_send(method.clone(), path, body).await {
            Ok(answer) => answer,
            Err(error) => panic!("{method} {path}: {error:?}"),
        }
    }

    /// For servers that may be down.
    pub async fn try_post(&self, path: &str, body: Value) -> Result<Answer, reqwest::Error> {
        self.try_send(Method::POST, path, Some(body.to_string().into_bytes())).await
    }

    /// For servers that may be down.
    pub async fn try_get(&self, path: &str) -> Result<Answer, reqwest::Error> {
        self.try_send(Method::GET, path, None).await
    }

    pub async fn try_send(&self, method: Method, path: &str, body: Option<Vec<u8>>) -> Result<Answer, reqwest::Error> {
        let what = format!("{method} {path}");
        let mut request = self.request(method, path);
        if let Some(body) = body {
            request = request.header("content-type", "application/json").body(body);
        }
        let response = request.send().await?;
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        let text = response.text().await?;
        let answer = Answer { what, status, headers, text };
        if self.has_codes && status >= 400 {
            answer.has_a_code();
        }
        Ok(answer)
    }

    /// A request whose answer is a stream.
    pub fn request(&self, method: Method, path: &str) -> reqwest::RequestBuilder {
        let request = self.client.request(method, self.url(path));
        self.headers.iter().fold(request, |request, (name, value)| request.header(name, value))
    }

    /// Paths that do not start with `/` are below `/api/runtime/`.
    fn url(&self, path: &str) -> String {
        let base = &self.base;
        if path.starts_with('/') { format!("{base}{path}") } else { format!("{base}/api/runtime/{path}") }
    }
}

#[derive(Debug)]
pub struct Answer {
    what: String,
    pub status: u16,
    pub headers: HeaderMap,
    pub text: String,
}

impl Answer {
    #[track_caller]
    pub fn expect(self, status: u16) -> Self {
        assert_eq!(self.status, status, "{}: {}", self.what, self.text);
        self
    }

    /// Expects 200; returns the body.
    #[track_caller]
    pub fn ok(self) -> Value {
        self.expect(200).json()
    }

    /// Expects 201; returns the body.
    #[track_caller]
    pub fn created(self) -> Value {
        self.expect(201).json()
    }

    #[track_caller]
    pub fn json(&self) -> Value {
        match serde_json::from_str(&self.text) {
            Ok(value) => value,
            Err(error) => panic!("{}: {error}: {}", self.what, self.text),
        }
    }

    /// Every error has a word for programs, which goes with its status.
    #[track_caller]
    fn has_a_code(&self) {
        let body = self.json();
        let words: &[&str] = match self.status {
            400 => &["validation"],
            401 => &["unauthorized"],
            403 => &["forbidden"],
            404 | 405 | 410 => &["not_found"],
            409 => &["conflict", "not_ready"],
            413 => &["too_large"],
            429 => &["rate_limited"],
            500 => &["internal"],
            503 => &["unavailable", "no_capacity"],
            408 | 502 | 504 => &["unavailable"],
            // The control plane's statuses go through.
            _ => &["validation", "unavailable"],
        };
        let word = match body["error"].as_str() {
            Some(text) if text.starts_with("Task is not ready") => "not_ready",
            Some(text) if text.starts_with("No available worker") => "no_capacity",
            _ => words[0],
        };
        assert!(words.contains(&word), "{}: {}: {}", self.what, self.status, self.text);
        assert_eq!(body["code"], word, "{}: {}: {}", self.what, self.status, self.text);
    }

    /// Expects this status and exactly `{"error": text, "code": word}`, as JSON.
    #[track_caller]
    pub fn fails(self, status: u16, text: &str) {
        let answer = self.expect(status);
        let body = answer.json();
        assert_eq!(body, serde_json::json!({ "error": text, "code": body["code"] }), "{}", answer.what);
        assert_eq!(answer.header("content-type").map(|kind| kind.starts_with("application/json")), Some(true), "{}", answer.what);
    }

    /// Expects this status and a text under `error`; returns the text.
    #[track_caller]
    pub fn error(self, status: u16) -> String {
        let answer = self.expect(status);
        match &answer.json()["error"] {
            Value::String(text) if !text.is_empty() => text.clone(),
            other => panic!("{}: there is no error text: {other}", answer.what),
        }
    }

    /// Expects a 400 with errors of exactly these fields; returns them as `{"field": ["text"]}`.
    #[track_caller]
    pub fn refuses(self, fields: &[&str]) -> Value {
        let answer = self.expect(400);
        let error = &answer.json()["error"];
        assert!(error["formErrors"].is_array(), "{}: {error}", answer.what);
        let complaints = error["fieldErrors"].as_object().unwrap_or_else(|| panic!("{}: {error}", answer.what)).clone();
        let mut named = complaints.keys().map(String::as_str).collect::<Vec<_>>();
        let mut wanted = fields.to_vec();
        named.sort_unstable();
        wanted.sort_unstable();
        assert_eq!(named, wanted, "{}: {error}", answer.what);
        for texts in complaints.values() {
            let texts = texts.as_array().expect("a list of texts");
            assert!(!texts.is_empty() && texts.iter().all(|text| text.as_str().is_some_and(|t| !t.is_empty())), "{error}");
        }
        Value::Object(complaints)
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    /// The value of a header that must be a number.
    #[track_caller]
    pub fn number(&self, name: &str) -> i64 {
        let value = self.header(name).unwrap_or_else(|| panic!("{}: no {name} in {:?}", self.what, self.headers));
        value.parse().unwrap_or_else(|_| panic!("{}: {name}: {value}", self.what))
    }

    /// The path of `Link: <…>; rel="next"`.
    pub fn next_page(&self) -> Option<String> {
        let link = self.header("link")?;
        assert!(link.ends_with("; rel=\"next\""), "{link}");
        let target = link.strip_prefix('<')?.split_once('>')?.0;
        // The target may be absolute; only its path is used.
        let path = target.find("/api/").map(|at| &target[at..])?;
        Some(path.to_owned())
    }
}
