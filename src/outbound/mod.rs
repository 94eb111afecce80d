//! HTTP calls to other programs. A request, which may contain a key, is sent to the given address only: redirects are not followed, and
//! calls of a server ignore the proxy of the environment. The size of answers is limited.

#![warn(missing_docs, unreachable_pub)]

use std::time::Duration;

use reqwest::header::{CONTENT_TYPE, HeaderValue};
use reqwest::{ClientBuilder, RequestBuilder, redirect};
use secrecy::{ExposeSecret, SecretString};
use url::Url;

/// Longer answers are refused. Those of control planes and agents have some kilobytes.
pub const MAX_ANSWER_BYTES: usize = 8 * 1024 * 1024;
/// Connections that were idle for this long are not reused. The limit must be shorter than that of servers. Otherwise a call could use a
/// connection that the server is just closing, and fail.
pub const IDLE_LIMIT: Duration = Duration::from_secs(5);

/// An answer, whatever its status.
#[derive(Clone, Debug)]
pub struct Reply {
    /// The HTTP status.
    pub status: u16,
    /// The header `Content-Type`; `None` if there is none, or if it is not text.
    pub content_type: Option<String>,
    /// The content, at most [`MAX_ANSWER_BYTES`] unless the caller has set another limit.
    pub body: Vec<u8>,
}

impl Reply {
    /// Whether the status is 200 to 299.
    pub fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }
}

/// Why there is no complete answer.
#[derive(Clone, Debug)]
pub struct SendError {
    /// A text for users, without addresses and keys.
    pub text: String,
    /// Whether no connection was established, so that the other side received nothing of the request.
    pub is_unsent: bool,
}

/// An HTTP client for calls of a server. `further` adds settings.
///
/// # Errors
/// TLS can't be set up on this machine; the text says why.
pub fn client(further: impl Fn(ClientBuilder) -> ClientBuilder) -> Result<reqwest::Client, String> {
    client_by_proxy(|builder| further(builder.no_proxy()))
}

/// As [`client`], but uses the proxy of the environment: for calls that users start from their own machines.
///
/// # Errors
/// TLS can't be set up on this machine; the text says why.
pub fn client_by_proxy(further: impl Fn(ClientBuilder) -> ClientBuilder) -> Result<reqwest::Client, String> {
    install_tls_provider();
    let builder = || {
        let builder = reqwest::Client::builder().user_agent(concat!("bloom-runtime/", env!("CARGO_PKG_VERSION")));
        further(builder.redirect(redirect::Policy::none()).pool_idle_timeout(IDLE_LIMIT))
    };
    // A machine without root certificates can still call plain http addresses.
    builder().build().or_else(|_| builder().tls_certs_only([]).build()).map_err(|error| explain(error).text)
}

/// Chooses the TLS cryptography of the process.
pub fn install_tls_provider() {
    // This fails only if a provider is already installed, which is fine.
    let _ = rustls::crypto::ring::default_provider().install_default();
}

/// Sends the request once and reads the complete answer.
///
/// # Errors
/// There was no complete answer within the limit, or it is longer than [`MAX_ANSWER_BYTES`].
pub async fn send(request: RequestBuilder, limit: Duration) -> Result<Reply, SendError> {
    send_up_to(request, limit, MAX_ANSWER_BYTES).await
}

/// As [`send`], for an answer of at most `most` bytes.
///
/// # Errors
/// There was no complete answer within the limit, or it is longer.
pub async fn send_up_to(request: RequestBuilder, limit: Duration, most: usize) -> Result<Reply, SendError> {
    let late = || SendError { text: format!("no answer within {} s", limit.as_secs_f64()), is_unsent: false };
    tokio::time::timeout(limit, read(request, most)).await.unwrap_or_else(|_| Err(late()))
}

async fn read(request: RequestBuilder, most: usize) -> Result<Reply, SendError> {
    let mut response = request.send().await.map_err(explain)?;
    let status = response.status().as_u16();
    // Such a status must not be passed on: 101, for example, would change the protocol of the connection.
    if !(200..600).contains(&status) {
        return Err(SendError { text: format!("the answer has the status {status}, which ends no request of HTTP"), is_unsent: false });
    }
    let content_type = response.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).map(str::to_owned);
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(explain)? {
        if body.len() + chunk.len() > most {
            return Err(SendError { text: format!("the answer is longer than {most} bytes"), is_unsent: false });
        }
        body.extend_from_slice(&chunk);
    }
    Ok(Reply { status, content_type, body })
}

/// The URL of a path below a base URL. Each part is encoded, so that it stays one part.
///
/// # Errors
/// The base is not an http or https URL, or a part is empty, `.` or `..`.
pub fn address(base: &str, path: &[&str]) -> Result<Url, String> {
    let wrong = || "it is not an http or https URL".to_owned();
    let mut url = Url::parse(base).map_err(|_| wrong())?;
    if !matches!(url.scheme(), "http" | "https") || !url.has_host() {
        return Err(wrong());
    }
    // The URL parser would drop control characters and resolve dots, so that the part would become another path.
    if let Some(part) = path.iter().find(|part| matches!(**part, "." | ".." | "") || part.chars().any(char::is_control)) {
        return Err(format!("{part:?} can't be a part of an address"));
    }
    url.path_segments_mut().map_err(|()| wrong())?.pop_if_empty().extend(path);
    Ok(url)
}

/// Adds the key, if there is one, as this header. Logs never show it.
///
/// # Errors
/// The key has characters that are not allowed in a header.
pub fn with_key(request: RequestBuilder, header: &str, key: Option<&SecretString>) -> Result<RequestBuilder, String> {
    let Some(key) = key else { return Ok(request) };
    let mut value = HeaderValue::from_str(key.expose_secret())
        .map_err(|_| "its key contains characters that are not allowed in a header".to_owned())?;
    value.set_sensitive(true);
    Ok(request.header(header, value))
}

/// The innermost cause is the most precise one: "Connection refused" instead of "error sending request".
pub fn cause(error: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}

/// The innermost cause, without addresses.
fn explain(error: reqwest::Error) -> SendError {
    let is_unsent = error.is_connect() || error.is_builder();
    let error = error.without_url();
    let text = cause(&error);
    SendError { text: if error.is_connect() { format!("can't connect: {text}") } else { text }, is_unsent }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_an_address_stay_parts() {
        let shown = |base, project| address(base, &["projects", project, "nodes"]).map(|url| url.to_string());
        assert_eq!(shown("http://h:8000", "a b").unwrap(), "http://h:8000/projects/a%20b/nodes");
        assert_eq!(shown("http://h:8000/base/", "a/../b?c#d").unwrap(), "http://h:8000/base/projects/a%2F..%2Fb%3Fc%23d/nodes");
        for wrong in ["..", ".", "", ".\t.", ".\r\n.", "a\nb", "\u{7f}"] {
            assert!(shown("http://h:8000", wrong).is_err(), "{wrong:?}");
        }
        assert!(shown("ftp://h", "a").is_err());
    }
}
