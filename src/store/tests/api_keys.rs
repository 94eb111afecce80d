//! Tests that keys of WorkerPools are counted, and are loaded only on request, and that nobody else adds or removes keys meanwhile.

use super::*;
use bloom_core::api_key::{Quota, Scope};
use bloom_core::audit::Requester;
use bloom_core::working_set::LoadedKeys;

fn key(name: &str, worker: &str) -> op::CreateKey {
    op::CreateKey {
        name: name.into(),
        digest: format!("digest of {name}"),
        scope: Scope::Worker,
        worker: Some(worker.into()),
        push: false,
        namespaces: None,
        lasts_ms: None,
        quota: Quota::default(),
        team: None,
    }
}

/// Creates a key in the name of a Kubernetes namespace, or of an administrator.
async fn create(writer: &mut Box<dyn Writer>, namespace: Option<&str>, name: &str, worker: &str) {
    let op = Op::CreateKey(key(name, worker));
    let by = namespace.map(Requester::of_namespace).unwrap_or_default();
    let mut set = WorkingSet::new(writer.begin_and_load(&op.keys(), LockWait::Long).await.unwrap(), seed());
    decide(&mut set, &Command { op, by, epoch: None }).expect("is allowed");
    writer.save(&set, None).await.unwrap();
}

async fn loaded(writer: &mut Box<dyn Writer>, keys: &RowKeys) -> LoadedKeys {
    let loaded = writer.begin_and_load(keys, LockWait::Long).await.unwrap();
    writer.rollback().await.unwrap();
    loaded.api_keys.expect("keys")
}

fn names(keys: &LoadedKeys) -> Vec<&str> {
    keys.rows.keys().map(String::as_str).collect()
}

crate::on_both! {

async fn keys_of_pools_are_counted_and_loaded_if_they_are_asked_for(database) {
    let bench = Bench::new(database).await;
    let mut writer = bench.writer().await;
    create(&mut writer, None, "by-hand", "w").await;
    // The name of a key does not make it a pool's key, and namespaces with similar names are counted separately.
    create(&mut writer, None, "pool-a-9", "a.pool-9").await;
    for (namespace, name, worker) in [("a", "pool-a-0", "a.pool-0"), ("a", "pool-a-1", "a.pool-1"), ("a-b", "pool-b-0", "b.pool-0")] {
        create(&mut writer, Some(namespace), name, worker).await;
    }

    let mut keys = RowKeys { api_keys: true, ..RowKeys::default() };
    let all = loaded(&mut writer, &keys).await;
    assert_eq!(names(&all), ["by-hand", "pool-a-9"]);
    assert_eq!(all.of_pools, [("a".to_owned(), 2), ("a-b".to_owned(), 1)].into());
    keys.key_names.insert("pool-a-1".into());
    keys.key_workers.insert("b.pool-0".into());
    assert_eq!(names(&loaded(&mut writer, &keys).await), ["by-hand", "pool-a-1", "pool-a-9", "pool-b-0"]);
    assert_eq!(bench.store.api_keys().await.unwrap().len(), 5);

    commit(&mut writer, vec![Op::RevokeKey(op::RevokeKey { name: "pool-a-1".into() })]).await;
    assert_eq!(loaded(&mut writer, &keys).await.of_pools["a"], 1);
    assert_eq!(bench.store.api_keys().await.unwrap().len(), 4);
}

}

/// `Short` gives up after 50 ms, so a creation that waits for the other one is an error here.
#[test]
fn keys_are_created_one_after_the_other() {
    support::run(async {
        let bench = Bench::new(Database::Postgres).await;
        let (mut one, mut other) = (bench.writer().await, bench.writer().await);
        // There is no existing key that both could lock.
        let ops = [key("one", "a"), key("other", "b")].map(Op::CreateKey);
        one.begin_and_load(&ops[0].keys(), LockWait::Long).await.unwrap();
        let loaded = other.begin_and_load(&ops[1].keys(), LockWait::Short).await;
        assert!(matches!(loaded, Err(Error::Locked(_))), "the count stays until the first one is created: {loaded:?}");
        other.rollback().await.unwrap();
        one.rollback().await.unwrap();
        create(&mut other, None, "other", "b").await;
    });
}
