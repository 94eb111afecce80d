//! A client of the HTTP API, used by the agent and by the commands that call a server.
//!
//! It sends each request once; the caller decides whether to try again.

#![warn(missing_docs, unreachable_pub)]

mod error;
mod key;
mod path;
mod proxy;
mod refusal;
mod sse;
mod tls;
mod transfer;

use std::error::Error as _;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use parking_lot::RwLock;
use reqwest::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderName, LINK};
use reqwest::{ClientBuilder, Method, RequestBuilder, Response};
use secrecy::SecretString;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::error::Category;
use url::{Host, Url};

pub use error::Error;
pub use key::read_key;
pub use path::{next_page, part};
pub use sse::{Event, Events};
pub use tls::{Files, IdentityFiles, Tls};
pub use transfer::Digesting;

use bloom_core::Ms;
use bloom_core::masked_urls::masked_url;
use bloom_core::trace_context::TraceContext;
use bloom_outbound::{self as outbound, cause};
use key::Key;
use proxy::Proxy;
use refusal::{NEEDS_KEY, NOT_THE_API, refusal};
pub use refusal::{REFUSES_KEY, is_about_key};

/// Longer than any request may take at the server, except for long polls.
pub const CALL_LIMIT: Duration = Duration::from_secs(40);
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// An answer contains at most an output of 16 MiB as JSON, or a page of tasks.
const MAX_ANSWER_BYTES: usize = 256 << 20;

/// The wall clock of the client's machine.
pub fn now_ms() -> Ms {
    Timestamp::now().as_millisecond()
}

/// One server and its key. Cheap to clone; clones share connections.
#[derive(Clone, Debug)]
pub struct Client {
    /// Replaced when the TLS files have changed.
    http: Arc<RwLock<reqwest::Client>>,
    base: Url,
    /// The proxy from the environment that calls go through.
    proxy: Option<Proxy>,
    key: Arc<Key>,
    /// Where the address comes from, unless the user gave it with the command.
    origin: Option<Arc<str>>,
    /// Whether a person made the call, who may start a server on this machine. An agent's server is started by somebody else.
    is_of_person: bool,
    /// The parent span of the calls.
    traceparent: Option<TraceContext>,
}

/// A successful answer.
#[derive(Debug)]
pub struct Answer {
    /// The HTTP status, 200 to 299.
    pub status: u16,
    /// The content, unparsed.
    pub body: Vec<u8>,
    /// The path and query of the next page, starting at `/api`.
    pub next: Option<String>,
    /// The address of the server, and where it comes from.
    server: String,
}

impl Client {
    /// # Errors
    /// `server` is not an http or https URL, the key can't be sent as a header, or TLS can't be set up on this machine.
    pub fn new(server: &str, key: Option<&SecretString>, tls: &Tls) -> Result<Self, Error> {
        let wrong = |why: &str| {
            let shown = masked_url(server);
            Error::Usage(format!("the server's address {shown}: {why}; give a URL such as http://127.0.0.1:5000"))
        };
        let has_scheme = server.contains("://");
        let url = if has_scheme { server.to_owned() } else { format!("http://{server}") };
        let mut base = Url::parse(&url).map_err(|error| wrong(&error.to_string()))?;
        if !has_scheme && !is_loopback(&base) {
            // A missing scheme must not send the key over the network unencrypted.
            return Err(wrong("it begins with neither https:// nor http://"));
        }
        if !matches!(base.scheme(), "http" | "https") || base.host_str().is_none() {
            return Err(wrong("it is not an http or https URL"));
        }
        if !base.username().is_empty() || base.password().is_some() {
            return Err(Error::Usage("the server's address must not contain a password: give the key with --key-file or BLOOM_KEY".into()));
        }
        base.set_query(None);
        base.set_fragment(None);
        base.set_path(&format!("{}/", base.path().trim_end_matches('/').to_owned()));
        let key = Arc::new(Key::new(key)?);
        // A proxy would take an address of this machine for one of its own machine.
        let proxy = if is_loopback(&base) { None } else { Proxy::of_environment(&base) };
        let http = Arc::new(RwLock::new(http_client(&base, tls)?));
        Ok(Self { http, base, proxy, key, origin: None, is_of_person: false, traceparent: None })
    }

    /// The same client, whose errors say where its address comes from, such as `BLOOM_SERVER`.
    #[must_use]
    pub fn with_origin(self, origin: &str) -> Self {
        Self { origin: Some(origin.into()), ..self }
    }

