//! A real MinIO, with a bucket.

use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex};

use axum::body::Bytes;
use axum::extract::State;
use axum::routing::post;
use axum::{Json, Router};
use object_store::ObjectStoreExt as _;
use object_store::aws::{AmazonS3, AmazonS3Builder};

use super::client;
use super::janitor::{self, AtTheEnd};
use super::server::Plan;
use super::{Value, beside, eventually, json};

pub const BUCKET: &str = "bloom-artifacts";
pub const ACCESS_KEY: &str = "bloom-tests";
pub const SECRET_KEY: &str = "bloom-tests-secret";

pub struct Minio {
    pub port: u16,
    dir: PathBuf,
    /// Where it asks whether a call is allowed.
    policy: Option<String>,
    process: Mutex<Option<Child>>,
}

impl Minio {
    pub async fn start() -> Self {
        Self::with(None).await
    }

    /// It has no policy but this one.
    pub async fn with_policy(policy: &Policy) -> Self {
        Self::with(Some(policy.url.clone())).await
    }

    async fn with(policy: Option<String>) -> Self {
        let dir = janitor::new_path("minio");
        // On a single disk, a directory is a bucket.
        std::fs::create_dir_all(dir.join("data").join(BUCKET)).expect("a directory");
        let minio = Self { port: janitor::free_port(), dir, policy, process: Mutex::default() };
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
        command.envs(self.policy.iter().map(|url| ("MINIO_POLICY_PLUGIN_URL", url)));
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

    /// The server writes to the bucket by this URL, and removes orphans as soon as it may.
    pub fn used_by(plan: Plan, url: &str) -> Plan {
        let plan = plan.env("MINIO_ENDPOINT", url).env("MINIO_ACCESS_KEY", ACCESS_KEY).env("MINIO_SECRET_KEY", SECRET_KEY);
        plan.env("OBJECT_GRACE_SECONDS", 30)
    }

    fn client(&self) -> AmazonS3 {
        let client =
            AmazonS3Builder::new().with_endpoint(self.url()).with_allow_http(true).with_region("us-east-1").with_bucket_name(BUCKET);
        client.with_access_key_id(ACCESS_KEY).with_secret_access_key(SECRET_KEY).build().expect("a client")
    }

    /// Removes an object, as somebody who has the key may do.
    pub async fn remove(&self, key: &str) {
        self.client().delete(&key.into()).await.expect("it is removed");
    }

    /// What an object has.
    pub async fn read(&self, key: &str) -> String {
        let content = self.client().get(&key.into()).await.expect("the object").bytes().await.expect("its content");
        String::from_utf8(content.to_vec()).expect("text")
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

/// The policy of a MinIO: it allows everything but writes of some objects.
pub struct Policy {
    url: String,
    denied: Denied,
}

/// What is in the keys of the objects that must not be written.
type Denied = Arc<Mutex<Option<String>>>;

impl Policy {
    pub async fn start() -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}/", listener.local_addr().expect("an address"));
        let denied = Denied::default();
        let app = Router::new().route("/", post(decide)).with_state(Arc::clone(&denied));
        beside(async move { axum::serve(listener, app).await });
        Self { url, denied }
    }

    pub fn deny_writes(&self) {
        self.deny_writes_of("");
    }

    /// Of objects with this in their keys, and of no others.
    pub fn deny_writes_of(&self, part: &str) {
        *self.denied.lock().expect("the policy") = Some(part.to_owned());
    }

    pub fn allow_writes(&self) {
        *self.denied.lock().expect("the policy") = None;
    }
}

/// MinIO sends the action, with the key and the bucket.
async fn decide(State(denied): State<Denied>, body: Bytes) -> Json<Value> {
    // At its start it sends nothing, to find out whether somebody answers.
    let asked: Value = serde_json::from_slice(&body).unwrap_or_default();
    let is_write = asked["input"]["action"] == "s3:PutObject";
    let key = asked["input"]["object"].as_str().unwrap_or_default();
    let is_denied = denied.lock().expect("the policy").as_ref().is_some_and(|part| key.contains(part));
    Json(json!({ "result": !(is_write && is_denied) }))
}
