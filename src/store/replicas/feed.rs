//! The feed: each commit writes a row with its changes, for other replicas, and with what it added to the counts.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use crate::batch::script::Script;
use crate::error::Error;
use crate::sql::args::{Args, Bulk};
use crate::sql::cells::{Row, Type};
use crate::sql::dialect::{Kind, statement};
use crate::sql::table::{WriteRow as _, row};
use bloom_core::Ms;
use bloom_core::task::Status;
use bloom_core::working_set::WorkingSet;
use bloom_database::{Changed, CountDeltas, Feed, FeedEntry, Position};

/// The form in which a row stores the count changes.
#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct StoredDeltas(Vec<(String, i64, Status, i64)>, i64);

fn to_text(counts: &CountDeltas) -> Result<String, Error> {
    let tasks = counts.tasks.iter().filter(|(_, n)| **n != 0);
    let stored = StoredDeltas(tasks.map(|((agent, priority, status), n)| (agent.clone(), *priority, *status, *n)).collect(), counts.leases);
    serde_json::to_string(&stored).map_err(|error| Error::Corrupt(error.to_string()))
}

/// Adds the stored count changes. The empty text belongs to a batch that did not commit, and adds nothing.
pub(crate) fn add_text(counts: &mut CountDeltas, text: &str) -> Result<(), Error> {
    if text.is_empty() {
        return Ok(());
    }
    let StoredDeltas(tasks, leases) = serde_json::from_str(text).map_err(|error| Error::Corrupt(error.to_string()))?;
    for (agent, priority, status, n) in tasks {
        *counts.tasks.entry((agent, priority, status)).or_default() += n;
    }
    counts.leases += leases;
    Ok(())
}

// If the writer was removed meanwhile, the subquery is NULL and the insert fails, because a batch that no replica would read must not
// commit.
statement!(RECORD, "INSERT INTO batches (lane, n, at, counts, changes) VALUES ((SELECT lane FROM lanes WHERE lane = $1), $2, $3, $4, $5)");

/// The most batches per writer that one read of the feed takes.
const STEP: i64 = 64;
row! { pub(crate) struct LanePosition: lane_position as lane_position_row { lane: i64, n: i64 } }
statement!(
    pub(crate) FEED,
    |d| "SELECT l.lane, b.n, b.counts, b.changes FROM lanes l LEFT JOIN {} ON v.lane = l.lane {} \
    WHERE NOT (l.lane {}) AND (b.n IS NOT NULL OR l.folded_n > coalesce(v.n, 0)) ORDER BY l.lane, b.n",
    d.rows(LanePosition::ROW, 1),
    d.batches_behind("coalesce(v.n, 0)", STEP + 1),
    d.any(Type::Int, 2)
);

/// Adds the batch's own row to its script.
pub(crate) fn record(script: &mut Script<'_>, kind: Kind, lane: i64, n: i64, set: &WorkingSet) -> Result<(), Error> {
    write(script, kind, (lane, n), set.now(), &CountDeltas::of(set), || Changed::of(set))
}

pub(crate) fn write(
    script: &mut Script<'_>,
    kind: Kind,
    (lane, n): (i64, i64),
    at: Ms,
    counts: &CountDeltas,
    changed: impl FnOnce() -> Changed,
) -> Result<(), Error> {
    let changes = match kind {
        // On SQLite there is no other replica to read the changes.
        Kind::Sqlite => String::new(),
        Kind::Postgres => serde_json::to_string(&changed()).map_err(|error| Error::Corrupt(error.to_string()))?,
    };
    script.unordered(&RECORD, Args::new().int(lane).int(n).int(at).text(to_text(counts)?).text(changes));
    Ok(())
}

/// Reads the rows of [`FEED`] for these positions.
pub(crate) fn read(found: &[Row], positions: &[Position]) -> Result<Feed, Error> {
    let mut feed = Feed::default();
    let mut next: HashMap<i64, i64> = positions.iter().map(|at| (at.writer, at.n + 1)).collect();
    let mut taken: HashMap<i64, i64> = HashMap::new();
    for row in found {
        let mut row = row.cells();
        let (writer, n): (i64, Option<i64>) = (row.take()?, row.take()?);
        let (counts, changes): (Option<String>, Option<String>) = (row.take()?, row.take()?);
        let (next, taken) = (next.entry(writer).or_insert(1), taken.entry(writer).or_default());
        if n != Some(*next) {
            feed.gap = true;
            continue;
        }
        if *taken == STEP {
            feed.more = true;
            continue;
        }
        let at = Position { writer, n: *next };
        (*next, *taken) = (*next + 1, *taken + 1);
        let mut deltas = CountDeltas::default();
        add_text(&mut deltas, &counts.unwrap_or_default())?;
        let changes = match changes.as_deref().unwrap_or_default() {
            "" | "void" => Changed::default(),
            text => serde_json::from_str(text).unwrap_or_else(|_| {
                // Another version of the program wrote the changes in a different form.
                feed.gap = true;
                Changed::default()
            }),
        };
        feed.entries.push(FeedEntry { at, counts: deltas, changes });
    }
    Ok(feed)
}

pub(crate) fn known(positions: &[Position]) -> Bulk<'static> {
    Bulk::of(positions.iter().map(|at| LanePosition { lane: at.writer, n: at.n }))
}
