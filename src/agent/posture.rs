//! What the server is told of this worker: that it is there, what it can do, and whether it takes tasks.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::account::Openness;
use super::report::{self, Backoff};
use super::verdict::Verdict;
use super::wire::{Capabilities, Claim, Claimed, Registration};
use super::{Agent, machine, now_ms};
use crate::client;
use crate::core::Ms;

impl Agent {
    /// The first registration tells a person what is wrong; later ones are tried for ever.
    pub(super) async fn register_first(&self) -> Result<(), String> {
        let mut backoff = Backoff::default();
        loop {
            match self.register(self.status()).await {
                Ok(()) => {
                    tracing::info!(worker = self.name, server = self.client.server(), slots = self.settings.max_concurrency, "registered");
                    return Ok(());
                }
                Err(error) if !error.is_passing() => {
                    return Err(format!("the server {} did not register this worker: {error}", self.client.server()));
                }
                Err(error) => {
                    let wait = backoff.wait(&error);
                    tracing::warn!(%error, "the server can't be reached; trying again");
                    tokio::time::sleep(wait).await;
                }
            }
        }
    }

    pub(super) async fn register(&self, status: &'static str) -> Result<(), client::Error> {
        let door = self.settings.door.as_ref();
        let registration = Registration {
            name: self.name.clone(),
            status,
            capabilities: self.capabilities(),
            agent_version: env!("CARGO_PKG_VERSION"),
            os_info: machine::os_info(),
            ip_addrs: machine::addresses(self.client.server()),
            url: door.map(|door| door.url.clone()),
            dispatch: if self.is_push_only() { "push" } else { "manual" },
        };
        self.client.post::<Value>("api/runtime/workers", &registration).await.map(drop)
    }

    pub(super) async fn register_again(&self) {
        if let Err(error) = self.register(self.status()).await {
            tracing::warn!(%error, "the worker could not be registered again");
        }
    }

    pub(super) fn capabilities(&self) -> Capabilities {
        Capabilities {
            // Servers lease and push only to workers that say so; one with a door wants that.
            claude_cli: self.profiles.run_claude() || self.settings.door.is_some(),
            max_concurrency: self.settings.max_concurrency,
            labels: self.settings.labels.clone(),
            agents: self.profiles.slugs(),
        }
    }

    /// What the server is to think of this worker: only an `online` one gets new tasks.
    pub(super) fn status(&self) -> &'static str {
        if *self.draining.borrow() {
            return "syncing";
        }
        match self.accounts.openness(&self.profiles, now_ms()) {
            Openness::Open => "online",
            Openness::Paused { .. } => "syncing",
            Openness::Refused { .. } => "error",
        }
    }

    /// Tells the server whenever the worker opens or closes, for whatever reason.
    pub(super) async fn keep_posture(self: Arc<Self>, stopped: CancellationToken) {
        let mut told = "online";
        let mut backoff = Backoff::default();
        loop {
            let status = self.status();
            if status != told {
                match self.register(status).await {
                    Ok(()) => {
                        tracing::info!(status, "told the server how this worker is");
                        told = status;
                        backoff = Backoff::default();
                    }
                    Err(error) => {
                        tracing::warn!(%error, status, "the server could not be told how this worker is; trying again");
                        tokio::time::sleep(backoff.wait(&error)).await;
                        continue;
                    }
                }
            }
            let reopens = match self.accounts.openness(&self.profiles, now_ms()) {
                Openness::Paused { until, .. } => Duration::from_millis(u64::try_from(until - now_ms()).unwrap_or(0)),
                _ => Duration::from_secs(3600),
            };
            tokio::select! {
                () = stopped.cancelled() => return,
                () = self.turned.notified() => {}
                () = tokio::time::sleep(reopens) => {}
            }
        }
    }

    pub(super) fn pause(&self, account: &str, until: Ms) {
        tracing::warn!(account, until, "the account is out of quota: no new tasks until then");
        self.accounts.pause(account, until, now_ms());
        self.turned.notify_one();
    }

    pub(super) fn refuse(&self, account: &str) {
        tracing::error!(account, "the account's credentials were refused: no new tasks; log the CLI in again, then restart the agent");
        self.accounts.refuse(account);
        self.turned.notify_one();
    }

    /// Gets no more tasks from here on; one that was on its way to us goes back.
    pub(super) async fn say_goodbye(&self) {
        if let Err(error) = self.register("offline").await {
            return tracing::warn!(%error, "the server could not be told that this worker stops");
        }
        let held: Vec<Uuid> = self.lock().keys().copied().collect();
        let path = format!("api/runtime/workers/{}/claim", client::part(&self.name));
        let Ok(claimed) = self.client.post::<Claimed>(&path, &Claim { max: 1, wait_sec: 0, held: &held }).await else { return };
        for given in claimed.leases {
            let verdict = Verdict::Release { reason: "the agent stops".into() };
            report::deliver(self, given.task.id, given.lease.id, verdict).await;
        }
    }
}
