//! The only place where the text of a statement depends on the database.

use sqlx::{AssertSqlSafe, SqlSafeStr as _, SqlStr};

use crate::sql::cells::Type;
use crate::sql::table::RowType;
use bloom_core::limits::MAX_SAFE;

/// The kinds of databases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A file, for one server.
    Sqlite,
    /// A database that replicas can share.
    Postgres,
}

impl Kind {
    /// The name for people and programs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Sqlite => "sqlite",
            Self::Postgres => "postgresql",
        }
    }

    /// An expression for the time in ms. `$param` replaces the database's clock unless it is NULL.
    pub(crate) fn clock(self, param: usize) -> String {
        match self {
            Self::Sqlite => format!("${param}"),
            Self::Postgres => format!("coalesce(${param}::bigint, (extract(epoch FROM clock_timestamp()) * 1000)::bigint)"),
        }
    }

    /// Row locks. SQLite needs none, because it has one writer at a time.
    pub(crate) fn lock(self) -> &'static str {
        match self {
            Self::Sqlite => "",
            Self::Postgres => "FOR NO KEY UPDATE",
        }
    }

    /// The number of bytes of a text. SQLite's form also works in versions before 3.43, such as that of Debian 12, which could otherwise
    /// not read an index with this expression.
    pub(crate) fn bytes(self, column: &str) -> String {
        match self {
            Self::Sqlite => format!("length(CAST({column} AS BLOB))"),
            Self::Postgres => format!("octet_length({column})"),
        }
    }

    pub(crate) fn share(self) -> &'static str {
        match self {
            Self::Sqlite => "",
            Self::Postgres => "FOR SHARE",
        }
    }

    /// An expression that takes the lock of the queues, shared or exclusive, until the end of the transaction. It locks no row, so that
    /// placement need not write anything for it. SQLite needs no such lock.
    pub(crate) fn lock_queues(self, is_shared: bool) -> String {
        self.advisory_lock(0x62_6c6f_6f6d_7175, is_shared)
    }

    /// Like [`lock_queues`](Self::lock_queues), for the names of workers. Transactions that insert workers share this lock; a transaction
    /// that relies on the absence of a worker's row holds it exclusively.
    pub(crate) fn lock_names(self, is_shared: bool) -> String {
        self.advisory_lock(0x62_6c6f_6f6d_6e61, is_shared)
    }

    /// Like [`lock_queues`](Self::lock_queues), for transactions that add or remove named keys.
    pub(crate) fn lock_keys(self) -> String {
        self.advisory_lock(0x62_6c6f_6f6d_6b65, false)
    }

    /// Like [`lock_queues`](Self::lock_queues), for transactions that change projects.
    pub(crate) fn lock_projects(self) -> String {
        self.advisory_lock(0x62_6c6f_6f6d_7072, false)
    }

    /// Like [`lock_queues`](Self::lock_queues), for transactions that change agents, projects and nodes of the control plane.
    pub(crate) fn lock_control_plane(self) -> String {
        self.advisory_lock(0x62_6c6f_6f6d_6d62, false)
    }

    /// An expression that tries to take the lock of imports for this connection, and is true if it did. An SQLite file has a lock of its
    /// own.
    pub(crate) fn try_lock_import(self) -> &'static str {
        match self {
            Self::Sqlite => "true",
            Self::Postgres => "pg_try_advisory_lock(27697873)",
        }
    }

    /// A statement that keeps writers of servers from registering and committing until the end of the transaction.
    pub(crate) fn lock_writers(self) -> &'static str {
        match self {
            Self::Sqlite => "SELECT 1",
            Self::Postgres => "LOCK TABLE lanes, batches IN ACCESS EXCLUSIVE MODE",
        }
    }

    /// A statement that removes all rows of a table.
    pub(crate) fn empty(self, table: &str) -> String {
        match self {
            Self::Sqlite => format!("DELETE FROM {table}"),
            Self::Postgres => format!("TRUNCATE {table}"),
        }
    }

    /// An expression that takes an advisory lock. `lock` is any number that nothing else in the database uses.
    fn advisory_lock(self, lock: i64, is_shared: bool) -> String {
        match self {
            Self::Sqlite => "NULL".to_owned(),
            Self::Postgres => format!("pg_advisory_xact_lock{}({lock})", if is_shared { "_shared" } else { "" }),
        }
    }

    pub(crate) fn skip_locked(self) -> &'static str {
        match self {
            Self::Sqlite => "",
            Self::Postgres => "FOR NO KEY UPDATE SKIP LOCKED",
        }
    }

    /// The sum of an integer column, limited to [`MAX_SAFE`] so that reports and the removal of old rows never fail on an overflow.
    /// SQLite's `sum` fails beyond 64 bits, but `total` adds floats, which are exact up to this limit.
    pub(crate) fn sum(self, column: &str) -> String {
        match self {
            Self::Sqlite => format!("CAST(min(total({column}), {MAX_SAFE}.0) AS INTEGER)"),
            Self::Postgres => format!("CAST(least(sum({column}), {MAX_SAFE}) AS BIGINT)"),
        }
    }

    /// Whether a boolean column is true in any row.
    pub(crate) fn any_true(self, column: &str) -> String {
        match self {
            Self::Sqlite => format!("max({column})"),
            Self::Postgres => format!("bool_or({column})"),
        }
    }

    /// The sum of two integers, with the same limit.
    pub(crate) fn plus(self, one: &str, other: &str) -> String {
        match self {
            Self::Sqlite => format!("CAST(min({one} + {other}, {MAX_SAFE}) AS INTEGER)"),
            Self::Postgres => format!("CAST(least(CAST({one} AS NUMERIC) + {other}, {MAX_SAFE}) AS BIGINT)"),
        }
    }

    /// The member of a JSON object of texts that has the name in `$param`; NULL if there is none.
    pub(crate) fn json_member(self, column: &str, param: usize) -> String {
        match self {
            Self::Sqlite => format!("(SELECT m.value FROM json_each({column}) m WHERE m.key = ${param})"),
            Self::Postgres => format!("(CAST({column} AS JSON) ->> CAST(${param} AS TEXT))"),
        }
    }

    /// A text for a unique index. It is equal for two rows exactly if the rows are equal in these columns. PostgreSQL limits the size of
    /// index entries, so it is a digest there. SQLite has no such limit, and no function for digests.
    pub(crate) fn digest(self, columns: &str) -> String {
        match self {
            Self::Sqlite => format!("json_array({columns})"),
            Self::Postgres => format!("encode(sha256(convert_to(json_build_array({columns})::text, 'UTF8')), 'hex')"),
        }
    }

    /// A condition that is true for the elements of the array `$param`.
    pub(crate) fn any(self, ty: Type, param: usize) -> String {
        match self {
            Self::Sqlite => format!("IN (SELECT {} FROM json_each(${param}))", cell("value", ty)),
            Self::Postgres => format!("= ANY(${param}::{}[])", pg_type(ty)),
        }
    }

    /// A FROM item with rows of this type, named `v`.
    pub(crate) fn rows(self, ty: &RowType, param: usize) -> String {
        match self {
            Self::Sqlite => {
                let cells: Vec<_> =
                    ty.columns.iter().enumerate().map(|(i, c)| format!("{} AS {}", cell(&format!("value->>{i}"), c.ty), c.name)).collect();
                // JSONB does not have to be parsed again for each cell.
                format!("(SELECT {} FROM jsonb_each(${param})) AS v", cells.join(", "))
            }
            Self::Postgres => format!("unnest(${param}::{}[]) AS v", ty.postgres),
        }
    }

    /// A FROM item with the rows of the JSON list in `$param`. Each row is a JSON list of cells, named `value`. PostgreSQL would parse a
    /// row again for each of its cells, so each row is converted to an array first, and OFFSET keeps the planner from merging the two
    /// steps.
    pub(crate) fn json_rows(self, param: usize) -> String {
        match self {
            Self::Sqlite => format!("json_each(${param})"),
            Self::Postgres => format!(
                "(SELECT ARRAY(SELECT json_array_elements_text(cells)) AS value FROM json_array_elements(${param}::json) AS rows (cells) OFFSET 0) \
                 AS rows"
            ),
        }
    }

    /// A FROM item with the texts in `$param`, as the column `value`.
    pub(crate) fn texts(self, param: usize) -> String {
        match self {
            Self::Sqlite => format!("json_each(${param})"),
            Self::Postgres => format!("unnest(${param}::text[]) AS texts (value)"),
        }
    }

    /// The cell at this position of the row `value`.
    pub(crate) fn json_cell(self, at: usize, ty: Type) -> String {
        match self {
            Self::Sqlite => cell(&format!("value->>{at}"), ty),
            Self::Postgres if ty == Type::Bytes => format!("decode(value[{}], 'hex')", at + 1),
            Self::Postgres => format!("value[{}]::{}", at + 1, pg_type(ty)),
        }
    }

    /// Names the index for SQLite, which has no statistics here and might choose any usable index. PostgreSQL finds the right one.
    pub(crate) fn by_index(self, index: &str) -> String {
        match self {
            Self::Sqlite => format!("INDEXED BY {index}"),
            Self::Postgres => String::new(),
        }
    }

    /// Lets a subquery in FROM use the rows before it. SQLite has no LATERAL; there the value is a parameter.
    pub(crate) fn lateral(self) -> &'static str {
        match self {
            Self::Sqlite => "",
            Self::Postgres => "LATERAL",
        }
    }

    /// The time of [`clock`](Self::clock) with parameter 1, for a [`lateral`](Self::lateral) subquery after `c`.
    pub(crate) fn now_before(self) -> &'static str {
        match self {
            Self::Sqlite => "$1",
            Self::Postgres => "c.now",
        }
    }

    /// The batches of each lane `l` after number `after`, as `b`; one empty row if there are none. The LATERAL join makes PostgreSQL find
    /// them by their key, regardless of its statistics. SQLite keeps the order of a LEFT JOIN anyway.
    pub(crate) fn batches_behind(self, after: &str, limit: i64) -> String {
        match self {
            Self::Sqlite => format!("LEFT JOIN batches b ON b.lane = l.lane AND b.n > {after} AND b.n <= {after} + {limit}"),
            Self::Postgres => {
                format!("LEFT JOIN LATERAL (SELECT * FROM batches WHERE lane = l.lane AND n > {after} ORDER BY n LIMIT {limit}) b ON true")
            }
        }
    }

    /// `INSERT INTO table (…) SELECT … FROM rows` of the table's own type. `tail` is the ON CONFLICT clause of an upsert, or empty.
    pub(crate) fn insert(self, rows: &RowType, tail: &str) -> String {
        // SQLite's parser needs the WHERE to distinguish the ON of an upsert from that of a join.
        format!("INSERT INTO {} ({1}) SELECT {1} FROM {2} WHERE true {tail}", rows.name, rows.names(""), self.rows(rows, 1))
    }

    /// `UPDATE table SET … FROM rows` of the table's own type, by `id`: these columns, and what `also` sets.
    pub(crate) fn update(self, rows: &RowType, columns: &[&str], also: &str) -> String {
        let sets: Vec<_> = columns.iter().map(|name| format!("{name} = v.{name}")).collect();
        format!("UPDATE {0} SET {1}{also} FROM {2} WHERE {0}.id = v.id", rows.name, sets.join(", "), self.rows(rows, 1))
    }
}

