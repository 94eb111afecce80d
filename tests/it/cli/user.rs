//! A user of the command line: runs commands and reads their output.

use std::io::{BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::support::server::BINARY;
use crate::support::*;

const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Clone)]
pub struct User {
    pub home: PathBuf,
    env: Vec<(String, String)>,
}

/// The outcome of a command.
#[derive(Debug)]
pub struct Done {
    pub code: i32,
    pub out: String,
    pub err: String,
}

impl User {
    /// A user without a configured server.
    pub fn new() -> Self {
        let home = janitor::new_path("home");
        std::fs::create_dir_all(&home).expect("a home");
        Self { home, env: Vec::new() }
    }

    pub fn at(api: &Api) -> Self {
        let user = Self::new().with("BLOOM_SERVER", api.base());
        match api.key() {
            Some(key) => user.with("BLOOM_KEY", key),
            None => user,
        }
    }

    pub fn home(&self) -> &Path {
        &self.home
    }

    /// Sets an environment variable.
    pub fn with(mut self, name: &str, value: &str) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }

    fn command(&self, program: &Path, arguments: &[&str]) -> Command {
        self.command_ended_by(janitor::AtTheEnd::Kill, program, arguments)
    }

    fn command_ended_by(&self, at_the_end: janitor::AtTheEnd, program: &Path, arguments: &[&str]) -> Command {
        let mut command = janitor::bound(program, None, at_the_end);
        let path = std::env::var_os("PATH").unwrap_or_default();
        command.args(arguments).env_clear().env("PATH", path).env("HOME", &self.home).current_dir(&self.home);
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
        command
    }

    /// Runs a command and waits for its end.
    pub fn does(&self, arguments: &[&str]) -> Done {
        self.starts(arguments).done()
    }

    /// As [`does`](Self::does), with this text on standard input.
    pub fn pipes(&self, input: &str, arguments: &[&str]) -> Done {
        self.start(self.command(Path::new(BINARY), arguments), Some(input)).done()
    }

    /// Starts a command that keeps running for a while.
    pub fn starts(&self, arguments: &[&str]) -> Running {
        self.start(self.command(Path::new(BINARY), arguments), None)
    }

    /// Starts another program. When the tests end, it is interrupted, so that it can end what it has started.
    pub fn runs(&self, program: &Path, arguments: &[&str]) -> Running {
        self.start(self.command_ended_by(janitor::AtTheEnd::Interrupt, program, arguments), None)
    }

    /// Starts a command on a terminal of its own, on which the test types. Both output streams are read as one.
    pub fn at_terminal(&self, arguments: &[&str]) -> Running {
        self.start_open(self.command(Path::new("script"), &["-qec", &quoted(arguments), "/dev/null"]))
    }

    /// Runs a command on a terminal of its own and types this text. Both output streams are read as one.
    pub fn types(&self, input: &str, arguments: &[&str]) -> Done {
        self.start(self.command(Path::new("script"), &["-qec", &quoted(arguments), "/dev/null"]), Some(input)).done()
    }

    /// As [`types`](Self::types), on a terminal with so many columns, and typing nothing.
    pub fn types_at(&self, columns: usize, arguments: &[&str]) -> Done {
        let line = arguments.iter().fold(BINARY.to_owned(), |line, word| format!("{line} '{word}'"));
        let line = format!("stty cols {columns}; {line}");
        self.start(self.command(Path::new("script"), &["-qec", &line, "/dev/null"]), Some("")).done()
    }

    /// Starts a command whose standard input is a pipe that nobody writes to and nobody closes.
    pub fn holds(&self, arguments: &[&str]) -> Running {
        self.start_open(self.command(Path::new(BINARY), arguments))
    }

    fn start_open(&self, mut command: Command) -> Running {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = janitor::spawn(command).expect("the program starts");
        let open = child.stdin.take();
        let mut running = Self::listen(child);
        running.open = open;
        running
    }

    fn start(&self, mut command: Command, input: Option<&str>) -> Running {
        command.stdin(if input.is_some() { Stdio::piped() } else { Stdio::null() }).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = janitor::spawn(command).expect("the program starts");
        if let (Some(input), Some(mut stdin)) = (input, child.stdin.take()) {
            let input = input.to_owned();
            std::thread::spawn(move || stdin.write_all(input.as_bytes()));
        }
        Self::listen(child)
    }

    fn listen(mut child: Child) -> Running {
        let out = Heard::listen(child.stdout.take().expect("its stdout"));
        let err = Heard::listen(child.stderr.take().expect("its stderr"));
        Running { child, out, err, open: None }
    }

    /// Starts a command with both output streams in one pipe, as by `2>&1`.
    pub fn with_one_output(&self, arguments: &[&str]) -> Running {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        let mut command = self.command(Path::new(BINARY), arguments);
        command.stdin(Stdio::null()).stdout(writer.try_clone().expect("the pipe")).stderr(writer);
        let child = janitor::spawn(command).expect("the program starts");
        Running { child, out: Heard::listen(reader), err: Heard::default(), open: None }
    }

    /// Runs a command whose output nobody reads any more.
    pub fn with_closed_output(&self, arguments: &[&str]) -> Done {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        self.writes_to(writer, arguments)
    }

    /// Runs a command whose output goes to a disk that is full.
    pub fn with_full_output(&self, arguments: &[&str]) -> Done {
        self.writes_to(std::fs::File::options().write(true).open("/dev/full").expect("the device"), arguments)
    }

    fn writes_to(&self, output: impl Into<Stdio>, arguments: &[&str]) -> Done {
        let mut command = self.command(Path::new(BINARY), arguments);
        command.stdin(Stdio::null()).stdout(output).stderr(Stdio::piped());
        let mut child = janitor::spawn(command).expect("the program starts");
        let err = Heard::listen(child.stderr.take().expect("its stderr"));
        Running { child, out: Heard::default(), err, open: None }.done()
    }
}

