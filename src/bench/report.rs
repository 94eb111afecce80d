//! The results, as a table or as JSON.

use std::fmt::{self, Write as _};

use serde::Serialize;

use super::latency::Latency;

/// The scenario whose latencies are compared with those of its smallest queue.
pub(crate) const BY_QUEUE_LENGTH: &str = "latency";

#[derive(Clone, Debug, Serialize)]
pub(crate) struct Row {
    /// The kind of database: `sqlite` or `postgresql`.
    pub storage: String,
    pub scenario: &'static str,
    pub case: String,
    pub what: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub per_second: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p50_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p99_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub megabytes: Option<f64>,
    /// The p50 divided by that of the same call at the smallest queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub times_smallest: Option<f64>,
}

impl Row {
    pub(crate) fn new(scenario: &'static str, case: &str, what: &str) -> Self {
        Self {
            storage: String::new(),
            scenario,
            case: case.to_owned(),
            what: what.to_owned(),
            count: None,
            per_second: None,
            p50_ms: None,
            p99_ms: None,
            max_ms: None,
            megabytes: None,
            times_smallest: None,
        }
    }

    pub(crate) fn of_calls(scenario: &'static str, case: &str, what: &str, latency: &Latency) -> Self {
        let mut row = Self::new(scenario, case, what);
        row.count = Some(latency.count());
        row.p50_ms = latency.percentile_ms(50);
        row.p99_ms = latency.percentile_ms(99);
        row.max_ms = row.p50_ms.map(|_| latency.longest_ms());
        row
    }

    pub(crate) fn of_memory(scenario: &'static str, case: &str, megabytes: f64) -> Self {
        let mut row = Self::new(scenario, case, "resident memory");
        row.megabytes = Some(megabytes);
        row
    }
}

/// The rate of the first database measured, divided by the rate of another one.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Comparison {
    pub scenario: &'static str,
    pub case: String,
    pub what: String,
    pub of: String,
    pub to: String,
    pub ratio: f64,
}

#[derive(Debug, Default, Serialize)]
pub(crate) struct Report {
    /// The servers and the machine, one line each.
    pub about: Vec<String>,
    pub rows: Vec<Row>,
    pub comparisons: Vec<Comparison>,
}

impl Report {
    pub(crate) fn add(&mut self, storage: &str, rows: Vec<Row>) {
        self.rows.extend(rows.into_iter().map(|row| Row { storage: storage.to_owned(), ..row }));
    }

    /// Compares the rates of different databases, and the latencies with those of the smallest queue.
    pub(crate) fn compare(&mut self) {
        let rows = self.rows.clone();
        for row in &mut self.rows {
            let smallest = rows.iter().find(|other| {
                other.storage == row.storage && other.scenario == row.scenario && other.what == row.what && other.p50_ms.is_some()
            });
            if row.scenario == BY_QUEUE_LENGTH
                && let (Some(smallest), Some(p50)) = (smallest.filter(|s| s.case != row.case), row.p50_ms)
                && let Some(least) = smallest.p50_ms.filter(|ms| *ms > 0.0)
            {
                row.times_smallest = Some(p50 / least);
            }
        }
        for row in &rows {
            let first =
                rows.iter().find(|o| (o.scenario, &o.case, &o.what) == (row.scenario, &row.case, &row.what) && o.per_second.is_some());
            if let (Some(first), Some(rate)) = (first, row.per_second)
                && let Some(base) = first.per_second.filter(|rate| *rate > 0.0)
                && first.storage != row.storage
            {
                self.comparisons.push(Comparison {
                    scenario: row.scenario,
                    case: row.case.clone(),
                    what: row.what.clone(),
                    of: first.storage.clone(),
                    to: row.storage.clone(),
                    ratio: base / rate,
                });
            }
        }
    }
}

/// The report as a text table.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in &self.about {
            writeln!(f, "{line}")?;
        }
        let mut cells = vec![
            ["DATABASE", "SCENARIO", "CASE", "WHAT", "COUNT", "PER S", "P50 MS", "P99 MS", "MAX MS", "MB", "×SMALLEST"].map(str::to_owned),
        ];
        cells.extend(self.rows.iter().map(|row| {
            [
                row.storage.clone(),
                row.scenario.to_owned(),
                row.case.clone(),
                row.what.clone(),
                row.count.map(|n| n.to_string()).unwrap_or_default(),
                figure(row.per_second, 0),
                figure(row.p50_ms, 3),
                figure(row.p99_ms, 3),
                figure(row.max_ms, 1),
                figure(row.megabytes, 1),
                figure(row.times_smallest, 2),
            ]
        }));
        let mut widths = [0; 11];
        for row in &cells {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.chars().count());
            }
        }
        for row in &cells {
            let mut line = String::new();
            for (column, (width, cell)) in widths.iter().zip(row).enumerate() {
                // Words are aligned left, figures right.
                if column < 4 { write!(line, "{cell:<width$}  ")? } else { write!(line, "{cell:>width$}  ")? }
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        for c in &self.comparisons {
            writeln!(f, "{} / {}: {:.2} ({}, {}, {})", c.of, c.to, c.ratio, c.scenario, c.case, c.what)?;
        }
        Ok(())
    }
}

fn figure(value: Option<f64>, digits: usize) -> String {
    value.map(|value| format!("{value:.digits$}")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rate(per_second: f64) -> Row {
        Row { per_second: Some(per_second), ..Row::new("lifecycle", "32 clients", "lifecycles") }
    }

    fn queue(case: &str, p50_ms: f64) -> Row {
        Row { p50_ms: Some(p50_ms), ..Row::new(BY_QUEUE_LENGTH, case, "claim") }
    }

    #[test]
    fn rates_are_set_against_the_first_database() {
        let mut report = Report::default();
        report.add("sqlite", vec![rate(300.0)]);
        report.add("postgresql", vec![rate(200.0)]);
        report.compare();
        let ratios: Vec<_> = report.comparisons.iter().map(|c| (c.of.as_str(), c.to.as_str(), c.ratio)).collect();
        assert_eq!(ratios, [("sqlite", "postgresql", 1.5)]);
    }

    #[test]
    fn latencies_are_set_against_the_smallest_queue() {
        let mut report = Report::default();
        report.add("sqlite", vec![queue("1000 queued", 2.0), queue("100000 queued", 3.0)]);
        report.add("postgresql", vec![queue("1000 queued", 4.0), queue("100000 queued", 4.0)]);
        report.compare();
        let times: Vec<_> = report.rows.iter().map(|row| row.times_smallest).collect();
        assert_eq!(times, [None, Some(1.5), None, Some(1.0)]);
        assert!(report.to_string().contains("×SMALLEST"));
    }
}
