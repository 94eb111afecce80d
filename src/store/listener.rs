//! Wake-ups across replicas. They carry nothing and may be lost: whoever is woken looks at the feed, and looks now and then anyway.

use sqlx::postgres::{PgConnectOptions, PgListener, PgPoolOptions};

use super::dialect::{Kind, statement};
use super::error::Error;
use super::open::ACQUIRE;

const CHANNEL: &str = "bloom_runtime";
statement!(
    pub(super) NOTIFY,
    |d| "SELECT {}",
    match d {
        Kind::Sqlite => "1",
        Kind::Postgres => "1 FROM pg_notify('bloom_runtime', '')",
    }
);

/// Hears other replicas, on a connection of its own.
pub(super) struct Listener(PgListener);

impl Listener {
    pub async fn connect(options: &PgConnectOptions) -> Result<Self, Error> {
        let own = PgPoolOptions::new().max_connections(1).max_lifetime(None).idle_timeout(None).acquire_timeout(ACQUIRE);
        let mut listener = PgListener::connect_with(&own.connect_lazy_with(options.clone())).await?;
        listener.eager_reconnect(false);
        listener.listen(CHANNEL).await?;
        Ok(Self(listener))
    }

    /// Waits for the next wake-up; `false`: the connection was lost. May be dropped and called again.
    pub async fn recv(&mut self) -> Result<bool, Error> {
        Ok(self.0.try_recv().await?.is_some())
    }
}
