//! Makes sure that one database alone writes to the bucket: its leader removes objects that no artifact of its own refers to, so it would
//! remove those of another database.

use bloom_database::Maintenance;
use bloom_engine::Engine;
use bloom_store::{DATABASE_ID, Store};
use uuid::Uuid;

use super::{Failure, Objects};

impl Objects {
    /// Returns only if the bucket is known to be this database's. Without that, nothing is written to it.
    ///
    /// # Errors
    /// It belongs to another database, or that could not be found out.
    pub async fn ensure_owned(&self, engine: &Engine, store: &Store) -> Result<(), Failure> {
        if self.is_owned() { Ok(()) } else { self.confirm_owned(engine, store).await }
    }

    /// As [`ensure_owned`](Self::ensure_owned), and asks the object store again.
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

/// It is made once. If several replicas try, the first one's counts.
async fn database_id(engine: &Engine, store: &Store) -> Result<String, Failure> {
    let known = || async { store.object_mark(DATABASE_ID).await.map_err(|_| Failure::of_database()) };
    if let Some(id) = known().await? {
        return Ok(id);
    }
    let mark = Maintenance::SetMark { name: DATABASE_ID, known: String::new(), value: Uuid::now_v7().to_string() };
    engine.writers.maintain(mark).await.map_err(|_| Failure::of_database())?;
    known().await?.ok_or_else(Failure::of_database)
}
