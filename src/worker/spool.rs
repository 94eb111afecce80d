//! The directory of a run: everything that a later agent needs to continue it.
//!
//! ```text
//! run.json        the lease, the task, the process
//! prompt          standard input
//! stdout.N stderr.N   output of the N-th process of the run, in files so that it can go on without an agent
//! exit.N          exit status of a plain command, which otherwise only its parent would get
//! events.jsonl    the events, as they are sent
//! verdict.json    the verdict, as it is sent
//! ```

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use uuid::Uuid;

use super::home::{private_dir, read_json, write_json, write_json_durably};
use super::process::{self, Leader};
use super::stream::{Found, MAX_TEXT, cut};
use super::task::{Lease, Task};
use super::verdict::Verdict;
use bloom_api::json::{Json, is_readable};
use bloom_api::requests::{EventBody, MAX_EVENT_BYTES};
use bloom_api::values::Int;
use bloom_core::Ms;

/// Later events of a run are dropped; the server keeps the newest 10,000 events of a task.
const MAX_EVENTS: i64 = 100_000;
/// How much of the end is read to find the last event: more than the longest event, whose parts are cut at 32 KiB.
const LAST_LINES: u64 = 1 << 20;
/// The maximum of one call, in events and bytes. The server's default limit for a body is 1 MiB, and it may be set lower.
const MAX_BATCH: usize = 400;
const MAX_BATCH_BYTES: u64 = 256 * 1024;

/// The record of a run, stored before each step that can't be undone. It may be missing after a power cut, which ended the processes of the
/// run, too; then the server delivers the lease again.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Record {
    pub lease: Lease,
    /// When the agent accepted the lease.
    pub taken_at: Ms,
    pub task: Task,
    /// The newest process, once it was started.
    pub process: Option<Running>,
    /// How many processes were started. There is a second one if the session of the first did not exist any more.
    pub starts: u32,
}

#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub struct Running {
    /// `None` if it ended before the agent read its start time.
    pub leader: Option<Leader>,
    pub started_at: Ms,
}

#[derive(Debug)]
pub struct RunDir {
    path: PathBuf,
}

impl fmt::Display for RunDir {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.path.display().fmt(f)
    }
}

