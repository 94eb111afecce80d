//! The control plane at which the agent registers, if it has one. The server takes over the control plane's workers.

pub(crate) mod memory;

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};
use reqwest::Method;
use secrecy::SecretString;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio_util::sync::CancellationToken;

use crate::Agent;
use crate::machine::host_info;
use crate::membridge::memory::{Memory, Reading};
use crate::server_calls::report::Backoff;
use bloom_api::requests::NewWorker;
use bloom_client::{self as client, Tls};
use bloom_core::control_plane::MAX_AGENTS;
use bloom_outbound as outbound;

const CALL_LIMIT: Duration = Duration::from_secs(15);
const HEARTBEAT_EVERY: Duration = Duration::from_secs(10);
/// Several times the interval at which the server usually polls the control plane.
const TAKEN_OVER_WITHIN: Duration = Duration::from_secs(120);
const KEY_HEADER: &str = "X-MEMBRIDGE-ADMIN";
/// The project in the heartbeats of an agent that keeps no memory, because heartbeats need one.
const NO_PROJECT: &str = "default";
const MAX_TEXT_CHARS: usize = 500;

/// The settings of the control plane.
#[derive(Clone, Debug)]
pub struct MembridgeSettings {
    /// The address of the control plane.
    pub url: String,
    /// The key for its calls; `None` if it asks for none.
    pub key: Option<SecretString>,
    /// The projects whose memories are on this machine, each with its directory.
    pub memories: Vec<(String, PathBuf)>,
}

pub(crate) struct Membridge {
    http: RwLock<reqwest::Client>,
    settings: MembridgeSettings,
    pub memories: Vec<Arc<Memory>>,
    /// The body of the last registration.
    registered: Mutex<Option<Value>>,
    /// When this process registered for the first time.
    since: OnceLock<Instant>,
}

fn http_client(tls: &Tls) -> Result<reqwest::Client, String> {
    outbound::client_by_proxy(|builder| tls.add_to(builder))
}

/// The first 16 hexadecimal digits of the SHA-256 digest of the name.
fn canonical_id(name: &str) -> String {
    hex::encode(&Sha256::digest(name.as_bytes())[..8])
}

impl Membridge {
    /// # Errors
    /// TLS can't be set up on this machine, or the URL can't be called.
    pub(crate) fn new(settings: MembridgeSettings, tls: &Tls) -> Result<Self, String> {
        let http = RwLock::new(http_client(tls)?);
        outbound::address(&settings.url, &["agents"]).map_err(|error| format!("the control plane's URL can't be called: {error}"))?;
        let memories = settings.memories.iter().map(|(project, dir)| Arc::new(Memory::new(project, canonical_id(project), dir.clone())));
        Ok(Self { http, memories: memories.collect(), registered: Mutex::default(), since: OnceLock::new(), settings })
    }

    /// Uses other TLS files from now on.
    ///
    /// # Errors
    /// TLS can't be set up with them.
    pub(crate) fn use_tls(&self, tls: &Tls) -> Result<(), String> {
        *self.http.write() = http_client(tls)?;
        Ok(())
    }

    pub(crate) fn memory(&self, canonical_id: &str) -> Option<Arc<Memory>> {
        self.memories.iter().find(|memory| memory.canonical_id == canonical_id).cloned()
    }

    async fn call(&self, method: Method, path: &[&str], body: Option<&Value>) -> Result<Value, client::Error> {
        let usage = |error: String| client::Error::Usage(format!("the control plane can't be called: {error}"));
        let url = outbound::address(&self.settings.url, path).map_err(usage)?;
        let request = outbound::with_key(self.http.read().request(method, url), KEY_HEADER, self.settings.key.as_ref()).map_err(usage)?;
        let request = if let Some(body) = body { request.json(body) } else { request };
        let sent = outbound::send(request, CALL_LIMIT).await;
        let reply = sent.map_err(|error| client::Error::Unreachable(format!("the control plane {}: {}", self.url(), error.text)))?;
        let answer: Value = serde_json::from_slice(&reply.body).unwrap_or_default();
        if reply.is_success() {
            return Ok(answer);
        }
        let said = match &answer["detail"] {
            Value::String(text) => text.clone(),
            Value::Null => String::from_utf8_lossy(&reply.body).into_owned(),
            other => other.to_string(),
        };
        let said: String = said.chars().take(MAX_TEXT_CHARS).collect();
        let advice = if reply.status == 401 { "; give its key with --membridge-key-file" } else { "" };
        let message = format!("the control plane {} answers {}: {said}{advice}", self.url(), reply.status);
        Err(client::Error::Refused { status: reply.status, message, retry_after: None, fields: Vec::new() })
    }

    fn url(&self) -> String {
        bloom_core::masked_urls::masked_url(&self.settings.url)
    }