    /// The same client, whose errors advise a person how to start a server on this machine.
    #[must_use]
    pub fn of_person(self) -> Self {
        Self { is_of_person: true, ..self }
    }

    /// The same client, whose calls belong to this trace.
    #[must_use]
    pub fn within(&self, traceparent: Option<TraceContext>) -> Self {
        Self { traceparent, ..self.clone() }
    }

    /// Uses other TLS files from now on, in all clones. Calls in progress are not affected.
    ///
    /// # Errors
    /// TLS can't be set up with them; the client keeps using the previous ones.
    pub fn use_tls(&self, tls: &Tls) -> Result<(), Error> {
        let http = http_client(&self.base, tls)?;
        *self.http.write() = http;
        Ok(())
    }

    /// The server's address, without a trailing slash.
    pub fn server(&self) -> &str {
        self.base.as_str().trim_end_matches('/')
    }

    /// # Errors
    /// See [`Error`]; also if the answer is not a `T`.
    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, Error> {
        self.send::<()>(Method::GET, path, None, CALL_LIMIT).await?.json()
    }

    /// # Errors
    /// See [`Error`]; also if the answer is not a `T`.
    pub async fn post<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> Result<T, Error> {
        self.send(Method::POST, path, Some(body), CALL_LIMIT).await?.json()
    }

    /// Sends the request once, and again if the server refuses the key and the key file now contains another one. `path` begins with
    /// `api/`, and its parts are encoded. `limit` is the time until the end of the answer.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn send<B: Serialize>(&self, method: Method, path: &str, body: Option<&B>, limit: Duration) -> Result<Answer, Error> {
        let request = || {
            let request = self.request(method.clone(), path)?.timeout(limit);
            Ok::<_, Error>(if let Some(body) = body { request.json(body) } else { request })
        };
        let key = self.key.value();
        match self.answer(request()?, limit).await {
            Err(error) if error.status() == Some(401) && key != self.key.value() => self.answer(request()?, limit).await,
            answer => answer,
        }
    }

    async fn answer(&self, request: RequestBuilder, limit: Duration) -> Result<Answer, Error> {
        let mut response = request.send().await.map_err(|error| self.unreachable(&error, limit))?;
        let (status, headers) = (response.status(), std::mem::take(response.headers_mut()));
        let mut bytes = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(|error| self.unreachable(&error, limit))? {
            if bytes.len() + chunk.len() > MAX_ANSWER_BYTES {
                return Err(Error::Garbled(format!("the server's answer is longer than {MAX_ANSWER_BYTES} bytes")));
            }
            bytes.extend_from_slice(&chunk);
        }
        if status.is_success() {
            let next = headers.get(LINK).and_then(next_page);
            return Ok(Answer { status: status.as_u16(), body: bytes, next, server: self.told() });
        }
        Err(self.refusal(status.as_u16(), &headers, &bytes))
    }

    /// Opens a stream of server-sent events, starting after the event id `last`.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn events(&self, path: &str, last: Option<&str>) -> Result<Events, Error> {
        let mut request = self.request(Method::GET, path)?.header(ACCEPT, "text/event-stream");
        if let Some(last) = last {
            request = request.header(HeaderName::from_static("last-event-id"), last);
        }
        let sent = tokio::time::timeout(CALL_LIMIT, request.send()).await;
        let sent = sent.map_err(|_| Error::Unreachable(format!("{} did not answer within {} s", self.told(), CALL_LIMIT.as_secs())))?;
        let response = sent.map_err(|error| self.unreachable(&error, CALL_LIMIT))?;
        let status = response.status();
        if status.is_success() {
            let kind = response.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
            if !kind.starts_with("text/event-stream") {
                let server = self.told();
                return Err(Error::Garbled(format!("{server} is not a bloom-runtime server: it sent no stream of events: {NOT_THE_API}")));
            }
            return Ok(Events::new(response, self.server()));
        }
        Err(self.refused(response).await)
    }

    async fn refused(&self, response: Response) -> Error {
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        let body = response.bytes().await.unwrap_or_default();
        self.refusal(status, &headers, &body)
    }

    fn refusal(&self, status: u16, headers: &HeaderMap, body: &[u8]) -> Error {
        if status == 401 {
            // If the file can't be used, the key stays as it is, and the refusal itself reports it.
            let _ = self.renew_key();
        }
        let refused = match refusal(status, headers, body, self.key.value().is_some()) {
            // Commands of the user who runs a `dev` server find its key; those of another user, or with another HOME, do not.
            Error::Refused { status, message, retry_after, fields } if message == NEEDS_KEY && is_loopback(&self.base) => {
                let message = format!("{message}; that of `dev` is in the file dev.key of its data directory, which it tells at its start");
                Error::Refused { status, message, retry_after, fields }
            }
            refused => refused,
        };
        match (refused, &self.origin) {
            (Error::Refused { status, message, retry_after, fields }, Some(_)) if matches!(status, 401 | 403) => {
                let message = format!("{message}. The server is {}", self.told());
                Error::Refused { status, message, retry_after, fields }
            }
            (refused, _) => refused,
        }
    }

    fn request(&self, method: Method, path: &str) -> Result<RequestBuilder, Error> {
        // The URL parser would resolve these segments, even percent-encoded, and the call would go to another path.
        let (parts, _) = path.split_once('?').unwrap_or((path, ""));
        if let Some(name) = parts.split('/').find(|part| matches!(*part, "." | "..")) {
            return Err(Error::Usage(format!("the name {name} can't be sent: no URL can contain it")));
        }
        let url = self.base.join(path.trim_start_matches('/')).map_err(|_| Error::Usage(format!("{path} is not a path")))?;
        let request = self.http.read().request(method, url);
        let request = match self.traceparent {
            Some(context) => request.header(HeaderName::from_static("traceparent"), context.to_string()),
            None => request,
        };
        Ok(match self.key.value() {
            Some(key) => request.header(HeaderName::from_static("x-runtime-api-key"), key),
            None => request,
        })
    }

    /// The address, and where it comes from.
    fn told(&self) -> String {
        match &self.origin {
            Some(origin) => format!("{}, from {origin}", self.server()),
            None => self.server().to_owned(),
        }
    }

    /// The host and the port that calls go to.
    fn place(&self) -> String {
        format!("{}:{}", self.base.host_str().unwrap_or_default(), self.base.port_or_known_default().unwrap_or_default())
    }

    fn unreachable(&self, error: &reqwest::Error, limit: Duration) -> Error {
        let server = &*self.told();
        Error::Unreachable(if error.is_timeout() && !error.is_connect() {
            format!("{server} did not answer within {} s", limit.as_secs())
        } else if self.base.scheme() == "https" && is_not_tls(error) {
            let http = self.server().replacen("https", "http", 1);
            let place = self.place();
            return Error::Usage(format!("the server at {place} does not speak https, probably http: give the address {http}"));
        } else if let Some(advice) = tls::advice(&cause(error)) {
            format!("can't connect to {server}: {}: {advice}", cause(error))
        } else if let Some(text) = self.proxy.as_ref().and_then(|proxy| proxy.told(error, server)) {
            text
        } else if error.is_connect() {
            let may_start = self.is_of_person && is_loopback(&self.base) && self.base.scheme() == "http";
            let start = if may_start { " Start one with: bloom-runtime dev" } else { "" };
            format!("can't connect to {server}: {}; is the server running there?{start}", cause(error))
        } else if is_not_http(error) {
            format!("the server at {} does not speak http ({}): check the address", self.place(), cause(error))
        } else {
            return Error::Broken(format!("the connection to {server} broke: {}", cause(error)));
        })
    }
}

