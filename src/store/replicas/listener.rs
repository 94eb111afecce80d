//! Notifications between replicas. They have no content and may be lost, because the receiver also reads the feed without notifications.

use std::pin::Pin;

use sqlx::postgres::PgListener;

use crate::error::Error;
use crate::opening::sessions::Sessions;
use crate::sql::dialect::{Kind, statement};

const CHANNEL: &str = "bloom_runtime";
statement!(
    pub(crate) NOTIFY,
    |d| "SELECT {}",
    match d {
        Kind::Sqlite => "1",
        Kind::Postgres => "1 FROM pg_notify('bloom_runtime', '')",
    }
);

type Connecting = Pin<Box<dyn Future<Output = Result<PgListener, Error>> + Send>>;

/// Receives notifications on a connection of its own. Its state is kept here, so a wait can be cancelled and repeated.
#[derive(Default)]
pub(crate) enum Listener {
    #[default]
    Idle,
    Connecting(Connecting),
    Listening(PgListener),
}

impl Listener {
    /// Waits for the next notification. Also returns after connecting, and with an error if the connection is lost, because notifications
    /// may have been missed.
    pub(crate) async fn recv(&mut self, sessions: &Sessions) -> Result<(), Error> {
        loop {
            match self {
                Self::Idle => *self = Self::Connecting(Box::pin(connect(sessions.clone()))),
                Self::Connecting(connecting) => {
                    let connected = connecting.as_mut().await;
                    *self = Self::Idle;
                    *self = Self::Listening(connected?);
                    return Ok(());
                }
                Self::Listening(listener) => {
                    let heard = listener.try_recv().await;
                    if !matches!(heard, Ok(Some(_))) {
                        *self = Self::Idle;
                    }
                    heard?;
                    return Ok(());
                }
            }
        }
    }
}

async fn connect(sessions: Sessions) -> Result<PgListener, Error> {
    Ok(sessions.listen(CHANNEL).await?)
}
