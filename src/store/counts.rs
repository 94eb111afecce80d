//! The numbers of tasks, kept and never counted: a base, and the batches that are not in it yet.

use std::collections::BTreeMap;

use super::Store;
use super::args::{Args, Bulk, RowType, int, row_type, text};
use super::conn::Conn;
use super::dialect::{statement, upsert_adding};
use super::error::Error;
use super::feed::{CountDeltas, POSITION};
use crate::core::task::Status;
use crate::core::working_set::Counts;

/// Stands for a status in the row that counts leases.
const LEASES: &str = "lease";

static COUNT: RowType = row_type!(counts: text agent_slug, int priority, text status, int n);

// One statement, so one snapshot: the base and what is missing in it fit together.
statement!(
    COUNTS,
    |d| "SELECT 1 AS part, agent_slug, priority, status, n FROM counts \
    UNION ALL SELECT 2, coalesce(b.counts, ''), 0, '', 0 FROM lanes l {} \
    UNION ALL SELECT 3, '', l.lane, '', coalesce((SELECT max(b.n) FROM batches b WHERE b.lane = l.lane), l.folded_n) FROM lanes l",
    d.batches_behind("l.folded_n", i64::from(u32::MAX))
);

statement!(LOCK_LANES, |d| "SELECT lane FROM lanes ORDER BY lane {}", d.lock());
/// As many batches as one fold takes of a lane.
const STEP: i64 = 4096;
statement!(UNFOLDED, |d| "SELECT b.lane, b.n, b.counts FROM lanes l {} ORDER BY b.lane, b.n", d.batches_behind("l.folded_n", STEP));
statement!(ADD, |d| "{}", d.insert(&COUNT, &upsert_adding("counts", &["agent_slug", "priority", "status"], &["n"])));
statement!(SET_FOLDED, |d| "UPDATE lanes SET folded_n = v.n FROM {} WHERE lanes.lane = v.lane", d.rows(&POSITION, 1));
statement!(DROP_ZEROS, "DELETE FROM counts WHERE n = 0");

impl Store {
    /// The tasks by agent, priority and status; the leases ever given; and up to which batch of each lane both are true.
    pub async fn counts(&self) -> Result<(Counts, i64, Vec<(i64, i64)>), Error> {
        let mut sum = CountDeltas::default();
        let mut positions = Vec::new();
        for row in self.pool().fetch(&COUNTS, Args::new()).await? {
            let mut row = row.cells();
            let part: i32 = row.take()?;
            let (name, number, status, n): (String, i64, String, i64) = (row.take()?, row.take()?, row.take()?, row.take()?);
            match part {
                1 if status == LEASES => sum.leases += n,
                1 => {
                    let status = Status::parse(&status).ok_or_else(|| Error::Corrupt(format!("unknown status '{status}'")))?;
                    *sum.tasks.entry((name, number, status)).or_default() += n;
                }
                2 => sum.add_text(&name)?,
                _ => positions.push((number, n)),
            }
        }
        sum.tasks.retain(|_, n| *n != 0);
        Ok((sum.tasks, sum.leases, positions))
    }
}

/// Adds what stands in batches to the base. Answers how many batches it took.
pub(super) async fn fold(conn: &mut Conn) -> Result<u64, Error> {
    // Two that fold at once would add twice.
    conn.fetch(&LOCK_LANES, Args::new()).await?;
    let found = conn.fetch(&UNFOLDED, Args::new()).await?;
    let mut sum = CountDeltas::default();
    let mut folded: BTreeMap<i64, i64> = BTreeMap::new();
    let mut batches = 0;
    for row in &found {
        let mut row = row.cells();
        // A lane without any has an empty row.
        if let (Some(lane), Some(n), Some(counts)) = (row.take()?, row.take()?, row.take::<Option<String>>()?) {
            sum.add_text(&counts)?;
            folded.insert(lane, n);
            batches += 1;
        }
    }
    if folded.is_empty() {
        return Ok(0);
    }
    let mut rows = Bulk::new(&COUNT);
    for ((agent, priority, status), n) in sum.tasks.iter().filter(|(_, n)| **n != 0) {
        rows.text(agent).int(*priority).text(status.as_str()).int(*n);
    }
    if sum.leases != 0 {
        rows.text("").int(0).text(LEASES).int(sum.leases);
    }
    if !rows.is_empty() {
        conn.execute(&ADD, Args::new().bulk(rows)).await?;
        conn.execute(&DROP_ZEROS, Args::new()).await?;
    }
    let mut rows = Bulk::new(&POSITION);
    for (lane, n) in folded {
        rows.int(lane).int(n);
    }
    conn.execute(&SET_FOLDED, Args::new().bulk(rows)).await?;
    Ok(batches)
}
