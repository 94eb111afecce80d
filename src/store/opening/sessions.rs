//! Sessions of PostgreSQL: begins and configures them, and explains why a connection fails.
//!
//! The settings are set by a statement, not when the connection is opened, because a connection pooler would refuse or ignore most of them
//! then. They must last as long as the connection, so a pooler that gives a connection several sessions is refused.

use std::collections::BTreeMap;
use std::str::FromStr as _;

use sqlx::pool::PoolOptions;
use sqlx::postgres::{PgConnectOptions, PgConnection, PgListener};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, Postgres, Row as _};
use url::Url;
use uuid::Uuid;

use crate::error::{Error, told};
use crate::outage::OutageReason;
use crate::sql::conn::{ACQUIRE, Conn, pool_options};

/// Longer than a replica keeps its locks if it freezes in the middle of a transaction.
const LOCK_TIMEOUT: &str = "2s";
/// Every query is a look-up by key or an ordered page, so it must use an index. A plan that was made while a table was empty must not scan
/// the table when it is large.
const PLANS: [(&str, &str); 5] =
    [("jit", "off"), ("enable_seqscan", "off"), ("enable_bitmapscan", "off"), ("enable_hashjoin", "off"), ("enable_mergejoin", "off")];
/// A setting of the socket. It reads as 0 if the connection is not over TCP.
const OF_SOCKET: &str = "tcp_user_timeout";

const SHARES_SESSIONS: &str = "a connection to this PostgreSQL does not keep its session: DATABASE_URL names PgBouncer in transaction mode (or \
    statement mode), or another pooler like it; connect directly to PostgreSQL, or set pool_mode = session";

/// The target of connections, and the settings of their sessions.
#[derive(Clone)]
pub(crate) struct Sessions {
    options: PgConnectOptions,
    /// The settings in the parameter `options` of the URL.
    theirs: Vec<(String, String)>,
    ours: BTreeMap<&'static str, String>,
}

impl Sessions {
    /// Sessions of any database.
    pub(crate) fn of(url: &str) -> Result<Self, Error> {
        // The parsers' errors are dropped, because they may repeat the URL, which can contain a password.
        let invalid =
            || Error::Setup("DATABASE_URL is not a valid PostgreSQL URL; write postgres://user:password@host:5432/database".into());
        let mut url = Url::parse(url.trim()).map_err(|_| invalid())?;
        let (theirs, kept): (Vec<_>, Vec<_>) =
            url.query_pairs().into_owned().partition(|(name, _)| name == "options" || name.starts_with("options["));
        url.set_query(None);
        if !kept.is_empty() {
            url.query_pairs_mut().extend_pairs(kept);
        }
        let options = PgConnectOptions::from_str(url.as_str()).map_err(|_| invalid())?;
        // The driver would take the brackets of an IPv6 address for a part of the name.
        let host = options.get_host().trim_start_matches('[').trim_end_matches(']').to_owned();
        let options = options.host(&host);
        // `None`, because the driver would set `extra_float_digits`, which only concerns text, when it opens the connection.
        let options = options.application_name("bloom-runtime").extra_float_digits(None).disable_statement_logging();
        let theirs = theirs.into_iter().map(|(name, value)| settings(&name, value)).collect::<Result<Vec<_>, _>>()?;
        Ok(Self { options, theirs: theirs.concat(), ours: BTreeMap::new() })
    }

    /// Sessions of the database that is served.
    pub(crate) fn served(url: &str) -> Result<Self, Error> {
        let sessions = Self::of(url)?.with(PLANS);
        Ok(sessions.with([("synchronous_commit", "on"), (OF_SOCKET, "5s"), ("lock_timeout", LOCK_TIMEOUT)]))
    }

