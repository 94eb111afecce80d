//! The output of a run, and the events made of it, in files of the run's directory.

use std::cmp::Ordering;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::claude::stream::{Found, MAX_TEXT, cut};
use crate::machine::open_below::open_at;
use crate::machine::reserve::Reserve;
use crate::run::run_dir::RunDir;
use bloom_api::json::{Json, is_readable};
use bloom_api::requests::{EventBody, MAX_EVENT_BYTES};
use bloom_api::values::Int;
use bloom_client::now_ms;
use bloom_core::Ms;
use bloom_core::event::EventKind;

/// The limit of stored events with the content of a run. The server keeps the newest 10,000 events of a task.
const CONTENT: Room = Room { events: 100_000, bytes: 64 << 20 };
/// The limit including events about the progress of a run, such as its usage and its questions.
const ALL: Room = Room { events: 110_000, bytes: 72 << 20 };
/// The phase which says that later events are missing.
const CUT: &str = "events_cut";
/// How much of the end is read to find the last event: more than the longest event, whose parts are cut at 32 KiB.
const LAST_LINES: u64 = 1 << 20;
/// The maximum of one run in one call, in events and bytes. The server's default limit for a body is 1 MiB, and an administrator may lower
/// it.
const MAX_BATCH: usize = 400;
pub(crate) const MAX_BATCH_BYTES: u64 = 256 * 1024;
/// The maximum size of an event's data. With the other fields of its line, the event stays within the server's limit, and within what is
/// read at once.
const MAX_DATA: usize = MAX_EVENT_BYTES - 1024;

/// Up to where the output of a process was turned into events.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Serialize)]
pub(crate) struct Position {
    /// The number of the process.
    pub start: u32,
    /// The offset in its output.
    pub offset: u64,
    /// The offset in its standard error.
    pub stderr: u64,
}

impl Position {
    fn reaches(self, other: Self) -> Self {
        match self.start.cmp(&other.start) {
            Ordering::Less => other,
            Ordering::Greater => self,
            Ordering::Equal => Self { offset: self.offset.max(other.offset), stderr: self.stderr.max(other.stderr), ..self },
        }
    }
}

/// A limit of the events of a run: their number, and their bytes on the disk.
#[derive(Clone, Copy)]
struct Room {
    events: i64,
    bytes: u64,
}

impl Room {
    /// The limit for events of this kind.
    fn of(kind: EventKind) -> Self {
        use EventKind::{Log, PermissionDenied, RateLimit, Stderr, Text, ToolResult, ToolUse};
        if matches!(kind, Text | ToolUse | ToolResult | RateLimit | Log | Stderr | PermissionDenied) { CONTENT } else { ALL }
    }

    fn has(self, events: i64, bytes: u64) -> bool {
        events <= self.events && bytes <= self.bytes
    }
}

/// One line of `events.jsonl`: the event, and how far the output had been read when it was created.
#[derive(Deserialize, Serialize)]
struct Line {
    event: EventBody,
    #[serde(flatten)]
    position: Position,
    /// Whether some events of the run were not stored.
    cut: bool,
}

/// The events of a run. They are stored before they are sent, so that a restarted agent sends the same events in the same order.
#[derive(Debug)]
pub(crate) struct EventLog {
    /// The task of the run, for the agent's log.
    pub task: Uuid,
    file: File,
    path: PathBuf,
    last_seq: i64,
    stored_to: Position,
    /// Whether an event was stored which says that events are missing.
    is_cut: bool,
    reserve: Reserve,
}

impl EventLog {
    pub(crate) fn open(dir: &RunDir, task: Uuid, reserve: Reserve) -> io::Result<Self> {
        let path = dir.events();
        let mut file =
            File::options().create(true).read(true).append(true).custom_flags(OFlags::NOFOLLOW.bits().cast_signed()).open(&path)?;
        // Only the last event is needed. An incomplete line after it was cut short by a crash and never sent, so it is removed.
        let length = file.metadata()?.len();
        let from = length.saturating_sub(LAST_LINES);
        file.seek(SeekFrom::Start(from))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        file.set_len(from + whole as u64)?;
        let mut lines = bytes[..whole].split(|byte| *byte == b'\n').rev();
        let last: Option<Line> = lines.find_map(|line| serde_json::from_slice(line).ok());
        let (last_seq, stored_to, is_cut) =
            last.map_or((0, Position::default(), false), |line| (line.event.seq.0, line.position, line.cut));
        Ok(Self { task, file, path, last_seq, stored_to, is_cut, reserve })
    }

    pub(crate) fn is_stored(&self, start: u32, offset: u64) -> bool {
        (start, offset) <= (self.stored_to.start, self.stored_to.offset)
    }

    pub(crate) fn is_stderr_stored(&self, start: u32, offset: u64) -> bool {
        (start, offset) <= (self.stored_to.start, self.stored_to.stderr)
    }

    /// Stores what was found in the output of the run, as far as the limits allow.
    pub(crate) fn add(&mut self, found: Vec<Found>, position: Position, now: Ms) -> io::Result<()> {
        let length = self.file.metadata()?.len();
        let mut lines = Vec::new();
        for (kind, data) in found {
            let line = self.line(kind, data, position, now)?;
            let bytes = length + (lines.len() + line.len()) as u64;
            if Room::of(kind).has(self.last_seq + 1, bytes) {
                self.last_seq += 1;
                lines.extend(line);
            } else if !self.is_cut {
                self.is_cut = true;
                let told = json!({"phase": CUT, "max_events": CONTENT.events, "max_bytes": CONTENT.bytes});
                lines.extend(self.line(EventKind::Lifecycle, told, position, now)?);
                self.last_seq += 1;
            }
        }
        self.store(&lines, position)
    }

