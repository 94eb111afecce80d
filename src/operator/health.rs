//! Whether the cluster answers, and which replica leads, for `/readyz` and the metrics.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bloom_telemetry::Metrics;
use kube::runtime::watcher;
use parking_lot::Mutex;

/// A failing watch tries again every few seconds. So an error that has not occurred again for this long is over, or its watch has ended.
const ERRORS_LAST: Duration = Duration::from_secs(30);

const WHAT_TO_DO: &str =
    "if this goes on, install the definitions and the roles of this version, by the chart or from manifests/kubernetes";

/// Clones share their state.
#[derive(Clone)]
pub struct Health {
    state: Arc<Mutex<State>>,
    /// The resources that can't be watched, with the last error and its time.
    unwatched: Arc<Mutex<BTreeMap<&'static str, (String, Instant)>>>,
    metrics: Metrics,
}

#[derive(Clone, Debug, Default, PartialEq)]
enum State {
    #[default]
    Starting,
    Leads,
    /// Another replica leads, with this name.
    Stands(String),
    /// The cluster does not answer; the text is the error.
    Lost(String),
}

impl Health {
    pub(crate) fn new(metrics: Metrics) -> Self {
        Self { state: Arc::default(), unwatched: Arc::default(), metrics }
    }

    /// The state in a few words.
    pub fn text(&self) -> String {
        match &*self.state.lock() {
            State::Starting => "connecting".into(),
            State::Leads => {
                let mut unwatched = self.unwatched.lock();
                unwatched.retain(|_, (_, at)| at.elapsed() < ERRORS_LAST);
                let all =
                    unwatched.iter().map(|(resource, (error, _))| format!("; the {resource} can't be watched ({error}): {WHAT_TO_DO}"));
                all.fold("leading".to_owned(), |text, more| text + &more)
            }
            State::Stands(leader) => format!("following {leader}"),
            State::Lost(error) => format!("the Kubernetes API server can't be reached: {error}"),
        }
    }

    pub(crate) fn leads(&self) {
        self.set(State::Leads);
    }

    pub(crate) fn stands_by(&self, leader: &str) {
        self.set(State::Stands(leader.to_owned()));
    }

    pub(crate) fn lost(&self, error: &str) {
        self.set(State::Lost(error.to_owned()));
    }

    /// Records the outcome of a watch. It is an error if, for example, the definition of the resource is not installed, or the operator may
    /// not read the resource.
    pub(crate) fn watched<T>(&self, resource: &'static str, event: &watcher::Result<T>) {
        let mut unwatched = self.unwatched.lock();
        match event {
            Ok(_) => {
                unwatched.remove(resource);
            }
            Err(error) => {
                if unwatched.insert(resource, (error.to_string(), Instant::now())).is_none() {
                    tracing::warn!(resource, %error, "a resource of Kubernetes can't be watched: {WHAT_TO_DO}");
                }
            }
        }
    }

    fn set(&self, state: State) {
        self.metrics.kubernetes().state(!matches!(state, State::Lost(_)), state == State::Leads);
        let mut current = self.state.lock();
        let is_lost = |state: &State| matches!(state, State::Lost(_));
        match (is_lost(&current), &state) {
            (false, State::Lost(error)) => tracing::warn!(error, "the Kubernetes API server can't be reached"),
            (true, now) if !is_lost(now) => tracing::info!("the Kubernetes API server answers again"),
            _ => {}
        }
        *current = state;
    }
}
