//! One call over HTTP: tries, waits, limits.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use backon::Retryable;
use reqwest::header::{CONTENT_TYPE, HeaderValue};
use reqwest::{Method, RequestBuilder, redirect};
use secrecy::{ExposeSecret, SecretString};
use serde_json::Value;
use url::Url;

use super::Options;

/// Longer answers are cut off: the control plane's are some kilobytes.
const MAX_ANSWER_BYTES: usize = 8 * 1024 * 1024;

/// What can be asked of the control plane.
#[derive(Clone, Copy, Debug)]
pub enum Call<'a> {
    Health,
    Agents,
    Projects,
    Leadership {
        project: &'a str,
    },
    Nodes {
        project: &'a str,
    },
    /// Makes a node the project's leader; `body` goes as it is.
    SelectLeader {
        project: &'a str,
        body: &'a Value,
    },
}

impl Call<'_> {
    fn path(&self) -> Vec<&str> {
        match self {
            Self::Health => vec!["health"],
            Self::Agents => vec!["agents"],
            Self::Projects => vec!["projects"],
            Self::Leadership { project } => vec!["projects", project, "leadership"],
            Self::Nodes { project } => vec!["projects", project, "nodes"],
            Self::SelectLeader { project, .. } => vec!["projects", project, "leadership", "select"],
        }
    }

    fn retries(&self) -> u32 {
        if matches!(self, Self::Health) { 1 } else { 3 }
    }
}

/// What came of a call, after its retries.
#[derive(Clone, Debug)]
pub enum Answer {
    Reply(Reply),
    /// No answer; the text says why.
    Down(String),
}

#[derive(Clone, Debug)]
pub struct Reply {
    pub status: u16,
    pub content_type: Option<String>,
    pub body: Vec<u8>,
}

impl Reply {
    pub fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }
}

impl Answer {
    /// Why the connection counts as broken. A refused key does; other refusals are answers.
    pub(super) fn problem(&self) -> Option<String> {
        match self {
            Self::Reply(Reply { status: status @ (401 | 403 | 500..), .. }) => Some(format!("HTTP {status}")),
            Self::Reply(_) => None,
            Self::Down(error) => Some(error.clone()),
        }
    }
}

pub(super) struct Client {
    /// The error is one of this machine's set-up.
    http: Result<reqwest::Client, String>,
    options: Options,
}

/// Why a try is to be repeated.
enum Failure {
    Status(Reply),
    Network(String),
}

impl Client {
    pub fn new(options: Options) -> Self {
        // Fails only if a provider was set before, which is as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
        // The key must reach nobody but the server that was named: no redirects, no proxy of the environment.
        let builder = || {
            reqwest::Client::builder()
                .user_agent(concat!("bloom-runtime/", env!("CARGO_PKG_VERSION")))
                .timeout(options.attempt_timeout)
                .redirect(redirect::Policy::none())
                .no_proxy()
        };
        // A machine without root certificates can still call a plain http address.
        let http = builder().build().or_else(|_| builder().tls_certs_only([]).build());
        Self { http: http.map_err(|error| explain(error, options.attempt_timeout)), options }
    }

    pub async fn call(&self, base: &str, key: Option<&SecretString>, call: &Call<'_>) -> Answer {
        let request = match self.request(base, key, call) {
            Ok(request) => request,
            Err(error) => return Answer::Down(error),
        };
        let attempt = || async { self.attempt(request.try_clone()).await };
        match attempt.retry(waits(self.options.first_wait, call.retries())).await {
            Ok(reply) | Err(Failure::Status(reply)) => Answer::Reply(reply),
            Err(Failure::Network(error)) => Answer::Down(error),
        }
    }

    fn request(&self, base: &str, key: Option<&SecretString>, call: &Call<'_>) -> Result<RequestBuilder, String> {
        let http = self.http.as_ref().map_err(Clone::clone)?;
        let url = address(base, &call.path())?;
        let mut request = match call {
            Call::SelectLeader { body, .. } => http.request(Method::POST, url).json(body),
            _ => http.request(Method::GET, url),
        };
        if let Some(key) = key {
            let mut value = HeaderValue::from_str(key.expose_secret())
                .map_err(|_| "the membridge admin key has characters that no header can hold".to_owned())?;
            value.set_sensitive(true);
            request = request.header("X-MEMBRIDGE-ADMIN", value);
        }
        Ok(request)
    }

    async fn attempt(&self, request: Option<RequestBuilder>) -> Result<Reply, Failure> {
        let network = |error: reqwest::Error| Failure::Network(explain(error, self.options.attempt_timeout));
        let request = request.ok_or_else(|| Failure::Network("the request can't be repeated".to_owned()))?;
        let mut response = request.send().await.map_err(network)?;
        let status = response.status().as_u16();
        let content_type = response.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).map(str::to_owned);
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(network)? {
            if body.len() + chunk.len() > MAX_ANSWER_BYTES {
                return Err(Failure::Network(format!("the answer is longer than {MAX_ANSWER_BYTES} bytes")));
            }
            body.extend_from_slice(&chunk);
        }
        let reply = Reply { status, content_type, body };
        if status >= 500 { Err(Failure::Status(reply)) } else { Ok(reply) }
    }
}

/// The address of a path below the server's URL. Parts are encoded, so that a project's id stays one part.
fn address(base: &str, path: &[&str]) -> Result<Url, String> {
    let wrong = || "the membridge server URL is not an http or https URL".to_owned();
    let mut url = Url::parse(base).map_err(|_| wrong())?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(wrong());
    }
    if path.iter().any(|part| matches!(*part, "." | ".." | "")) {
        return Err("the project id can't be part of an address".to_owned());
    }
    url.path_segments_mut().map_err(|()| wrong())?.pop_if_empty().extend(path);
    Ok(url)
}

/// So many waits, each twice the one before, with up to 30 % added by chance so that replicas drift apart.
fn waits(first: Duration, retries: u32) -> impl Iterator<Item = Duration> + Send + Sync + Unpin {
    (0..retries).map(move |n| {
        let chance = RandomState::new().hash_one(n) as f64 / u64::MAX as f64;
        (first * 2_u32.saturating_pow(n)).mul_f64(1.0 + 0.3 * chance)
    })
}

/// The innermost cause is what helps: "Connection refused", not "error sending request". Addresses are left out.
fn explain(error: reqwest::Error, timeout: Duration) -> String {
    if error.is_timeout() {
        return format!("no answer within {} s", timeout.as_secs_f64());
    }
    let error = error.without_url();
    let mut cause: &dyn std::error::Error = &error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    let text = cause.to_string();
    if error.is_connect() { format!("can't connect: {text}") } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_an_address_stay_parts() {
        let shown = |base, project| address(base, &["projects", project, "nodes"]).map(|url| url.to_string());
        assert_eq!(shown("http://h:8000", "a b").unwrap(), "http://h:8000/projects/a%20b/nodes");
        assert_eq!(shown("http://h:8000/base/", "a/../b?c#d").unwrap(), "http://h:8000/base/projects/a%2F..%2Fb%3Fc%23d/nodes");
        assert!(shown("http://h:8000", "..").is_err());
        assert!(shown("ftp://h", "a").is_err());
    }

    #[test]
    fn waits_double_with_some_chance_added() {
        let waited: Vec<f64> = waits(Duration::from_millis(500), 3).map(|wait| wait.as_secs_f64()).collect();
        assert_eq!(waited.len(), 3);
        for (wait, base) in waited.into_iter().zip([0.5, 1.0, 2.0]) {
            assert!((base..=base * 1.3).contains(&wait), "{wait} for {base}");
        }
    }
}
