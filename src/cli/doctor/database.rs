//! The database: its size and disk, its schema, its clock, and what slows it down.

use bloom_config::Serve;
use bloom_store::{Checkup, MigrationState, Store};

use super::super::database;
use super::{Finding, State};

const MIB: i64 = 1 << 20;
/// If less space is free, it will soon be used up.
const LITTLE_SPACE: i64 = 1024 * MIB;
/// The server restarts the write-ahead log long before it has this size, unless a reader prevents it.
const LARGE_LOG: i64 = 256 * MIB;
/// If less space is unused, it is not worth rewriting the file.
const MUCH_UNUSED: i64 = 256 * MIB;
/// While a transaction is open, PostgreSQL can't remove the rows that died after it began.
const LONG_TRANSACTION_MS: i64 = 60_000;
const MANY_DEAD_ROWS: i64 = 100_000;
/// Leases end by the clock of the database, and people compare its times with those of this machine.
const CLOCK_TOLERANCE_MS: i64 = 2_000;

/// Also returns the id of the database, which identifies it in a bucket.
pub async fn look(settings: &Serve) -> (Vec<Finding>, Option<String>) {
    let shown = settings.shown_database_url();
    let one = |state, text: String| (vec![Finding::new("database", state, text)], None);
    match Store::checkup(&database::options(settings)).await {
        Err(error) => one(State::Wrong, database::explain(error, settings).message),
        Ok(None) => one(State::Fine, format!("{shown} does not exist yet: the first start of the server makes it")),
        Ok(Some(found)) => {
            let findings = [size(&shown, &found)].into_iter().chain(schema(&found)).chain(slow(&found)).chain(clock(&found)).collect();
            (findings, found.database_id)
        }
    }
}

fn size(shown: &str, found: &Checkup) -> Finding {
    let mut text = format!("{shown} has {}", mib(found.bytes));
    let Some(free) = found.free_bytes else { return Finding::new("database", State::Fine, text) };
    text += &format!(", its disk has {} of free space", mib(free));
    if free < LITTLE_SPACE {
        text +=
            ": make space, or set TASK_RETENTION_DAYS so that finished tasks are removed earlier. When it is used up, no task is accepted";
        return Finding::new("database", State::Warning, text);
    }
    Finding::new("database", State::Fine, text)
}

fn schema(found: &Checkup) -> Vec<Finding> {
    let finding = |state, text: &str| Finding::new("schema", state, text);
    if let Some(why) = &found.excluded {
        return vec![finding(State::Wrong, why)];
    }
    let applied = match found.migrations.iter().filter(|migration| migration.state == MigrationState::Pending).count() {
        0 => finding(State::Fine, "all migrations of this program are applied"),
        pending => {
            let text = format!("{pending} migrations are pending: start the server, which applies them, or run bloom-runtime migrate up");
            finding(State::Warning, &text)
        }
    };
    let additions = found.additions.as_ref().map(|text| finding(State::Warning, &format!("{text}; restore and import refuse it as it is")));
    [applied].into_iter().chain(additions).collect()
}

fn slow(found: &Checkup) -> Vec<Finding> {
    let warning = |text: String| Finding::new("database", State::Warning, text);
    let log = found.log_bytes.filter(|bytes| *bytes >= LARGE_LOG).map(|bytes| {
        warning(format!("its write-ahead log has {}: another program reads the file for long; end it, or restart the server", mib(bytes)))
    });
    let unused = found.unused_bytes.filter(|unused| *unused >= MUCH_UNUSED && *unused > found.bytes / 2).map(|unused| {
        warning(format!(
            "{} of its file are not used, and will be by new tasks; to give them back to the disk, stop the server, make a backup with \
             bloom-runtime backup, which is compact, and put it in place with bloom-runtime restore --force",
            mib(unused)
        ))
    });
    let transaction = found.oldest_transaction.as_ref().filter(|oldest| oldest.age_ms >= LONG_TRANSACTION_MS).map(|oldest| {
        warning(format!(
            "a transaction of '{}' is open for {} s and keeps dead rows from being removed: end that program, or run SELECT pg_terminate_backend({})",
            oldest.program,
            oldest.age_ms / 1000,
            oldest.process
        ))
    });
    let dead = found.most_dead.as_ref().filter(|rows| rows.dead >= MANY_DEAD_ROWS && rows.dead > rows.live).map(|rows| {
        warning(format!(
            "the table {} has {} dead rows and {} live ones: check that autovacuum is on, or run VACUUM {}",
            rows.table, rows.dead, rows.live, rows.table
        ))
    });
    let locked = found.locked.as_ref().map(|locker| warning(format!("{locker}; nothing can be stored until it ends")));
    [log, unused, transaction, dead, locked].into_iter().flatten().collect()
}

fn clock(found: &Checkup) -> Option<Finding> {
    let ahead = found.clock_ahead_ms?;
    Some(if ahead.abs() > CLOCK_TOLERANCE_MS {
        let side = if ahead > 0 { "ahead of" } else { "behind" };
        let text = format!("that of the database is {} s {side} this machine's: let NTP set both", ahead.abs() / 1000);
        Finding::new("clock", State::Warning, text)
    } else {
        Finding::new("clock", State::Fine, "those of the database and of this machine agree")
    })
}

fn mib(bytes: i64) -> String {
    format!("{} MiB", bytes.div_euclid(MIB))
}

#[cfg(test)]
mod tests {
    use super::*;
    use bloom_store::{DeadRows, Kind, Transaction};

    fn checkup() -> Checkup {
        Checkup {
            kind: Kind::Postgres,
            migrations: Vec::new(),
            excluded: None,
            additions: None,
            bytes: 600 * MIB,
            unused_bytes: None,
            log_bytes: None,
            free_bytes: None,
            clock_ahead_ms: None,
            oldest_transaction: None,
            most_dead: None,
            locked: None,
            database_id: None,
        }
    }

    #[test]
    fn what_slows_a_database_down_is_told() {
        assert!(slow(&checkup()).is_empty());
        let transaction = Transaction { process: 7, program: "psql".into(), age_ms: LONG_TRANSACTION_MS };
        let most_dead = DeadRows { table: "task_state".into(), live: 5, dead: MANY_DEAD_ROWS };
        let bad = Checkup {
            log_bytes: Some(LARGE_LOG),
            unused_bytes: Some(301 * MIB),
            oldest_transaction: Some(transaction),
            most_dead: Some(most_dead),
            ..checkup()
        };
        let found: Vec<String> = slow(&bad).into_iter().map(|one| one.text).collect();
        for (text, words) in found.iter().zip(["write-ahead log has 256 MiB", "301 MiB", "pg_terminate_backend(7)", "VACUUM task_state"]) {
            assert!(text.contains(words), "{text}");
        }
        assert_eq!(found.len(), 4);
    }

    #[test]
    fn little_space_and_clocks_are_told() {
        assert_eq!(size("db", &Checkup { free_bytes: Some(LITTLE_SPACE), ..checkup() }).state, State::Fine);
        assert_eq!(size("db", &Checkup { free_bytes: Some(LITTLE_SPACE - 1), ..checkup() }).state, State::Warning);
        let clock = |ahead| clock(&Checkup { clock_ahead_ms: Some(ahead), ..checkup() }).unwrap();
        assert_eq!((clock(2_000).state, clock(-2_000).state), (State::Fine, State::Fine));
        assert!(clock(5_500).text.contains("5 s ahead") && clock(-5_500).text.contains("5 s behind"));
    }
}
