//! SIGTERM and SIGINT: the first signal starts a graceful shutdown. The second signal, or the time limit of the shutdown, ends the process
//! at once. SIGHUP: the log is rotated.

use std::io::{IsTerminal, stderr, stdin, stdout};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

use bloom_commands::CommandError;

/// How long a command may take to end after it was interrupted.
const INTERRUPT_LIMIT: Duration = Duration::from_secs(60);

/// Returns a token that the first signal cancels. If the process has not ended `limit` after that, it is terminated.
pub fn listen(limit: Duration) -> Result<CancellationToken, CommandError> {
    let token = CancellationToken::new();
    let cancelled = token.clone();
    let (tell, told) = mpsc::channel();
    // The signals are handled in a thread with its own runtime, because the threads of the main runtime may hang, and the process must end
    // even then.
    let follows = move || match own_runtime() {
        Ok((runtime, terminate, interrupt)) => {
            let _ = tell.send(Ok(()));
            runtime.block_on(follow(terminate, interrupt, cancelled, limit));
        }
        Err(error) => drop(tell.send(Err(error))),
    };
    let failed = |error: &dyn std::fmt::Display| CommandError::from(format!("signals can't be received: {error}"));
    thread::Builder::new().name("signals".to_owned()).spawn(follows).map_err(|error| failed(&error))?;
    told.recv().map_err(|error| failed(&error))??;
    Ok(token)
}

fn own_runtime() -> Result<(Runtime, Signal, Signal), CommandError> {
    let runtime = Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("signals can't be received: {error}"))?;
    let (terminate, interrupt) = {
        let _entered = runtime.enter();
        (take(SignalKind::terminate())?, take(SignalKind::interrupt())?)
    };
    Ok((runtime, terminate, interrupt))
}

/// Calls `reload` at each SIGHUP. In a process that was started from a terminal, SIGHUP keeps its usual effect: the process ends when the
/// terminal is closed.
pub fn on_hangup(reload: impl Fn() + Send + 'static) -> Result<(), CommandError> {
    if stdin().is_terminal() || stdout().is_terminal() || stderr().is_terminal() {
        return Ok(());
    }
    let mut hangup = take(SignalKind::hangup())?;
    tokio::spawn(async move {
        while hangup.recv().await.is_some() {
            reload();
        }
    });
    Ok(())
}

fn take(kind: SignalKind) -> Result<Signal, CommandError> {
    signal(kind).map_err(|error| format!("signals can't be received: {error}").into())
}

async fn follow(mut terminate: Signal, mut interrupt: Signal, token: CancellationToken, limit: Duration) {
    next(&mut terminate, &mut interrupt).await;
    token.cancel();
    match tokio::time::timeout(limit, next(&mut terminate, &mut interrupt)).await {
        // The status that a shell reports for a process that the signal killed. All acknowledged changes are in the database.
        Ok(number) => exit(128 + number),
        Err(_) => give_up(limit),
    }
}

/// Terminates the process, because it does not shut down in time.
fn give_up(limit: Duration) -> ! {
    tracing::error!("the process did not stop within {} s of the signal, so threads of it hang; it is ended", limit.as_secs());
    exit(1)
}

fn exit(status: i32) -> ! {
    bloom_telemetry::flush_log();
    std::process::exit(status)
}

async fn next(terminate: &mut Signal, interrupt: &mut Signal) -> i32 {
    tokio::select! {
        _ = terminate.recv() => SignalKind::terminate().as_raw_value(),
        _ = interrupt.recv() => SignalKind::interrupt().as_raw_value(),
    }
}

/// Does work that may be abandoned when a signal arrives.
pub async fn until<T>(work: impl Future<Output = Result<T, bloom_store::Error>>, message: &str) -> Result<T, CommandError> {
    let signal = listen(INTERRUPT_LIMIT)?;
    tokio::select! {
        biased;
        done = work => done.map_err(|error| error.to_string().into()),
        () = signal.cancelled() => Err(CommandError::interrupted(message)),
    }
}
