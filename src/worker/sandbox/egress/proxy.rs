//! The proxy of a run. It accepts connections on a Unix socket, and connects to the hosts that the profile lists.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::allow_list::AllowList;
use super::request::{Asked, Head};
use super::upstream::{self, Failed, Upstream};

/// The time limit of a request's head.
const HEAD_LIMIT: Duration = Duration::from_secs(30);
/// A connection without any traffic for this time is closed.
const IDLE_LIMIT: Duration = Duration::from_secs(15 * 60);
/// The time limit for sending an answer of the proxy itself.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);
/// The pause after a failed accept: most fail because too many files are open, and would fail again at once.
const ACCEPT_REST: Duration = Duration::from_millis(50);
/// The maximum number of refusals that the events of a run report.
const MAX_TOLD: usize = 20;
const PIECE: usize = 16 << 10;

/// The state that the connections of a run share.
#[derive(Debug)]
pub(crate) struct Proxy {
    pub list: AllowList,
    /// The name of the profile, for messages.
    pub profile: String,
    /// Permits for the connections of all runs of the agent together.
    pub of_all_runs: Arc<Semaphore>,
    /// How many of these connections this run may have at most.
    pub of_one_run: usize,
    /// Permits for concurrent look-ups of names.
    pub look_ups: Arc<Semaphore>,
    pub told: Mutex<Told>,
    /// The bytes transferred on all connections, in both directions.
    pub moved: AtomicU64,
}

/// The refusals that the run's events report, each one once.
#[derive(Debug, Default)]
pub(crate) struct Told {
    known: Vec<String>,
    pub new: Vec<Refused>,
}

#[derive(Debug)]
pub(crate) struct Refused {
    pub target: String,
    pub why: String,
}

impl Proxy {
    /// Serves the run until this future is dropped, which ends all connections.
    pub(crate) async fn serve(self: Arc<Self>, listener: UnixListener) {
        let of_run = Arc::new(Semaphore::new(self.of_one_run));
        let mut connections = JoinSet::new();
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                Some(_) = connections.join_next() => continue,
            };
            match accepted {
                Ok((stream, _)) => {
                    let permits =
                        of_run.clone().try_acquire_owned().and_then(|own| Ok((own, self.of_all_runs.clone().try_acquire_owned()?)));
                    // Without a permit, dropping the stream closes it.
                    if let Ok(permits) = permits {
                        let proxy = self.clone();
                        connections.spawn(async move {
                            if let Err(error) = proxy.connection(stream).await {
                                // Not a defect: programs and servers disconnect at any time.
                                tracing::debug!(%error, profile = proxy.profile, "a connection of a run ended");
                            }
                            drop(permits);
                        });
                    }
                }
                Err(error) => {
                    tracing::warn!(%error, profile = self.profile, "a connection of a run could not be accepted");
                    sleep(ACCEPT_REST).await;
                }
            }
        }
    }

    async fn connection(&self, mut client: UnixStream) -> io::Result<()> {
        let head = match timeout(HEAD_LIMIT, Head::read(&mut client)).await {
            Ok(Ok(Some(head))) => head,
            Ok(Ok(None)) => return Ok(()),
            Ok(Err(error)) if error.kind() == io::ErrorKind::InvalidData => {
                return answer(&mut client, "431 Request Header Fields Too Large", &error.to_string()).await;
            }
            Ok(Err(error)) => return Err(error),
            Err(_) => return answer(&mut client, "408 Request Timeout", "no request arrived in time").await,
        };
        let asked = match Asked::parse(&head.head) {
            Ok(asked) => asked,
            Err(why) => return answer(&mut client, "400 Bad Request", &why).await,
        };
        let scheme = if asked.head.is_some() { "http" } else { "https" };
        let Upstream { stream: mut server, early } = match upstream::connect(&self.list, &self.look_ups, &asked.target, scheme).await {
            Ok(upstream) => upstream,
            Err(Failed::Refused(why)) => {
                let why = format!("{why} to the list of the profile {}", self.profile);
                self.tell(asked.target.to_string(), &why);
                return answer(&mut client, "403 Forbidden", &why).await;
            }
            Err(Failed::Unreachable(why)) => return answer(&mut client, "502 Bad Gateway", &why).await,
        };
        let moved = AtomicU64::new(0);
        let count = |bytes| {
            moved.fetch_add(bytes, Ordering::Relaxed);
            self.moved.fetch_add(bytes, Ordering::Relaxed);
        };
        let both = async {
            match &asked.head {
                Some(head) => server.write_all(head).await?,
                None => client.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n").await?,
            }
            server.write_all(&head.rest).await?;
            client.write_all(&early).await?;
            let ((from_client, to_client), (from_server, to_server)) = (client.split(), server.split());
            tokio::try_join!(pump(from_client, to_server, &count), pump(from_server, to_client, &count)).map(drop)
        };
        let ended = tokio::select! {
            ended = both => ended,
            () = idle(&moved) => Err(io::ErrorKind::TimedOut.into()),
        };
        let moved = moved.load(Ordering::Relaxed);
        tracing::debug!(target = %asked.target, profile = self.profile, bytes = moved, "a connection of a run to the network ended");
        ended
    }

    fn tell(&self, target: String, why: &str) {
        let mut told = self.told.lock();
        if told.known.len() < MAX_TOLD && !told.known.contains(&target) {
            told.known.push(target.clone());
            told.new.push(Refused { target, why: why.to_owned() });
        }
    }
}

/// Copies one direction until its end, and then closes that direction of the target.
async fn pump(mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin, count: &impl Fn(u64)) -> io::Result<()> {
    let mut piece = vec![0; PIECE];
    loop {
        let length = from.read(&mut piece).await?;
        if length == 0 {
            return to.shutdown().await;
        }
        to.write_all(&piece[..length]).await?;
        count(length as u64);
    }
}

/// Returns when nothing was transferred during the time limit.
async fn idle(moved: &AtomicU64) {
    loop {
        let before = moved.load(Ordering::Relaxed);
        sleep(IDLE_LIMIT).await;
        if moved.load(Ordering::Relaxed) == before {
            return;
        }
    }
}

/// Answers a request that is not forwarded.
async fn answer(client: &mut UnixStream, status: &str, why: &str) -> io::Result<()> {
    let body = format!("bloom-runtime: {why}\n");
    let length = body.len();
    let whole = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    );
    let sent = async {
        client.write_all(whole.as_bytes()).await?;
        client.shutdown().await
    };
    timeout(ANSWER_LIMIT, sent).await?
}
