//! The built program as a process, with a database of its own.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::ops::Deref;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use super::client::Api;
use super::janitor::{self, AtTheEnd};
use super::postgres;

pub const BINARY: &str = env!("CARGO_BIN_EXE_bloom-runtime");

/// A copy of the program that every user of the machine can start: the checkout may be in a directory of its owner alone.
fn for_every_user() -> &'static Path {
    static COPY: OnceLock<PathBuf> = OnceLock::new();
    COPY.get_or_init(|| {
        let dir = janitor::new_path("program");
        std::fs::create_dir_all(&dir).expect("a directory");
        let copy = dir.join("bloom-runtime");
        std::fs::copy(BINARY, &copy).expect("a copy of the program");
        for path in [&dir, &copy] {
            std::fs::set_permissions(path, PermissionsExt::from_mode(0o755)).expect("its mode");
        }
        copy
    })
}

/// The key of servers that are [`keyed`](Plan::keyed).
pub const OWN_KEY: &str = "a-key-for-tests-only";
const KEY_SETTING: &str = "RUNTIME_API_KEY";

/// How long a start or an end may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);
/// For the end of a process that could not stop in order, too.
const END_PATIENCE: Duration = Duration::from_secs(90);

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Database {
    Sqlite,
    Postgres,
}

impl Database {
    /// The name of the database in `/api/runtime/health`.
    pub fn word(self) -> &'static str {
        match self {
            Self::Sqlite => "sqlite",
            Self::Postgres => "postgresql",
        }
    }
}

/// The server with default settings that tests share. Tests use unique names, so that they do not affect each other.
pub fn shared(database: Database) -> &'static Server {
    static SQLITE: OnceLock<Server> = OnceLock::new();
    static POSTGRES: OnceLock<Server> = OnceLock::new();
    let place = match database {
        Database::Sqlite => &SQLITE,
        Database::Postgres => &POSTGRES,
    };
    place.get_or_init(|| Server::on(database).start())
}

/// The settings and arguments that a server is started with.
#[derive(Clone)]
pub struct Plan {
    env: BTreeMap<String, String>,
    dir: PathBuf,
    words: &'static [&'static str],
    /// A shell script that ends with `exec "$0" "$@"`, which starts the program.
    through: Option<&'static str>,
}

impl Plan {
    /// A plan without any settings.
    pub fn empty(dir: PathBuf) -> Self {
        Self { env: BTreeMap::new(), dir, words: &["serve"], through: None }
    }

    pub fn env(mut self, name: &str, value: impl ToString) -> Self {
        self.env.insert(name.into(), value.to_string());
        self
    }

    pub fn setting(&self, name: &str) -> Option<String> {
        self.env.get(name).cloned()
    }

    /// The server needs a key, which the calls of the test and its agents have.
    pub fn keyed(self) -> Self {
        self.env(KEY_SETTING, OWN_KEY)
    }

    pub fn is_keyed(&self) -> bool {
        self.setting(KEY_SETTING).as_deref() == Some(OWN_KEY)
    }

