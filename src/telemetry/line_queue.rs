//! Writes the log in a thread of its own. What reads the log may stall for ever (a container's log driver, a paused terminal), and must not
//! hold up the process: then lines are lost, and counted.

use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

/// The bytes of lines that wait to be written; further lines are lost.
const MAX_WAITING: usize = 1 << 20;
/// What a waiting line takes beside its text.
const OVERHEAD: usize = 64;
/// How long the end of the process waits for the lines that are still to be written.
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
    /// All lines before it are written when the sender is dropped.
    Flush(#[expect(dead_code, reason = "it is dropped")] Sender<()>),
}

/// Each `write` is a line. Clones share the queue.
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

/// Waits until the lines of the log are written, a second at most. Call it before the process ends.
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
        // Nothing can be told about a log that can't be written.
        let _ = target.write_all(&line);
        waiting.fetch_sub(line.len() + OVERHEAD, Ordering::Relaxed);
        let lost = lost();
        if lost > told {
            // If this line is lost as well, the next one that is written has it told again.
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
            // The thread ends with the process.
            let _ = self.lines.send(Message::Line(line.to_vec()));
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Keep it until the process ends: [`flush_log`] is called when it is dropped.
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
