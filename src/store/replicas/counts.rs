//! The counts of tasks and leases. They are stored, so that no request counts rows: a base, and the batches that are not in the base yet.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use uuid::Uuid;

use crate::error::Error;
use crate::replicas::feed::{LanePosition, add_text};
use crate::sql::args::{Args, Bulk};
use crate::sql::cells::Row;
use crate::sql::conn::Conn;
use crate::sql::dialect::{Kind, statement, upsert_adding};
use crate::sql::table::{WriteRow as _, row};
use crate::{Store, first};
use bloom_core::task::Status;
use bloom_database::{CountDeltas, Position};

/// The status of the row that counts leases.
const LEASES: &str = "lease";

row! { pub(crate) struct Count<'a>: counts as counts_row { agent_slug: &'a str, priority: i64, status: &'a str, n: i64 } }

/// The base, and the batches that it does not contain. One statement reads both from one snapshot, so that they match.
fn kept(kind: Kind) -> String {
    format!(
        "SELECT 1 AS part, agent_slug, priority, status, n FROM counts \
        UNION ALL SELECT 2, coalesce(b.counts, ''), 0, '', 0 FROM lanes l {}",
        kind.batches_behind("l.folded_n", i64::from(u32::MAX))
    )
}

statement!(
    pub(crate) COUNTS,
    |d| "{} UNION ALL SELECT 3, '', l.lane, '', coalesce((SELECT max(b.n) FROM batches b WHERE b.lane = l.lane), l.folded_n) FROM lanes l",
    kept(d)
);
// The statements of a check read the stored counts, and count the tasks page by page. As leases, they count all leases that the stored
// tasks ever had. A page is small enough to be grouped in little memory.
statement!(pub(crate) KEPT, |d| "{}", kept(d));
const RECOUNT_STEP: i64 = 20_000;
statement!(RECOUNT_TO, |_d| "SELECT id FROM task_state WHERE id > $1 ORDER BY id LIMIT 1 OFFSET {RECOUNT_STEP}");
statement!(
    RECOUNT,
    "SELECT agent_slug, 9 - rank, status, count(*), CAST(sum(lease_count) AS BIGINT) FROM task_state WHERE id > $1 AND id <= $2 \
    GROUP BY agent_slug, rank, status"
);
statement!(SNAPSHOT, "BEGIN");
statement!(LET_GO, "ROLLBACK");
/// The time limit of a check, because a snapshot must not stay open forever. Tables that take longer are not checked.
const RECOUNT_TAKES: Duration = Duration::from_secs(120);

statement!(LOCK_LANES, |d| "SELECT lane FROM lanes ORDER BY lane {}", d.lock());
/// The most batches per writer that one compaction takes.
const STEP: i64 = 4096;
statement!(UNCOMPACTED, |d| "SELECT b.lane, b.n, b.counts FROM lanes l {} ORDER BY b.lane, b.n", d.batches_behind("l.folded_n", STEP));
statement!(ADD, |d| "{}", d.insert(Count::ROW, &upsert_adding("counts", &["agent_slug", "priority", "status"], &["n"])));
statement!(SET_COMPACTED, |d| "UPDATE lanes SET folded_n = v.n FROM {} WHERE lanes.lane = v.lane", d.rows(LanePosition::ROW, 1));
statement!(DROP_ZEROS, "DELETE FROM counts WHERE n = 0");

impl Store {
    /// Returns what must be added to the counts to correct them. All tasks are read while writes continue. Every commit changes tasks and
    /// counts in the same way, so the difference stays the same until it is corrected. A count of leases that is too high can't be noticed,
    /// because it also contains leases of removed tasks.
    pub(crate) async fn count_errors(&self) -> Result<CountDeltas, Error> {
        // The check has a connection of its own, on SQLite too, because it may take minutes and the service mark must not wait for it.
        let mut conn = self.inner.target.surveyor().await?;
        let parts = recount(&mut conn).await;
        conn.close().await;
        let Parts { kept, found, .. } = parts?;
        let mut missing = CountDeltas { tasks: found.tasks, leases: (found.leases - kept.leases).max(0) };
        for (key, n) in kept.tasks {
            *missing.tasks.entry(key).or_default() -= n;
        }
        missing.tasks.retain(|_, n| *n != 0);
        Ok(missing)
    }
}

/// Reads the stored counts and counts the tasks, in one snapshot.
async fn recount(conn: &mut Conn) -> Result<Parts, Error> {
    let started = Instant::now();
    conn.execute(&SNAPSHOT, Args::new()).await?;
    let mut parts = Parts::of(&conn.fetch(&KEPT, Args::new()).await?)?;
    let mut after = Uuid::nil();
    while after < Uuid::max() {
        if started.elapsed() > RECOUNT_TAKES {
            return Err(Error::Unavailable(
                crate::OutageReason::Timeout,
                format!("counting the tasks takes more than {} s", RECOUNT_TAKES.as_secs()),
            ));
        }
        let to: Option<Uuid> = first(&conn.fetch(&RECOUNT_TO, Args::new().uuid(after)).await?, |row| row.take())?;
        let to = to.unwrap_or(Uuid::max());
        for row in conn.fetch(&RECOUNT, Args::new().uuid(after).uuid(to)).await? {
            let mut row = row.cells();
            let (agent, priority, status): (String, i64, Status) = (row.take()?, row.take()?, row.take()?);
            *parts.found.tasks.entry((agent, priority, status)).or_default() += row.take::<i64>()?;
            parts.found.leases += row.take::<i64>()?;
        }
        after = to;
    }
    conn.execute(&LET_GO, Args::new()).await?;
    Ok(parts)
}

/// The rows of the statements above, separated by the number in front of each row, and the counts found in the tables.
#[derive(Default)]
pub(crate) struct Parts {
    pub kept: CountDeltas,
    pub positions: Vec<Position>,
    found: CountDeltas,
}

impl Parts {
    pub(crate) fn of(rows: &[Row]) -> Result<Self, Error> {
        let mut parts = Self::default();
        for row in rows {
            let mut row = row.cells();
            let part: i32 = row.take()?;
            let (name, number, status, n): (String, i64, String, i64) = (row.take()?, row.take()?, row.take()?, row.take()?);
            match part {
                1 if status == LEASES => parts.kept.leases += n,
                1 => {
                    let status = Status::parse(&status).ok_or_else(|| Error::Corrupt(format!("unknown status '{status}'")))?;
                    *parts.kept.tasks.entry((name, number, status)).or_default() += n;
                }
                2 => add_text(&mut parts.kept, &name)?,
                _ => parts.positions.push(Position { writer: number, n }),
            }
        }
        parts.kept.tasks.retain(|_, n| *n != 0);
        Ok(parts)
    }
}

/// Adds the counts of batches to the base. Returns the number of batches.
pub(crate) async fn compact(conn: &mut Conn) -> Result<u64, Error> {
    // Without the lock, two replicas that compact at once would add the same batches twice.
    conn.fetch(&LOCK_LANES, Args::new()).await?;
    let found = conn.fetch(&UNCOMPACTED, Args::new()).await?;
    let mut sum = CountDeltas::default();
    let mut compacted: BTreeMap<i64, i64> = BTreeMap::new();
    let mut batches = 0;
    for row in &found {
        let mut row = row.cells();
        // A lane without such batches has an empty row.
        if let (Some(lane), Some(n), Some(counts)) = (row.take()?, row.take()?, row.take::<Option<String>>()?) {
            add_text(&mut sum, &counts)?;
            compacted.insert(lane, n);
            batches += 1;
        }
    }
    if compacted.is_empty() {
        return Ok(0);
    }
    add(conn, &sum).await?;
    let rows = Bulk::of(compacted.into_iter().map(|(lane, n)| LanePosition { lane, n }));
    conn.execute(&SET_COMPACTED, Args::new().bulk(rows)).await?;
    Ok(batches)
}

/// Adds to the base.
pub(crate) async fn add(conn: &mut Conn, sum: &CountDeltas) -> Result<(), Error> {
    let tasks = sum.tasks.iter().map(|((agent_slug, priority, status), n)| Count {
        agent_slug,
        priority: *priority,
        status: status.as_str(),
        n: *n,
    });
    let leases = Count { agent_slug: "", priority: 0, status: LEASES, n: sum.leases };
    let rows = Bulk::of(tasks.chain([leases]).filter(|count| count.n != 0));
    if !rows.is_empty() {
        conn.execute(&ADD, Args::new().bulk(rows)).await?;
        conn.execute(&DROP_ZEROS, Args::new()).await?;
    }
    Ok(())
}
