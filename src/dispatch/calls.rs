//! Calls that are answered at once: health, and orders.

use std::time::Duration;

use reqwest::Method;
use serde_json::{Map, Value};

use super::Agents;
use bloom_outbound as outbound;

const HEALTH_LIMIT: Duration = Duration::from_secs(5);
/// An update fetches a program first.
const ORDER_LIMIT: Duration = Duration::from_secs(310);
/// Of an agent's error text, as much as is shown.
const MAX_TEXT_CHARS: usize = 2_000;

/// What an agent is told to do with itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    Update,
    Restart,
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
    /// What the agent tells of itself.
    ///
    /// # Errors
    /// A text for people: nobody answered, with another status than a success, or what answered is no agent.
    pub async fn health(&self, worker_url: &str) -> Result<Map<String, Value>, String> {
        let request = self.request(Method::GET, worker_url, "health")?;
        let reply = outbound::send(request, HEALTH_LIMIT).await.map_err(|failure| failure.text)?;
        if !reply.is_success() {
            return Err(format!("HTTP {}", reply.status));
        }
        serde_json::from_slice(&reply.body).map_err(|_| "the answer is not a JSON object: is an agent listening there?".to_owned())
    }

    /// Gives the order, once; the agent's answer, as far as it is a JSON object.
    ///
    /// # Errors
    /// A text for people: `Agent returned 500: …`, or what the network said.
    pub async fn order(&self, worker_url: &str, order: Order) -> Result<Map<String, Value>, String> {
        let request = self.request(Method::POST, worker_url, order.path())?.json(&Map::<String, Value>::new());
        let reply = outbound::send(request, ORDER_LIMIT).await.map_err(|failure| failure.text)?;
        if reply.is_success() { Ok(serde_json::from_slice(&reply.body).unwrap_or_default()) } else { Err(refusal(&reply)) }
    }
}

/// `Agent returned 409: <its body>`.
pub(super) fn refusal(reply: &outbound::Reply) -> String {
    let text: String = String::from_utf8_lossy(&reply.body).chars().filter(|c| *c != '\0').take(MAX_TEXT_CHARS).collect();
    format!("Agent returned {}: {}", reply.status, text.trim())
}
