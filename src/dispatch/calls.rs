//! Calls that agents answer at once: health checks and orders.

use std::time::Duration;

use reqwest::Method;
use serde_json::{Map, Value};

use super::Agents;
use bloom_outbound as outbound;

const HEALTH_LIMIT: Duration = Duration::from_secs(5);
/// The limit is long, because an agent downloads the program before it updates itself.
const ORDER_LIMIT: Duration = Duration::from_secs(310);
/// Longer than an agent's own limit for a clone, which is 10 minutes.
const CLONE_LIMIT: Duration = Duration::from_secs(620);
/// The maximum length of an agent's error text.
const MAX_TEXT_CHARS: usize = 2_000;

/// An order for an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Update the agent by the command that its machine has for this purpose.
    Update,
    /// Start again.
    Restart,
    /// Remove the agent from its machine.
    Uninstall,
}

impl Order {
    fn path(self) -> &'static str {
        match self {
            Self::Update => "self-update",
            Self::Restart => "restart",
            Self::Uninstall => "uninstall",
        }
    }
}

impl Agents {
    /// The agent's health answer.
    ///
    /// # Errors
    /// A text for users: there was no answer, the status is not a success, or the answer is not one of an agent.
    pub async fn health(&self, worker_url: &str) -> Result<Map<String, Value>, String> {
        let request = self.request(Method::GET, worker_url, "health")?;
        let reply = outbound::send(request, HEALTH_LIMIT).await.map_err(|failure| failure.text)?;
        if !reply.is_success() {
            return Err(format!("HTTP {}", reply.status));
        }
        serde_json::from_slice(&reply.body).map_err(|_| "the answer is not a JSON object: is an agent listening there?".to_owned())
    }

    /// Sends the order once. Returns the agent's answer, or an empty object if the answer is not a JSON object.
    ///
    /// # Errors
    /// A text for users: `Agent returned 500: …`, or the network error.
    pub async fn order(&self, worker_url: &str, order: Order) -> Result<Map<String, Value>, String> {
        let request = self.request(Method::POST, worker_url, order.path())?.json(&Map::<String, Value>::new());
        let reply = outbound::send(request, ORDER_LIMIT).await.map_err(|failure| failure.text)?;
        if reply.is_success() { Ok(serde_json::from_slice(&reply.body).unwrap_or_default()) } else { Err(refusal(&reply)) }
    }

    /// Has the agent clone a repository. Returns its answer, or an empty object if that is not a JSON object.
    ///
    /// # Errors
    /// A text for users: `Agent returned 409: …`, or the network error.
    pub async fn clone_project(&self, worker_url: &str, wanted: &Value) -> Result<Map<String, Value>, String> {
        let request = self.request(Method::POST, worker_url, "clone")?.json(wanted);
        let reply = outbound::send(request, CLONE_LIMIT).await.map_err(|failure| failure.text)?;
        if reply.is_success() { Ok(serde_json::from_slice(&reply.body).unwrap_or_default()) } else { Err(refusal(&reply)) }
    }
}

/// `Agent returned 409: <its body>`.
pub(super) fn refusal(reply: &outbound::Reply) -> String {
    let text: String = String::from_utf8_lossy(&reply.body).chars().filter(|c| *c != '\0').take(MAX_TEXT_CHARS).collect();
    format!("Agent returned {}: {}", reply.status, text.trim())
}
