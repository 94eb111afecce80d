//! Whether the cluster answers, and who leads: for `/readyz` and the metrics.

use std::sync::Arc;

use bloom_telemetry::Metrics;
use parking_lot::Mutex;

/// Clones share their state.
#[derive(Clone)]
pub struct Health {
    state: Arc<Mutex<State>>,
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
        Self { state: Arc::default(), metrics }
    }

    /// In a few words.
    pub fn text(&self) -> String {
        match &*self.state.lock() {
            State::Starting => "connecting".into(),
            State::Leads => "leading".into(),
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

    fn set(&self, state: State) {
        self.metrics.kubernetes(!matches!(state, State::Lost(_)), state == State::Leads);
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
