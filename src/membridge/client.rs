//! A call to the control plane, with its retries and the waits between them.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use backon::Retryable;
use reqwest::{Method, RequestBuilder};
use secrecy::SecretString;
use serde_json::Value;

use super::MembridgeOptions;
use bloom_outbound::{self as outbound, Reply};

/// A control plane waits up to a minute for the agent, and then stores the result.
const SYNC_LIMIT: Duration = Duration::from_secs(90);

/// The calls to the control plane.
#[derive(Clone, Copy, Debug)]
pub enum Call<'a> {
    /// The health of the control plane.
    Health,
    /// The agents that are registered there.
    Agents,
    /// The projects.
    Projects,
    /// Which node leads the project.
    Leadership {
        /// The canonical id of the project.
        project: &'a str,
    },
    /// The nodes of the project.
    Nodes {
        /// The canonical id of the project.
        project: &'a str,
    },
    /// The newest pushes and pulls of memories.
    Jobs,
    /// Makes a node the leader of the project; `body` is sent unchanged.
    SelectLeader {
        /// The canonical id of the project.
        project: &'a str,
        /// The body of the request, unchanged.
        body: &'a Value,
    },
    /// Has an agent send a project's memory to the control plane (`push`), or fetch it (`pull`).
    SyncMemory {
        /// `push` or `pull`.
        direction: &'a str,
        /// The content of the request: the project and the agent.
        body: &'a Value,
    },
}

impl Call<'_> {
    fn path(&self) -> Vec<&str> {
        match self {
            Self::Health => vec!["health"],
            Self::Agents => vec!["agents"],
            Self::Projects => vec!["projects"],
            Self::Jobs => vec!["jobs"],
            Self::Leadership { project } => vec!["projects", project, "leadership"],
            Self::Nodes { project } => vec!["projects", project, "nodes"],
            Self::SyncMemory { direction, .. } => vec!["sync", direction],
            Self::SelectLeader { project, .. } => vec!["projects", project, "leadership", "select"],
        }
    }

    /// A sync is not retried: the first attempt may have succeeded, and a second one would undo what was written since.
    fn retries(&self) -> u32 {
        match self {
            Self::SyncMemory { .. } => 0,
            Self::Health => 1,
            _ => 3,
        }
    }

    /// The time limit of one attempt, up to the end of the answer.
    fn limit(&self, options: &MembridgeOptions) -> Duration {
        if matches!(self, Self::SyncMemory { .. }) { SYNC_LIMIT } else { options.attempt_timeout }
    }
}

/// The outcome of a call, after its retries.
#[derive(Clone, Debug)]
pub enum Upstream {
    /// There was an answer, with any status.
    Reply(Reply),
    /// There was no answer; the text says why.
    Down(String),
}

impl Upstream {
    /// Why the connection counts as failed. Refused keys and server errors do; other statuses are normal answers.
    pub(super) fn problem(&self) -> Option<String> {
        match self {
            Self::Reply(Reply { status: status @ (401 | 403 | 500..), .. }) => Some(format!("HTTP {status}")),
            Self::Reply(_) => None,
            Self::Down(error) => Some(error.clone()),
        }
    }
}

pub(super) struct Client {
    /// An error means that TLS can't be set up on this machine.
    http: Result<reqwest::Client, String>,
    options: MembridgeOptions,
}

/// Why an attempt is repeated.
enum AttemptError {
    Status(Reply),
    Network(String),
}

impl Client {
    pub(crate) fn new(options: MembridgeOptions) -> Self {
        Self { http: outbound::client(|builder| builder), options }
    }

    pub(crate) async fn call(&self, base: &str, key: Option<&SecretString>, call: &Call<'_>) -> Upstream {
        let request = match self.request(base, key, call) {
            Ok(request) => request,
            Err(error) => return Upstream::Down(error),
        };
        let limit = call.limit(&self.options);
        let attempt = || async { self.attempt(request.try_clone(), limit).await };
        match attempt.retry(waits(self.options.first_wait, call.retries())).await {
            Ok(reply) | Err(AttemptError::Status(reply)) => Upstream::Reply(reply),
            Err(AttemptError::Network(error)) => Upstream::Down(error),
        }
    }

    fn request(&self, base: &str, key: Option<&SecretString>, call: &Call<'_>) -> Result<RequestBuilder, String> {
        let http = self.http.as_ref().map_err(Clone::clone)?;
        let url = outbound::address(base, &call.path()).map_err(|error| format!("the membridge server URL can't be called: {error}"))?;
        let request = match call {
            Call::SelectLeader { body, .. } | Call::SyncMemory { body, .. } => http.request(Method::POST, url).json(body),
            _ => http.request(Method::GET, url),
        };
        outbound::with_key(request, "X-MEMBRIDGE-ADMIN", key).map_err(|error| format!("the membridge server can't be called: {error}"))
    }

    async fn attempt(&self, request: Option<RequestBuilder>, limit: Duration) -> Result<Reply, AttemptError> {
        let request = request.ok_or_else(|| AttemptError::Network("the request can't be repeated".to_owned()))?;
        let reply = outbound::send(request, limit).await.map_err(|failure| AttemptError::Network(failure.text))?;
        if reply.status >= 500 { Err(AttemptError::Status(reply)) } else { Ok(reply) }
    }
}

/// The waits between attempts: each is twice the one before, plus up to 30 % at random so that replicas do not retry together.
fn waits(first: Duration, retries: u32) -> impl Iterator<Item = Duration> + Send + Sync + Unpin {
    (0..retries).map(move |n| {
        let chance = RandomState::new().hash_one(n) as f64 / u64::MAX as f64;
        (first * 2_u32.saturating_pow(n)).mul_f64(1.0 + 0.3 * chance)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_with_some_chance_added() {
        let waited: Vec<f64> = waits(Duration::from_millis(500), 3).map(|wait| wait.as_secs_f64()).collect();
        assert_eq!(waited.len(), 3);
        for (wait, base) in waited.into_iter().zip([0.5, 1.0, 2.0]) {
            assert!((base..=base * 1.3).contains(&wait), "{wait} for {base}");
        }
    }
}
