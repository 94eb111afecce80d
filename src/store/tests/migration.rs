//! Tests that a database of an earlier version is migrated with all its content.

use super::*;
use bloom_core::task::Parked;
use bloom_core::wakeup::Subject;
use bloom_store::MigrationState;
use sqlx::migrate::Migrator;
use sqlx::{Connection as _, PgConnection, SqliteConnection};

use crate::support::janitor;

fn id(n: u128) -> Uuid {
    Uuid::from_u128(n)
}

/// An id as an SQL literal of this database.
fn sql(database: Database, n: u128) -> String {
    match database {
        Database::Sqlite => format!("x'{}'", id(n).simple()),
        Database::Postgres => format!("'{}'", id(n)),
    }
}

/// Creates the schema of the first version in an empty database.
async fn migrate_to_first(database: Database, url: &str) {
    let (dialect, only_first) = (if database == Database::Sqlite { "sqlite" } else { "postgres" }, janitor::new_path("migrations"));
    std::fs::create_dir(&only_first).unwrap();
    let all = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../migrations").join(dialect);
    std::fs::copy(all.join("0001_init.sql"), only_first.join("0001_init.sql")).unwrap();
    let migrator = Migrator::new(only_first.as_path()).await.unwrap();
    match database {
        Database::Sqlite => {
            let path = std::path::Path::new(url.strip_prefix("sqlite:").unwrap());
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::File::create(path).unwrap();
            migrator.run_direct(None, &mut SqliteConnection::connect(url).await.unwrap(), false).await.unwrap();
        }
        Database::Postgres => migrator.run_direct(None, &mut PgConnection::connect(url).await.unwrap(), false).await.unwrap(),
    }
}

