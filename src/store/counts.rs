//! The numbers of tasks, kept and never counted: a base, and the batches that are not in it yet.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use uuid::Uuid;

use super::args::{Args, Bulk};
use super::cells::Row;
use super::conn::Conn;
use super::dialect::{Kind, statement, upsert_adding};
use super::error::Error;
use super::feed::{LanePosition, add_text};
use super::table::{WriteRow as _, row};
use super::{Store, first};
use bloom_core::task::Status;
use bloom_database::{CountDeltas, Position};

/// Stands for a status in the row that counts leases.
const LEASES: &str = "lease";

row! { pub(super) struct Count<'a>: counts as counts_row { agent_slug: &'a str, priority: i64, status: &'a str, n: i64 } }

/// The base, and what is missing in it. In one statement, so of one snapshot: they fit together.
fn kept(kind: Kind) -> String {
    format!(
        "SELECT 1 AS part, agent_slug, priority, status, n FROM counts \
        UNION ALL SELECT 2, coalesce(b.counts, ''), 0, '', 0 FROM lanes l {}",
        kind.batches_behind("l.folded_n", i64::from(u32::MAX))
    )
}

statement!(
    pub(super) COUNTS,
    |d| "{} UNION ALL SELECT 3, '', l.lane, '', coalesce((SELECT max(b.n) FROM batches b WHERE b.lane = l.lane), l.folded_n) FROM lanes l",
    kept(d)
);
// The counts alone, and the tasks themselves by pages: the leases are those which the tasks that are still here ever had. A page is small
// enough to be grouped without taking much memory.
statement!(KEPT, |d| "{}", kept(d));
const RECOUNT_STEP: i64 = 20_000;
statement!(RECOUNT_TO, |_d| "SELECT id FROM task_state WHERE id > $1 ORDER BY id LIMIT 1 OFFSET {RECOUNT_STEP}");
statement!(
    RECOUNT,
    "SELECT agent_slug, 9 - rank, status, count(*), CAST(sum(lease_count) AS BIGINT) FROM task_state WHERE id > $1 AND id <= $2 \
    GROUP BY agent_slug, rank, status"
);
statement!(SNAPSHOT, "BEGIN");
statement!(LET_GO, "ROLLBACK");
/// Tables that take longer to read are left unchecked: the snapshot must not stand for ever.
const RECOUNT_TAKES: Duration = Duration::from_secs(120);

statement!(LOCK_LANES, |d| "SELECT lane FROM lanes ORDER BY lane {}", d.lock());
/// As many batches as one compaction takes of a writer.
const STEP: i64 = 4096;
statement!(UNCOMPACTED, |d| "SELECT b.lane, b.n, b.counts FROM lanes l {} ORDER BY b.lane, b.n", d.batches_behind("l.folded_n", STEP));
statement!(ADD, |d| "{}", d.insert(Count::ROW, &upsert_adding("counts", &["agent_slug", "priority", "status"], &["n"])));
statement!(SET_COMPACTED, |d| "UPDATE lanes SET folded_n = v.n FROM {} WHERE lanes.lane = v.lane", d.rows(LanePosition::ROW, 1));
statement!(DROP_ZEROS, "DELETE FROM counts WHERE n = 0");

impl Store {
    /// What has to be added to the counts to make them true. It reads all tasks, beside those who write: every commit changes tasks and
    /// counts alike, so the difference holds until somebody puts it right, whatever is committed meanwhile. Of leases only too few are
    /// seen, since some went with their tasks.
    pub(super) async fn count_errors(&self) -> Result<CountDeltas, Error> {
        // On SQLite, too, a connection of its own: it may take minutes, and what is written aside must not wait for it.
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

/// Counts and tasks of one snapshot.
async fn recount(conn: &mut Conn) -> Result<Parts, Error> {
    let started = Instant::now();
    conn.execute(&SNAPSHOT, Args::new()).await?;
    let mut parts = Parts::of(&conn.fetch(&KEPT, Args::new()).await?)?;
    let mut after = Uuid::nil();
    while after < Uuid::max() {
        if started.elapsed() > RECOUNT_TAKES {
            return Err(Error::Unavailable(format!("counting the tasks takes more than {} s", RECOUNT_TAKES.as_secs())));
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

/// What the counts' statements answer, by the number in front of each row; and what was found instead.
#[derive(Default)]
pub(super) struct Parts {
    pub kept: CountDeltas,
    pub positions: Vec<Position>,
    found: CountDeltas,
}

impl Parts {
    pub fn of(rows: &[Row]) -> Result<Self, Error> {
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

/// Adds what stands in batches to the base. Answers how many batches it took.
pub(super) async fn compact(conn: &mut Conn) -> Result<u64, Error> {
    // Two that compact at once would add twice.
    conn.fetch(&LOCK_LANES, Args::new()).await?;
    let found = conn.fetch(&UNCOMPACTED, Args::new()).await?;
    let mut sum = CountDeltas::default();
    let mut compacted: BTreeMap<i64, i64> = BTreeMap::new();
    let mut batches = 0;
    for row in &found {
        let mut row = row.cells();
        // A lane without any has an empty row.
        if let (Some(lane), Some(n), Some(counts)) = (row.take()?, row.take()?, row.take::<Option<String>>()?) {
            add_text(&mut sum, &counts)?;
            compacted.insert(lane, n);
            batches += 1;
        }
    }
    if compacted.is_empty() {
        return Ok(0);
    }
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
    let rows = Bulk::of(compacted.into_iter().map(|(lane, n)| LanePosition { lane, n }));
    conn.execute(&SET_COMPACTED, Args::new().bulk(rows)).await?;
    Ok(batches)
}
