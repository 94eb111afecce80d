//! Prometheus as a process, with the shipped configuration for each job.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::Mutex;

use serde_json::{Value, json};

use super::rules;
use crate::chart::{root, text, yaml};
use crate::support::certificates::Authority;
use crate::support::janitor::{self, AtTheEnd};
use crate::support::{Server, client, eventually};

/// The keys of the servers that have keys. Prometheus has the read key.
pub const ADMIN_KEY: &str = "the-admin-key-of-monitoring";
pub const READ_KEY: &str = "the-read-key-of-monitoring";

/// An installation that is scraped.
#[derive(Clone, Copy)]
pub struct Job<'a> {
    pub name: &'a str,
    /// Its servers speak https, with certificates of this authority.
    pub authority: Option<&'a Authority>,
}

impl<'a> Job<'a> {
    pub fn plain(name: &'a str) -> Self {
        Self { name, authority: None }
    }
}

pub struct Prometheus {
    dir: PathBuf,
    url: String,
    process: Mutex<Child>,
    http: reqwest::Client,
    resolved: Mutex<BTreeSet<String>>,
}

impl Prometheus {
    /// Prometheus with these jobs, which have no servers yet.
    pub async fn start(jobs: &[Job<'_>]) -> Self {
        let dir = janitor::new_path("prometheus");
        fs::create_dir(&dir).unwrap();
        fs::write(dir.join("key"), READ_KEY).unwrap();
        fs::write(dir.join("prometheus.yml"), serde_norway::to_string(&configuration(&dir, jobs)).unwrap()).unwrap();
        for job in jobs {
            fs::write(dir.join(format!("{}.rules.yaml", job.name)), rules::shortened(job.name)).unwrap();
            fs::write(dir.join(format!("{}.json", job.name)), "[]").unwrap();
        }
        let port = janitor::free_port();
        let mut command = janitor::bound(Path::new("prometheus"), None, AtTheEnd::Kill);
        command.arg(format!("--config.file={}", dir.join("prometheus.yml").display()));
        command.arg(format!("--storage.tsdb.path={}", dir.join("data").display()));
        command.arg(format!("--web.listen-address=127.0.0.1:{port}"));
        let log = fs::File::create(dir.join("log")).unwrap();
        let process = janitor::spawn({
            command.stdout(Stdio::null()).stderr(log);
            command
        });
        let process = Mutex::new(process.expect("prometheus (Debian: apt-get install prometheus; tests/run does it)"));
        let http = client::builder().build().unwrap();
        let prometheus = Self { dir, url: format!("http://127.0.0.1:{port}"), process, http, resolved: Mutex::default() };
        let ready = format!("{}/-/ready", prometheus.url);
        eventually("Prometheus is ready", || async {
            let answer = prometheus.http.get(&ready).send().await;
            answer.is_ok_and(|answer| answer.status().is_success()).then_some(())
        })
        .await;
        prometheus
    }

    /// The servers of a job.
    pub fn scrapes(&self, job: &str, servers: &[&Server]) {
        let targets: Vec<&str> = servers.iter().map(|server| server.base().split_once("//").unwrap().1).collect();
        let (file, new) = (self.dir.join(format!("{job}.json")), self.dir.join(format!("{job}.new")));
        fs::write(&new, json!([{ "targets": targets }]).to_string()).unwrap();
        fs::rename(new, file).unwrap();
    }

    async fn get(&self, path: &str, query: &[(&str, &str)]) -> Value {
        let answer = self.http.get(format!("{}/api/v1/{path}", self.url)).query(query).send().await.expect("an answer");
        let answer: Value = serde_json::from_str(&answer.text().await.unwrap()).unwrap();
        assert_eq!(answer["status"], "success", "{path} {query:?}: {answer}");
        answer["data"].clone()
    }

    /// The values of an expression now.
    pub async fn values(&self, expression: &str) -> Vec<f64> {
        let data = self.get("query", &[("query", expression)]).await;
        let samples = data["result"].as_array().unwrap();
        samples.iter().map(|sample| sample["value"][1].as_str().unwrap().parse().unwrap()).collect()
    }

    async fn is_firing(&self, job: &str, alert: &str) -> bool {
        let data = self.get("alerts", &[]).await;
        data["alerts"]
            .as_array()
            .unwrap()
            .iter()
            .any(|one| one["state"] == "firing" && one["labels"]["alertname"] == *alert && one["labels"]["job"] == *job)
    }

    /// Waits until the alert fires.
    pub async fn fires(&self, job: &str, alert: &str) {
        self.fires_while(job, alert, async || {}).await;
    }

    /// Repeats the cause until the alert fires.
    pub async fn fires_while(&self, job: &str, alert: &str, cause: impl AsyncFn()) {
        eventually(&format!("{alert} of {job} fires"), || async {
            cause().await;
            self.is_firing(job, alert).await.then_some(())
        })
        .await;
    }

    /// Waits until the alert, which fires, no longer does.
    pub async fn resolves(&self, job: &str, alert: &str) {
        eventually(&format!("{alert} of {job} resolves"), || async { (!self.is_firing(job, alert).await).then_some(()) }).await;
        self.resolved.lock().unwrap().insert(alert.to_owned());
    }

    /// The alerts that have resolved.
    pub fn resolved(&self) -> BTreeSet<String> {
        self.resolved.lock().unwrap().clone()
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let mut process = self.process.lock().unwrap();
        let _ = process.kill();
        let _ = process.wait();
        if std::thread::panicking() {
            let log = text(&self.dir.join("log"));
            let problems: Vec<&str> = log.lines().filter(|line| !line.contains("level=info")).collect();
            eprintln!("--- what Prometheus has logged ---\n{}", problems.join("\n"));
        }
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// The shipped configuration, whose job is repeated for each of these, with shorter intervals and targets that can change.
fn configuration(dir: &Path, jobs: &[Job<'_>]) -> Value {
    let mut configuration = yaml(&text(&root().join("manifests/prometheus/prometheus.yml"))).remove(0);
    let path = |name: &str| dir.join(name).display().to_string();
    configuration["global"] = json!({ "scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s" });
    configuration["rule_files"] = json!([path("*.rules.yaml")]);
    let shipped: BTreeMap<String, Value> = serde_json::from_value(configuration["scrape_configs"][0].clone()).unwrap();
    let repeated = jobs.iter().map(|job| {
        let mut own = shipped.clone();
        own.remove("static_configs").expect("targets");
        own.insert("job_name".into(), job.name.into());
        own.insert("file_sd_configs".into(), json!([{ "files": [path(&format!("{}.json", job.name))], "refresh_interval": "1s" }]));
        *own.get_mut("authorization").and_then(|key| key.get_mut("credentials_file")).expect("the key's file") = path("key").into();
        if let Some(authority) = job.authority {
            own.insert("scheme".into(), "https".into());
            own.insert("tls_config".into(), json!({ "ca_file": authority.file().display().to_string() }));
        }
        json!(own)
    });
    configuration["scrape_configs"] = repeated.collect();
    configuration
}
