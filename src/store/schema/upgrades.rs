//! Tests upgrades of a database with an invented migration.

use bloom_test_support::{janitor, postgres, waiting::run};
use sqlx::migrate::{Migration, MigrationType, Migrator};
use sqlx::{AssertSqlSafe, SqlSafeStr as _};

use crate::error::Error;
use crate::schema::migrate::{beside_newer, migrator};
use crate::sql::dialect::Kind;
use crate::{MigrationState, Store, StoreOptions};

const NEXT: i64 = 9000;

/// The migrations of an imagined next version of the program.
fn with_next(kind: Kind, sql: &str) -> Migrator {
    let sql = AssertSqlSafe(sql.to_owned()).into_sql_str();
    let next = Migration::new(NEXT, "wider".into(), MigrationType::Simple, sql, false);
    beside_newer(Migrator::with_migrations(migrator(kind).iter().cloned().chain([next]).collect()))
}

async fn open(url: &str) -> Store {
    Store::open(&StoreOptions { url: url.to_owned(), max_connections: 2 }).await.unwrap()
}

async fn upgrade(url: String) {
    let store = open(&url).await;
    let newest = migrator(store.kind()).iter().last().unwrap().version;
    let made = store.migrate().await.unwrap();
    assert_eq!(made.told().unwrap(), format!("database created, schema version {newest}"));

    let fails = with_next(store.kind(), "ALTER TABLE tasks ADD COLUMN colour TEXT; SELECT * FROM no_such_table");
    let refused = store.migrate_by(&fails).await.unwrap_err();
    assert!(matches!(&refused, Error::Setup(why) if why.contains("migration 9000 could not be applied")), "{refused}");
    store.ping().await.expect("the failed migration has changed nothing");

    let next = with_next(store.kind(), "ALTER TABLE tasks ADD COLUMN colour TEXT NOT NULL DEFAULT 'red'");
    let made = store.migrate_by(&next).await.unwrap();
    assert_eq!(made.told().unwrap(), format!("database migrated from schema version {newest} to 9000"));
    assert_eq!(made.applied, ["9000_wider"]);
    assert_eq!(store.migrate_by(&next).await.unwrap().told(), None);
    let last = store.migration_status().await.unwrap().pop().unwrap();
    assert_eq!((last.name.as_str(), last.state), ("9000_wider", MigrationState::Newer));

    let another = with_next(store.kind(), "ALTER TABLE tasks ADD COLUMN shape TEXT");
    let refused = store.migrate_by(&another).await.unwrap_err();
    assert!(refused.to_string().contains("migration 9000 of the database differs"), "{refused}");
    store.close().await;
}

#[test]
fn on_sqlite() {
    run(upgrade(format!("sqlite:{}", janitor::new_path("upgrades").join("bloom.db").display())));
}

#[test]
#[ignore = "needs PostgreSQL, which tests/run unit installs"]
fn on_postgresql() {
    run(upgrade(postgres::database()));
}

#[test]
#[ignore = "needs PostgreSQL, which tests/run unit installs"]
fn a_user_who_may_not_create_tables_is_told_that_migrations_are_pending() {
    let url = postgres::database();
    let role = format!("app_{}", std::process::id());
    run(async {
        let owner = open(&url).await;
        owner.migrate().await.unwrap();
        owner.close().await;
    });
    postgres::execute(&url, &format!("CREATE ROLE {role} LOGIN"));
    postgres::execute(&url, &format!("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {role}"));
    run(async {
        let store = open(&url.replacen("bloom@", &format!("{role}@"), 1)).await;
        assert_eq!(store.migrate().await.unwrap().told(), None);
        let next = with_next(Kind::Postgres, "ALTER TABLE tasks ADD COLUMN colour TEXT");
        let refused = store.migrate_by(&next).await.unwrap_err();
        assert!(refused.to_string().contains("migrations are pending"), "{refused}");
        store.close().await;
    });
}
