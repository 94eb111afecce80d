//! Creates metric families and limits the values of their labels.

use std::collections::BTreeSet;

use parking_lot::RwLock;
use prometheus::core::Collector;
use prometheus::{
    CounterVec, Error, Gauge, GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts,
    Registry,
};

/// The value that replaces further values of a label once its limit is reached.
pub(super) const OTHER: &str = "_other";
pub(super) const MAX_LABEL_BYTES: usize = 128;
/// The maximum number of agents with series of their own; all others share one.
pub const MAX_AGENTS: usize = 50;

/// From half a millisecond to a minute: for requests, commits and reconcile runs.
pub(super) const FAST_SECONDS: &[f64] = &[0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0];
/// From a millisecond to a day: for the time that tasks wait.
pub(super) const WAIT_SECONDS: &[f64] =
    &[0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.25, 1.0, 5.0, 15.0, 60.0, 300.0, 1800.0, 7200.0, 86400.0];
/// From a tenth of a second to an hour: for runs.
pub(super) const RUN_SECONDS: &[f64] = &[0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1200.0, 1800.0, 3600.0];
pub(super) const BATCH_COMMANDS: &[f64] = &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0];

/// Creates families and registers them.
pub(super) struct Families<'a>(pub &'a Registry);

impl Families<'_> {
    fn keep<C: Collector + Clone + 'static>(&self, family: C) -> Result<C, Error> {
        self.0.register(Box::new(family.clone()))?;
        Ok(family)
    }

    pub(crate) fn counter(&self, name: &str, help: &str) -> Result<IntCounter, Error> {
        self.keep(IntCounter::new(name, help)?)
    }

    pub(crate) fn counters(&self, name: &str, help: &str, labels: &[&str]) -> Result<IntCounterVec, Error> {
        self.keep(IntCounterVec::new(Opts::new(name, help), labels)?)
    }

    pub(crate) fn sums(&self, name: &str, help: &str, labels: &[&str]) -> Result<CounterVec, Error> {
        self.keep(CounterVec::new(Opts::new(name, help), labels)?)
    }

    pub(crate) fn gauge(&self, name: &str, help: &str) -> Result<IntGauge, Error> {
        self.keep(IntGauge::new(name, help)?)
    }

    pub(crate) fn exact_gauge(&self, name: &str, help: &str) -> Result<Gauge, Error> {
        self.keep(Gauge::new(name, help)?)
    }

    pub(crate) fn gauges(&self, name: &str, help: &str, labels: &[&str]) -> Result<IntGaugeVec, Error> {
        self.keep(IntGaugeVec::new(Opts::new(name, help), labels)?)
    }

    pub(crate) fn exact_gauges(&self, name: &str, help: &str, labels: &[&str]) -> Result<GaugeVec, Error> {
        self.keep(GaugeVec::new(Opts::new(name, help), labels)?)
    }

    pub(crate) fn histogram(&self, name: &str, help: &str, buckets: &[f64]) -> Result<Histogram, Error> {
        self.keep(Histogram::with_opts(HistogramOpts::new(name, help).buckets(buckets.to_vec()))?)
    }

    pub(crate) fn histograms(&self, name: &str, help: &str, labels: &[&str], buckets: &[f64]) -> Result<HistogramVec, Error> {
        self.keep(HistogramVec::new(HistogramOpts::new(name, help).buckets(buckets.to_vec()), labels)?)
    }
}

/// Accepts the first `limit` values of a label; later ones become [`OTHER`]. Series of counters are never removed, so without a limit they
/// would use more and more memory.
#[derive(Debug)]
pub(super) struct Bounded {
    limit: usize,
    seen: RwLock<BTreeSet<String>>,
}

impl Bounded {
    pub(crate) fn new(limit: usize) -> Self {
        Self { limit, seen: RwLock::default() }
    }

    pub(crate) fn label<'a>(&self, value: &'a str) -> &'a str {
        if value.len() > MAX_LABEL_BYTES {
            return OTHER;
        }
        if self.seen.read().contains(value) {
            return value;
        }
        let mut seen = self.seen.write();
        if seen.len() < self.limit {
            seen.insert(value.to_owned());
        }
        if seen.contains(value) { value } else { OTHER }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bounded_label_keeps_its_first_values() {
        let agents = Bounded::new(2);
        assert_eq!([agents.label("a"), agents.label("b"), agents.label("c"), agents.label("a")], ["a", "b", OTHER, "a"]);
        assert_eq!(Bounded::new(2).label(&"x".repeat(200)), OTHER);
    }
}
