//! The registration of this worker at the server: its capabilities, and whether it takes tasks.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use serde::de::IgnoredAny;
use tokio_util::sync::CancellationToken;

use crate::git;
use crate::machine::host_info;
use crate::run::verdict::Verdict;
use crate::sandbox::server_keys;
use crate::server_calls::report::{self, Backoff};
use crate::{Agent, STOP_LIMIT};
use bloom_api::answers::Claimed;
use bloom_api::capabilities::{GivenCapabilities, NewCapabilities};
use bloom_api::projects::ProjectName;
use bloom_api::requests::{Claim, NewWorker};
use bloom_api::values::{Id, Int, List};
use bloom_client::{self as client, now_ms};
use bloom_core::pause::PauseCause;
use bloom_core::worker::{DispatchMode, WorkerStatus};

/// The interval at which the status is reported again, because something else may have changed it, such as a stopping agent of the same
/// name.
const REPORT_EVERY: Duration = Duration::from_secs(10);

/// The status and the agent slugs that this worker reports to the server.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Offer {
    /// Only an `online` worker gets new tasks.
    pub status: WorkerStatus,
    /// The agent slugs that the worker takes now; `None` for all.
    agents: Option<Vec<String>>,
    /// The slugs that it does not take although it takes all others. The server learns them from the pauses.
    closed: Vec<String>,
}

impl Offer {
    fn new(status: WorkerStatus, agents: Option<Vec<String>>) -> Self {
        Self { status, agents, closed: Vec::new() }
    }
}

impl Agent {
    pub(crate) fn is_push_only(&self) -> bool {
        self.settings.push_server.as_ref().is_some_and(|push_server| push_server.push_only)
    }

    /// Registers, and removes a URL that an earlier start with a push server has left.
    ///
    /// If the server refuses the first registration, the agent ends with an error for the user, unless runs of an earlier process must
    /// still be finished. Other failures are retried forever.
    async fn register_first(&self) -> Result<(), String> {
        let mut backoff = Backoff::default();
        loop {
            match self.register_with_url(self.offer(), Some(self.url().unwrap_or_default())).await {
                Ok(()) => {
                    tracing::info!(worker = self.name, server = self.client.server(), slots = self.settings.max_concurrency, "registered");
                    return Ok(());
                }
                Err(error) if !error.is_passing() && self.lock().is_empty() => {
                    let advice = self.advice(&error, false).map(|advice| format!("\n{advice}")).unwrap_or_default();
                    return Err(match &self.membridge {
                        Some(_) => format!("this agent was not registered: {error}"),
                        None => format!("the server {} did not register this worker: {error}{advice}", self.client.server()),
                    });
                }
                Err(error) => {
                    let wait = backoff.wait(&error);
                    self.tell_failure(&error, "this worker could not be registered");
                    tokio::time::sleep(wait).await;
                }
            }
        }
    }

    /// Registers, and checks that runs in sandboxes can't call the server without a key.
    pub(crate) async fn register_safely(&self) -> Result<(), String> {
        self.register_first().await?;
        let checked = server_keys::check(&self.settings.profiles, self.client.server(), &self.settings.tls).await;
        if checked.is_err() {
            // Its name becomes free again.
            let _ = tokio::time::timeout(STOP_LIMIT, self.go_offline()).await;
        }
        checked
    }

    fn url(&self) -> Option<&str> {
        self.settings.push_server.as_ref().map(|push_server| push_server.url.as_str())
    }

    /// Registers again. An agent without a push server does not change the URL: the control plane may have set it.
    async fn register(&self, offer: Offer) -> Result<(), client::Error> {
        self.register_with_url(offer, self.url()).await
    }

    async fn register_with_url(&self, offer: Offer, url: Option<&str>) -> Result<(), client::Error> {
        let registration = NewWorker {
            name: self.name.as_str().into(),
            url: url.map(Into::into),
            status: Some(offer.status),
            capabilities: Some(self.capabilities(offer.agents)),
            ip_addrs: Some(host_info::addresses(self.client.server()).await.into_iter().collect()),
            agent_version: Some(env!("CARGO_PKG_VERSION").into()),
            os_info: Some(host_info::os_info().into()),
            dispatch: Some(if self.is_push_only() { DispatchMode::Push } else { DispatchMode::Manual }),
            instance: Some(Id(self.instance)),
            pauses: if offer.status == WorkerStatus::Offline { List::default() } else { self.told_pauses() },
            ..NewWorker::default()
        };
        // The server copies the registration from the control plane. Only the end of the agent is reported to it directly, so that it
        // learns of it at once.
        if let Some(membridge) = &self.membridge {
            match offer.status {
                WorkerStatus::Offline => membridge.remove(&self.name).await?,
                _ => return membridge.register(&registration).await,
            }
        }
        self.client.post::<IgnoredAny>("api/runtime/workers", &registration).await.map(drop)
    }

