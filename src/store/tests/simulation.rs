//! Runs the simulation of the whole control plane on SQLite and on its database in memory, and compares every answer of the two.
//! `SIMULATION_SEEDS=from..to` runs these seeds instead of the usual ones, `SIMULATION_SEEDS=17` a single one.
//!
//! All faults of a single replica occur. Other replicas, with the feed and leadership, are left out, and so are gaps in service, which a
//! manual clock does not have.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use bloom_core::working_set::Loaded;
use bloom_simulation::mirror::{Mirror, Work};
use bloom_simulation::{Outcome, Plan, run_beside, run_seeds};
use bloom_store::{Clock, Store, StoreOptions};

use crate::equivalence::{assert_same, compare_all};
use crate::{START, support};
use bloom_test_world::memory::Memory;

/// The number of seeds in a usual test run.
const SEEDS: u64 = 12;

struct Beside {
    store: Store,
    url: String,
    time: Arc<AtomicI64>,
}

impl Beside {
    async fn open(url: String) -> Self {
        let time = Arc::new(AtomicI64::new(START));
        let options = StoreOptions { url: url.clone(), max_connections: 2 };
        let store = Store::with_clock(&options, Clock::Manual(time.clone())).await.expect("opens");
        store.migrate().await.expect("migrates");
        Self { store, url, time }
    }
}

#[async_trait::async_trait]
impl Mirror for Beside {
    fn at(&self, now: i64) -> Arc<dyn bloom_database::Database> {
        self.time.store(now, Ordering::SeqCst);
        Arc::new(self.store.clone())
    }

    fn carry(&self, work: Work<'_, ()>) -> Result<(), String> {
        // In a thread of its own, because the simulation's runtime has virtual time and no I/O.
        let ended = std::thread::scope(|scope| scope.spawn(|| support::finish(work)).join());
        ended.map_err(|said| match said.downcast::<String>() {
            Ok(text) => *text,
            Err(said) => (*said.downcast::<&str>().unwrap_or(Box::new("it panicked"))).to_owned(),
        })
    }

    fn assert_same(&self, found: &Loaded, expected: &Loaded) {
        assert_same(found, expected, &|| "a load".into());
    }

    async fn has_batch(&self, writer: i64, n: i64) -> bool {
        use sqlx::Connection;
        let mut conn = sqlx::SqliteConnection::connect(&self.url).await.expect("connects");
        let found = sqlx::query_scalar("SELECT changes <> 'void' FROM batches WHERE lane = $1 AND n = $2").bind(writer).bind(n);
        let found: Option<bool> = found.fetch_optional(&mut conn).await.expect("reads");
        conn.close().await.expect("closes");
        found == Some(true)
    }

    async fn assert_all(&self, memory: &Memory, now: i64) {
        let mut writer = bloom_database::Database::writer(&self.store).await.expect("a writer");
        compare_all(&self.store, &mut writer, memory, now).await;
        writer.close().await;
    }
}

fn run_one(plan: &Plan) -> Outcome {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let beside = Arc::new(support::run(Beside::open(format!("sqlite:{}", dir.path().join("bloom.db").display()))));
    let outcome = run_beside(plan, beside.clone());
    support::run(beside.store.close());
    outcome
}

#[test]
fn sqlite_goes_through_every_run_as_memory_does() {
    run_seeds(SEEDS, |seed| Plan::of(seed).alone(), run_one);
}
