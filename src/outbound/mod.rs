//! Calls to other programs over HTTP. What goes out, keys above all, reaches nobody but the address that was named: no redirects, and
//! from a server no proxy of the environment. What comes back has a limit.

use std::time::Duration;

use reqwest::header::{CONTENT_TYPE, HeaderValue};
use reqwest::{ClientBuilder, RequestBuilder, redirect};
use secrecy::{ExposeSecret, SecretString};
use url::Url;

/// Longer answers are given up: those of control planes and agents are some kilobytes.
pub const MAX_ANSWER_BYTES: usize = 8 * 1024 * 1024;

/// An answer, whatever its status.
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

/// Why there is no whole answer.
#[derive(Clone, Debug)]
pub struct SendError {
    /// For people; without addresses and keys.
    pub text: String,
    /// No connection came about, so nothing of the request was seen by anybody.
    pub is_unsent: bool,
}

/// A server's client with these further settings.
///
/// # Errors
/// This machine's TLS can't be set up; the text says why.
pub fn client(further: impl Fn(ClientBuilder) -> ClientBuilder) -> Result<reqwest::Client, String> {
    client_by_proxy(|builder| further(builder.no_proxy()))
}

/// As [`client`], for calls that may take the environment's proxy: those that people start from their own machines.
///
/// # Errors
/// This machine's TLS can't be set up; the text says why.
pub fn client_by_proxy(further: impl Fn(ClientBuilder) -> ClientBuilder) -> Result<reqwest::Client, String> {
    // Fails only if a provider was set before, which is as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let builder = || {
        let builder = reqwest::Client::builder().user_agent(concat!("bloom-runtime/", env!("CARGO_PKG_VERSION")));
        further(builder.redirect(redirect::Policy::none()))
    };
    // A machine without root certificates can still call a plain http address.
    builder().build().or_else(|_| builder().tls_certs_only([]).build()).map_err(|error| explain(error).text)
}

/// Sends once, and reads the answer to its end.
///
/// # Errors
/// Nobody answered, not to the end within the limit, or with more than [`MAX_ANSWER_BYTES`].
pub async fn send(request: RequestBuilder, limit: Duration) -> Result<Reply, SendError> {
    let late = || SendError { text: format!("no answer within {} s", limit.as_secs_f64()), is_unsent: false };
    tokio::time::timeout(limit, read(request)).await.unwrap_or_else(|_| Err(late()))
}

async fn read(request: RequestBuilder) -> Result<Reply, SendError> {
    let mut response = request.send().await.map_err(explain)?;
    let status = response.status().as_u16();
    let content_type = response.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).map(str::to_owned);
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(explain)? {
        if body.len() + chunk.len() > MAX_ANSWER_BYTES {
            return Err(SendError { text: format!("the answer is longer than {MAX_ANSWER_BYTES} bytes"), is_unsent: false });
        }
        body.extend_from_slice(&chunk);
    }
    Ok(Reply { status, content_type, body })
}

/// The address of a path below a base URL. Parts are encoded, so that each stays one.
///
/// # Errors
/// The base is no http or https URL, or a part would lead elsewhere.
pub fn address(base: &str, path: &[&str]) -> Result<Url, String> {
    let wrong = || "it is not an http or https URL".to_owned();
    let mut url = Url::parse(base).map_err(|_| wrong())?;
    if !matches!(url.scheme(), "http" | "https") || !url.has_host() {
        return Err(wrong());
    }
    // A control character in between would be dropped, and the dots resolved.
    if let Some(part) = path.iter().find(|part| matches!(**part, "." | ".." | "") || part.chars().any(char::is_control)) {
        return Err(format!("{part:?} can't be a part of an address"));
    }
    url.path_segments_mut().map_err(|()| wrong())?.pop_if_empty().extend(path);
    Ok(url)
}

/// The request with a key in this header, if there is one; logs never show it.
///
/// # Errors
/// The key has characters that no header can hold.
pub fn with_key(request: RequestBuilder, header: &str, key: Option<&SecretString>) -> Result<RequestBuilder, String> {
    let Some(key) = key else { return Ok(request) };
    let mut value = HeaderValue::from_str(key.expose_secret())
        .map_err(|_| "its key contains characters that are not allowed in a header".to_owned())?;
    value.set_sensitive(true);
    Ok(request.header(header, value))
}

/// The innermost cause is what helps: "Connection refused", not "error sending request".
pub fn cause(error: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}

/// The cause, without addresses.
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
