//! A proxy to a server that can be held: connections stay open, but no data passes.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
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
    trap: Arc<Mutex<Option<&'static str>>>,
    /// The bytes of answers that still pass.
    answers_left: Arc<AtomicUsize>,
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
        let trap = Arc::<Mutex<Option<&'static str>>>::default();
        let answers_left = Arc::new(AtomicUsize::new(usize::MAX));
        let (hold_answers, trap_of_all, left) = (answers_held.clone(), Arc::clone(&trap), Arc::clone(&answers_left));
        let ways = Ways { is_held, are_answers_held, hold_answers, trap: trap_of_all, answers_left: left, latency };
        beside(accept(listener, target.to_owned(), ways));
        Proxy { url: format!("{before}{here}{path}"), held, answers_held, trap, answers_left }
    }

    pub fn hold(&self) {
        self.held.send_replace(true);
        self.answers_held.send_replace(true);
    }

    /// Requests pass, answers do not.
    pub fn hold_answers(&self) {
        self.answers_held.send_replace(true);
    }

    /// From the next request with this text on, requests pass and answers do not: that request has its effect, and nobody learns of it.
    pub fn hold_answers_from(&self, text: &'static str) {
        *self.trap.lock().expect("the trap") = Some(text);
    }

    /// After so many bytes of answers, no more of them pass.
    pub fn hold_answers_after(&self, bytes: usize) {
        self.answers_left.store(bytes, Ordering::Relaxed);
    }

    /// Waits until that request has come.
    pub async fn has_caught(&self) {
        self.answers_held.subscribe().wait_for(|held| *held).await.expect("the proxy runs");
    }

    /// Lets everything pass again, including the data that was held.
    pub fn release(&self) {
        *self.trap.lock().expect("the trap") = None;
        self.answers_left.store(usize::MAX, Ordering::Relaxed);
        self.held.send_replace(false);
        self.answers_held.send_replace(false);
    }
}

#[derive(Clone)]
struct Ways {
    is_held: watch::Receiver<bool>,
    are_answers_held: watch::Receiver<bool>,
    hold_answers: watch::Sender<bool>,
    trap: Arc<Mutex<Option<&'static str>>>,
    answers_left: Arc<AtomicUsize>,
    latency: Duration,
}

async fn accept(listener: TcpListener, target: String, ways: Ways) {
    while let Ok((near, _)) = listener.accept().await {
        let Ok(far) = TcpStream::connect(&target).await else { continue };
        let ((near_in, near_out), (far_in, far_out)) = (near.into_split(), far.into_split());
        let (trap, hold_answers) = (Arc::clone(&ways.trap), ways.hold_answers.clone());
        let look = move |request: &[u8]| {
            let mut trap = trap.lock().expect("the trap");
            if trap.is_some_and(|text| request.windows(text.len()).any(|part| part == text.as_bytes())) {
                *trap = None;
                hold_answers.send_replace(true);
            }
        };
        beside(pass(near_in, far_out, ways.is_held.clone(), Duration::ZERO, look));
        let (left, hold_answers) = (Arc::clone(&ways.answers_left), ways.hold_answers.clone());
        let count = move |answer: &[u8]| {
            let before = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| Some(left.saturating_sub(answer.len())));
            if before.is_ok_and(|before| before < answer.len()) {
                hold_answers.send_replace(true);
            }
        };
        beside(pass(far_in, near_out, ways.are_answers_held.clone(), ways.latency, count));
    }
}

async fn pass(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut is_held: watch::Receiver<bool>,
    latency: Duration,
    look: impl Fn(&[u8]) + Send + 'static,
) {
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(count) = from.read(&mut buffer).await {
        look(&buffer[..count]);
        tokio::time::sleep(latency).await;
        // The end of a connection is held as well.
        if is_held.wait_for(|held| !held).await.is_err() || count == 0 || to.write_all(&buffer[..count]).await.is_err() {
            return;
        }
    }
}
