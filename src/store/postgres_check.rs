//! Whether a PostgreSQL database can keep what it is given.

use super::args::Args;
use super::cells::Row;
use super::conn::Conn;
use super::dialect::statement;
use super::error::Error;

statement!(
    pub(super) DURABILITY,
    "SELECT current_setting('fsync'), current_setting('synchronous_commit'), current_setting('server_version_num')::bigint, \
        current_setting('server_encoding'), pg_is_in_recovery()"
);
statement!(READ_ONLY, "SELECT current_setting('transaction_read_only')");

/// Checks a database that is to be served.
pub(super) async fn check(conn: &mut Conn) -> Result<(), Error> {
    is_durable(conn.fetch(&DURABILITY, Args::new()).await?)?;
    for row in conn.fetch(&READ_ONLY, Args::new()).await? {
        if row.cells().take::<String>()? != "on" {
            continue;
        }
        return Err(Error::Setup(
            "transactions of this user are read-only in PostgreSQL (default_transaction_read_only): switch that off for the user and the database".into(),
        ));
    }
    Ok(())
}

/// Whether PostgreSQL keeps what it acknowledged, and takes all texts: what [`DURABILITY`] has found.
pub(super) fn is_durable(found: Vec<Row>) -> Result<(), Error> {
    for row in found {
        let mut row = row.cells();
        let (fsync, synchronous_commit, version): (String, String, i64) = (row.take()?, row.take()?, row.take()?);
        let (encoding, is_standby): (String, bool) = (row.take()?, row.take()?);
        if version < 140_000 {
            return Err(Error::Setup(format!("PostgreSQL {} is too old: version 14 or newer is needed", version / 10_000)));
        }
        if is_standby {
            return Err(Error::Setup("this PostgreSQL is a standby, which is read-only: name the primary in DATABASE_URL".into()));
        }
        if encoding != "UTF8" {
            return Err(Error::Setup(format!(
                "the PostgreSQL database has the encoding {encoding}, which can't keep all texts: make one with createdb --encoding=UTF8 \
                 --template=template0"
            )));
        }
        if fsync != "on" {
            return Err(Error::Setup("PostgreSQL runs with fsync = off and would lose acknowledged tasks in a power cut: set fsync = on in postgresql.conf and restart it".into()));
        }
        if synchronous_commit == "off" {
            return Err(Error::Setup(
                "synchronous_commit is off and can't be switched on for this user: set it on for the database".into(),
            ));
        }
    }
    Ok(())
}
