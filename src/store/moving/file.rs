//! The file of an export: JSON lines, for either kind of database.
//!
//! ```text
//! {"format":"bloom-runtime export","version":1,"schema":12,"leases":3}
//! {"table":"settings","columns":["key","value"]}
//! ["membridge_server_url","http://127.0.0.1:8000"]
//! {"rows":1,"sha256":"…"}
//! ```
//!
//! A line with a table begins a section of its rows, one per line. A table may have several sections. Ids are 32 hexadecimal digits. The
//! last line contains the number of rows and the checksum of all lines before it, so that a truncated or changed file is noticed.

use std::fs::{File, OpenOptions};
use std::io::{BufRead as _, BufReader, BufWriter, Read as _, Seek as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::error::Error;
use crate::sql::cells::Value;

const FORMAT: &str = "bloom-runtime export";
const VERSION: u32 = 1;
/// No line is longer: the longest text of a row has 16 MiB, and each byte of it takes at most six bytes in JSON.
pub(super) const MAX_LINE: usize = 128 << 20;
/// A signal is noticed only between two polls, so a reader yields after this many lines or bytes.
const LINES: u64 = 500;
const BYTES: usize = 4 << 20;

#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Head {
    format: String,
    version: u32,
    /// The newest migration of the database.
    pub schema: i64,
    /// How many leases were ever granted, including those of removed tasks.
    pub leases: i64,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Section {
    pub table: String,
    pub columns: Vec<String>,
}

#[derive(Deserialize, Serialize)]
struct End {
    rows: u64,
    sha256: String,
}

fn unwritable(error: impl std::fmt::Display) -> Error {
    Error::Setup(format!("the file can't be written: {error}; check that its disk has room and works"))
}

pub(super) struct Writer<'f> {
    out: BufWriter<&'f File>,
    hash: Sha256,
    table: String,
    rows: u64,
    line: String,
}

impl<'f> Writer<'f> {
    pub(crate) fn new(file: &'f File, schema: i64, leases: i64) -> Result<Self, Error> {
        let mut writer = Self { out: BufWriter::new(file), hash: Sha256::new(), table: String::new(), rows: 0, line: String::new() };
        writer.json(&Head { format: FORMAT.into(), version: VERSION, schema, leases })?;
        Ok(writer)
    }

    pub(crate) fn rows(&self) -> u64 {
        self.rows
    }

    pub(crate) fn section(&mut self, table: &str, columns: Vec<String>) -> Result<(), Error> {
        self.table = table.into();
        self.json(&Section { table: table.into(), columns })
    }