    /// Adds settings. The values must be written as PostgreSQL shows them.
    pub(crate) fn with<V: Into<String>>(mut self, settings: impl IntoIterator<Item = (&'static str, V)>) -> Self {
        self.ours.extend(settings.into_iter().map(|(name, value)| (name, value.into())));
        self
    }

    pub(crate) fn options(&self) -> PgConnectOptions {
        self.options.clone()
    }

    /// Options for a pool whose connections get these settings.
    pub(crate) fn pool_options(&self, connections: u32) -> PoolOptions<Postgres> {
        let sessions = self.clone();
        pool_options(connections).after_connect(move |conn, _| {
            let sessions = sessions.clone();
            Box::pin(async move { sessions.set(conn).await })
        })
    }

    pub(crate) async fn connect(&self) -> Result<Conn, sqlx::Error> {
        let connected = async {
            let mut conn = PgConnection::connect_with(&self.options).await?;
            self.set(&mut conn).await?;
            Ok(Conn::Postgres(conn))
        };
        tokio::time::timeout(ACQUIRE, connected).await.unwrap_or(Err(sqlx::Error::PoolTimedOut))
    }

    /// The first connection of a program, which checks that connections keep their sessions.
    pub(crate) async fn first(&self) -> Result<Conn, Error> {
        let explained = |error| self.explain(error);
        let conn = self.connect().await.map_err(explained)?;
        if self.are_kept().await.map_err(explained)? { Ok(conn) } else { Err(Error::Setup(SHARES_SESSIONS.into())) }
    }

    /// A connection that listens to a channel.
    pub(crate) async fn listen(&self, channel: &str) -> Result<PgListener, sqlx::Error> {
        let mut listener = self.listener().await?;
        listener.listen(channel).await?;
        Ok(listener)
    }

    async fn listener(&self) -> Result<PgListener, sqlx::Error> {
        let mut listener = PgListener::connect_with(&self.pool_options(1).connect_lazy_with(self.options())).await?;
        listener.eager_reconnect(false);
        Ok(listener)
    }

    /// Whether a connection keeps its session from one transaction to the next. A pooler may give it the same session each time as long as
    /// it is the only one, but never passes on what arrives in that session between two transactions: a notification.
    async fn are_kept(&self) -> Result<bool, sqlx::Error> {
        let channel = format!("bloom_runtime_{}", Uuid::now_v7().simple());
        let heard = async {
            let mut listener = self.listen(&channel).await?;
            // This connection may get the notification instead.
            let mut other = self.listener().await?;
            sqlx::raw_sql(AssertSqlSafe(format!("NOTIFY {channel}"))).execute(&mut other).await?;
            match tokio::time::timeout(ACQUIRE, listener.try_recv()).await {
                Ok(Ok(None)) => Err(sqlx::Error::Protocol("the connection was lost".into())),
                Ok(heard) => Ok(heard?.is_some()),
                Err(_) => Ok(false),
            }
        };
        match heard.await {
            // A standby has no notifications.
            Err(sqlx::Error::Database(error)) if error.code().as_deref() == Some("25006") => Ok(true),
            heard => heard,
        }
    }

    async fn set(&self, conn: &mut PgConnection) -> Result<(), sqlx::Error> {
        let theirs = self.theirs.iter().map(|(name, value)| (&**name, value));
        let all: Vec<(&str, &String)> = theirs.chain(self.ours.iter().map(|(name, value)| (*name, value))).collect();
        if all.is_empty() {
            return Ok(());
        }
        let quoted = |text: &str| format!("'{}'", text.replace('\'', "''"));
        let calls: Vec<String> =
            all.iter().map(|(name, value)| format!("set_config({}, {}, false)", quoted(name), quoted(value))).collect();
        // All settings are set by one message without parameters, which returns the resulting values.
        let row = sqlx::raw_sql(AssertSqlSafe(format!("SELECT {}", calls.join(", ")))).fetch_one(conn).await?;
        for (at, (name, wanted)) in all.iter().enumerate().skip(self.theirs.len()) {
            let found: String = row.try_get(at)?;
            if found != **wanted && *name != OF_SOCKET {
                return Err(sqlx::Error::Configuration(format!("{name} is {found} in PostgreSQL and can't be set to {wanted}").into()));
            }
        }
        Ok(())
    }

    /// Explains why a connection failed: the server refused it, or can't be reached.
    fn explain(&self, error: sqlx::Error) -> Error {
        let server = format!("{}:{}", self.options.get_host(), self.options.get_port());
        let code = error.as_database_error().and_then(|database| database.code());
        let is_option = matches!(code.as_deref(), Some("42704" | "22023"));
        let (told, reason) = (told(&error), OutageReason::of(&error));
        match (&error, reason) {
            (sqlx::Error::Configuration(_), _) => Error::Setup(told),
            (sqlx::Error::Tls(_), _) => Error::Setup(format!(
                "no encrypted connection to PostgreSQL at {server}: {told}; check ssl in postgresql.conf, and sslmode and sslrootcert in DATABASE_URL"
            )),
            (_, OutageReason::Connections) => Error::Setup(format!(
                "PostgreSQL at {server} has no connection left: {told}; end idle ones, or raise max_connections, the CONNECTION LIMIT of the role or \
                 database, or the limits of the pooler"
            )),
            _ if is_option || reason == OutageReason::Authentication => Error::Setup(format!(
                "PostgreSQL at {server} refused the connection: {told}; check user, password, database and options in DATABASE_URL"
            )),
            _ => Error::Unavailable(reason, format!("no connection to PostgreSQL at {server} ({told})")),
        }
    }
}

/// The settings in a parameter of the URL: `options[NAME]=VALUE`, or `options=-c NAME=VALUE …`.
fn settings(parameter: &str, value: String) -> Result<Vec<(String, String)>, Error> {
    if let Some(name) = parameter.strip_prefix("options[").and_then(|name| name.strip_suffix(']')) {
        return Ok(vec![(name.to_owned(), value)]);
    }
    let wrong = || Error::Setup("the parameter options of DATABASE_URL may only have settings: options=-c NAME=VALUE".into());
    let mut found = Vec::new();
    let mut words = words(&value).into_iter();
    while let Some(word) = words.next() {
        let setting = match word.strip_prefix("--").or_else(|| word.strip_prefix("-c")) {
            Some("") => words.next().ok_or_else(wrong)?,
            Some(setting) => setting.to_owned(),
            None => return Err(wrong()),
        };
        let (name, value) = setting.split_once('=').ok_or_else(wrong)?;
        // As on PostgreSQL's command line, `-` in a name stands for `_`.
        found.push((name.replace('-', "_"), value.to_owned()));
    }
    Ok(found)
}

/// Splits a text at white space. A backslash makes the next character a part of the word.
fn words(text: &str) -> Vec<String> {
    let (mut words, mut word) = (Vec::new(), String::new());
    let mut chars = text.chars();
    while let Some(char) = chars.next() {
        match char {
            '\\' => word.extend(chars.next()),
            char if char.is_ascii_whitespace() => words.push(std::mem::take(&mut word)),
            char => word.push(char),
        }
    }
    words.push(word);
    words.retain(|word| !word.is_empty());
    words
}

#[cfg(test)]
mod tests {
    use super::settings;

    #[test]
    fn settings_of_a_url_are_read_as_postgresql_reads_them() {
        for (value, expected) in [
            ("-c search_path=a", vec![("search_path", "a")]),
            (" -csearch_path=a\\ b  --work-mem=4MB ", vec![("search_path", "a b"), ("work_mem", "4MB")]),
            ("", vec![]),
        ] {
            let found = settings("options", value.into()).unwrap();
            let expected: Vec<_> = expected.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
            assert_eq!(found, expected, "{value}");
        }
        for wrong in ["-d 5", "-c", "-c a", "search_path=a"] {
            assert!(settings("options", wrong.into()).is_err(), "{wrong}");
        }
    }
}
