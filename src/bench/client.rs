//! A client with one keep-alive connection. It does as little work per call as possible, because the load runs on the machine that it
//! measures.

use std::sync::Arc;
use std::time::{Duration, Instant};

use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{CONTENT_TYPE, HOST, HeaderValue, LINK};
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use url::Url;

use super::BenchError;
use bloom_client::next_page;

/// The time limit of a call, longer than the longest poll of a scenario.
const CALL_LIMIT: Duration = Duration::from_secs(60);
/// How long a call is repeated while the server answers 503.
const BUSY_LIMIT: Duration = Duration::from_secs(10);
const BUSY_PAUSE: Duration = Duration::from_millis(50);

/// The address of the server and the key for it.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    address: String,
    host: HeaderValue,
    /// The path before `/api`, if the server is behind a proxy.
    prefix: String,
    key: Option<HeaderValue>,
}

impl Target {
    pub(crate) fn new(server: &str, key: Option<&str>) -> Result<Self, BenchError> {
        let wrong = |why: &str| BenchError::usage(format!("--server {server}: {why}; give a URL such as http://127.0.0.1:5000"));
        let url = Url::parse(server).map_err(|error| wrong(&error.to_string()))?;
        if url.scheme() != "http" {
            return Err(wrong("only http:// can be measured"));
        }
        let (Some(host), Some(port)) = (url.host_str(), url.port_or_known_default()) else {
            return Err(wrong("it does not name a host"));
        };
        let address = format!("{host}:{port}");
        let key = match key {
            Some(key) => {
                let mut value =
                    HeaderValue::from_str(key).map_err(|_| BenchError::usage("--key must be one line of visible ASCII characters"))?;
                value.set_sensitive(true);
                Some(value)
            }
            None => None,
        };
        Ok(Self {
            host: HeaderValue::from_str(&address).map_err(|_| wrong("it does not name a usable host"))?,
            address,
            prefix: url.path().trim_end_matches('/').to_owned(),
            key,
        })
    }
}

pub(crate) struct Client {
    target: Arc<Target>,
    sender: SendRequest<Full<Bytes>>,
    /// The number of calls that were answered 503 and sent again.
    pub busy: u64,
}

pub(crate) struct Response {
    pub status: StatusCode,
    pub body: Bytes,
    /// The next page's path, without the target's prefix.
    pub next: Option<String>,
}

impl Client {
    pub(crate) async fn connect(target: &Arc<Target>) -> Result<Self, BenchError> {
        Ok(Self { target: target.clone(), sender: open(target).await?, busy: 0 })
    }

    /// Sends a request once and returns the answer, whatever its status.
    pub(crate) async fn send(&mut self, method: &Method, path: &str, body: Bytes) -> Result<Response, BenchError> {
        if self.sender.is_closed() {
            self.sender = open(&self.target).await?;
        }
        let exchange = self.exchange(method, path, body);
        match tokio::time::timeout(CALL_LIMIT, exchange).await {
            Ok(answer) => answer.map_err(|error| BenchError::from(format!("{method} {path}: {error}"))),
            Err(_) => Err(format!("{method} {path}: no answer within {} s", CALL_LIMIT.as_secs()).into()),
        }
    }

    async fn exchange(&mut self, method: &Method, path: &str, body: Bytes) -> Result<Response, String> {
        let target = &self.target;
        let mut request = Request::builder().method(method).header(HOST, &target.host);
        request = if target.prefix.is_empty() { request.uri(path) } else { request.uri(format!("{}{path}", target.prefix)) };
        if let Some(key) = &target.key {
            request = request.header("x-runtime-api-key", key);
        }
        if !body.is_empty() {
            request = request.header(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        }
        let request = request.body(Full::new(body)).map_err(|error| error.to_string())?;
        self.sender.ready().await.map_err(|error| error.to_string())?;
        let answer = self.sender.send_request(request).await.map_err(|error| error.to_string())?;
        let status = answer.status();
        let next = answer.headers().get(LINK).and_then(next_page);
        let body = answer.into_body().collect().await.map_err(|error| error.to_string())?.to_bytes();
        Ok(Response { status, body, next })
    }

    /// Sends a request, again while the server answers 503, and returns the answer if its status is expected.
    pub(crate) async fn expect(&mut self, method: &Method, path: &str, body: Bytes, expected: &[u16]) -> Result<Response, BenchError> {
        let began = Instant::now();
        loop {
            let answer = self.send(method, path, body.clone()).await?;
            if expected.contains(&answer.status.as_u16()) {
                return Ok(answer);
            }
            if answer.status != StatusCode::SERVICE_UNAVAILABLE || began.elapsed() > BUSY_LIMIT {
                return Err(refused(method, path, &answer));
            }
            self.busy += 1;
            tokio::time::sleep(BUSY_PAUSE).await;
        }
    }
}

async fn open(target: &Target) -> Result<SendRequest<Full<Bytes>>, BenchError> {
    let failed = |error: &dyn std::fmt::Display| {
        BenchError::from(format!("cannot connect to {}: {error}; is the server running there?", target.address))
    };
    let stream = TcpStream::connect(&target.address).await.map_err(|error| failed(&error))?;
    stream.set_nodelay(true).map_err(|error| failed(&error))?;
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(|error| failed(&error))?;
    // The sender reports the end of the connection and its errors.
    tokio::spawn(connection);
    Ok(sender)
}

fn refused(method: &Method, path: &str, answer: &Response) -> BenchError {
    let advice = match answer.status {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => "; give the admin key with --key",
        StatusCode::TOO_MANY_REQUESTS => "; start the server with RATE_LIMIT_PER_MINUTE=0 and WORKER_RATE_LIMIT_PER_MINUTE=0",
        _ => "",
    };
    let body: String = String::from_utf8_lossy(&answer.body).chars().take(300).collect();
    format!("{method} {path} was answered {}: {body}{advice}", answer.status.as_u16()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_an_http_url() {
        let target = Target::new("http://example.test/bloom/", Some("k")).unwrap();
        assert_eq!((target.address.as_str(), target.prefix.as_str()), ("example.test:80", "/bloom"));
        assert_eq!(Target::new("http://[::1]:5000", None).unwrap().address, "[::1]:5000");
        for wrong in ["https://example.test", "example.test", "5000", "unix:/run/x"] {
            assert!(Target::new(wrong, None).is_err(), "{wrong}");
        }
    }
}