    pub(crate) fn row(&mut self, cells: &[Value<'_>]) -> Result<(), Error> {
        self.line.clear();
        for (at, cell) in cells.iter().enumerate() {
            self.line.push(if at == 0 { '[' } else { ',' });
            cell.write_json(&mut self.line).map_err(unwritable)?;
        }
        self.line.push(']');
        if self.line.len() >= MAX_LINE {
            let text =
                format!("a row of table {} takes more than {} MiB in the file, so it could not be imported", self.table, MAX_LINE >> 20);
            return Err(Error::Setup(text));
        }
        self.rows += 1;
        self.write_line()
    }

    pub(crate) fn end(mut self) -> Result<u64, Error> {
        let sha256 = hexadecimal(self.hash.clone());
        self.json(&End { rows: self.rows, sha256 })?;
        self.out.flush().map_err(unwritable)?;
        Ok(self.rows)
    }

    fn json(&mut self, line: &impl Serialize) -> Result<(), Error> {
        self.line = serde_json::to_string(line).map_err(unwritable)?;
        self.write_line()
    }

    fn write_line(&mut self) -> Result<(), Error> {
        self.line.push('\n');
        self.hash.update(&self.line);
        self.out.write_all(self.line.as_bytes()).map_err(unwritable)
    }
}

fn hexadecimal(hash: Sha256) -> String {
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A line after the first one.
pub(super) enum Line {
    Section(Section),
    /// A JSON list with a cell for each column of the section.
    Row(String),
    /// The end, with the checksum of the file.
    End(String),
}

/// Reads a file and checks it on the way. The file is sound once its end was returned. It stays open, so [`again`](Self::again) reads the
/// same file, even if another one has its name by then.
pub(super) struct Reader {
    pub path: PathBuf,
    file: BufReader<File>,
    hash: Sha256,
    number: u64,
    columns: usize,
    rows: u64,
    bytes: usize,
    pub head: Head,
}

impl Reader {
    pub(crate) fn open(path: &Path) -> Result<Self, Error> {
        let unreadable = |error| Error::Setup(format!("{} can't be read: {error}", path.display()));
        // Opening a pipe would wait for its other end.
        let flags = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
        let file = OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(unreadable)?;
        if !file.metadata().map_err(unreadable)?.is_file() {
            return Err(Error::Setup(format!(
                "{} is no regular file, so it can't be read twice: write what it has to a file, and import that",
                path.display()
            )));
        }
        Self::read(path, file)
    }

    /// Begins to read the file again.
    pub(crate) fn again(self) -> Result<Self, Error> {
        let mut file = self.file.into_inner();
        file.rewind().map_err(|error| Error::Setup(format!("{} can't be read: {error}", self.path.display())))?;
        Self::read(&self.path, file)
    }

    fn read(path: &Path, file: File) -> Result<Self, Error> {
        let head = Head { format: String::new(), version: 0, schema: 0, leases: 0 };
        let (hash, file) = (Sha256::new(), BufReader::with_capacity(1 << 18, file));
        let mut reader = Self { path: path.into(), file, hash, number: 0, columns: 0, rows: 0, bytes: 0, head };
        let line = reader.line().unwrap_or_default().unwrap_or_default();
        match serde_json::from_str::<Head>(&line) {
            Ok(head) if head.format == FORMAT && head.version > VERSION => Err(Error::Setup(format!(
                "{} was written by a newer program (format {}, this one reads {VERSION}): import it with that version",
                path.display(),
                head.version
            ))),
            Ok(head) if head.format == FORMAT => {
                reader.head = head;
                reader.hash.update(&line);
                Ok(reader)
            }
            _ => Err(Error::Setup(format!("{} is no export: name a file that `bloom-runtime export` has written", path.display()))),
        }
    }

    /// An error about the last line that was read.
    pub(crate) fn wrong(&self, why: &str) -> Error {
        Error::Setup(format!("line {} of {}: {why}; export it again", self.number, self.path.display()))
    }

    pub(crate) async fn next(&mut self) -> Result<Line, Error> {
        if self.bytes > BYTES || self.number.is_multiple_of(LINES) {
            self.bytes = 0;
            tokio::task::yield_now().await;
        }
        let Some(line) = self.line()? else { return Err(self.wrong("the file is cut off here")) };
        if !line.ends_with('\n') {
            return Err(self.wrong("the file is cut off here"));
        }
        if line.starts_with('[') {
            let cells: Vec<IgnoredAny> = serde_json::from_str(&line).map_err(|_| self.wrong("it is no row"))?;
            if cells.len() != self.columns || cells.is_empty() {
                return Err(self.wrong("the row does not have the columns of its table"));
            }
            self.rows += 1;
            self.hash.update(&line);
            return Ok(Line::Row(line));
        }
        if let Ok(section) = serde_json::from_str::<Section>(&line) {
            self.columns = section.columns.len();
            self.hash.update(&line);
            return Ok(Line::Section(section));
        }
        let end: End = serde_json::from_str(&line).map_err(|_| self.wrong("it is neither a row nor a table"))?;
        if end.rows != self.rows || end.sha256 != hexadecimal(self.hash.clone()) {
            return Err(self.wrong("the rows or the checksum differ: the file was changed"));
        }
        if self.line()?.is_some() {
            return Err(self.wrong("there is more behind the end"));
        }
        Ok(Line::End(end.sha256))
    }

    fn line(&mut self) -> Result<Option<String>, Error> {
        let mut line = String::new();
        self.number += 1;
        let read = self.file.by_ref().take(MAX_LINE as u64).read_line(&mut line).map_err(|error| self.wrong(&error.to_string()))?;
        self.bytes += read;
        Ok((read > 0).then_some(line))
    }
}
