//! Checks that each `row!` declaration matches the schema of a migrated database.

use std::collections::BTreeSet;

use bloom_test_support::{janitor, postgres, waiting::run};

use crate::batch::{load, save};
use crate::maintenance::{key_uses, reconcilers};
use crate::replicas::{counts, feed};
use crate::sql::args::Args;
use crate::sql::cells::Type;
use crate::sql::dialect::{Kind, Sql};
use crate::sql::table::{RowType, WriteRow as _};
use crate::sql::{record_rows, task_rows};
use crate::{Store, StoreOptions, all, control_plane};

/// Row types without a table, which are only parameters of statements.
const NO_TABLES: [&str; 3] = ["context_task", "lane_position", "wakeup_cursor"];

fn declared() -> Vec<&'static RowType> {
    let tasks = [&task_rows::SPEC, &task_rows::STATE, save::Label::ROW, save::Dependency::ROW, save::InputOf::ROW, &record_rows::FILE];
    let records = [
        &record_rows::LEASE,
        &record_rows::RESULT,
        &record_rows::EVENT,
        &record_rows::AUDIT,
        &record_rows::WAKEUP,
        &record_rows::API_KEY,
        save::Reached::ROW,
    ];
    let projects = [&record_rows::PROJECT, &record_rows::PROJECT_NODE];
    let workers = [&record_rows::WORKER, &record_rows::QUEUE, save::Seen::ROW, save::Removal::ROW];
    let others = [
        save::Setting::ROW,
        save::Reset::ROW,
        save::QuotaRow::ROW,
        save::Rotated::ROW,
        key_uses::KeyUse::ROW,
        &reconcilers::RECONCILER,
        counts::Count::ROW,
        feed::LanePosition::ROW,
        load::ContextTask::ROW,
    ];
    let control_plane =
        [&control_plane::AGENT, &control_plane::PROJECT, &control_plane::NODE, control_plane::Memory::ROW, &control_plane::JOB];
    tasks.into_iter().chain(records).chain(workers).chain(projects).chain(others).chain(control_plane).collect()
}

fn type_name(kind: Kind, ty: Type) -> &'static str {
    match (kind, ty) {
        (Kind::Sqlite, Type::Uuid) => "blob",
        (Kind::Postgres, Type::Uuid) => "uuid",
        (_, Type::Int) => "bigint",
        (_, Type::Real) => "double precision",
        (_, Type::Bool) => "boolean",
        (_, Type::Text) => "text",
        (_, Type::Bytes) => "bytea",
    }
}

type Columns = Vec<(String, String)>;

/// The names and types of the columns of a table or a composite type, in order.
async fn columns(store: &Store, name: &str) -> Columns {
    let sql = Sql::new(|kind| {
        match kind {
            Kind::Sqlite => "SELECT name, lower(type) FROM pragma_table_info($1) ORDER BY cid",
            Kind::Postgres => {
                "SELECT a.attname::text, format_type(a.atttypid, NULL) FROM pg_type t JOIN pg_attribute a ON a.attrelid = t.typrelid \
                WHERE t.typname = $1 AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum"
            }
        }
        .to_owned()
    });
    all(&store.pool().fetch(&sql, Args::new().text(name)).await.unwrap(), |row| Ok((row.take()?, row.take()?))).unwrap()
}

/// The names of PostgreSQL's row types, without their version numbers.
async fn row_types(store: &Store) -> BTreeSet<String> {
    let sql = Sql::new(|_| "SELECT typname::text FROM pg_type WHERE typtype = 'c' AND typname ~ '_row(_[0-9]+)?$'".to_owned());
    let names: Vec<String> = all(&store.pool().fetch(&sql, Args::new()).await.unwrap(), |row| row.take()).unwrap();
    names.iter().map(|name| without_shape(name)).collect()
}

fn without_shape(name: &str) -> String {
    name.trim_end_matches(|c: char| c.is_ascii_digit()).trim_end_matches('_').to_owned()
}

async fn check(url: String) {
    let store = Store::open(&StoreOptions { url, max_connections: 2 }).await.unwrap();
    store.migrate().await.unwrap();
    for row in declared() {
        let expected: Columns = row.columns.iter().map(|c| (c.name.to_owned(), type_name(store.kind(), c.ty).to_owned())).collect();
        if !NO_TABLES.contains(&row.name) {
            let found = columns(&store, row.name).await;
            let missing: Vec<_> = expected.iter().filter(|column| !found.contains(column)).collect();
            assert!(missing.is_empty(), "table {} has no {missing:?}, but {found:?}", row.name);
        }
        if store.kind() == Kind::Postgres {
            assert_eq!(columns(&store, row.postgres).await, expected, "{}", row.postgres);
        }
    }
    if store.kind() == Kind::Postgres {
        let names: BTreeSet<_> = declared().iter().map(|row| without_shape(row.postgres)).collect();
        assert_eq!(row_types(&store).await, names, "all row types are declared and listed in this test");
    }
    store.close().await;
}

#[test]
fn on_sqlite() {
    run(check(format!("sqlite:{}", janitor::new_path("declarations").join("bloom.db").display())));
}

#[test]
#[ignore = "needs PostgreSQL, which tests/run unit installs"]
fn on_postgresql() {
    run(check(postgres::database()));
}