/// `ON CONFLICT (key) DO UPDATE` of all other columns. The columns of a key are separated by commas.
pub(crate) fn upsert(rows: &RowType, key: &'static str) -> String {
    let sets: Vec<_> = rows.all_but(&key.split(", ").collect::<Vec<_>>()).iter().map(|name| format!("{name} = excluded.{name}")).collect();
    format!("ON CONFLICT ({key}) DO UPDATE SET {}", sets.join(", "))
}

/// `ON CONFLICT (keys) DO UPDATE` that adds the new numbers to those in `table`.
pub(crate) fn upsert_adding(table: &str, keys: &[&str], numbers: &[&str]) -> String {
    let sets: Vec<_> = numbers.iter().map(|n| format!("{n} = {table}.{n} + excluded.{n}")).collect();
    format!("ON CONFLICT ({}) DO UPDATE SET {}", keys.join(", "), sets.join(", "))
}

fn cell(text: &str, ty: Type) -> String {
    match ty {
        Type::Uuid | Type::Bytes => format!("unhex({text})"),
        _ => text.to_owned(),
    }
}

fn pg_type(ty: Type) -> &'static str {
    match ty {
        Type::Uuid => "uuid",
        Type::Int => "bigint",
        Type::Real => "float8",
        Type::Bool => "bool",
        Type::Text => "text",
        Type::Bytes => "bytea",
    }
}

