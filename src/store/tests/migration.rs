//! Tests that programs of different versions can use one schema.

use super::*;
use bloom_store::MigrationState;

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

}

/// People look into the file with sqlite3 of Debian 12, which is older than the library in this program.
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
