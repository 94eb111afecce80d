//! Metrics of the Kubernetes operator.

use prometheus::{Error, IntCounterVec, IntGaugeVec};

use super::metric_families::Families;

/// The metrics of the Kubernetes operator.
pub struct KubernetesMetrics {
    /// Has no labels, and no series on servers without an operator. The same holds for `leader`.
    up: IntGaugeVec,
    leader: IntGaugeVec,
    writes: IntCounterVec,
}

impl KubernetesMetrics {
    pub(super) fn new(f: &Families<'_>) -> Result<Self, Error> {
        Ok(Self {
            up: f.gauges(
                "bloom_kubernetes_up",
                "1 while the Kubernetes API server answers, else 0; only on servers with the operator.",
                &[],
            )?,
            leader: f.gauges(
                "bloom_kubernetes_leader",
                "1 on the replica whose operator leads, else 0; only on servers with the operator.",
                &[],
            )?,
            writes: f.counters(
                "bloom_kubernetes_writes_total",
                "Calls that change objects of Kubernetes, by kind of object, verb and outcome.",
                &["kind", "verb", "outcome"],
            )?,
        })
    }

    /// Whether the Kubernetes API server answers, and whether the operator of this replica leads.
    pub fn state(&self, is_up: bool, is_leader: bool) {
        self.up.with_label_values::<&str>(&[]).set(i64::from(is_up));
        self.leader.with_label_values::<&str>(&[]).set(i64::from(is_leader));
    }

    /// A call changed an object of Kubernetes, or failed to do so. `kind` and `verb` are fixed words.
    pub fn write(&self, kind: &str, verb: &str, ok: bool) {
        self.writes.with_label_values(&[kind, verb, if ok { "ok" } else { "error" }]).inc();
    }
}
