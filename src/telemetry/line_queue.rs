//! Writes the log in a thread of its own. The reader of the log (a container's log driver, a paused terminal) may stall for ever, and must
//! not block the process. Lines are lost in that case, and counted.

use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

/// The maximum size of the lines that wait to be written. Further lines are lost.
const MAX_WAITING: usize = 1 << 20;
/// The memory that a waiting line uses in addition to its text.
const OVERHEAD: usize = 64;
/// How long a process that ends waits for the lines that are not yet written.
const FLUSH_LIMIT: Duration = Duration::from_secs(1);

/// The queue of the log. A process has one log.
static QUEUE: OnceLock<LineQueue> = OnceLock::new();
/// How many lines were lost.
static LOST: AtomicU64 = AtomicU64::new(0);

pub(super) fn lost() -> u64 {
    LOST.load(Ordering::Relaxed)
}

enum Message {
    Line(Vec<u8>),
    /// Drops the sender once all earlier lines are written.
    Flush(#[expect(dead_code, reason = "it is dropped")] Sender<()>),
}

/// Each `write` takes one line. Clones share the queue.
#[derive(Clone)]
pub(super) struct LineQueue {
    lines: Sender<Message>,
    waiting: Arc<AtomicUsize>,
}

impl LineQueue {
    /// # Errors
    /// The thread can't be started.
    pub(crate) fn start(target: impl Write + Send + 'static) -> io::Result<Self> {
        let (lines, received) = channel();
        let queue = Self { lines, waiting: Arc::default() };
        let waiting = queue.waiting.clone();
        thread::Builder::new().name("log".into()).spawn(move || write_all(&received, &waiting, target))?;
        Ok(QUEUE.get_or_init(|| queue).clone())
    }
}

/// Waits until the lines of the log are written, for at most a second. Must be called before the process ends.
pub fn flush_log() {
    let Some(queue) = QUEUE.get() else { return };
    let (done, is_done) = channel();
    let _ = queue.lines.send(Message::Flush(done));
    let _ = is_done.recv_timeout(FLUSH_LIMIT);
}

fn write_all(lines: &Receiver<Message>, waiting: &AtomicUsize, mut target: impl Write) {
    let mut told = 0;
    for message in lines {
        let Message::Line(line) = message else { continue };
        // There is no other place to report that the log can't be written.
        let _ = target.write_all(&line);
        waiting.fetch_sub(line.len() + OVERHEAD, Ordering::Relaxed);
        let lost = lost();
        if lost > told {
            // If this warning is lost, too, the count has grown, so the next written line causes a new warning.
            told = lost;
            tracing::warn!(
                lost,
                "lines of the log were lost, because what reads the log was too slow; this is their number since the start"
            );
        }
    }
}

impl Write for LineQueue {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let size = line.len() + OVERHEAD;
        if self.waiting.fetch_add(size, Ordering::Relaxed) + size > MAX_WAITING {
            self.waiting.fetch_sub(size, Ordering::Relaxed);
            LOST.fetch_add(1, Ordering::Relaxed);
        } else {
            // This can't fail, because the thread ends only with the process.
            let _ = self.lines.send(Message::Line(line.to_vec()));
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Calls [`flush_log`] when it is dropped, so it must be kept until the process ends.
#[must_use]
pub struct Flush(());

impl Flush {
    pub(super) fn at_the_end() -> Self {
        Self(())
    }
}

impl Drop for Flush {
    fn drop(&mut self) {
        flush_log();
    }
}