    /// Uses another command that serves.
    pub fn words(mut self, words: &'static [&'static str]) -> Self {
        self.words = words;
        self
    }

    /// Starts the program by this shell script, which ends with `exec "$0" "$@"`.
    pub fn through(mut self, script: &'static str) -> Self {
        self.through = Some(script);
        self
    }

    /// `sqlite:…` or `postgres://…`, for reading the rows.
    pub fn database_url(&self) -> String {
        match self.env.get("DATABASE_URL") {
            Some(url) => url.clone(),
            None => {
                let files = std::fs::read_dir(self.dir.join("data")).expect("the data directory").flatten();
                let file = files.map(|file| file.path()).find(|path| path.extension().is_some_and(|end| end == "db"));
                format!("sqlite:{}", file.expect("a database file").display())
            }
        }
    }

    pub fn start(self) -> Server {
        let server = self.start_unready();
        server.wait_until_ready();
        server
    }

    /// Starts the server, which may be unable to write for now.
    pub fn start_unready(self) -> Server {
        let log = Arc::new(Mutex::new(String::new()));
        let (process, url) = start(&self, &log);
        let api = if self.is_keyed() { Api::new(&url).with_key(OWN_KEY) } else { Api::new(&url) };
        Server { api, plan: self, process: Mutex::new(Some(process)), log }
    }

    /// Runs the server when its start must fail.
    pub fn start_in_vain(self) -> std::process::Output {
        let mut command = self.command(&["serve"]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = janitor::spawn(command).expect("the program starts");
        let pid = child.id();
        let (ended, end) = std::sync::mpsc::channel();
        std::thread::spawn(move || ended.send(child.wait_with_output()));
        match end.recv_timeout(PATIENCE) {
            Ok(output) => output.expect("its output"),
            Err(_) => {
                janitor::signal(pid, "KILL");
                panic!("the server must refuse to start, but it runs");
            }
        }
    }

    /// The program with these settings, and with nothing else of this process's environment.
    pub fn command(&self, arguments: &[&str]) -> Command {
        std::fs::create_dir_all(&self.dir).expect("a directory");
        let mut command = match self.through {
            Some(script) => {
                let mut shell = janitor::bound(Path::new("sh"), None, AtTheEnd::Kill);
                shell.args(["-c", script]).arg(for_every_user());
                shell
            }
            None => janitor::bound(Path::new(BINARY), None, AtTheEnd::Kill),
        };
        let path = std::env::var_os("PATH").unwrap_or_default();
        command.args(arguments).env_clear().env("PATH", path).env("HOME", &self.dir).envs(&self.env).current_dir(&self.dir);
        command
    }
}

pub struct Server {
    api: Api,
    plan: Plan,
    process: Mutex<Option<Child>>,
    log: Arc<Mutex<String>>,
}

/// Most calls on a server are requests to it.
impl Deref for Server {
    type Target = Api;
    fn deref(&self) -> &Api {
        &self.api
    }
}

impl Server {
    /// A server on a new database, without rate limits (tests of limits set their own).
    pub fn on(database: Database) -> Plan {
        let plan = Self::bare();
        match database {
            Database::Sqlite => plan,
            Database::Postgres => plan.env("DATABASE_URL", postgres::database()),
        }
    }

    /// As [`on`](Self::on), on this database.
    pub fn on_url(url: &str) -> Plan {
        Self::bare().env("DATABASE_URL", url)
    }

    fn bare() -> Plan {
        let dir = janitor::new_path("server");
        let data = dir.join("data").display().to_string();
        Plan::empty(dir)
            .env("PORT", 0)
            .env("DATA_DIR", data)
            .env("RATE_LIMIT_PER_MINUTE", 0)
            .env("TEST_CONNECTION_PER_MINUTE", 0)
            .env("WORKER_RATE_LIMIT_PER_MINUTE", 0)
    }