/// A statement that inserts a task with these columns, as the first version wrote it.
fn task(database: Database, n: u128, status: &str, more: &[(&'static str, String)]) -> String {
    let fixed = [
        ("id", sql(database, n)),
        ("context_id", "'c'".into()),
        ("agent_slug", "'writer'".into()),
        ("rank", "4".into()),
        ("max_attempts", "3".into()),
        ("timeout_sec", "120".into()),
        ("has_dependencies", "false".into()),
        ("status", format!("'{status}'")),
        ("updated_at", "1".into()),
        ("attempts", "0".into()),
        ("infra_retries", "0".into()),
        ("lease_count", "0".into()),
        ("cancel_requested", "false".into()),
        ("has_dependents", "true".into()),
        ("event_count", "0".into()),
        ("event_seq", "-1".into()),
    ];
    let (names, values): (Vec<_>, Vec<_>) = fixed.into_iter().chain(more.iter().cloned()).unzip();
    format!("INSERT INTO task_state ({}) VALUES ({})", names.join(", "), values.join(", "))
}

fn audit(database: Database, n: u128, kind: &str, entity: &str, actor: &str, detail: &str) -> String {
    format!(
        "INSERT INTO audit (id, timestamp, action, entity_type, entity_id, actor, detail) \
        VALUES ({}, 1, 'task_created', '{kind}', '{entity}', '{actor}', '{detail}')",
        sql(database, n)
    )
}

async fn fill(database: Database, url: &str) {
    let text = |text: &str| format!("'{text}'");
    let (in_context, alone) = (("session", text("context")), ("session", text("none")));
    let key = ("exclusive_key", text("key"));
    let waits = |parked: &str| ("parked", text(parked));
    let leased = [
        in_context.clone(),
        key.clone(),
        ("worker_id", text("w")),
        ("lease_id", sql(database, 91)),
        ("slot", "0".into()),
        ("origin", text("call")),
        ("started_at", "5".into()),
        ("ttl_ms", "60000".into()),
        ("expires_at", "60005".into()),
        ("last_heartbeat", "5".into()),
    ];
    let task = |n, status, more: &[(&'static str, String)]| task(database, n, status, more);
    let dependency = |on: u128| format!("INSERT INTO task_deps (task_id, dep_id) VALUES ({}, {})", sql(database, 5), sql(database, on));
    for statement in [
        task(1, "running", &leased),
        task(2, "queued", &[in_context.clone(), waits("session")]),
        task(3, "queued", &[in_context.clone(), waits("session")]),
        task(4, "queued", &[alone.clone(), waits("exclusive_key"), key]),
        task(5, "queued", &[alone.clone(), waits("depends_on")]),
        task(6, "queued", &[alone.clone(), waits("not_before"), ("not_before", "777".into())]),
        task(7, "queued", std::slice::from_ref(&alone)),
        task(8, "completed", &[in_context, ("finished_at", "9".into())]),
        dependency(1),
        dependency(7),
        "INSERT INTO workers (id, url, status, lost, capabilities, ip_addrs, obs_count, db_sha, registered_at, agent_version, os_info, \
            install_method, dispatch, cordoned, draining) VALUES ('w', '', 'online', false, \
            '{\"claude_cli\":true,\"max_concurrency\":2,\"labels\":[]}', '[]', 0, '', 1, 'unknown', '', 'manual', 'manual', false, false)"
            .to_owned(),
        "INSERT INTO worker_seen (worker_id, last_seen) VALUES ('w', 3)".to_owned(),
        "UPDATE served SET at = 4".to_owned(),
        audit(database, 201, "llm_task", &id(7).to_string(), "api", "writer"),
        audit(database, 202, "lease", &id(91).to_string(), "router", &format!("task {} to worker w", id(1))),
        audit(database, 203, "llm_task", &id(8).to_string(), "w", "success"),
        audit(database, 204, "worker", "w", "admin", ""),
        audit(database, 205, "config", "membridge", "admin", ""),
    ] {
        execute(url, &statement).await;
    }
}

/// Those that this program has, in their order.
fn names_of_migrations() -> Vec<String> {
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../../migrations/sqlite");
    let name = |entry: std::fs::DirEntry| Some(entry.file_name().to_str()?.strip_suffix(".sql")?.to_owned());
    let mut names: Vec<String> = std::fs::read_dir(dir).unwrap().flatten().filter_map(name).collect();
    names.sort();
    names
}

crate::on_both! {

async fn a_newer_schema_serves_programs_that_it_does_not_exclude(database) {
    let bench = Bench::new(database).await;
    let newer = "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time) VALUES (9000, 'wider', true, '', 0)";
    execute(&bench.url, &newer.replace("''", if database == Database::Sqlite { "x''" } else { "''::bytea" })).await;
    execute(&bench.url, "ALTER TABLE task_state ADD COLUMN of_a_newer_program TEXT").await;
    bench.store.ping().await.unwrap();
    assert!(bench.store.migrate().await.unwrap().applied.is_empty(), "this program can run next to the newer one");
    let last = bench.store.migration_status().await.unwrap().pop().unwrap();
    assert_eq!((last.name.as_str(), last.state), ("9000_wider", MigrationState::Newer));
    let mut writer = bench.writer().await;
    register(&mut writer, "w", 1).await;
    create(&mut writer, vec![spec("a")]).await;

    execute(&bench.url, "UPDATE schema_compatibility SET since = 9000").await;
    for refused in [bench.store.ping().await.unwrap_err(), bench.store.migrate().await.unwrap_err()] {
        assert!(refused.to_string().contains("needs a program that knows migration 9000"), "{refused}");
    }
}

async fn the_first_version_s_database_is_taken_over(database) {
    let url = database.new_url();
    migrate_to_first(database, &url).await;
    fill(database, &url).await;
    let time = Arc::new(AtomicI64::new(100));
    let store = Store::with_clock(&StoreOptions { url: url.clone(), max_connections: 2 }, Clock::Manual(time)).await.unwrap();
    assert!(store.ping().await.unwrap_err().to_string().contains("older than this program"));
    let applied = store.migrate().await.unwrap().applied;
    assert_eq!(applied, names_of_migrations()[1..]);
    store.ping().await.unwrap();
    let bench = Bench { url, store, time: Arc::default() };
    let port = bench.port();

    let mut states = port.task_states(&(1..=8).map(id).collect::<Vec<_>>()).await.unwrap();
    states.sort_by_key(|state| state.id);
    assert!(states.len() == 8 && states.iter().all(|state| state.revision == 1 && state.created_after.is_none()));
    assert_eq!(states[0].lease.as_ref().map(|lease| (lease.id, lease.check_at)), Some((id(91), 60_005)));
    assert_eq!((states[5].parked, states[5].wake_at), (Some(Parked::NotBefore), Some(777)));
    assert!(states.iter().filter(|state| state.id != id(6)).all(|state| state.wake_at.is_none()));
    let due = port.due_leases(9).await.unwrap();
    assert_eq!((due.now, due.items, due.next_at), (100, vec![], Some(60_005)));
    assert_eq!(port.due_tasks(9).await.unwrap().next_at, Some(777));
    let worker = bench.store.worker("w").await.unwrap().unwrap();
    assert_eq!((worker.revision, worker.updated_at, worker.recount_slots, worker.last_seen), (1, 0, false, 3));

    // The migration makes wake-ups for all waiting tasks.
    let mut subjects: Vec<_> = port.wakeups(None, 99).await.unwrap().into_iter().map(|wakeup| wakeup.subject).collect();
    subjects.sort();
    let context = Subject::Context { context_id: "c".into(), after: None };
    assert_eq!(subjects, [Subject::Dependents(id(1)), Subject::Dependents(id(7)), context, Subject::Key("key".into())]);
    for wakeup in port.wakeups(None, 99).await.unwrap() {
        let found = port.waiters(&wakeup, 9).await.unwrap().tasks;
        let expected = match wakeup.subject {
            Subject::Dependents(_) => vec![id(5)],
            Subject::Key(_) => vec![id(4)],
            // The first task of the context runs.
            _ => vec![],
        };
        assert_eq!(found, expected);
    }

    let audit = bench.store.audit(&AuditFilter::default(), &Page { limit: 9, before: None }).await.unwrap();
    let concerns: Vec<_> = audit.iter().rev().map(|entry| (entry.task_id, entry.worker_id.as_deref())).collect();
    assert_eq!(concerns, [(Some(id(7)), None), (Some(id(1)), Some("w")), (Some(id(8)), Some("w")), (None, Some("w")), (None, None)]);

    // The migrated rows can be changed like new ones.
    let mut writer = bench.writer().await;
    commit(&mut writer, vec![success(id(1), "x")]).await;
    register(&mut writer, "w", 4).await;
    assert_eq!(port.task_states(&[id(1)]).await.unwrap()[0].revision, 2);
    assert_eq!(bench.store.worker("w").await.unwrap().unwrap().revision, 2);
    writer.close().await;
    let Bench { url, store, .. } = bench;
    store.close().await;
    drop(store);
    let store = Store::open(&StoreOptions { url, max_connections: 2 }).await.unwrap();
    let service = bloom_database::Database::mark_served(&store).await.unwrap();
    assert_eq!(service.resumed_at, service.now, "no replica has served for long");
}

}

/// sqlite3 of Debian 12 is older than the library in this program, and people look into the file with it.
#[tokio::test]
async fn an_older_sqlite3_reads_the_file() {
    let bench = Bench::new(Database::Sqlite).await;
    let path = bench.url.strip_prefix("sqlite:").expect("a file");
    let checked = std::process::Command::new("sqlite3")
        .args([path, "PRAGMA integrity_check; SELECT count(*) FROM tasks;"])
        .output()
        .expect("it runs");
    assert_eq!((String::from_utf8_lossy(&checked.stdout).as_ref(), checked.stderr.as_slice()), ("ok\n0\n", &b""[..]));
}
