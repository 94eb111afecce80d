//! The proxy's connections to the hosts that a run may reach: direct ones, and those through the proxy that the agent's environment sets.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use hyper::Uri;
use hyper_util::client::proxy::matcher::{Intercept, Matcher};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::allow_list::{AllowList, Host, Target};
use super::request::Head;

/// The time limit for making a connection, including the look-up of its name.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// The maximum number of a name's addresses that are tried.
const MAX_ADDRESSES: usize = 8;

/// A connection, and what the other side has already sent.
#[derive(Debug)]
pub(crate) struct Upstream {
    pub stream: TcpStream,
    pub early: Vec<u8>,
}

/// Why there is no connection.
#[derive(Debug)]
pub(crate) enum Failed {
    /// The list does not allow the host.
    Refused(String),
    /// The host can't be reached.
    Unreachable(String),
}

/// Connects to a host if the list allows it. `scheme` is the scheme of the URL, by which the environment chooses a proxy.
pub(crate) async fn connect(list: &AllowList, look_ups: &Arc<Semaphore>, target: &Target, scheme: &str) -> Result<Upstream, Failed> {
    if !list.allows(target) {
        return Err(Failed::Refused(format!("{target} is not in sandbox.network: add {:?}", target.to_string())));
    }
    let connected = async {
        match proxy_for(target, scheme) {
            Some(proxy) => through(&proxy, target).await,
            None => directly(list, look_ups, target).await,
        }
    };
    let too_slow = || Failed::Unreachable(format!("{target} did not answer within {} s", CONNECT_LIMIT.as_secs()));
    timeout(CONNECT_LIMIT, connected).await.unwrap_or_else(|_| Err(too_slow()))
}

/// Connects without a proxy. The name is resolved only once, so the checked address is the one that the connection uses.
async fn directly(list: &AllowList, look_ups: &Arc<Semaphore>, target: &Target) -> Result<Upstream, Failed> {
    let port = target.port;
    let found: Vec<_> = match &target.host {
        Host::Address(address) => vec![(*address, port).into()],
        Host::Name(name) => {
            let found = look_up(name.clone(), port, look_ups).await;
            found.map_err(|error| Failed::Unreachable(format!("{name} can't be resolved: {error}")))?
        }
    };
    let mut last = match found.first() {
        Some(first) => Failed::Refused(format!(
            "{target} leads to {}, which is not an address of the internet: if runs may reach it, add \"{first}\"",
            first.ip()
        )),
        None => Failed::Unreachable(format!("{target} has no address")),
    };
    for address in found.into_iter().filter(|address| list.may_connect(address.ip(), port)).take(MAX_ADDRESSES) {
        match TcpStream::connect(address).await {
            Ok(stream) => return Ok(Upstream { stream, early: Vec::new() }),
            Err(error) => last = Failed::Unreachable(format!("{target} can't be reached: {error}")),
        }
    }
    Err(last)
}

/// The addresses of a name. The permit is held as long as the thread runs, which continues if this future is dropped.
async fn look_up(name: String, port: u16, turns: &Arc<Semaphore>) -> io::Result<Vec<SocketAddr>> {
    let turn = turns.clone().acquire_owned().await.map_err(io::Error::other)?;
    let found = spawn_blocking(move || {
        let found = (name.as_str(), port).to_socket_addrs();
        drop(turn);
        found.map(Iterator::collect)
    });
    found.await.map_err(io::Error::other)?
}

/// The proxy for calls to this host, taking NO_PROXY into account.
fn proxy_for(target: &Target, scheme: &str) -> Option<Intercept> {
    let uri = Uri::builder().scheme(scheme).authority(target.to_string()).path_and_query("/").build().ok()?;
    Matcher::from_env().intercept(&uri)
}

/// Connects through the environment's proxy, which resolves the name. So the address can't be checked here.
async fn through(proxy: &Intercept, target: &Target) -> Result<Upstream, Failed> {
    let uri = proxy.uri();
    let host = uri.host().unwrap_or_default();
    let failed = |why: String| Failed::Unreachable(format!("the proxy {host} of the agent makes no connection to {target}: {why}"));
    if uri.scheme_str() != Some("http") {
        return Err(failed("only proxies with http:// are supported".to_owned()));
    }
    let asked = async {
        let mut stream = TcpStream::connect((host.trim_matches(['[', ']']), uri.port_u16().unwrap_or(80))).await?;
        let mut head = format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n").into_bytes();
        if let Some(credentials) = proxy.basic_auth() {
            head.extend_from_slice(b"Proxy-Authorization: ");
            head.extend_from_slice(credentials.as_bytes());
            head.extend_from_slice(b"\r\n");
        }
        head.extend_from_slice(b"\r\n");
        stream.write_all(&head).await?;
        let answer = Head::read(&mut stream).await?.ok_or(io::ErrorKind::UnexpectedEof)?;
        Ok::<_, io::Error>((stream, answer))
    };
    let (stream, answer) = asked.await.map_err(|error| failed(error.to_string()))?;
    let mut headers = [httparse::EMPTY_HEADER; 100];
    let mut response = httparse::Response::new(&mut headers);
    let parsed = response.parse(&answer.head).map_err(|error| failed(error.to_string()))?;
    match response.code {
        Some(200..300) if parsed.is_complete() => Ok(Upstream { stream, early: answer.rest }),
        code => Err(failed(format!("it answered with status {}", code.unwrap_or_default()))),
    }
}
