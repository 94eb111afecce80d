//! SIGTERM and SIGINT: the first signal starts a graceful shutdown, the second ends the process at once. SIGHUP: the log is rotated.

use std::io::{IsTerminal, stderr, stdin, stdout};

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

use bloom_commands::CommandError;

/// A token that the first signal cancels.
pub fn listen() -> Result<CancellationToken, CommandError> {
    let (terminate, interrupt) = (take(SignalKind::terminate())?, take(SignalKind::interrupt())?);
    let token = CancellationToken::new();
    tokio::spawn(follow(terminate, interrupt, token.clone()));
    Ok(token)
}

/// Calls `reload` at each SIGHUP. A process of a terminal keeps the usual effect of SIGHUP: it ends when its terminal is closed.
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

async fn follow(mut terminate: Signal, mut interrupt: Signal, token: CancellationToken) {
    next(&mut terminate, &mut interrupt).await;
    token.cancel();
    let number = next(&mut terminate, &mut interrupt).await;
    // The status that a shell reports for a process that the signal killed. All acknowledged changes are in the database.
    std::process::exit(128 + number);
}

async fn next(terminate: &mut Signal, interrupt: &mut Signal) -> i32 {
    tokio::select! {
        _ = terminate.recv() => SignalKind::terminate().as_raw_value(),
        _ = interrupt.recv() => SignalKind::interrupt().as_raw_value(),
    }
}

/// Does work that may be dropped at a signal.
pub async fn until<T>(work: impl Future<Output = Result<T, bloom_store::Error>>, message: &str) -> Result<T, CommandError> {
    let signal = listen()?;
    tokio::select! {
        biased;
        done = work => done.map_err(|error| error.to_string().into()),
        () = signal.cancelled() => Err(CommandError::interrupted(message)),
    }
}
