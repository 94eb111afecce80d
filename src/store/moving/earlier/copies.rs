//! Finds rows of one table with the same id, of which this program can store only one. Tables without a primary key may have such rows, and
//! an id may be written in several ways. The first row is exported and the others are listed. PostgreSQL finds them by sorting on its disk,
//! so no list of ids is kept in memory here.

/// The digits of an id in SQL, in whatever notation it is written.
fn digits(id: &str) -> String {
    format!("regexp_replace(lower({id}::text), '^urn:uuid:|[{{}}-]', '', 'g')")
}

/// An expression that differs for two ids exactly if they differ after [`timed`](super::fields::timed), which replaces the first digits of
/// ids without a time.
fn timed(id: &str, time: &str) -> String {
    let digits = digits(id);
    format!("CASE WHEN substr({digits}, 13, 1) = '7' THEN {digits} ELSE {time}::text || substr({digits}, 14) END")
}

fn key(table: &str) -> String {
    match table {
        "leases" => timed("s.id", "s.started_at"),
        "llm_results" => timed("s.id", "s.completed_at"),
        "audit_logs" => timed("s.id", "s.timestamp"),
        "llm_tasks" | "runtime_artifacts" => digits("s.id"),
        _ => "s.id::text".into(),
    }
}

/// The rows, each numbered among the rows with the same id. The order is the same each time.
fn numbered(table: &str) -> String {
    format!(
        "(SELECT s.*, CASE WHEN s.id IS NULL THEN 1 \
            ELSE row_number() OVER (PARTITION BY {} ORDER BY s.id::text, md5(s::text)) END AS bloom_copy FROM {table} s)",
        key(table)
    )
}

/// The rows of a table, with only one row per id.
pub(super) fn first(table: &str) -> String {
    format!("(SELECT * FROM {} n WHERE bloom_copy = 1)", numbered(table))
}

/// The rows that [`first`] leaves out.
pub(super) fn others(table: &str) -> String {
    format!("SELECT to_jsonb(n)::text FROM {} n WHERE bloom_copy > 1 ORDER BY id::text", numbered(table))
}

/// The results, each numbered among those whose artifact would get the same id.
pub(super) fn results() -> String {
    format!(
        "(SELECT f.*, row_number() OVER (PARTITION BY {} ORDER BY f.id::text) AS bloom_artifact_copy FROM {} f)",
        timed("f.artifact_id", "f.completed_at"),
        first("llm_results")
    )
}
