//! The row that each commit leaves: what it changed, for other replicas, and what it added to the counts.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::args::{Args, Bulk, RowType, Type, int, row_type};
use super::dialect::{Kind, statement};
use super::error::Error;
use super::script::Script;
use super::{Store, all};
use crate::core::Ms;
use crate::core::ids::{TaskId, WorkerId};
use crate::core::task::Status;
use crate::core::working_set::{Counts, WorkingSet};

/// What a batch changed, by id; readers look for themselves what it is now.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Changed {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tasks: Vec<TaskId>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub removed_tasks: Vec<TaskId>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub workers: Vec<WorkerId>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub removed_workers: Vec<WorkerId>,
    /// Tasks with new events.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub events: Vec<TaskId>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub settings: bool,
    /// The counts were put right: whoever keeps them reads them anew.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub recounted: bool,
}

impl Changed {
    pub fn of(set: &WorkingSet) -> Self {
        let dirty = &set.dirty;
        let mut events: Vec<TaskId> = dirty.events.iter().map(|event| event.task_id).collect();
        events.dedup();
        Self {
            tasks: dirty.tasks.difference(&dirty.quiet_tasks).copied().collect(),
            removed_tasks: Vec::new(),
            workers: dirty.workers.difference(&dirty.removed_workers).cloned().collect(),
            removed_workers: dirty.removed_workers.iter().cloned().collect(),
            events,
            settings: !dirty.settings.is_empty(),
            recounted: false,
        }
    }
}

/// How a batch changed the numbers of tasks, and how many leases it gave.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CountDeltas {
    pub tasks: Counts,
    pub leases: i64,
}

/// The form in which a row carries them.
#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct StoredDeltas(Vec<(String, i64, Status, i64)>, i64);

impl CountDeltas {
    /// How many counts they change.
    pub fn len(&self) -> usize {
        self.tasks.values().filter(|n| **n != 0).count() + usize::from(self.leases != 0)
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn to_text(&self) -> Result<String, Error> {
        let tasks = self.tasks.iter().filter(|(_, n)| **n != 0);
        let stored =
            StoredDeltas(tasks.map(|((agent, priority, status), n)| (agent.clone(), *priority, *status, *n)).collect(), self.leases);
        serde_json::to_string(&stored).map_err(|error| Error::Corrupt(error.to_string()))
    }

    /// An empty text, of a batch that did not happen, adds nothing.
    pub(super) fn add_text(&mut self, text: &str) -> Result<(), Error> {
        if text.is_empty() {
            return Ok(());
        }
        let StoredDeltas(tasks, leases) = serde_json::from_str(text).map_err(|error| Error::Corrupt(error.to_string()))?;
        for (agent, priority, status, n) in tasks {
            *self.tasks.entry((agent, priority, status)).or_default() += n;
        }
        self.leases += leases;
        Ok(())
    }
}

#[derive(Clone, Debug)]
pub struct FeedEntry {
    pub lane: i64,
    pub n: i64,
    pub counts: CountDeltas,
    pub changes: Changed,
}

#[derive(Clone, Debug, Default)]
pub struct Feed {
    /// By lane and number.
    pub entries: Vec<FeedEntry>,
    /// Rows that were not read yet are gone: read everything anew.
    pub gap: bool,
}

// Fails when the lane was removed meanwhile: what is not in the feed must not commit.
statement!(RECORD, "INSERT INTO batches (lane, n, at, counts, changes) VALUES ((SELECT lane FROM lanes WHERE lane = $1), $2, $3, $4, $5)");

/// The most rows that one look takes from a lane; what is left comes with the next.
const STEP: i64 = 256;
pub(super) static POSITION: RowType = row_type!(lane_position: int lane, int n);
statement!(
    FEED,
    |d| "SELECT l.lane, l.folded_n, b.n, b.counts, b.changes FROM lanes l LEFT JOIN {} ON v.lane = l.lane \
    {} \
    WHERE NOT (l.lane {}) AND (b.n IS NOT NULL OR l.folded_n > coalesce(v.n, 0)) ORDER BY l.lane, b.n",
    d.rows(&POSITION, 1),
    d.batches_behind("coalesce(v.n, 0)", STEP),
    d.any(Type::Int, 2)
);

/// Adds the batch's own row to its script.
pub(super) fn record(script: &mut Script<'_>, kind: Kind, lane: i64, n: i64, set: &WorkingSet) -> Result<(), Error> {
    let counts = CountDeltas { tasks: set.counts.clone(), leases: set.leases_granted };
    write(script, kind, (lane, n), set.now(), &counts, || Changed::of(set))
}

pub(super) fn write(
    script: &mut Script<'_>,
    kind: Kind,
    (lane, n): (i64, i64),
    at: Ms,
    counts: &CountDeltas,
    changed: impl FnOnce() -> Changed,
) -> Result<(), Error> {
    let changes = match kind {
        // Nobody else is there to read it.
        Kind::Sqlite => String::new(),
        Kind::Postgres => serde_json::to_string(&changed()).map_err(|error| Error::Corrupt(error.to_string()))?,
    };
    script.insertion(&RECORD, Args::new().int(lane).int(n).int(at).text(counts.to_text()?).text(changes));
    Ok(())
}

impl Store {
    /// What other replicas have committed since `positions` (lane, last number read). `own` lanes are left out. Always empty on SQLite.
    pub async fn feed(&self, positions: &[(i64, i64)], own: &[i64]) -> Result<Feed, Error> {
        if self.kind() == Kind::Sqlite {
            return Ok(Feed::default());
        }
        let mut known = Bulk::new(&POSITION);
        for (lane, n) in positions {
            known.int(*lane).int(*n);
        }
        let found = self.pool().fetch(&FEED, Args::new().bulk(known).ints(own.iter().copied())).await?;
        let mut feed = Feed::default();
        let mut expected: BTreeMap<i64, i64> = positions.iter().map(|(lane, n)| (*lane, n + 1)).collect();
        let rows = all(&found, |row| {
            let (lane, _folded): (i64, i64) = (row.take()?, row.take()?);
            let (n, counts, changes): (Option<i64>, Option<String>, Option<String>) = (row.take()?, row.take()?, row.take()?);
            Ok((lane, n, counts.unwrap_or_default(), changes.unwrap_or_default()))
        })?;
        for (lane, n, counts, changes) in rows {
            let next = expected.entry(lane).or_insert(1);
            if n != Some(*next) {
                feed.gap = true;
                continue;
            }
            feed.entries.push(entry(lane, *next, &counts, &changes)?);
            *next += 1;
        }
        Ok(feed)
    }
}

fn entry(lane: i64, n: i64, counts: &str, changes: &str) -> Result<FeedEntry, Error> {
    let mut deltas = CountDeltas::default();
    deltas.add_text(counts)?;
    let changes = match changes {
        "" | "void" => Changed::default(),
        text => serde_json::from_str(text).map_err(|error| Error::Corrupt(error.to_string()))?,
    };
    Ok(FeedEntry { lane, n, counts: deltas, changes })
}
