//! PostgreSQL for the tests: one cluster per test run, and one database per server. Tests of outages start a cluster of their own.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::{LazyLock, Mutex};
use std::time::{Duration, Instant};

use super::janitor::{self, AtTheEnd};
use super::waiting::unique;

/// The cluster that tests share, unless `BLOOM_TEST_POSTGRES` names another one (`host:port`, superuser `bloom`, no password).
static SHARED: LazyLock<Cluster> = LazyLock::new(Cluster::start);

/// Creates an empty database on the shared cluster and returns its URL.
pub fn database() -> String {
    match std::env::var("BLOOM_TEST_POSTGRES") {
        Ok(address) => {
            let (host, port) = address.split_once(':').expect("BLOOM_TEST_POSTGRES is host:port");
            create_database(&bin_dir(), host, port)
        }
        Err(_) => SHARED.database(),
    }
}

pub struct Cluster {
    bin: PathBuf,
    data: PathBuf,
    port: u16,
    process: Mutex<Option<Child>>,
}

impl Cluster {
    pub fn start() -> Cluster {
        let data = janitor::new_path("postgres");
        fs::create_dir(&data).expect("a data directory");
        give_to_system_user(&data);
        let bin = bin_dir();
        let mut initdb = janitor::bound(&bin.join("initdb"), system_user(), AtTheEnd::Kill);
        initdb.args(["--username=bloom", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync", "-D"]).arg(&data).current_dir("/");
        run(&mut initdb);
        let cluster = Cluster { bin, data, port: janitor::free_port(), process: Mutex::new(None) };
        cluster.resume();
        cluster
    }

    /// Creates an empty database and returns its URL.
    pub fn database(&self) -> String {
        create_database(&self.bin, "127.0.0.1", &self.port.to_string())
    }

    /// Ends it by an immediate shutdown: clients are disconnected, nothing is flushed, the next start recovers from the WAL.
    pub fn crash(&self) {
        self.end("QUIT");
    }

    /// Ends it by a fast shutdown, as an administrator does: clients are disconnected, data is flushed.
    pub fn stop(&self) {
        self.end("INT");
    }

    fn end(&self, signal: &str) {
        let mut process = self.process.lock().expect("the cluster");
        let mut child = process.take().expect("a running cluster");
        janitor::signal(child.id(), signal);
        child.wait().expect("the cluster's end");
    }

    /// Starts it, for the first time or again, and waits until it accepts connections.
    pub fn resume(&self) {
        let mut command = janitor::bound(&self.bin.join("postgres"), system_user(), AtTheEnd::Interrupt);
        let log = fs::File::create(self.data.with_extension("log")).expect("a log file");
        command
            .arg("-D")
            .arg(&self.data)
            .arg("-k")
            .arg(&self.data)
            .args(["-h", "127.0.0.1", "-p", &self.port.to_string()])
            .args(["-c", "max_connections=400", "-c", "shared_buffers=64MB"])
            .current_dir("/")
            .stdout(log.try_clone().expect("a log file"))
            .stderr(log)
            // In a process group of its own, so that Ctrl-C at a terminal does not end it before the servers that use it.
            .process_group(0);
        *self.process.lock().expect("the cluster") = Some(janitor::spawn(command).expect("postgres starts"));
        let started = Instant::now();
        while !self.answers() {
            assert!(started.elapsed() < Duration::from_secs(30), "PostgreSQL does not answer: {}", self.log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn answers(&self) -> bool {
        let mut probe = Command::new(self.bin.join("pg_isready"));
        probe.args(["-q", "-h", "127.0.0.1", "-p", &self.port.to_string()]).status().expect("pg_isready runs").success()
    }

    fn log(&self) -> String {
        fs::read_to_string(self.data.with_extension("log")).unwrap_or_default()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if let Ok(mut process) = self.process.lock()
            && let Some(mut child) = process.take()
        {
            janitor::signal(child.id(), "INT");
            let _ = child.wait();
        }
    }
}

fn create_database(bin: &Path, host: &str, port: &str) -> String {
    let name = unique("bloom").replace('-', "_");
    let name = format!("{name}_{}", std::process::id());
    run(Command::new(bin.join("createdb")).args(["-h", host, "-p", port, "-U", "bloom", &name]));
    format!("postgres://bloom@{host}:{port}/{name}")
}

/// Ends every connection to this database, as an administrator could.
pub fn cut_off_clients(url: &str) {
    execute(url, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()");
}

/// Executes a statement by PostgreSQL's own client.
pub fn execute(url: &str, sql: &str) {
    run(Command::new(bin_dir().join("psql")).args(["-X", "-q", "-v", "ON_ERROR_STOP=1", "-c", sql, url]));
}

/// Makes PostgreSQL's system user the owner of a directory and of what is in it.
pub(super) fn give_to_system_user(dir: &Path) {
    if let Some(user) = system_user() {
        run(Command::new("chown").arg("-R").arg(format!("{user}:")).arg(dir));
    }
}

/// PostgreSQL and PgBouncer refuse to run as root; Debian's package creates a user for them.
pub(super) fn system_user() -> Option<&'static str> {
    static ROOT: LazyLock<bool> = LazyLock::new(|| {
        let id = Command::new("id").arg("-u").output().expect("id runs");
        id.stdout.starts_with(b"0\n")
    });
    ROOT.then_some("postgres")
}

/// Debian installs the server's programs outside of PATH, in one directory per version; the newest is used.
pub fn bin_dir() -> PathBuf {
    let versions = fs::read_dir("/usr/lib/postgresql").map(|dir| dir.flatten().collect::<Vec<_>>()).unwrap_or_default();
    let newest = versions
        .iter()
        .filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok())
        .filter(|version| Path::new(&format!("/usr/lib/postgresql/{version}/bin/postgres")).exists())
        .max();
    if let Some(version) = newest {
        return PathBuf::from(format!("/usr/lib/postgresql/{version}/bin"));
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .find(|dir| dir.join("initdb").exists() && dir.join("postgres").exists())
        .expect("PostgreSQL's server programs (Debian: apt-get install postgresql; tests/run does it)")
}

fn run(command: &mut Command) {
    let output = command.output().expect("an installed program");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}
