//! What a database has besides its schema. A trigger changes rows without any command, for example the scope of a key, and comes back with a
//! backup: so nothing is taken over with one.

use std::fmt;
use std::path::Path;

use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions as _, Connection as _, Executor as _, SqliteConnection};

use crate::error::Error;
use crate::schema::migrate::Schema;
use crate::sql::args::Args;
use crate::sql::conn::Pool;
use crate::sql::dialect::{Kind, statement};
use crate::{Store, all};

/// An object of a database that the schema does not have, or has otherwise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Addition {
    /// `trigger`, `rule`, `view`, `table` or `index`.
    kind: String,
    name: String,
    /// Its table; that of a table or a view is itself.
    of: String,
    /// What has made it; empty on PostgreSQL.
    sql: String,
    /// The schema has it, too, but otherwise.
    is_changed: bool,
}

impl fmt::Display for Addition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, name, of, .. } = self;
        if name == of { write!(f, "{kind} {name}") } else { write!(f, "{kind} {name} on {of}") }
    }
}

// SQLite finds a trigger of any name, whose type may be written in any case. Left out are the indexes that tables have by themselves, and
// the tables of ANALYZE.
const SQLITE: &str = "SELECT lower(type), name, tbl_name, coalesce(sql, '') FROM sqlite_master \
    WHERE NOT (type = 'index' AND sql IS NULL) AND NOT (type = 'table' AND name IN ('sqlite_sequence', 'sqlite_stat1', 'sqlite_stat4')) \
    ORDER BY lower(type) DESC, name";
/// What sqlx makes besides the migrations.
const OF_MIGRATIONS: &str = "_sqlx_migrations";
// On PostgreSQL, the schema may have tables of other programs: only what acts on this program's tables matters.
statement!(
    FOUND,
    |d| "{}",
    match d {
        Kind::Sqlite => SQLITE,
        Kind::Postgres => {
            "SELECT f.kind, f.name::text, c.relname::text, '' FROM ( \
                 SELECT 'trigger' AS kind, tgname AS name, tgrelid AS id FROM pg_trigger WHERE NOT tgisinternal \
                 UNION ALL SELECT 'rule', rulename, ev_class FROM pg_rewrite) f \
             JOIN pg_class c ON c.oid = f.id AND c.relkind = 'r' \
                 AND c.relnamespace = (SELECT relnamespace FROM pg_class WHERE oid = 'task_state'::regclass) \
             ORDER BY f.kind DESC, f.name"
        }
    }
);

/// What the database has besides the schema.
pub(crate) async fn read(pool: &Pool, schema: &Schema) -> Result<Vec<Addition>, Error> {
    if schema.is_empty() {
        return Ok(Vec::new());
    }
    let found = all(&pool.fetch(&FOUND, Args::new()).await?, |row| {
        Ok(Addition { kind: row.take()?, name: row.take()?, of: row.take()?, sql: row.take()?, is_changed: false })
    })?;
    let own = own(schema).await?;
    let is_own = |one: &Addition| own.iter().any(|own| (&own.kind, &own.name) == (&one.kind, &one.name));
    let is_added = |one: &Addition| match pool.kind() {
        Kind::Postgres => one.of == OF_MIGRATIONS || own.iter().any(|table| table.kind == "table" && table.name == one.of),
        // No version has triggers; what else a newer one has added is not known here.
        Kind::Sqlite if schema.is_newer() && one.kind != "trigger" => false,
        // A column that is generated, or compares in another way, acts like a trigger, so the texts must be the same.
        Kind::Sqlite => one.name != OF_MIGRATIONS && !own.contains(one),
    };
    Ok(found.into_iter().filter(is_added).map(|one| Addition { is_changed: is_own(&one), ..one }).collect())
}

/// What the schema has: the migrations that the database has, applied to an empty one. The tables of PostgreSQL have the same names.
async fn own(schema: &Schema) -> Result<Vec<Addition>, Error> {
    let mut conn: SqliteConnection = SqliteConnectOptions::new().in_memory(true).disable_statement_logging().connect().await?;
    for sql in schema.statements() {
        conn.execute(sql).await?;
    }
    let own: Vec<(String, String, String, String)> = sqlx::query_as(SQLITE).fetch_all(&mut conn).await?;
    conn.close().await?;
    Ok(own.into_iter().map(|(kind, name, of, sql)| Addition { kind, name, of, sql, is_changed: false }).collect())
}

/// What was found, and what to do about it. `None`: nothing.
pub(crate) fn told(found: &[Addition]) -> Option<String> {
    let names: Vec<_> = found.iter().map(Addition::to_string).collect();
    (!names.is_empty()).then(|| {
        format!(
            "the database has what its schema does not have, or has otherwise ({}), which may change what the program writes, such as the scope of a key: \
             drop what you made yourself (DROP TRIGGER, DROP VIEW, …), or keep it in another database; if nobody made it, look at the keys, too",
            names.join(", ")
        )
    })
}

/// As [`told`], of a copy: also what makes it one that can be restored.
pub(crate) fn told_of_copy(found: &[Addition], copy: &Path) -> Option<String> {
    let text = told(found)?;
    if found.iter().any(|one| one.is_changed) {
        return Some(format!("{text}; what was changed in this copy can't be dropped: make another one of the mended database"));
    }
    let has_own = |one: &Addition| one.name != one.of && found.iter().any(|other| other.name == one.of);
    // What is on a table or view goes with it.
    let drops: Vec<_> =
        found.iter().filter(|one| !has_own(one)).map(|one| format!("DROP {} {}", one.kind.to_uppercase(), sql_name(&one.name))).collect();
    Some(format!("{text}; this copy: sqlite3 {} {}", shell_word(&copy.display().to_string()), shell_word(&drops.join("; "))))
}

fn sql_name(name: &str) -> String {
    if is_plain(name, "_") { name.to_owned() } else { format!("\"{}\"", name.replace('"', "\"\"")) }
}

fn shell_word(text: &str) -> String {
    if is_plain(text, "_./-") { text.to_owned() } else { format!("'{}'", text.replace('\'', r"'\''")) }
}

fn is_plain(text: &str, more: &str) -> bool {
    text.chars().all(|char| char.is_ascii_alphanumeric() || more.contains(char))
}

/// For a database that is to be filled. Its own tables may have been changed: a row that does not fit then is refused by itself.
///
/// # Errors
/// The database has something that the schema does not have: it is named.
pub(crate) async fn refuse(pool: &Pool, schema: &Schema) -> Result<(), Error> {
    let mut found = read(pool, schema).await?;
    found.retain(|one| !one.is_changed);
    told(&found).map_or(Ok(()), |text| Err(Error::Setup(text)))
}

/// What keeps a server from starting. What someone added to an SQLite file may just make reports, but a trigger acts. On PostgreSQL, the
/// programs of its administrators use triggers, for example while they rewrite a table.
pub(crate) fn stop(kind: Kind, found: &[Addition]) -> bool {
    kind == Kind::Sqlite && found.iter().any(|one| one.kind == "trigger")
}

impl Store {
    /// Must be called before the first write.
    pub(crate) async fn refuse_triggers(&self, schema: &Schema) -> Result<(), Error> {
        let found = read(self.pool(), schema).await?;
        match told(&found) {
            Some(text) if stop(self.kind(), &found) => return Err(Error::Setup(text)),
            Some(text) => tracing::warn!("{text}"),
            None => {}
        }
        Ok(())
    }
}
