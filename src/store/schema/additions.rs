//! Finds what a database has besides its schema. A trigger could change rows without any command, for example the scope of a key, and it
//! would come back with a backup. So no backup with a trigger is restored, and nothing is imported into a database with one.

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

/// An object of a database that the schema does not contain, or that differs from the schema.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Addition {
    /// `trigger`, `rule`, `view`, `table` or `index`.
    kind: String,
    name: String,
    /// Its table. For a table or a view, this is its own name.
    of: String,
    /// The statement that created it; empty on PostgreSQL.
    sql: String,
    /// Whether the schema contains an object of this name that is different.
    is_changed: bool,
}

impl fmt::Display for Addition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, name, of, .. } = self;
        if name == of { write!(f, "{kind} {name}") } else { write!(f, "{kind} {name} on {of}") }
    }
}

// The type is converted to lower case, because SQLite also runs a trigger whose type is written in another case. Automatic indexes of
// tables, and the tables of ANALYZE, are left out.
const SQLITE: &str = "SELECT lower(type), name, tbl_name, coalesce(sql, '') FROM sqlite_master \
    WHERE NOT (type = 'index' AND sql IS NULL) AND NOT (type = 'table' AND name IN ('sqlite_sequence', 'sqlite_stat1', 'sqlite_stat4')) \
    ORDER BY lower(type) DESC, name";
/// The table that sqlx creates besides the migrations.
const OF_MIGRATIONS: &str = "_sqlx_migrations";
// On PostgreSQL, the schema may contain tables of other programs. So only objects that act on this program's tables matter.
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
        // No version of the program has triggers. Other additions of a newer version are unknown here, so they are allowed.
        Kind::Sqlite if schema.is_newer() && one.kind != "trigger" => false,
        // A generated column, or one with another collation, can act like a trigger, so the texts of the statements must be equal.
        Kind::Sqlite => one.name != OF_MIGRATIONS && !own.contains(one),
    };
    Ok(found.into_iter().filter(is_added).map(|one| Addition { is_changed: is_own(&one), ..one }).collect())
}

/// The objects of the schema, found by applying the migrations of the database to an empty SQLite database. The tables of PostgreSQL have
/// the same names.
async fn own(schema: &Schema) -> Result<Vec<Addition>, Error> {
    let mut conn: SqliteConnection = SqliteConnectOptions::new().in_memory(true).disable_statement_logging().connect().await?;
    for sql in schema.statements() {
        conn.execute(sql).await?;
    }
    let own: Vec<(String, String, String, String)> = sqlx::query_as(SQLITE).fetch_all(&mut conn).await?;
    conn.close().await?;
    Ok(own.into_iter().map(|(kind, name, of, sql)| Addition { kind, name, of, sql, is_changed: false }).collect())
}

/// A text about what was found, and what to do about it. `None` if nothing was found.
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

/// Like [`told`], for a copy. Also says how to make the copy restorable.
pub(crate) fn told_of_copy(found: &[Addition], copy: &Path) -> Option<String> {
    let text = told(found)?;
    if found.iter().any(|one| one.is_changed) {
        return Some(format!("{text}; what was changed in this copy can't be dropped: make another one of the mended database"));
    }
    let has_own = |one: &Addition| one.name != one.of && found.iter().any(|other| other.name == one.of);
    // Dropping a table or view also drops what belongs to it.
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

/// Refuses a database that is to be filled if it has additions. Changed tables of the program are allowed, because a row that does not fit
/// them is refused anyway.
///
/// # Errors
/// The database has something that the schema does not contain; the error names it.
pub(crate) async fn refuse(pool: &Pool, schema: &Schema) -> Result<(), Error> {
    let mut found = read(pool, schema).await?;
    found.retain(|one| !one.is_changed);
    told(&found).map_or(Ok(()), |text| Err(Error::Setup(text)))
}

/// Whether the additions must keep a server from starting. In an SQLite file, tables and views that somebody added may just be for reports,
/// but a trigger acts. On PostgreSQL, programs of administrators use triggers, for example while they rewrite a table.
pub(crate) fn stop(kind: Kind, found: &[Addition]) -> bool {
    kind == Kind::Sqlite && found.iter().any(|one| one.kind == "trigger")
}

impl Store {
    /// Refuses or reports additions to the schema. Must be called before the first write.
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
