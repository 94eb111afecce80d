//! The program that starts a run's program in a sandbox without a network. It accepts connections on loopback, forwards them through the
//! socket to the agent's proxy, and ends with the run's program. It has only the rights of the run; the agent decides what may be reached.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::process::Command;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep};

use super::{PROXY_VARIABLES, SOCKET_IN_SANDBOX};

/// The maximum number of concurrent connections; further ones wait.
const MAX_CONNECTIONS: usize = 256;
/// How long a connection waits for the agent, which may just be restarting.
const AGENT_LIMIT: Duration = Duration::from_secs(60);
const RETRY_EVERY: Duration = Duration::from_millis(100);
/// The pause after a failed accept, because the next one would fail at once.
const ACCEPT_REST: Duration = Duration::from_millis(50);
const NO_AGENT: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";

/// Runs the program on the command line, and exits with its status.
///
/// # Errors
/// The program can't be started, or the sandbox has no loopback.
pub(crate) fn run() -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let status = runtime.block_on(run_program(std::env::args_os().skip(2)))?;
    // The status in which shells and bubblewrap report a signal.
    std::process::exit(status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or_default()))
}

async fn run_program(mut words: impl Iterator<Item = OsString>) -> io::Result<ExitStatus> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
    let proxy = format!("http://{}", listener.local_addr()?);
    // This process ignores signals, so that it can report how the program ended; if this process ended, so would the whole sandbox. Signals
    // are not passed on, because the run's supervisor sends each signal to every process of the run.
    for kind in [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup(), SignalKind::quit()] {
        let _ = signal(kind)?;
    }
    let program = words.next().unwrap_or_default();
    let mut command = Command::new(&program);
    command.args(words).envs(PROXY_VARIABLES.map(|name| (name, &proxy)));
    let mut child = command.spawn().map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", program.display())))?;
    tokio::select! {
        ended = child.wait() => ended,
        never = serve(listener) => match never {},
    }
}

async fn serve(listener: TcpListener) -> std::convert::Infallible {
    let permits = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let permit = permits.clone().acquire_owned().await;
        match listener.accept().await {
            Ok((stream, _)) => drop(tokio::spawn(async move {
                // Programs and the agent disconnect at any time.
                let _ = pass_on(stream).await;
                drop(permit);
            })),
            Err(_) => sleep(ACCEPT_REST).await,
        }
    }
}

async fn pass_on(mut stream: TcpStream) -> io::Result<()> {
    let until = Instant::now() + AGENT_LIMIT;
    loop {
        match UnixStream::connect(SOCKET_IN_SANDBOX).await {
            Ok(mut agent) => return copy_bidirectional(&mut stream, &mut agent).await.map(drop),
            Err(_) if Instant::now() < until => sleep(RETRY_EVERY).await,
            Err(_) => return stream.write_all(NO_AGENT).await,
        }
    }
}