fn http_client(base: &Url, tls: &Tls) -> Result<reqwest::Client, Error> {
    let settings = |builder: ClientBuilder| tls.add_to(builder.connect_timeout(CONNECT_LIMIT).tcp_nodelay(true));
    let client = if is_loopback(base) { outbound::client(settings) } else { outbound::client_by_proxy(settings) };
    client.map_err(|error| Error::Usage(format!("this machine's TLS can't be set up: {error}")))
}

fn is_loopback(url: &Url) -> bool {
    match url.host() {
        Some(Host::Domain(name)) => name == "localhost" || name.ends_with(".localhost"),
        Some(Host::Ipv4(address)) => is_own(address.into()),
        Some(Host::Ipv6(address)) => is_own(address.into()),
        None => false,
    }
}

/// Whether the address is one of this machine. A connection to the unspecified address, such as 0.0.0.0, leads to this machine, too.
fn is_own(address: IpAddr) -> bool {
    let address = address.to_canonical();
    address.is_loopback() || address.is_unspecified()
}

/// Whether the peer answered the TLS handshake with something that is not TLS.
fn is_not_tls(error: &reqwest::Error) -> bool {
    error.is_connect() && cause(error).contains("InvalidContentType")
}

/// Whether the answer is not HTTP, so that it can't come from the server.
fn is_not_http(error: &reqwest::Error) -> bool {
    std::iter::successors(error.source(), |&error| error.source()).any(|error| error.downcast_ref().is_some_and(hyper::Error::is_parse))
}

