//! The Kubernetes operator, which is an interface like the HTTP server. The wishes in objects become commands to the engine, and the status
//! of an object is a projection of the database, limited in size. The database is the only source of truth, and the cluster gets only
//! projections of it.
//!
//! One replica at a time runs the controllers. It is elected by a Lease in the cluster (`leader_election`). Safety does not depend on the
//! election: commands are decided on current rows, a task is created once per uid of an object, and patches contain the uid of their
//! object.

#![warn(missing_docs, unreachable_pub)]

mod api;
mod connection;
pub mod crds;
mod difference;
mod events;
mod health;
mod leader_election;
mod object;
mod pools;
mod status;
mod tasks;
mod watch;
mod words;
mod workers;

use std::sync::Arc;
use std::time::Duration;

use bloom_core::command::{Command, Requester};
use bloom_engine::Engine;
use bloom_store::Store;
use futures_util::future::join_all;
use k8s_openapi::NamespaceResourceScope;
use kube::runtime::events::{Recorder, Reporter};
use kube::{Api, Client, Resource};
use tokio::time::sleep;

use api::Writes;
use connection::connect;
pub use health::Health;
use leader_election::Elector;

/// How long to wait before trying again to reach the cluster.
const RETRY_AFTER: Duration = Duration::from_secs(2);

/// How the operator serves the cluster.
#[derive(Clone, Debug)]
pub struct OperatorOptions {
    /// The namespaces that are served; if empty, all namespaces.
    pub namespaces: Vec<String>,
    /// Where the leader's Lease is; by default the namespace of the connection's configuration.
    pub namespace: Option<String>,
    /// The name of this replica in the leader's Lease: that of its pod.
    pub identity: String,
    /// The public URL of the server, without a slash at its end, for references to results.
    pub public_url: Option<String>,
    /// The image for pools that name none.
    pub agent_image: Option<String>,
    /// Where the pods of pools reach the server, without a slash at its end.
    pub agent_server: Option<String>,
    /// Whether the agents of pools get keys.
    pub agent_keys: AgentKeys,
    /// The longest time limit that a task may have, in seconds.
    pub max_timeout_sec: i64,
}

/// Whether the agents of pools need keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AgentKeys {
    /// Each agent gets a named key of its own.
    Named,
    /// The server asks nobody for a key.
    NotNeeded,
    /// The server needs keys but has no admin key, so it accepts no named keys.
    Impossible,
}

/// What the controllers share.
pub(crate) struct Context {
    client: Client,
    engine: Engine,
    store: Store,
    writes: Writes,
    recorder: Recorder,
    options: OperatorOptions,
    /// The operator's own namespace.
    namespace: String,
    health: Health,
}

impl Context {
    /// The API for the objects of one namespace, or of all namespaces.
    fn objects<K>(&self, namespace: Option<&str>) -> Api<K>
    where
        K: Resource<Scope = NamespaceResourceScope>,
        K::DynamicType: Default,
    {
        match namespace {
            Some(namespace) => Api::namespaced(self.client.clone(), namespace),
            None => Api::all(self.client.clone()),
        }
    }

    /// Runs a controller for each served namespace, or one for all namespaces.
    async fn control_each<F: Future<Output = ()>>(&self, control: impl Fn(Option<String>) -> F) {
        let namespaces = &self.options.namespaces;
        if namespaces.is_empty() {
            control(None).await;
        } else {
            join_all(namespaces.iter().map(|namespace| control(Some(namespace.clone())))).await;
        }
    }
}

/// A command in the name of a namespace, which the audit trail records.
pub(crate) fn command<O>(namespace: &str, op: O) -> Command<O> {
    Command { op, by: Requester::of_namespace(namespace), epoch: None }
}

/// Starts the operator, which ends with the engine. Without a cluster it tries again until there is one.
pub fn start(engine: &Engine, store: &Store, options: OperatorOptions) -> Health {
    let health = Health::new(engine.metrics.clone());
    engine.background.spawn(run(engine.clone(), store.clone(), options, health.clone()));
    health
}

async fn run(engine: Engine, store: Store, options: OperatorOptions, health: Health) {
    let background = engine.background.clone();
    let connected = async {
        loop {
            match connect().await {
                Ok(connected) => return connected,
                Err(error) => health.lost(&error),
            }
            sleep(RETRY_AFTER).await;
        }
    };
    let (client, default_namespace) = tokio::select! {
        connected = connected => connected,
        () = background.stopped() => return,
    };
    let namespace = options.namespace.clone().unwrap_or(default_namespace);
    let writes = Writes::new(engine.metrics.clone());
    let elector = Elector::new(client.clone(), &namespace, &options.identity, writes.clone(), health.clone());
    let reporter = Reporter { controller: "bloom-runtime".into(), instance: Some(options.identity.clone()) };
    let recorder = Recorder::new(client.clone(), reporter);
    let context = Arc::new(Context { client, engine, store, writes, recorder, options, namespace, health });
    loop {
        let held = tokio::select! {
            held = elector.acquire() => held,
            () = background.stopped() => return,
        };
        tracing::info!(identity = context.options.identity, "leads the operators of the cluster");
        let [llm_tasks, worker_pools] = ["llm_tasks", "worker_pools"].map(|name| Arc::new(context.engine.reconcilers.begin(name, None)));
        // The controllers are dropped as soon as the leadership is lost or the server stops.
        tokio::select! {
            biased;
            () = background.stopped() => {
                elector.release(held).await;
                return;
            }
            () = elector.keep(&held) => tracing::warn!("no longer leads the operators of the cluster"),
            () = context.control_each(|namespace| tasks::control(context.clone(), namespace, llm_tasks.clone())) => {}
            () = context.control_each(|namespace| pools::control(context.clone(), namespace, worker_pools.clone())) => {}
            () = workers::control(context.clone()) => {}
        }
    }
}
