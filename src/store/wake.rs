//! Wake-ups across replicas. They carry nothing and may be lost: whoever is woken looks at the feed, and looks now and then anyway.

use sqlx::postgres::PgListener;

use super::Store;
use super::args::Args;
use super::conn::Pool;
use super::dialect::{Kind, statement};
use super::error::Error;

const CHANNEL: &str = "bloom_runtime";
statement!(
    NOTIFY,
    |d| "SELECT {}",
    match d {
        Kind::Sqlite => "1",
        Kind::Postgres => "1 FROM pg_notify('bloom_runtime', '')",
    }
);

/// Hears other replicas.
pub struct Listener(PgListener);

impl Listener {
    /// Waits for the next wake-up. A lost connection is one too, as something may have been missed; the next call makes a new one.
    pub async fn recv(&mut self) -> Result<(), Error> {
        self.0.try_recv().await?;
        Ok(())
    }
}

impl Store {
    /// Wakes other replicas. The server takes a lock for it that all of its clients share: a few a second at most.
    pub async fn notify(&self) -> Result<(), Error> {
        if self.kind() == Kind::Postgres {
            self.pool().fetch(&NOTIFY, Args::new()).await?;
        }
        Ok(())
    }

    /// `None` on SQLite, which has one replica. Takes one of the connections for reading.
    pub async fn listener(&self) -> Result<Option<Listener>, Error> {
        match self.pool() {
            Pool::Sqlite(..) => Ok(None),
            Pool::Postgres(pool) => {
                let mut listener = PgListener::connect_with(pool).await?;
                listener.listen(CHANNEL).await?;
                Ok(Some(Listener(listener)))
            }
        }
    }
}
