//! A histogram of durations with a constant size and percentiles within 1 %.

use std::time::Duration;

/// Every power of two is divided into 2^`FINE_BITS` buckets.
const FINE_BITS: u32 = 7;
const FINE: usize = 1 << FINE_BITS;
/// Durations from 2^40 ns (18 minutes) on share the last bucket.
const LONGEST_NS: u64 = (1 << 40) - 1;
const BUCKETS: usize = (40 - FINE_BITS as usize + 1) * FINE;

#[derive(Clone, Debug)]
pub(crate) struct Latency {
    buckets: Vec<u32>,
    count: u64,
    longest_ns: u64,
}

impl Default for Latency {
    fn default() -> Self {
        Self { buckets: vec![0; BUCKETS], count: 0, longest_ns: 0 }
    }
}

impl Latency {
    pub(crate) fn record(&mut self, took: Duration) {
        let ns = u64::try_from(took.as_nanos()).unwrap_or(LONGEST_NS).min(LONGEST_NS);
        if let Some(bucket) = self.buckets.get_mut(bucket_of(ns)) {
            *bucket = bucket.saturating_add(1);
        }
        self.count += 1;
        self.longest_ns = self.longest_ns.max(ns);
    }

    pub(crate) fn add(&mut self, other: &Latency) {
        for (mine, theirs) in self.buckets.iter_mut().zip(&other.buckets) {
            *mine = mine.saturating_add(*theirs);
        }
        self.count += other.count;
        self.longest_ns = self.longest_ns.max(other.longest_ns);
    }

    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// In milliseconds; `None` if nothing was recorded.
    pub(crate) fn percentile_ms(&self, percent: u64) -> Option<f64> {
        let rank = (self.count * percent).div_ceil(100).max(1);
        let mut seen = 0;
        let bucket = self.buckets.iter().position(|n| {
            seen += u64::from(*n);
            seen >= rank
        })?;
        Some(middle_of(bucket).min(self.longest_ns) as f64 / 1e6)
    }

    /// In milliseconds.
    pub(crate) fn longest_ms(&self) -> f64 {
        self.longest_ns as f64 / 1e6
    }
}

fn bucket_of(ns: u64) -> usize {
    if ns < FINE as u64 {
        return ns as usize;
    }
    let shift = ns.ilog2() - FINE_BITS;
    (shift as usize) * FINE + (ns >> shift) as usize
}

fn middle_of(bucket: usize) -> u64 {
    if bucket < FINE {
        return bucket as u64;
    }
    let shift = bucket / FINE - 1;
    (((bucket % FINE + FINE) as u64) << shift) + (1 << shift) / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_within_a_percent() {
        let mut latency = Latency::default();
        (1..=10_000u64).for_each(|us| latency.record(Duration::from_micros(us)));
        for (percent, expected) in [(1, 0.1), (50, 5.0), (99, 9.9), (100, 10.0)] {
            let found = latency.percentile_ms(percent).unwrap();
            assert!((found - expected).abs() <= expected * 0.01, "p{percent}: {found} instead of {expected}");
        }
        assert_eq!(latency.count(), 10_000);
    }

    #[test]
    fn every_duration_has_its_bucket() {
        for ns in (0..300).chain([1_000, 65_535, 65_536, LONGEST_NS]) {
            let bucket = bucket_of(ns);
            assert!(bucket < BUCKETS, "{ns} is outside");
            assert!(middle_of(bucket).abs_diff(ns) <= ns / 100 + 1, "{ns} became {}", middle_of(bucket));
        }
    }

    #[test]
    fn sums_and_extremes() {
        let mut one = Latency::default();
        assert_eq!(one.percentile_ms(50), None);
        one.record(Duration::from_secs(7200));
        let mut other = Latency::default();
        other.record(Duration::ZERO);
        one.add(&other);
        assert_eq!((one.count(), one.percentile_ms(50)), (2, Some(0.0)));
    }
}
