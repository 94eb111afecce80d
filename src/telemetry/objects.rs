//! Metrics of the object store.

use prometheus::{Error, IntCounter, IntCounterVec, IntGaugeVec};

use super::metric_families::Families;

/// The metrics of the object store.
pub struct ObjectMetrics {
    /// Has no labels, and no series on servers without an object store. The same holds for `backlog`.
    up: IntGaugeVec,
    backlog: IntGaugeVec,
    written: IntCounterVec,
    bytes: IntCounter,
    failures: IntCounterVec,
    removed: IntCounter,
}

impl ObjectMetrics {
    pub(super) fn new(f: &Families<'_>) -> Result<Self, Error> {
        Ok(Self {
            up: f.gauges(
                "bloom_object_store_up",
                "1 if the last write to the object store succeeded, else 0; only on servers that write to one.",
                &[],
            )?,
            backlog: f.gauges(
                "bloom_object_backlog",
                "Outputs in the database that belong into the object store, counted up to 10000; only on the replica that leads.",
                &[],
            )?,
            written: f.counters("bloom_objects_written_total", "Objects written to the object store, by kind.", &["kind"])?,
            bytes: f.counter("bloom_object_bytes_total", "Bytes written to the object store.")?,
            failures: f.counters("bloom_object_failures_total", "Calls of the object store that failed, by kind.", &["call"])?,
            removed: f.counter("bloom_objects_removed_total", "Objects removed because no artifact refers to them.")?,
        })
    }

    /// An object of this size was written; `kind` is a fixed word.
    pub fn written(&self, kind: &str, bytes: usize) {
        self.up.with_label_values::<&str>(&[]).set(1);
        self.written.with_label_values(&[kind]).inc();
        self.bytes.inc_by(bytes as u64);
    }

    /// A call failed; `call` is a fixed word.
    pub fn failed(&self, call: &str) {
        self.failures.with_label_values(&[call]).inc();
        if call == "write" {
            self.up.with_label_values::<&str>(&[]).set(0);
        }
    }

    /// This many outputs are still to be moved; `None`: another replica leads and counts them.
    pub fn backlog(&self, outputs: Option<i64>) {
        match outputs {
            Some(outputs) => self.backlog.with_label_values::<&str>(&[]).set(outputs),
            None => drop(self.backlog.remove_label_values::<&str>(&[])),
        }
    }

    /// Objects that no artifact refers to were removed.
    pub fn removed(&self, objects: usize) {
        self.removed.inc_by(objects as u64);
    }
}