    /// The line of the next event.
    fn line(&self, kind: EventKind, data: Value, position: Position, now: Ms) -> io::Result<Vec<u8>> {
        let event = EventBody { seq: Int(self.last_seq + 1), kind, at: Int::nearest(now), data: fit(data) };
        let mut line = serde_json::to_vec(&Line { event, position, cut: self.is_cut })?;
        line.push(b'\n');
        Ok(line)
    }

    fn store(&mut self, lines: &[u8], position: Position) -> io::Result<()> {
        self.stored_to = self.stored_to.reaches(position);
        let mut file = &self.file;
        let length = file.metadata()?.len();
        self.reserve.helps(|| {
            let written = file.write_all(lines);
            if written.is_err() {
                // A partial line would make the next one unreadable.
                file.set_len(length)?;
            }
            written
        })
    }

    /// The `seq` of the last event; 0 if there is none.
    pub(crate) fn last_seq(&self) -> i64 {
        self.last_seq
    }

    /// Stores an event of the agent itself. The limits leave room for such events.
    pub(crate) fn record(&mut self, kind: EventKind, data: Value, now: Ms) {
        let stored = self.line(kind, data, self.stored_to, now).and_then(|line| {
            self.last_seq += 1;
            self.store(&line, self.stored_to)
        });
        if let Err(error) = stored {
            tracing::warn!(task = %self.task, %error, "an event could not be stored");
        }
    }

    /// Records a phase of the run.
    pub(crate) fn phase(&mut self, phase: &str, more: Value) {
        let mut data = json!({"phase": phase});
        if let (Some(data), Value::Object(more)) = (data.as_object_mut(), more) {
            data.extend(more);
        }
        self.record(EventKind::Lifecycle, data, now_ms());
    }

    pub(crate) fn reader(&self) -> io::Result<EventReader> {
        Ok(EventReader { file: open_at(&self.path)?, position: 0 })
    }
}

/// Cuts an event to the server's limits: the server would refuse the whole call because of one event beyond them.
fn fit(data: Value) -> Json<MAX_EVENT_BYTES> {
    let text = data.to_string();
    let fits = text.len() <= MAX_DATA && is_readable(&text);
    Json(if fits { text } else { json!({"text": cut(&text, MAX_TEXT)}).to_string() })
}

/// Reads the events from the first one on, because the server ignores those that it already has.
#[derive(Debug)]
pub(crate) struct EventReader {
    file: File,
    /// The position after the events that were sent.
    pub position: u64,
}

impl EventReader {
    /// The next events to send, and the position after them.
    pub(crate) fn batch(&mut self) -> io::Result<(Vec<EventBody>, u64)> {
        self.file.seek(SeekFrom::Start(self.position))?;
        let mut bytes = Vec::new();
        (&self.file).take(MAX_BATCH_BYTES).read_to_end(&mut bytes)?;
        let (mut events, mut end) = (Vec::new(), 0);
        for line in bytes.split_inclusive(|byte| *byte == b'\n') {
            if !line.ends_with(b"\n") || events.len() == MAX_BATCH {
                break;
            }
            end += line.len();
            if let Ok(line) = serde_json::from_slice::<Line>(line) {
                events.push(line.event);
            }
        }
        Ok((events, self.position + end as u64))
    }

    pub(crate) fn sent(&mut self, end: u64) {
        self.position = end;
    }
}

/// Reads the lines of a file while another process writes it.
#[derive(Debug)]
pub(crate) struct Tail {
    file: File,
    begun: Vec<u8>,
    /// The position after the last complete line.
    pub offset: u64,
    /// Whether a line was skipped because it was too long, so that the output is incomplete.
    pub has_gap: bool,
    skips: bool,
}

const PIECE: u64 = 1 << 20;
/// Longer lines are skipped; a result has at most 16 MiB.
const MAX_LINE: usize = 64 << 20;

impl Tail {
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        Ok(Self { file: open_at(path)?, begun: Vec::new(), offset: 0, has_gap: false, skips: false })
    }

    /// Reads the next piece, and passes on each complete line with the position after it. Returns false if there is nothing new.
    pub(crate) fn read(&mut self, mut line: impl FnMut(&str, u64)) -> io::Result<bool> {
        let mut bytes = Vec::new();
        let read = (&self.file).take(PIECE).read_to_end(&mut bytes)?;
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.begun.extend_from_slice(part);
            if part.ends_with(b"\n") {
                self.offset += self.begun.len() as u64;
                if !std::mem::take(&mut self.skips) {
                    line(String::from_utf8_lossy(&self.begun).trim_end_matches(['\r', '\n']), self.offset);
                }
                self.begun.clear();
            } else if self.begun.len() > MAX_LINE {
                self.offset += self.begun.len() as u64;
                self.begun.clear();
                (self.skips, self.has_gap) = (true, true);
            }
        }
        Ok(read > 0)
    }

    /// The incomplete last line, once the writer has ended.
    pub(crate) fn rest(&mut self) -> Option<String> {
        let rest = std::mem::take(&mut self.begun);
        (!rest.is_empty() && !self.skips).then(|| String::from_utf8_lossy(&rest).into_owned())
    }
}

#[cfg(test)]
mod tests;