    pub(crate) async fn register_again(&self) {
        if let Err(error) = self.register(self.offer()).await {
            self.tell_failure(&error, "the worker could not be registered again");
            self.note_if_replaced(&error);
        }
    }

    pub(crate) fn capabilities(&self, agents: Option<Vec<String>>) -> GivenCapabilities {
        let known = NewCapabilities {
            // Servers lease and push tasks only to workers with this capability, and a worker with a push server must get pushes.
            claude_cli: Some(self.settings.profiles.run_claude() || self.settings.push_server.is_some()),
            max_concurrency: Some(Int(self.settings.max_concurrency.into())),
            labels: Some(self.settings.labels.iter().cloned().collect()),
            agents: agents.map(List::from_iter),
            profiles: Some(self.settings.profiles.names().map(str::to_owned).collect()),
            namespaces: self.settings.namespaces.clone().map(List::from_iter),
            git: Some(git::is_installed()),
            projects: self.settings.projects.as_ref().map(|names| names.iter().cloned().map(ProjectName).collect()),
        };
        GivenCapabilities { known, ..GivenCapabilities::default() }
    }

    /// What the worker offers at present. A pause of an account or of a profile closes its slugs. It closes the whole worker if no slug is
    /// left, or if the profile `default` is one of them.
    pub(crate) fn offer(&self) -> Offer {
        let agents = self.settings.profiles.slugs();
        if self.draining.load(Ordering::Relaxed) {
            return Offer::new(WorkerStatus::Syncing, agents);
        }
        let open = agents.as_ref().map(|slugs| slugs.iter().filter(|slug| !self.is_closed_for(slug)).cloned().collect::<Vec<_>>());
        if let Some(open) = open.filter(|open| !open.is_empty()) {
            return Offer::new(WorkerStatus::Online, Some(open));
        }
        // An agent with the profile `default` serves all other slugs; the server learns from the pauses which ones it does not.
        let closes = |slugs: &Option<Vec<String>>| slugs.as_ref().is_none_or(|slugs| agents.is_some() && !slugs.is_empty());
        let pauses = self.pauses_now();
        let causes: Vec<PauseCause> = pauses.iter().filter(|(.., slugs)| closes(slugs)).map(|(_, pause, _)| pause.cause).collect();
        let status = match causes.iter().all(|cause| cause.is_passing()) {
            _ if causes.is_empty() => WorkerStatus::Online,
            true => WorkerStatus::Syncing,
            false => WorkerStatus::Error,
        };
        let closed = pauses.into_iter().filter(|_| agents.is_none()).filter_map(|(.., slugs)| slugs).flatten().collect();
        Offer { status, agents, closed }
    }

    /// Reports the offer to the server whenever it changes, and again after `REPORT_EVERY`.
    pub(crate) async fn keep_offer(self: Arc<Self>, stopped: CancellationToken) {
        let mut reported = Offer::new(WorkerStatus::Online, self.settings.profiles.slugs());
        let mut reported_at = Instant::now();
        let mut backoff = Backoff::default();
        loop {
            let state_changed = self.state_changed.notified();
            if self.is_replaced() {
                return;
            }
            let offer = self.offer();
            let mut wait = REPORT_EVERY;
            if offer != reported || reported_at.elapsed() >= REPORT_EVERY {
                // `stopped` does not cancel this call: a cancelled call could still reach the server, after the status `offline`.
                match self.register(offer.clone()).await {
                    Ok(()) => {
                        if offer != reported {
                            tracing::info!(status = offer.status.as_str(), agents = ?offer.agents, "reported the status of this worker to the server");
                        }
                        (reported, reported_at, backoff) = (offer, Instant::now(), Backoff::default());
                        self.state_changed.notify_waiters();
                    }
                    Err(error) => {
                        self.note_if_replaced(&error);
                        self.tell_failure(&error, "the status of this worker could not be reported to the server");
                        wait = backoff.wait(&error);
                    }
                }
            }
            let now = now_ms();
            let reopens = self.pauses.next(now).and_then(|next| u64::try_from(next - now).ok()).map_or(REPORT_EVERY, Duration::from_millis);
            wait = wait.min(reopens);
            tokio::select! {
                () = stopped.cancelled() => return,
                () = state_changed => {}
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    /// Registers as offline, so that the server assigns no more tasks, and releases a task that the server assigned just before.
    pub(crate) async fn go_offline(&self) {
        if let Err(error) = self.register(Offer::new(WorkerStatus::Offline, self.settings.profiles.slugs())).await {
            return tracing::warn!(%error, "the server could not be informed that this worker stops");
        }
        let path = format!("api/runtime/workers/{}/claim", client::part(&self.name));
        let Ok(claimed) = self.client.post::<Claimed>(&path, &Claim { max: Int(1), ..self.claim(0) }).await else { return };
        for given in claimed.leases {
            let verdict = Verdict::Release { reason: "the agent stops".into() };
            report::deliver(self, &self.client, given.task.id, given.lease.id, verdict).await;
        }
    }
}
