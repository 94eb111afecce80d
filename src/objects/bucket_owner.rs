//! Makes sure that only one database writes to the bucket. Its leader removes objects to which none of its artifacts refers, so it would
//! remove those of another database.

use bloom_database::Maintenance;
use bloom_engine::Engine;
use bloom_store::{DATABASE_ID, Store};
use uuid::Uuid;

use super::{Failure, Objects};

impl Objects {
    /// Checks that the bucket belongs to this database. Nothing may be written to the bucket unless this succeeds.
    ///
    /// # Errors
    /// The bucket belongs to another database, or its owner could not be found out.
    pub async fn ensure_owned(&self, engine: &Engine, store: &Store) -> Result<(), Failure> {
        if self.is_owned() { Ok(()) } else { self.confirm_owned(engine, store).await }
    }

    /// Like [`ensure_owned`](Self::ensure_owned), but always asks the object store.
    pub(super) async fn confirm_owned(&self, engine: &Engine, store: &Store) -> Result<(), Failure> {
        let found = async {
            let own = database_id(engine, store).await?;
            if self.owner(&own).await? == own { Ok(()) } else { Err(Failure::of_another()) }
        };
        let found = found.await;
        self.set_owned(found.is_ok());
        if found.is_err() {
            self.pause().await;
        }
        found
    }
}

/// The id of this database, which is made once. If several replicas make one at the same time, the first one is kept.
async fn database_id(engine: &Engine, store: &Store) -> Result<String, Failure> {
    let known = || async { store.object_mark(DATABASE_ID).await.map_err(|_| Failure::of_database()) };
    if let Some(id) = known().await? {
        return Ok(id);
    }
    let mark = Maintenance::SetMark { name: DATABASE_ID, known: String::new(), value: Uuid::now_v7().to_string() };
    engine.writers.maintain(mark).await.map_err(|_| Failure::of_database())?;
    known().await?.ok_or_else(Failure::of_database)
}
