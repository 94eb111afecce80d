//! A real MinIO, with a bucket.

use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::Mutex;

use super::client;
use super::janitor::{self, AtTheEnd};
use super::server::Plan;
use super::{Value, eventually};

pub const BUCKET: &str = "bloom-artifacts";
const ACCESS_KEY: &str = "bloom-tests";
pub const SECRET_KEY: &str = "bloom-tests-secret";

pub struct Minio {
    pub port: u16,
    dir: PathBuf,
    process: Mutex<Option<Child>>,
}

impl Minio {
    pub async fn start() -> Self {
        let dir = janitor::new_path("minio");
        // On a single disk, a directory is a bucket.
        std::fs::create_dir_all(dir.join("data").join(BUCKET)).expect("a directory");
        let minio = Self { port: janitor::free_port(), dir, process: Mutex::default() };
        minio.start_again().await;
        minio
    }

    pub async fn start_again(&self) {
        let program = std::env::var_os("MINIO").expect("MINIO names the program, as tests/run sets it");
        let mut command = janitor::bound(Path::new(&program), None, AtTheEnd::Kill);
        let path = std::env::var_os("PATH").unwrap_or_default();
        command.args(["server", "--quiet", "--address", &format!("127.0.0.1:{}", self.port)]).arg(self.dir.join("data"));
        command
            .env_clear()
            .env("PATH", path)
            .env("HOME", &self.dir)
            .env("MINIO_ROOT_USER", ACCESS_KEY)
            .env("MINIO_ROOT_PASSWORD", SECRET_KEY);
        command.env("MINIO_BROWSER", "off").env("MINIO_UPDATE", "off").stdout(Stdio::null()).stderr(Stdio::null());
        *self.process.lock().expect("the process") = Some(janitor::spawn(command).expect("MinIO starts"));
        let client = client::builder().build().expect("a client");
        let ready = format!("{}/minio/health/ready", self.url());
        eventually("MinIO is ready", || async {
            client.get(&ready).send().await.ok().filter(|answer| answer.status().is_success()).map(drop)
        })
        .await;
    }

    pub fn kill(&self) {
        let mut child = self.process.lock().expect("the process").take().expect("a running MinIO");
        child.kill().expect("it can be killed");
        child.wait().expect("its end");
    }

    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// The server writes to the bucket by this URL, and removes orphans at once.
    pub fn used_by(plan: Plan, url: &str) -> Plan {
        let plan = plan.env("MINIO_ENDPOINT", url).env("MINIO_ACCESS_KEY", ACCESS_KEY).env("MINIO_SECRET_KEY", SECRET_KEY);
        plan.env("OBJECT_GRACE_SECONDS", 1)
    }

    /// The objects below this prefix, by their keys after it.
    pub fn objects(&self, prefix: &str) -> Vec<String> {
        let root = self.dir.join("data").join(BUCKET).join(prefix);
        let (mut found, mut left) = (Vec::new(), vec![root.clone()]);
        while let Some(dir) = left.pop() {
            if dir.join("xl.meta").is_file() {
                found.push(dir.strip_prefix(&root).expect("below it").display().to_string());
                continue;
            }
            let entries = std::fs::read_dir(&dir).into_iter().flatten().flatten();
            left.extend(entries.map(|entry| entry.path()).filter(|path| path.is_dir()));
        }
        found.sort();
        found
    }

    /// Waits until these are the objects of the task.
    pub async fn has_for(&self, task: &str, artifacts: &[&Value]) {
        let mut expected: Vec<_> = artifacts.iter().map(|artifact| artifact["id"].as_str().expect("an id").to_owned()).collect();
        expected.sort();
        eventually("the bucket has the artifacts of the task", || async {
            (self.objects(&format!("artifacts/{task}")) == expected).then_some(())
        })
        .await;
    }
}
