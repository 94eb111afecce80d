//! Memories of projects, which are fetched from an agent or delivered to it.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use reqwest::{Method, RequestBuilder};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::calls::refusal;
use super::{Agents, KEY_HEADER};
use bloom_core::control_plane::MAX_MEMORY_BYTES;
use bloom_outbound::{self as outbound, Reply};

const LIMIT: Duration = Duration::from_secs(60);
/// The size of a snapshot as base64, and of its other fields.
const MAX_ANSWER: usize = MAX_MEMORY_BYTES / 3 * 4 + (64 << 10);
const MAX_SAID_CHARS: usize = 2_000;

/// A snapshot of a memory, in the format that agents send and accept.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Snapshot {
    /// The SHA-256 digest of the content, in hexadecimal.
    pub sha256: String,
    /// The size of the content.
    pub bytes: i64,
    /// The number of observations in the memory, as its sender counts them; 0 if it does not report it.
    #[serde(default)]
    pub obs_count: i64,
    /// The content as base64.
    pub content: String,
}

impl Snapshot {
    /// # Errors
    /// The content does not match the digest and the size, or is too large.
    fn check(self) -> Result<Self, String> {
        let content = STANDARD.decode(&self.content).map_err(|_| "the agent's snapshot is not base64")?;
        if content.len() > MAX_MEMORY_BYTES {
            return Err(format!("the agent's snapshot has {} bytes; at most {MAX_MEMORY_BYTES} are taken", content.len()));
        }
        if i64::try_from(content.len()) != Ok(self.bytes) || hex::encode(Sha256::digest(&content)) != self.sha256 {
            return Err("the agent's snapshot is damaged: its size or digest does not match its content".to_owned());
        }
        Ok(self)
    }
}

impl Agents {
    /// The agent's memory of this project.
    ///
    /// # Errors
    /// A text for users: the agent can't be reached, refuses the call, or its answer is not a valid snapshot.
    pub async fn memory(&self, agent_url: &str, canonical_id: &str) -> Result<Snapshot, String> {
        let request = self.memory_request(Method::GET, agent_url, canonical_id)?;
        let reply = outbound::send_up_to(request, LIMIT, MAX_ANSWER).await.map_err(|failure| failure.text)?;
        if !reply.is_success() {
            return Err(self.refused(&reply));
        }
        // Decoding and hashing several megabytes would block the other requests of this thread.
        let checked = tokio::task::spawn_blocking(move || {
            let snapshot = serde_json::from_slice::<Snapshot>(&reply.body);
            snapshot.map_err(|_| "the answer is not a snapshot: is an agent of this version listening there?".to_owned())?.check()
        });
        checked.await.map_err(|error| error.to_string())?
    }

    /// Replaces the agent's memory of this project. Returns the agent's answer.
    ///
    /// # Errors
    /// A text for users: the agent can't be reached, or refuses.
    pub async fn deliver_memory(&self, agent_url: &str, canonical_id: &str, snapshot: &Snapshot) -> Result<String, String> {
        let request = self.memory_request(Method::PUT, agent_url, canonical_id)?.json(snapshot);
        let reply = outbound::send(request, LIMIT).await.map_err(|failure| failure.text)?;
        if !reply.is_success() {
            return Err(self.refused(&reply));
        }
        let text = String::from_utf8_lossy(&reply.body);
        Ok(text.chars().filter(|c| *c != '\0').take(MAX_SAID_CHARS).collect())
    }

    /// Why the agent refused. The server and the agent have the key in different settings, so an error about a wrong key names both.
    fn refused(&self, reply: &Reply) -> String {
        let said = refusal(reply);
        if reply.status != 401 {
            return said;
        }
        let wrong = if self.0.options.key.is_none() { "is not set" } else { "is another key than the agent's" };
        format!(
            "{said}. MEMBRIDGE_AGENT_KEY {wrong} where the control plane runs: set it to the key of --agent-key-file (or MEMBRIDGE_AGENT_KEY) \
             on the agent's machine, and start the control plane again"
        )
    }

    fn memory_request(&self, method: Method, agent_url: &str, canonical_id: &str) -> Result<RequestBuilder, String> {
        let http = self.0.http.as_ref().map_err(Clone::clone)?;
        let url =
            outbound::address(agent_url, &["memory", canonical_id]).map_err(|error| format!("the agent's URL can't be called: {error}"))?;
        outbound::with_key(http.request(method, url), KEY_HEADER, self.0.options.key.as_ref())
            .map_err(|error| format!("agents can't be called: {error}"))
    }
}
