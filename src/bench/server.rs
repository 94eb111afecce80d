//! A server that the benchmark starts: this program, on a database that only the benchmark uses.

use std::fs::{self, File};
use std::io::Write as _;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper::Method;
use hyper::body::Bytes;

use super::BenchError;
use super::client::{Client, Target};

/// The time limit of a start, which may have to migrate a large database.
const START_LIMIT: Duration = Duration::from_secs(60);
const STOP_LIMIT: Duration = Duration::from_secs(20);

/// The value of `--database-url` that stands for an SQLite file in the benchmark's directory.
pub(crate) const OWN_SQLITE: &str = "sqlite";

pub(crate) struct Server {
    /// Removed at the end.
    directory: PathBuf,
    database_url: String,
    key: String,
    child: Option<Child>,
}

impl Server {
    /// Creates the directory of a server, without starting it.
    pub(crate) fn prepare(parent: &Path, database_url: &str, label: &str, key: &str) -> Result<Self, BenchError> {
        let directory = parent.join(format!("bloom-bench-{label}"));
        fs::create_dir_all(&directory).map_err(|error| {
            BenchError::from(format!("cannot make {}: {error}; name a directory that can be written with --data-dir", directory.display()))
        })?;
        let database_url =
            if database_url == OWN_SQLITE { format!("sqlite:{}", directory.join("bench.db").display()) } else { database_url.to_owned() };
        Ok(Self { directory, database_url, key: key.to_owned(), child: None })
    }

    /// Starts the server and waits until it is ready. Returns its address and how long the start took.
    pub(crate) async fn start(&mut self) -> Result<(Target, Duration), BenchError> {
        let port = free_port()?;
        let program = std::env::current_exe().map_err(|error| format!("cannot find this program's own file: {error}"))?;
        let log = File::create(self.log_path()).map_err(|error| format!("cannot write {}: {error}", self.log_path().display()))?;
        let began = Instant::now();
        let child = Command::new(program)
            .arg("serve")
            .env_clear()
            .env("HOST", Ipv4Addr::LOCALHOST.to_string())
            .env("PORT", port.to_string())
            .env("DATABASE_URL", &self.database_url)
            .env("DATA_DIR", &self.directory)
            .env("RUNTIME_API_KEY", &self.key)
            .env("RATE_LIMIT_PER_MINUTE", "0")
            .env("WORKER_RATE_LIMIT_PER_MINUTE", "0")
            .env("LOG_LEVEL", "warn")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .map_err(|error| format!("cannot start the server: {error}"))?;
        self.child = Some(child);
        let target = Target::new(&format!("http://{}:{port}", Ipv4Addr::LOCALHOST), Some(&self.key))?;
        let shared = Arc::new(target.clone());
        while !is_ready(&shared).await {
            if let Some(Ok(Some(status))) = self.child.as_mut().map(Child::try_wait) {
                return Err(format!("the server ended at once ({status}): {}", self.last_words()).into());
            }
            if began.elapsed() > START_LIMIT {
                return Err(format!("the server was not ready within {} s: {}", START_LIMIT.as_secs(), self.last_words()).into());
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        Ok((target, began.elapsed()))
    }

    /// Stops the server by SIGTERM and waits for its end.
    pub(crate) async fn stop(&mut self) -> Result<(), BenchError> {
        let Some(mut child) = self.child.take() else { return Ok(()) };
        let began = Instant::now();
        let asked = Command::new("kill").arg(child.id().to_string()).status();
        let mut ended = asked.is_err();
        while !ended && began.elapsed() < STOP_LIMIT {
            tokio::time::sleep(Duration::from_millis(5)).await;
            ended = !matches!(child.try_wait(), Ok(None));
        }
        if ended { Ok(()) } else { Err(self.end(child, "the server did not stop when asked")) }
    }

    fn end(&self, mut child: Child, why: &str) -> BenchError {
        // The process may have ended by itself, so errors are ignored.
        let _ = child.kill();
        let _ = child.wait();
        format!("{why}: {}", self.last_words()).into()
    }

    /// Resident memory in MB.
    pub(crate) fn resident_mb(&self) -> Option<f64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.as_ref()?.id())).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
        let kib: f64 = line.split_whitespace().next()?.parse().ok()?;
        Some(kib * 1024.0 / 1e6)
    }

    /// How many small writes per second reach the disk of the server's files, each with a sync.
    pub(crate) fn disk_syncs_per_second(&self) -> Option<f64> {
        let path = self.directory.join("sync-probe");
        let mut file = File::create(&path).ok()?;
        let began = Instant::now();
        let mut done = 0u32;
        while began.elapsed() < Duration::from_millis(300) {
            file.write_all(&[0; 4096]).ok()?;
            file.sync_data().ok()?;
            done += 1;
        }
        let rate = f64::from(done) / began.elapsed().as_secs_f64();
        fs::remove_file(path).ok()?;
        Some(rate)
    }

    fn log_path(&self) -> PathBuf {
        self.directory.join("server.log")
    }

    /// The last lines of its log.
    pub(crate) fn last_words(&self) -> String {
        let log = fs::read_to_string(self.log_path()).unwrap_or_default();
        let lines: Vec<&str> = log.lines().rev().take(5).collect();
        if lines.is_empty() { "it logged nothing".to_owned() } else { lines.into_iter().rev().collect::<Vec<_>>().join("\n") }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(child) = self.child.take() {
            self.end(child, "");
        }
        // An error is ignored, because the system cleans up its temporary directory.
        let _ = fs::remove_dir_all(&self.directory);
    }
}

async fn is_ready(target: &Arc<Target>) -> bool {
    let Ok(mut client) = Client::connect(target).await else { return false };
    client.send(&Method::GET, "/readyz", Bytes::new()).await.is_ok_and(|answer| answer.status.is_success())
}

fn free_port() -> Result<u16, BenchError> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .and_then(|listener| listener.local_addr())
        .map(|address| address.port())
        .map_err(|error| format!("cannot find a free port: {error}").into())
}