impl Answer {
    /// # Errors
    /// The body is not a `T`.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, Error> {
        serde_json::from_slice(&self.body).map_err(|error| {
            let why = if error.classify() == Category::Data { error.to_string() } else { "it is not JSON".to_owned() };
            Error::Garbled(format!(
                "{} is not a bloom-runtime server, or not one of this version: it answered something else ({why}): {NOT_THE_API}",
                self.server
            ))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use reqwest::header::HeaderValue;
    use serde_json::Value;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};

    #[test]
    fn a_server_is_an_http_url() {
        let server =
            |url: &str| Client::new(url, None, &Tls::default()).map(|client| client.server().to_owned()).map_err(|error| error.to_string());
        assert_eq!(server("http://h:5000").unwrap(), "http://h:5000");
        assert_eq!(server("https://h/bloom/?x#y").unwrap(), "https://h/bloom");
        for wrong in ["h:5000", "ftp://h", "5000", "", "http://me:secret@h", "ftp://me:secret@h/x", "me:secret@h", "http://me:s/ecret@h"] {
            assert!(!server(wrong).unwrap_err().contains("ecret"), "{wrong}");
        }
    }

    #[test]
    fn paths_stay_below_a_prefix() {
        let client = Client::new("http://h/bloom", None, &Tls::default()).unwrap();
        let path = |path: &str| client.request(Method::GET, path).unwrap().build().unwrap().url().path().to_owned();
        assert_eq!(path("/api/runtime/stats"), "/bloom/api/runtime/stats");
        assert_eq!(path(&format!("api/runtime/workers/{}", part("a/b?c"))), "/bloom/api/runtime/workers/a%2Fb%3Fc");
        assert_eq!(path(&format!("api/runtime/workers/{}", part("al\npha"))), "/bloom/api/runtime/workers/al%0Apha");
    }

    /// The error of a call whose peer handles the connection like this.
    async fn called(answer: impl AsyncFn(TcpStream)) -> Error {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = Client::new(&format!("http://{}", listener.local_addr().unwrap()), None, &Tls::default()).unwrap();
        let serve = async {
            loop {
                answer(listener.accept().await.unwrap().0).await;
            }
        };
        tokio::select! {
            error = client.get::<Value>("api/runtime/stats") => error.unwrap_err(),
            () = serve => unreachable!("it accepts for ever"),
        }
    }

    #[tokio::test]
    async fn a_broken_connection_is_no_missing_server() {
        let broken = called(async |mut stream| drop(stream.read(&mut [0; 16]).await)).await;
        assert!(matches!(broken, Error::Broken(_)) && broken.was_there() && broken.is_passing(), "{broken:?}");
        let half = called(async |mut stream| {
            let _ = stream.read(&mut [0; 4096]).await;
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{}").await;
        })
        .await;
        assert!(matches!(half, Error::Broken(_)), "{half:?}");
        let foreign = called(async |mut stream| {
            let _ = stream.read(&mut [0; 4096]).await;
            let _ = stream.write_all(b"500 unknown command\r\n").await;
        })
        .await;
        assert!(matches!(foreign, Error::Unreachable(_)) && foreign.to_string().contains("does not speak http"), "{foreign:?}");
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = Client::new(&format!("http://{}", listener.local_addr().unwrap()), None, &Tls::default()).unwrap();
        drop(listener);
        let nobody = client.get::<Value>("api/runtime/stats").await.unwrap_err();
        assert!(matches!(nobody, Error::Unreachable(_)) && !nobody.was_there(), "{nobody:?}");
        let person = client.of_person().get::<Value>("api/runtime/stats").await.unwrap_err();
        let advises_dev = |error: &Error| error.to_string().contains("bloom-runtime dev");
        assert_eq!((advises_dev(&nobody), advises_dev(&person)), (false, true), "an agent starts no server");
    }

    #[test]
    fn the_next_page_is_found() {
        let next = |link: &'static str| next_page(&HeaderValue::from_static(link));
        assert_eq!(next("</api/runtime/audit?cursor=x>; rel=\"next\"").as_deref(), Some("/api/runtime/audit?cursor=x"));
        assert_eq!(next("<http://h/p/api/runtime/audit?cursor=x>; rel=\"next\"").as_deref(), Some("/api/runtime/audit?cursor=x"));
        assert_eq!(next("</api/runtime/audit>; rel=\"first\""), None);
        assert_eq!(next("nonsense"), None);
    }
}
