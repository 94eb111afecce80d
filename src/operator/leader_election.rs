//! Elects the replica that runs the controllers, by a Lease in the cluster.
//!
//! The holder renews the Lease. Others take it over once it has not changed for its duration. They measure that by their own clocks,
//! because the clocks of machines differ.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use kube::api::{Api, ObjectMeta, PostParams};
use tokio::time::{Instant, sleep};

use crate::api::{Writes, is_status, within};
use crate::health::Health;

const NAME: &str = "bloom-runtime";
const LEASE_SECONDS: u16 = 15;
const RENEW_EVERY: Duration = Duration::from_secs(5);
/// A holder that could not renew the Lease for this long stops. Others may take over only later.
const GIVE_UP_AFTER: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// The time limit of one call. A holder must be able to try twice before it gives up.
const CALL_LIMIT: Duration = Duration::from_secs(5);

pub(crate) struct Elector {
    leases: Api<Lease>,
    identity: String,
    writes: Writes,
    health: Health,
}

/// The Lease as this replica last wrote it.
pub(crate) struct Held {
    lease: tokio::sync::Mutex<Lease>,
}

/// A version of the Lease, and when this replica first saw it.
struct Seen {
    version: Option<String>,
    since: Instant,
}

impl Elector {
    pub(crate) fn new(client: Client, namespace: &str, identity: &str, writes: Writes, health: Health) -> Self {
        Self { leases: Api::namespaced(client, namespace), identity: identity.to_owned(), writes, health }
    }

    /// Waits until this replica leads.
    pub(crate) async fn acquire(&self) -> Held {
        let mut seen: Option<Seen> = None;
        loop {
            match self.try_acquire(&mut seen).await {
                Ok(Some(lease)) => {
                    self.health.leads();
                    return Held { lease: tokio::sync::Mutex::new(lease) };
                }
                Ok(None) => {}
                // Another replica was faster.
                Err(error) if is_status(&error, 409) => {}
                Err(error) => self.health.lost(&error.to_string()),
            }
            sleep(LOOK_EVERY).await;
        }
    }

    async fn try_acquire(&self, seen: &mut Option<Seen>) -> kube::Result<Option<Lease>> {
        let Some(lease) = within(CALL_LIMIT, self.leases.get_opt(NAME)).await? else {
            let metadata = ObjectMeta { name: Some(NAME.into()), ..ObjectMeta::default() };
            let lease = Lease { metadata, spec: Some(self.spec(None)) };
            let (params, leases) = (PostParams::default(), &self.leases);
            return self.writes.make_within(CALL_LIMIT, "Lease", "create", leases.create(&params, &lease)).await.map(Some);
        };
        let spec = lease.spec.clone().unwrap_or_default();
        let holder = holder(&lease).to_owned();
        let version = lease.metadata.resource_version.clone();
        if seen.as_ref().is_none_or(|seen| seen.version != version) {
            *seen = Some(Seen { version, since: Instant::now() });
        }
        let duration = Duration::from_secs(spec.lease_duration_seconds.and_then(|seconds| u64::try_from(seconds).ok()).unwrap_or_default());
        let is_over = seen.as_ref().is_some_and(|seen| seen.since.elapsed() >= duration);
        if holder.is_empty() || holder == self.identity || is_over {
            let lease = Lease { spec: Some(self.spec(Some(&spec))), ..lease };
            return self.replace(&lease).await.map(Some);
        }
        self.health.stands_by(&holder);
        Ok(None)
    }

    /// Renews the Lease until the leadership is lost.
    pub(crate) async fn keep(&self, held: &Held) {
        let mut renewed_at = Instant::now();
        let mut pause = RENEW_EVERY;
        loop {
            sleep(pause).await;
            let started = Instant::now();
            match self.renew(held).await {
                Ok(()) => {
                    (renewed_at, pause) = (started, RENEW_EVERY);
                    self.health.leads();
                }
                Err(error) if is_status(&error, 409) || is_status(&error, 404) => return,
                Err(error) => {
                    self.health.lost(&error.to_string());
                    pause = LOOK_EVERY;
                    if renewed_at.elapsed() >= GIVE_UP_AFTER {
                        return;
                    }
                }
            }
        }
    }

    async fn renew(&self, held: &Held) -> kube::Result<()> {
        let mut lease = held.lease.lock().await;
        let spec = LeaseSpec { renew_time: Some(MicroTime(Timestamp::now())), ..lease.spec.clone().unwrap_or_default() };
        *lease = self.replace(&Lease { spec: Some(spec), ..lease.clone() }).await?;
        Ok(())
    }

    /// Lets another replica lead at once.
    pub(crate) async fn release(&self, held: Held) {
        let mut released = self.empty(held.lease.into_inner()).await;
        if released.as_ref().is_err_and(|error| is_status(error, 409)) {
            // A renewal that was aborted has reached the API server anyway.
            released = match within(CALL_LIMIT, self.leases.get(NAME)).await {
                Ok(lease) if holder(&lease) == self.identity => self.empty(lease).await,
                Ok(_) => return,
                Err(error) => Err(error),
            };
        }
        if let Err(error) = released {
            tracing::info!(%error, "the lead of the operators was not released; it ends by itself");
        }
    }

    /// Takes the holder's name out of the Lease.
    async fn empty(&self, lease: Lease) -> kube::Result<()> {
        let spec = LeaseSpec { holder_identity: Some(String::new()), ..lease.spec.clone().unwrap_or_default() };
        self.replace(&Lease { spec: Some(spec), ..lease }).await.map(drop)
    }

    /// Writes the Lease. Fails with 409 if somebody else has written it since it was read.
    async fn replace(&self, lease: &Lease) -> kube::Result<Lease> {
        self.writes.make_within(CALL_LIMIT, "Lease", "update", self.leases.replace(NAME, &PostParams::default(), lease)).await
    }

    fn spec(&self, before: Option<&LeaseSpec>) -> LeaseSpec {
        let now = Some(MicroTime(Timestamp::now()));
        let changes = before.map_or(0, |before| before.lease_transitions.unwrap_or_default());
        let is_new = before.is_some_and(|before| before.holder_identity.as_deref() != Some(self.identity.as_str()));
        LeaseSpec {
            holder_identity: Some(self.identity.clone()),
            lease_duration_seconds: Some(LEASE_SECONDS.into()),
            acquire_time: now.clone(),
            renew_time: now,
            lease_transitions: Some(changes + i32::from(is_new)),
            ..LeaseSpec::default()
        }
    }
}

/// The name of the replica that holds the Lease; empty if none does.
fn holder(lease: &Lease) -> &str {
    lease.spec.as_ref().and_then(|spec| spec.holder_identity.as_deref()).unwrap_or_default()
}
