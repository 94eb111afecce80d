//! A proxy to a server that can be held: connections stay open, but no data passes.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use super::beside;

pub struct Proxy {
    /// The server's URL by this proxy.
    pub url: String,
    held: watch::Sender<bool>,
    answers_held: watch::Sender<bool>,
}

impl Proxy {
    /// `url` is `postgres://user@host:port/database` or `http://host:port`.
    pub async fn start(url: &str) -> Proxy {
        Self::with_latency(url, Duration::ZERO).await
    }

    /// Answers arrive this much later.
    pub async fn with_latency(url: &str, latency: Duration) -> Proxy {
        let place = url.find('@').or_else(|| url.find("//").map(|at| at + 1)).expect("a URL") + 1;
        let (before, rest) = url.split_at(place);
        let (target, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let here = listener.local_addr().expect("an address");
        let (held, is_held) = watch::channel(false);
        let (answers_held, are_answers_held) = watch::channel(false);
        beside(accept(listener, target.to_owned(), is_held, are_answers_held, latency));
        Proxy { url: format!("{before}{here}{path}"), held, answers_held }
    }

    pub fn hold(&self) {
        self.held.send_replace(true);
        self.answers_held.send_replace(true);
    }

    /// Requests pass, answers do not.
    pub fn hold_answers(&self) {
        self.answers_held.send_replace(true);
    }

    /// Lets everything pass again, including the data that was held.
    pub fn release(&self) {
        self.held.send_replace(false);
        self.answers_held.send_replace(false);
    }
}

async fn accept(
    listener: TcpListener,
    target: String,
    is_held: watch::Receiver<bool>,
    are_answers_held: watch::Receiver<bool>,
    latency: Duration,
) {
    while let Ok((near, _)) = listener.accept().await {
        let Ok(far) = TcpStream::connect(&target).await else { continue };
        let ((near_in, near_out), (far_in, far_out)) = (near.into_split(), far.into_split());
        beside(pass(near_in, far_out, is_held.clone(), Duration::ZERO));
        beside(pass(far_in, near_out, are_answers_held.clone(), latency));
    }
}

async fn pass(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut is_held: watch::Receiver<bool>, latency: Duration) {
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(count) = from.read(&mut buffer).await {
        tokio::time::sleep(latency).await;
        // The end of a connection is held as well.
        if is_held.wait_for(|held| !held).await.is_err() || count == 0 || to.write_all(&buffer[..count]).await.is_err() {
            return;
        }
    }
}