/// One statement in both dialects. Its text is built from fixed parts only; values are always parameters.
pub(crate) struct Sql {
    sqlite: SqlStr,
    postgres: SqlStr,
}

/// A statement whose text is built once.
pub(crate) type Statement = std::sync::LazyLock<Sql>;

impl Sql {
    pub(crate) fn new(text: impl Fn(Kind) -> String) -> Self {
        let sql = |kind| AssertSqlSafe(std::sync::Arc::<str>::from(text(kind))).into_sql_str();
        Self { sqlite: sql(Kind::Sqlite), postgres: sql(Kind::Postgres) }
    }

    pub(crate) fn text(&self, kind: Kind) -> SqlStr {
        match kind {
            Kind::Sqlite => self.sqlite.clone(),
            Kind::Postgres => self.postgres.clone(),
        }
    }
}

/// A statement in a `static`: `statement!(NAME, |d| "text {…}")`, or a text that both dialects share.
macro_rules! statement {
    ($vis:vis $name:ident, |$d:ident| $($text:tt)+) => {
        $vis static $name: $crate::sql::dialect::Statement =
            std::sync::LazyLock::new(|| $crate::sql::dialect::Sql::new(|$d| format!($($text)+)));
    };
    ($vis:vis $name:ident, $text:literal) => {
        $vis static $name: $crate::sql::dialect::Statement =
            std::sync::LazyLock::new(|| $crate::sql::dialect::Sql::new(|_| $text.to_owned()));
    };
}
pub(crate) use statement;
