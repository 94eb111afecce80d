//! Ctrl-C ends a command, with a message about what was done so far.

use std::sync::LazyLock;
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{RwLock, oneshot, watch};

use crate::CommandError;

/// How long an interrupted command may take to print its message, even on a busy machine. A second Ctrl-C ends it earlier.
const MESSAGE_LIMIT: Duration = Duration::from_secs(7);
/// How long an interrupted command waits for the answer to the current call. It is short enough to leave time for the message.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);
const INTERRUPTED: i32 = 130;

/// Whether Ctrl-C was pressed. It stays `true`, because the next step of the command may begin to wait only after the signal.
static IS_INTERRUPTED: LazyLock<watch::Sender<bool>> = LazyLock::new(|| watch::Sender::new(false));

/// Read-locked while a part of the command handles Ctrl-C itself: its message must be returned before the command ends without one.
static HANDLED: RwLock<()> = RwLock::const_new(());

pub(crate) fn is_interrupted() -> bool {
    *IS_INTERRUPTED.borrow()
}

async fn interruption() {
    // The sender is never dropped, so this returns only after the signal.
    let _ = IS_INTERRUPTED.subscribe().wait_for(|is_interrupted| *is_interrupted).await;
}

/// Does the work until Ctrl-C. `message` then says what was done, and how to continue.
///
/// # Errors
/// The errors of the work, and the interruption.
pub(crate) async fn or_interrupted<T>(
    work: impl Future<Output = Result<T, CommandError>>,
    message: impl FnOnce() -> String,
) -> Result<T, CommandError> {
    let _handled = HANDLED.read().await;
    tokio::select! {
        // Work that is complete when the signal arrives counts as done.
        biased;
        done = work => done,
        () = interruption() => Err(CommandError::interrupted(message())),
    }
}

/// Waits for the answer to a call. After Ctrl-C, it waits only a short time; `None`: no answer arrived in that time.
pub(crate) async fn answered<T>(call: impl Future<Output = T>) -> Option<T> {
    let _handled = HANDLED.read().await;
    let too_late = async {
        interruption().await;
        tokio::time::sleep(ANSWER_LIMIT).await;
    };
    tokio::select! {
        biased;
        answer = call => Some(answer),
        () = too_late => None,
    }
}

/// Does work that blocks its thread and has no effects, such as reading standard input. After Ctrl-C, its result is dropped.
///
/// # Errors
/// The errors of the work, and the interruption with this message.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, CommandError> + Send + 'static,
    message: &str,
) -> Result<T, CommandError> {
    let _handled = HANDLED.read().await;
    let (sender, result) = oneshot::channel();
    // It is not a thread of the runtime, because the process would wait for its end.
    std::thread::spawn(move || sender.send(work()));
    tokio::select! {
        biased;
        () = interruption() => Err(CommandError::interrupted(message)),
        done = result => done.unwrap_or_else(|_| Err("a thread of the command ended before its work was done".to_owned().into())),
    }
}

/// Does the work until Ctrl-C. The process ends even if the work is in a call that does not return.
///
/// # Errors
/// The errors of the work, and the interruption.
pub(crate) async fn always<T>(work: impl Future<Output = Result<T, CommandError>>) -> Result<T, CommandError> {
    // Registered before the work begins, so that no signal is lost.
    let mut signals = signal(SignalKind::interrupt()).map_err(|error| format!("signals can't be received: {error}"))?;
    tokio::spawn(async move {
        if signals.recv().await.is_some() {
            IS_INTERRUPTED.send_replace(true);
            let _ = tokio::time::timeout(MESSAGE_LIMIT, signals.recv()).await;
            std::process::exit(INTERRUPTED);
        }
    });
    tokio::select! {
        // A part that has handled the signal completes the work at the same moment, and must take precedence.
        biased;
        done = work => done,
        _ = async { interruption().await; HANDLED.write().await } => Err(CommandError::interrupted("")),
    }
}