impl RunDir {
    pub fn new(path: PathBuf) -> Self {
        Self { path }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Creates the directory and the record, so that a later process finds the run.
    pub fn create(&self, record: &Record) -> io::Result<()> {
        private_dir(&self.path)?;
        self.keep(record)
    }

    pub fn keep(&self, record: &Record) -> io::Result<()> {
        write_json(&self.path.join("run.json"), record)
    }

    /// # Errors
    /// There is no record, or it can't be read.
    pub fn record(&self) -> io::Result<Record> {
        Ok(serde_json::from_slice(&fs::read(self.path.join("run.json"))?)?)
    }

    /// Finds a process that is not in the record because the agent crashed right after it started the process.
    pub fn find_process(&self, record: &Record) -> Option<Running> {
        let is_started = record.starts > 0 && self.stdout(record.starts).exists();
        let kept_at = || fs::metadata(self.path.join("run.json")).ok()?.modified().ok()?.duration_since(UNIX_EPOCH).ok();
        is_started.then(|| Running {
            leader: process::find_leader(&record.lease.id.to_string()),
            started_at: kept_at().and_then(|at| Ms::try_from(at.as_millis()).ok()).unwrap_or_default(),
        })
    }

    /// The ids of the task and the lease, from a record that can't be read as a whole.
    pub fn names(&self) -> Option<(Uuid, Uuid)> {
        #[derive(Deserialize)]
        struct Named {
            id: Uuid,
        }
        #[derive(Deserialize)]
        struct Names {
            lease: Named,
            task: Named,
        }
        read_json::<Names>(&self.path.join("run.json")).map(|names| (names.task.id, names.lease.id))
    }

    pub fn verdict(&self) -> Option<Verdict> {
        read_json(&self.path.join("verdict.json"))
    }

    pub fn keep_verdict(&self, verdict: &Verdict) -> io::Result<()> {
        write_json_durably(&self.path.join("verdict.json"), verdict)
    }

    pub fn prompt(&self) -> PathBuf {
        self.path.join("prompt")
    }

    pub fn stdout(&self, start: u32) -> PathBuf {
        self.path.join(format!("stdout.{start}"))
    }

    pub fn stderr(&self, start: u32) -> PathBuf {
        self.path.join(format!("stderr.{start}"))
    }

    /// How much the process has printed, in bytes.
    pub fn printed(&self, start: u32) -> u64 {
        [self.stdout(start), self.stderr(start)].iter().filter_map(|path| fs::metadata(path).ok()).map(|data| data.len()).sum()
    }

    pub fn exit(&self, start: u32) -> PathBuf {
        self.path.join(format!("exit.{start}"))
    }

    /// The stored exit status of a plain command.
    pub fn left_exit(&self, start: u32) -> Option<String> {
        let text = fs::read_to_string(self.exit(start)).ok()?;
        text.ends_with('\n').then(|| text.trim().to_owned())
    }

    /// The last `max` bytes of standard error.
    pub fn stderr_tail(&self, start: u32, max: u64) -> String {
        let read = || -> io::Result<String> {
            let mut file = File::open(self.stderr(start))?;
            let length = file.metadata()?.len();
            file.seek(SeekFrom::Start(length.saturating_sub(max)))?;
            let mut bytes = Vec::new();
            file.take(max).read_to_end(&mut bytes)?;
            Ok(String::from_utf8_lossy(&bytes).into_owned())
        };
        read().unwrap_or_default()
    }

    pub fn remove(&self) {
        if let Err(error) = fs::remove_dir_all(&self.path) {
            let task = self.names().map(|(task, _)| task.to_string());
            tracing::warn!(task, path = %self.path.display(), %error, "the files of a run could not be removed");
        }
    }
}

/// One line of `events.jsonl`: the event, and how far the output had been read when it was created.
#[derive(Deserialize, Serialize)]
struct Line {
    event: EventBody,
    start: u32,
    offset: u64,
}

/// The events of a run. They are stored before they are sent, so that a restarted agent sends the same events in the same order.
#[derive(Debug)]
pub struct EventLog {
    /// The task of the run, for the agent's log.
    pub task: Uuid,
    file: File,
    path: PathBuf,
    last_seq: i64,
    /// How far the output was turned into events: the number of the process, and the offset in its output.
    stored_to: (u32, u64),
}

impl EventLog {
    pub fn open(dir: &RunDir, task: Uuid) -> io::Result<Self> {
        let path = dir.path.join("events.jsonl");
        let mut file = File::options().create(true).read(true).append(true).open(&path)?;
        // Only the last event is needed. An incomplete line behind it was cut short by a crash and never sent, so it is removed.
        let length = file.metadata()?.len();
        let from = length.saturating_sub(LAST_LINES);
        file.seek(SeekFrom::Start(from))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        file.set_len(from + whole as u64)?;
        let mut lines = bytes[..whole].split(|byte| *byte == b'\n').rev();
        let last: Option<Line> = lines.find_map(|line| serde_json::from_slice(line).ok());
        let (last_seq, stored_to) = last.map_or((0, (0, 0)), |line| (line.event.seq.0, (line.start, line.offset)));
        Ok(Self { task, file, path, last_seq, stored_to })
    }

    pub fn is_stored(&self, start: u32, offset: u64) -> bool {
        (start, offset) <= self.stored_to
    }

    pub fn add(&mut self, found: Vec<Found>, start: u32, offset: u64, now: Ms) -> io::Result<()> {
        let mut lines = Vec::new();
        for (kind, data) in found {
            if self.last_seq >= MAX_EVENTS {
                break;
            }
            self.last_seq += 1;
            let event = EventBody { seq: Int(self.last_seq), kind, at: Int::nearest(now), data: fit(data) };
            serde_json::to_writer(&mut lines, &Line { event, start, offset })?;
            lines.push(b'\n');
        }
        self.stored_to = self.stored_to.max((start, offset));
        let length = self.file.metadata()?.len();
        let written = self.file.write_all(&lines);
        if written.is_err() {
            // A partial line would make the next one unreadable.
            self.file.set_len(length)?;
        }
        written
    }

    pub fn record(&mut self, kind: bloom_core::task::EventKind, data: Value, now: Ms) {
        let (start, offset) = self.stored_to;
        if let Err(error) = self.add(vec![(kind, data)], start, offset, now) {
            tracing::warn!(task = %self.task, %error, "an event could not be stored");
        }
    }