/// The command line as a shell reads it.
fn quoted(arguments: &[&str]) -> String {
    let line = std::iter::once(BINARY).chain(arguments.iter().copied());
    line.map(|word| format!("'{}'", word.replace('\'', r"'\''"))).collect::<Vec<_>>().join(" ")
}

/// What was read from a stream so far.
#[derive(Clone, Default)]
struct Heard {
    bytes: Arc<Mutex<Vec<u8>>>,
    reader: Arc<Mutex<Option<std::thread::JoinHandle<()>>>>,
}

impl Heard {
    fn listen(stream: impl Read + Send + 'static) -> Self {
        let heard = Self::default();
        let bytes = Arc::clone(&heard.bytes);
        let reader = std::thread::spawn(move || {
            let mut stream = BufReader::new(stream);
            let mut buffer = [0; 4096];
            while let Ok(count @ 1..) = stream.read(&mut buffer) {
                bytes.lock().expect("what was heard").extend_from_slice(&buffer[..count]);
            }
        });
        *heard.reader.lock().expect("the reader") = Some(reader);
        heard
    }

    fn text(&self) -> String {
        String::from_utf8(self.bytes.lock().expect("what was heard").clone()).expect("text")
    }

    /// All of it, once the stream has ended.
    fn all(&self) -> String {
        if let Some(reader) = self.reader.lock().expect("the reader").take() {
            reader.join().expect("the reader ends");
        }
        self.text()
    }
}

pub struct Running {
    child: Child,
    out: Heard,
    err: Heard,
    /// The other end of its standard input, if it stays open.
    open: Option<ChildStdin>,
}

impl Running {
    pub fn out(&self) -> String {
        self.out.text()
    }

    /// Waits for this text on standard output.
    pub async fn prints(&self, text: &str) {
        eventually(&format!("{text:?} on stdout"), || async { self.out.text().contains(text).then_some(()) }).await;
    }

    /// Waits for this text on standard error.
    pub async fn says(&self, text: &str) {
        eventually(&format!("{text:?} on stderr"), || async { self.err.text().contains(text).then_some(()) }).await;
    }

    /// Types this text into the open standard input.
    pub fn types(&mut self, text: &str) {
        let input = self.open.as_mut().expect("an open standard input");
        input.write_all(text.as_bytes()).and_then(|()| input.flush()).expect("the command reads");
    }

    /// Sends SIGINT, as Ctrl-C does.
    /// Sends SIGINT as soon as the command handles it: a program that was started in the background of a shell ignores it until then.
    pub fn interrupt(&self) {
        let (started, process) = (Instant::now(), self.child.id());
        while !handles_sigint(process) {
            assert!(started.elapsed() < PATIENCE, "the command does not handle SIGINT\nstderr: {}", self.err.all());
            std::thread::sleep(Duration::from_millis(5));
        }
        janitor::signal(process, "INT");
    }

    pub fn done(mut self) -> Done {
        let started = Instant::now();
        let status = loop {
            match self.child.try_wait().expect("its state") {
                Some(status) => break status,
                None if started.elapsed() > PATIENCE => {
                    let _ = self.child.kill();
                    panic!("the command does not end\nstdout: {}\nstderr: {}", self.out.all(), self.err.all());
                }
                None => std::thread::sleep(Duration::from_millis(5)),
            }
        };
        drop(self.open.take());
        Done { code: status.code().unwrap_or(-1), out: self.out.all(), err: self.err.all() }
    }
}

/// Whether the process has a handler of SIGINT, or has ended.
fn handles_sigint(process: u32) -> bool {
    let Ok(status) = std::fs::read_to_string(format!("/proc/{process}/status")) else { return true };
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).map(str::trim);
    caught.and_then(|mask| u64::from_str_radix(mask, 16).ok()).is_none_or(|mask| mask & 0b10 != 0)
}

impl Done {
    #[track_caller]
    pub fn ends(self, code: i32) -> Self {
        assert_eq!(self.code, code, "stdout: {}\nstderr: {}", self.out, self.err);
        self
    }

    /// The output, after success.
    #[track_caller]
    pub fn ok(self) -> String {
        self.ends(0).out
    }

    #[track_caller]
    pub fn json(self) -> Value {
        let out = self.ok();
        serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}"))
    }

    /// Standard error, after this exit status and with nothing on standard output.
    #[track_caller]
    pub fn complains(self, code: i32) -> String {
        let done = self.ends(code);
        assert_eq!(done.out, "", "a failing command must print nothing on stdout: {}", done.err);
        assert!(!done.err.contains("panicked"), "{}", done.err);
        done.err
    }
}