    /// The plan that it was started with.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    pub fn data_dir(&self) -> PathBuf {
        self.plan.dir.join("data")
    }

    /// `sqlite:…` or `postgres://…`, for reading the rows.
    pub fn database_url(&self) -> String {
        self.plan.database_url()
    }

    pub fn is_postgres(&self) -> bool {
        self.database_url().starts_with("postgres")
    }

    /// Everything that it has printed so far, on both streams.
    pub fn log(&self) -> String {
        self.log.lock().expect("the log").clone()
    }

    pub fn pid(&self) -> u32 {
        self.process.lock().expect("the process").as_ref().expect("a running server").id()
    }

    /// Kills the process, so that it can't finish anything.
    pub fn kill9(&self) {
        let mut child = self.process.lock().expect("the process").take().expect("a running server");
        child.kill().expect("it can be killed");
        child.wait().expect("its end");
    }

    /// Starts the server again, on the same address and database.
    pub fn start_again(&self) {
        let port = self.api.base().rsplit(':').next().expect("a port").to_owned();
        let (process, _) = start(&self.plan.clone().env("PORT", &port).env("MEMBRIDGE_PORT", port), &self.log);
        *self.process.lock().expect("the process") = Some(process);
        self.wait_until_ready();
    }

    /// Fails if it ends or does not get ready in time.
    pub fn wait_until_ready(&self) {
        let started = Instant::now();
        while !is_ready(self.api.base()) {
            let has_ended =
                self.process.lock().expect("the process").as_mut().expect("a running server").try_wait().expect("its state").is_some();
            assert!(!has_ended && started.elapsed() < PATIENCE, "the server does not get ready");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Sends SIGTERM and waits for the end.
    pub fn stop(&self) -> ExitStatus {
        janitor::signal(self.pid(), "TERM");
        self.wait_for_end()
    }

    pub fn wait_for_end(&self) -> ExitStatus {
        let child = self.process.lock().expect("the process").take().expect("a running server");
        wait_for_end(child, &self.log)
    }

    /// Freezes the process without its noticing.
    pub fn pause(&self) {
        janitor::signal(self.pid(), "STOP");
    }

    pub fn resume(&self) {
        janitor::signal(self.pid(), "CONT");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Ok(mut process) = self.process.lock()
            && let Some(mut child) = process.take()
        {
            let _ = child.kill();
            let _ = child.wait();
        }
        if std::thread::panicking() {
            let log = self.log.lock().map(|log| log.clone()).unwrap_or_default();
            let from = log.len().saturating_sub(4000);
            eprintln!("--- the server's last log lines ---\n{}", log.get(from..).unwrap_or(&log));
        }
        let _ = std::fs::remove_dir_all(&self.plan.dir);
    }
}

/// Starts the process, and reads its address from its output.
fn start(plan: &Plan, log: &Arc<Mutex<String>>) -> (Child, String) {
    let mut command = plan.command(plan.words);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = janitor::spawn(command).expect("the program starts");
    let (found, address) = std::sync::mpsc::channel();
    follow(child.stdout.take().expect("its stdout"), Arc::clone(log), Some(found));
    follow(child.stderr.take().expect("its stderr"), Arc::clone(log), None);
    let words = || log.lock().expect("the log").clone();
    let Ok(url) = address.recv_timeout(PATIENCE) else {
        let _ = child.kill();
        let _ = child.wait();
        panic!("the server did not print its address:\n{}", words());
    };
    (child, url)
}

/// Waits for the end of a process that ends by itself; returns its status.
pub fn wait_for_end(mut child: Child, log: &Mutex<String>) -> ExitStatus {
    let started = Instant::now();
    loop {
        if let Some(status) = child.try_wait().expect("its state") {
            return status;
        }
        if started.elapsed() > END_PATIENCE {
            let _ = child.kill();
            panic!("the process does not end: {}", log.lock().expect("the log"));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Collects the output, and sends the first loopback URL in it through `found`.
pub fn follow(stream: impl Read + Send + 'static, log: Arc<Mutex<String>>, mut found: Option<std::sync::mpsc::Sender<String>>) {
    std::thread::spawn(move || {
        for line in BufReader::new(stream).lines().map_while(Result::ok) {
            if let Some(url) = loopback_url(&line)
                && let Some(found) = found.take()
            {
                let _ = found.send(url);
            }
            if let Ok(mut log) = log.lock() {
                log.push_str(&line);
                log.push('\n');
            }
        }
    });
}

/// The first `http://127.0.0.1:PORT` in a line, or with https.
fn loopback_url(line: &str) -> Option<String> {
    let (before, rest) = line.split_once("://127.0.0.1:")?;
    let scheme = if before.ends_with("https") { "https" } else { "http" };
    let digits = rest.chars().take_while(char::is_ascii_digit).collect::<String>();
    (!digits.is_empty()).then(|| format!("{scheme}://127.0.0.1:{digits}"))
}

fn is_ready(url: &str) -> bool {
    // A server tells its address when all of it has started, and connections wait until it accepts them.
    let Some(address) = url.strip_prefix("http://") else { return true };
    let Ok(mut stream) = TcpStream::connect(address) else { return false };
    let _ = stream.set_read_timeout(Some(Duration::from_secs(5)));
    let mut head = [0u8; 12];
    stream.write_all(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").is_ok()
        && stream.read_exact(&mut head).is_ok()
        && head.ends_with(b" 200")
}