    /// Registers the agent, and registers it again if the control plane has lost the registration. A registration with other contents is
    /// replaced, as is one from an earlier process of this agent.
    ///
    /// # Errors
    /// The control plane can't be reached or refuses, or another agent has the name.
    pub(crate) async fn register(&self, registration: &NewWorker) -> Result<(), client::Error> {
        let body = json!({
            "name": registration.name,
            "url": registration.url,
            "status": registration.status,
            "capabilities": registration.capabilities,
            "ip_addrs": registration.ip_addrs,
            "agent_version": registration.agent_version,
            "os_info": registration.os_info,
            "install_method": "agent",
            "instance": registration.instance.as_ref().map(|instance| instance.0),
        });
        let mut answer = self.call(Method::POST, &["agents"], Some(&body)).await;
        if answer.as_ref().is_err_and(|error| error.status() == Some(409)) {
            if self.registered.lock().as_ref() == Some(&body) {
                return Ok(());
            }
            let found = self.found(&registration.name).await?;
            if found.is_none_or(|found| found["status"] == "offline" || self.is_ours(&found, &body)) {
                self.delete(&registration.name).await?;
                answer = self.call(Method::POST, &["agents"], Some(&body)).await;
            }
        }
        answer?;
        self.since.get_or_init(Instant::now);
        *self.registered.lock() = Some(body);
        Ok(())
    }

    /// Whether the server may not have taken over the registration yet. Until then it refuses this agent if an earlier one had the name.
    pub(crate) fn is_new(&self) -> bool {
        self.since.get().is_none_or(|since| since.elapsed() < TAKEN_OVER_WITHIN)
    }

    /// The agent that is registered with this name.
    async fn found(&self, name: &str) -> Result<Option<Value>, client::Error> {
        let listed = self.call(Method::GET, &["agents"], None).await?;
        let listed = listed.as_array().into_iter().flatten().take(usize::try_from(MAX_AGENTS).unwrap_or_default());
        Ok(listed.into_iter().find(|agent| agent["name"] == name).cloned())
    }

    /// Whether the registration was made by this agent: by this process, by an earlier one with its directory, or by one with its URL. The
    /// control plane may show neither, if it does not store instances and the agent has no URL.
    fn is_ours(&self, found: &Value, body: &Value) -> bool {
        // The documented control plane may show an agent without a URL as null.
        let url = |agent: &Value| agent["url"].as_str().unwrap_or_default().trim_end_matches('/').to_owned();
        let has_its_url = url(found) == url(body);
        if found["instance"].is_string() {
            found["instance"] == body["instance"] || (has_its_url && !url(body).is_empty())
        } else {
            has_its_url || self.registered.lock().is_some()
        }
    }

    /// Removes the agent's registration, unless another agent has replaced it.
    ///
    /// # Errors
    /// The control plane can't be reached or refuses.
    pub(crate) async fn remove(&self, name: &str) -> Result<(), client::Error> {
        let Some(body) = self.registered.lock().take() else { return Ok(()) };
        match self.found(name).await? {
            Some(found) if self.is_ours(&found, &body) => self.delete(name).await,
            _ => Ok(()),
        }
    }

    async fn delete(&self, name: &str) -> Result<(), client::Error> {
        match self.call(Method::DELETE, &["agents", name], None).await {
            Err(error) if error.status() != Some(404) => Err(error),
            _ => Ok(()),
        }
    }

    async fn beat(&self, node: &str, ip_addrs: &[String], project: &str, reading: Option<&Reading>) -> Result<Value, client::Error> {
        let body = json!({
            "node_id": node,
            "canonical_id": canonical_id(project),
            "obs_count": reading.map_or(0, |reading| reading.obs_count),
            "db_sha": reading.map_or("", |reading| &reading.sha256),
            "ip_addrs": ip_addrs,
            "project_id": project,
        });
        self.call(Method::POST, &["agent", "heartbeat"], Some(&body)).await
    }
}

impl Agent {
    /// Sends a heartbeat for each project whose memory is on this machine.
    pub(crate) async fn beat_at_membridge(self: Arc<Self>, stopped: CancellationToken) {
        let Some(membridge) = &self.membridge else { return };
        for memory in membridge.memories.iter().filter(|memory| !memory.exists()) {
            tracing::warn!(project = memory.project, dir = %memory.dir().display(), "this directory of a memory does not exist yet: a pull makes it");
        }
        let mut backoff = Backoff::default();
        loop {
            let mut wait = HEARTBEAT_EVERY;
            let ip_addrs: Vec<String> =
                host_info::addresses(self.client.server()).await.into_iter().map(|address| address.to_string()).collect();
            let mut readings = Vec::new();
            for memory in &membridge.memories {
                readings.push((memory.project.as_str(), memory.read().await));
            }
            if readings.is_empty() {
                readings.push((NO_PROJECT, Ok(Reading::default())));
            }
            for (project, reading) in readings {
                let reading = reading.inspect_err(|why| tracing::warn!(project, %why, "the memory of this project can't be read"));
                if let Err(error) = membridge.beat(&self.name, &ip_addrs, project, reading.ok().as_ref()).await {
                    tracing::warn!(%error, project, "the control plane took no heartbeat; trying again");
                    // A lost heartbeat must not make a leader lose a short lease.
                    wait = wait.min(backoff.wait(&error));
                }
            }
            if wait == HEARTBEAT_EVERY {
                backoff = Backoff::default();
            }
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = stopped.cancelled() => return,
            }
        }
    }
}
