//! The tables that are moved, read from the schema of the database.

use std::borrow::Cow;

use crate::all;
use crate::error::Error;
use crate::sql::args::Args;
use crate::sql::cells::{Cells, Type, Value};
use crate::sql::conn::Conn;
use crate::sql::dialect::{Kind, statement};

/// Tables that concern only one database: its schema, its servers, its commits and its imports. The counts are computed again from the
/// tasks.
const LEFT_OUT: [&str; 9] =
    ["_sqlx_migrations", "schema_compatibility", "leader", "served", "lanes", "batches", "counts", "imports", "reconcilers"];

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Column {
    pub name: String,
    pub ty: Type,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Table {
    pub name: String,
    pub columns: Vec<Column>,
    /// The columns of the primary key, in its order.
    key: Vec<String>,
}

// The name of a table, the name and the type of a column, and its position in the primary key, counted from 1; 0 = the column is not a part
// of the key.
statement!(
    COLUMNS,
    |d| "{}",
    match d {
        Kind::Sqlite => {
            "SELECT m.name, c.name, lower(c.type), c.pk FROM sqlite_master m JOIN pragma_table_info(m.name) c \
             WHERE m.type = 'table' AND m.name NOT LIKE 'sqlite\\_%' ESCAPE '\\' ORDER BY m.name, c.cid"
        }
        Kind::Postgres => {
            "SELECT t.relname::text, c.attname::text, format_type(c.atttypid, NULL), \
                    coalesce(array_position(k.indkey::int2[], c.attnum) + 1, 0)::bigint \
             FROM pg_class t JOIN pg_attribute c ON c.attrelid = t.oid AND c.attnum > 0 AND NOT c.attisdropped \
             LEFT JOIN pg_index k ON k.indrelid = t.oid AND k.indisprimary \
             WHERE t.relkind = 'r' AND t.relnamespace = (SELECT relnamespace FROM pg_class WHERE oid = 'task_state'::regclass) \
             ORDER BY t.relname::text COLLATE \"C\", c.attnum"
        }
    }
);

/// The tables that are moved, in the order of their names.
pub(super) async fn read(conn: &mut Conn) -> Result<Vec<Table>, Error> {
    let mut tables: Vec<Table> = Vec::new();
    let mut keys: Vec<(i64, String)> = Vec::new();
    let columns: Vec<(String, String, String, i64)> =
        all(&conn.fetch(&COLUMNS, Args::new()).await?, |row| Ok((row.take()?, row.take()?, row.take()?, row.take()?)))?;
    for (table, name, ty, key) in columns {
        if LEFT_OUT.contains(&table.as_str()) {
            continue;
        }
        if tables.last().is_none_or(|last| last.name != table) {
            tables.push(Table { name: table, columns: Vec::new(), key: Vec::new() });
            keys.clear();
        }
        let Some(table) = tables.last_mut() else { continue };
        let ty = column_type(&ty).ok_or_else(|| Error::Corrupt(format!("column {name} of table {} has the type {ty}", table.name)))?;
        if key > 0 {
            keys.push((key, name.clone()));
            keys.sort_unstable();
            table.key = keys.iter().map(|(_, name)| name.clone()).collect();
        }
        table.columns.push(Column { name, ty });
    }
    Ok(tables)
}

/// The program's type for a type of the schema.
fn column_type(name: &str) -> Option<Type> {
    Some(match name {
        "blob" | "uuid" => Type::Uuid,
        "bigint" => Type::Int,
        "double precision" => Type::Real,
        "boolean" => Type::Bool,
        "text" => Type::Text,
        "bytea" => Type::Bytes,
        _ => return None,
    })
}

impl Table {
    pub(crate) fn column_names(&self) -> Vec<String> {
        self.columns.iter().map(|column| column.name.clone()).collect()
    }

    /// Selects all rows, in an order that is the same on both databases.
    pub(crate) fn select(&self, kind: Kind) -> String {
        let collation = |name: &String| match (kind, self.columns.iter().find(|column| column.name == *name).map(|column| column.ty)) {
            (Kind::Postgres, Some(Type::Text)) => format!("{name} COLLATE \"C\""),
            _ => name.clone(),
        };
        let key: Vec<_> = self.key.iter().map(collation).collect();
        format!("SELECT {} FROM {} ORDER BY {}", self.column_names().join(", "), self.name, key.join(", "))
    }

    /// Adds the cells of a row that [`select`](Self::select) returned.
    pub(crate) fn read(&self, cells: &mut Cells<'_>, row: &mut Vec<Value<'_>>) -> Result<(), Error> {
        for column in &self.columns {
            row.push(match column.ty {
                Type::Uuid => Value::Uuid(cells.take()?),
                Type::Int => Value::Int(cells.take()?),
                Type::Real => Value::Real(cells.take()?),
                Type::Bool => Value::Bool(cells.take()?),
                Type::Text => Value::Text(cells.take::<Option<String>>()?.map(Cow::Owned)),
                Type::Bytes => Value::Bytes(cells.take()?),
            });
        }
        Ok(())
    }

    /// The columns with these names, or what is wrong with the names.
    pub(crate) fn columns(&self, names: &[String]) -> Result<Vec<&Column>, String> {
        let mut columns: Vec<&Column> = Vec::new();
        for name in names {
            let column = self.columns.iter().find(|column| column.name == *name);
            let column = column.ok_or_else(|| format!("table {} has no column {name}", self.name))?;
            if columns.contains(&column) {
                return Err(format!("column {name} of table {} is there twice", self.name));
            }
            columns.push(column);
        }
        Ok(columns)
    }

    /// Inserts rows of these columns; parameter 1 is a JSON list of lists of cells.
    pub(crate) fn insert(&self, kind: Kind, columns: &[&Column]) -> String {
        let names: Vec<_> = columns.iter().map(|column| column.name.as_str()).collect();
        let cells: Vec<_> = columns.iter().enumerate().map(|(at, column)| kind.json_cell(at, column.ty)).collect();
        format!("INSERT INTO {} ({}) SELECT {} FROM {}", self.name, names.join(", "), cells.join(", "), kind.json_rows(1))
    }
}

/// Checks that each cell of a row, a JSON list, has the type of its column or is null. SQLite would store a value of any type.
pub(super) fn check(columns: &[Column], row: &str) -> Result<(), String> {
    let cells: Vec<serde_json::Value> = serde_json::from_str(row).map_err(|_| "a number is too large".to_owned())?;
    for (column, cell) in columns.iter().zip(&cells) {
        let (fits, wanted) = match column.ty {
            Type::Uuid => {
                let is_id = |text: &str| text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
                (cell.as_str().is_some_and(is_id), "an id of 32 hexadecimal digits")
            }
            Type::Int => (cell.is_i64(), "a whole number of 64 bits"),
            Type::Real => (cell.is_number(), "a number"),
            Type::Bool => (cell.is_boolean(), "true or false"),
            Type::Text => (cell.as_str().is_some_and(|text| !text.contains('\0')), "a text without NUL characters"),
            Type::Bytes => {
                let are_bytes = |text: &str| text.len().is_multiple_of(2) && text.bytes().all(|byte| byte.is_ascii_hexdigit());
                (cell.as_str().is_some_and(are_bytes), "bytes in hexadecimal digits")
            }
        };
        if !fits && !cell.is_null() {
            return Err(format!("{} is not {wanted}", column.name));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use bloom_test_support::{janitor, postgres, waiting::run};

    use super::*;
    use crate::{Store, StoreOptions};

    async fn tables(url: String) -> Vec<Table> {
        let store = Store::open(&StoreOptions { url, max_connections: 2 }).await.unwrap();
        store.migrate().await.unwrap();
        let mut conn = store.inner.target.surveyor().await.unwrap();
        let sql = crate::sql::dialect::Sql::new(|d| {
            let kind = if d == Kind::Sqlite { "sqlite_master WHERE type = 'table'" } else { "pg_tables WHERE schemaname = 'public'" };
            format!("SELECT CAST({} AS TEXT) FROM {kind}", if d == Kind::Sqlite { "name" } else { "tablename" })
        });
        let all: Vec<String> = all(&conn.fetch(&sql, Args::new()).await.unwrap(), |row| row.take()).unwrap();
        let tables = read(&mut conn).await.unwrap();
        conn.close().await;
        store.close().await;
        for name in all.iter().filter(|name| !name.starts_with("sqlite_")) {
            let is_left_out = LEFT_OUT.contains(&name.as_str());
            assert_ne!(tables.iter().any(|table| table.name == *name), is_left_out, "{name} is either moved or left out");
        }
        assert!(LEFT_OUT.iter().all(|name| all.iter().any(|table| table == name)), "those left out exist: {all:?}");
        assert!(tables.iter().all(|table| !table.key.is_empty()), "without a key, the order of rows is by chance: {tables:?}");
        tables
    }

    /// An export of one kind of database must fit the other kind.
    #[test]
    #[ignore = "needs PostgreSQL, which tests/run unit installs"]
    fn both_databases_have_the_same_tables_in_the_same_order() {
        run(async {
            let sqlite = tables(format!("sqlite:{}", janitor::new_path("tables").join("bloom.db").display())).await;
            assert_eq!(sqlite, tables(postgres::database()).await);
        });
    }
}