    pub fn reader(&self) -> io::Result<EventReader> {
        Ok(EventReader { file: File::open(&self.path)?, position: 0 })
    }
}

/// Cuts an event to the server's limits: because of one event beyond them, the server would refuse the whole call.
fn fit(data: Value) -> Json<MAX_EVENT_BYTES> {
    let text = data.to_string();
    let fits = text.len() <= MAX_EVENT_BYTES && is_readable(&text);
    Json(if fits { text } else { json!({"text": cut(&text, MAX_TEXT)}).to_string() })
}

/// Reads the events from the first one, because the server ignores those that it has already.
#[derive(Debug)]
pub struct EventReader {
    file: File,
    position: u64,
}

impl EventReader {
    /// The next events to send, and the position behind them.
    pub fn batch(&mut self) -> io::Result<(Vec<EventBody>, u64)> {
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

    pub fn sent(&mut self, end: u64) {
        self.position = end;
    }
}

/// Reads the lines of a file while another process writes it.
#[derive(Debug)]
pub struct Tail {
    file: File,
    begun: Vec<u8>,
    /// The position behind the last complete line.
    pub offset: u64,
    /// Whether a line was left out, because it was too long. What was printed is incomplete then.
    pub has_gap: bool,
    skips: bool,
}

const PIECE: u64 = 1 << 20;
/// Longer lines are skipped; a result has at most 16 MiB.
const MAX_LINE: usize = 64 << 20;

impl Tail {
    pub fn open(path: &Path) -> io::Result<Self> {
        Ok(Self { file: File::open(path)?, begun: Vec::new(), offset: 0, has_gap: false, skips: false })
    }

    /// Reads the next piece, and passes on each complete line with the position behind it. Returns false if there is nothing new.
    pub fn read(&mut self, mut line: impl FnMut(&str, u64)) -> io::Result<bool> {
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
    pub fn rest(&mut self) -> Option<String> {
        let rest = std::mem::take(&mut self.begun);
        (!rest.is_empty() && !self.skips).then(|| String::from_utf8_lossy(&rest).into_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bloom_core::task::EventKind;

    #[test]
    fn a_record_goes_on_where_a_crash_cut_it() {
        let temp = tempfile::tempdir().unwrap();
        let dir = RunDir::new(temp.path().join("run"));
        private_dir(&dir.path).unwrap();
        let mut log = EventLog::open(&dir, Uuid::nil()).unwrap();
        log.add(vec![(EventKind::Text, json!({"text": "a"})), (EventKind::Text, json!({"text": "b"}))], 1, 10, 5).unwrap();
        let mut reader = log.reader().unwrap();
        let (events, end) = reader.batch().unwrap();
        assert_eq!(events.iter().map(|event| event.seq.0).collect::<Vec<_>>(), [1, 2]);
        reader.sent(end);
        assert!(reader.batch().unwrap().0.is_empty());
        drop(log);
        File::options().append(true).open(dir.path.join("events.jsonl")).unwrap().write_all(b"{\"event\": {\"se").unwrap();

        let mut log = EventLog::open(&dir, Uuid::nil()).unwrap();
        assert!(log.is_stored(1, 10) && !log.is_stored(1, 11) && !log.is_stored(2, 0));
        let deep = (0..100).fold(json!(1), |inner, _| json!([inner]));
        log.add(vec![(EventKind::ToolUse, json!({"input": deep}))], 1, 12, 6).unwrap();
        let (events, _) = reader.batch().unwrap();
        assert_eq!(events.iter().map(|event| event.seq.0).collect::<Vec<_>>(), [3]);
        assert!(events[0].data.0.starts_with("{\"text\":") && is_readable(&events[0].data.0), "an event that is too deep becomes text");
    }

    #[test]
    fn lines_come_whole() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("out");
        let mut writer = File::create(&path).unwrap();
        let mut tail = Tail::open(&path).unwrap();
        let mut lines = Vec::new();
        for piece in ["on", "e\r\ntw", "o\n\nthr", "ee"] {
            writer.write_all(piece.as_bytes()).unwrap();
            while tail.read(|line, end| lines.push((line.to_owned(), end))).unwrap() {}
        }
        assert_eq!(lines, [("one".to_owned(), 5), ("two".to_owned(), 9), (String::new(), 10)]);
        assert_eq!((tail.rest().as_deref(), tail.rest()), (Some("three"), None));
    }

    #[test]
    fn a_line_that_is_too_long_leaves_a_gap() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("out");
        let mut writer = File::create(&path).unwrap();
        writer.set_len(MAX_LINE as u64 + 2 * PIECE).unwrap();
        writer.seek(io::SeekFrom::End(0)).unwrap();
        writer.write_all(b"\nend\n").unwrap();
        let mut tail = Tail::open(&path).unwrap();
        let mut lines = Vec::new();
        while tail.read(|line, _| lines.push(line.to_owned())).unwrap() {}
        assert_eq!((lines, tail.has_gap), (vec!["end".to_owned()], true));
    }
}
