//! The audit trail in the object store: each entry in exactly one object, that of its hour, before retention may remove it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bloom_objects::Objects;
use bloom_telemetry::Metrics;
use secrecy::SecretString;
use uuid::Uuid;

use crate::on_both;
use crate::support::checker::{Link, plain};
use crate::support::minio::{self, Minio, Policy};
use crate::support::plane::{DAY, Plane};
use crate::support::proxy::Proxy;
use crate::support::*;

const HOUR: i64 = 3_600_000;

/// The lines in the bucket by the ids of their entries, with the directories of their hours.
async fn lines(minio: &Minio) -> BTreeMap<String, (String, Value)> {
    let mut found = BTreeMap::new();
    for key in minio.objects("audit") {
        for line in minio.read(&format!("audit/{key}")).await.lines() {
            let line: Value = serde_json::from_str(line).expect("JSON");
            let id = line["id"].as_str().expect("an id").to_owned();
            let (hour, _) = key.rsplit_once('/').expect("an hour");
            assert!(found.insert(id.clone(), (hour.to_owned(), line)).is_none(), "{id} is there twice");
        }
    }
    found
}

/// Adds entries as they were made this many hours ago. Returns their ids, oldest first.
async fn add_entries(url: &str, hours: i64, number: usize) -> Vec<String> {
    let mut link = Link::open(url).await;
    let at = now_ms() - hours * HOUR;
    let mut ids = Vec::new();
    for n in 0..number {
        let mut random = *Uuid::now_v7().as_bytes().last_chunk::<10>().expect("ten bytes");
        // In their order.
        random[..2].copy_from_slice(&u16::try_from(n).expect("a small number").to_be_bytes());
        let id = uuid::Builder::from_unix_timestamp_millis(at.unsigned_abs(), &random).into_uuid().to_string();
        let value = if matches!(link, Link::Sqlite(_)) { format!("x'{}'", plain(&id)) } else { format!("'{id}'") };
        link.rows(&format!(
            "INSERT INTO audit (id, timestamp, action, entity_type, entity_id, actor, detail) \
             VALUES ({value}, {at}, 'config_updated', 'config', 'c', 'admin', 'entry {n}') RETURNING detail"
        ))
        .await;
        ids.push(id);
    }
    ids
}

async fn has_mark(url: &str) -> bool {
    Link::open(url).await.count("object_marks WHERE name = 'audit_flushed'").await == 1
}

on_both! { alone:
    async fn a_server_that_is_killed_while_it_writes_the_trail_writes_each_entry_once(database) {
        let before = Server::on(database).start();
        let url = before.database_url();
        before.stop();
        let mut expected = Vec::new();
        for hours in [9, 5, 3] {
            expected.extend(add_entries(&url, hours, 30).await);
        }
        let minio = Minio::start().await;
        let proxy = Proxy::start(&minio.url()).await;
        proxy.hold_answers_from("PUT /bloom-artifacts/audit/");
        let server = Minio::used_by(Server::on_url(&url), &proxy.url).start();
        eventually("an object is written", || async { (!minio.objects("audit").is_empty()).then_some(()) }).await;
        server.kill9();
        assert!(minio.objects("audit").len() == 1 && !has_mark(&url).await, "it died between the object and the mark");
        proxy.release();
        server.start_again();
        let written = eventually("all entries are written", || async {
            let lines = lines(&minio).await;
            expected.iter().all(|id| lines.contains_key(id)).then_some(lines)
        })
        .await;
        eventually("the mark is stored", || async { has_mark(&url).await.then_some(()) }).await;
        let trail = server.get("audit?limit=1000").await.ok();
        let trail: BTreeMap<_, _> = trail.as_array().unwrap().iter().map(|entry| (entry["id"].as_str().unwrap(), entry)).collect();
        for (id, (_, line)) in &written {
            for (field, value) in trail[&**id].as_object().unwrap() {
                assert_eq!(&line[field], value, "{field} of {id}");
            }
        }
        let hours: BTreeSet<_> = expected.iter().map(|id| &written[id].0).collect();
        assert_eq!(hours.len(), 3, "{hours:?}");
    }
}

/// Starts the loop of the object store.
fn flushes(plane: &Plane, minio: &Minio) {
    let settings = bloom_config::ObjectStore {
        endpoint: Some(minio.url().parse().unwrap()),
        region: "us-east-1".into(),
        bucket: minio::BUCKET.into(),
        access_key: SecretString::from(minio::ACCESS_KEY),
        secret_key: SecretString::from(minio::SECRET_KEY),
        grace: Duration::from_secs(86_400),
    };
    let objects = Objects::new(settings, Metrics::new().unwrap()).unwrap();
    plane.engine.background.spawn(bloom_objects::run(plane.context.clone(), plane.store.clone(), objects));
}

/// The ids of all entries in the database, oldest first.
async fn kept(plane: &Plane) -> Vec<Uuid> {
    let entries = plane.store.audit_after(Uuid::nil(), i64::MAX, 1_000).await.unwrap();
    entries.iter().map(|entry| entry.id).collect()
}

async fn the_audit_trail_is_written_by_hour_once(on_postgres: bool) {
    let minio = Minio::start().await;
    let plane = Plane::start(on_postgres).await;
    flushes(&plane, &minio);
    plane.create_many(3, |_| {}).await;
    let entries = plane.store.audit_after(uuid::Uuid::nil(), i64::MAX, 100).await.unwrap();
    let expected = format!("{}-{}.jsonl", entries[0].id, entries.last().unwrap().id);
    plane.pass_leading(2 * HOUR).await;
    let written = eventually("the hour is written", || async {
        // The loop waits by the clock of the test.
        plane.pass_leading(2_500).await;
        let found = minio.objects("audit");
        (!found.is_empty()).then_some(found)
    })
    .await;
    assert_eq!(written.len(), 1, "{written:?}");
    assert!(written[0].ends_with(&expected), "{written:?} has not {expected}");
    eventually("the mark is stored", || async {
        let mark = plane.store.object_mark(bloom_store::AUDIT_FLUSHED).await.unwrap();
        (mark == Some(entries.last().unwrap().id.to_string())).then_some(())
    })
    .await;
    plane.create(|_| {}).await;
    plane.pass_leading(2 * HOUR).await;
    eventually("the next hour is written", || async {
        plane.pass_leading(2_500).await;
        (minio.objects("audit").len() == 2).then_some(())
    })
    .await;
}

async fn retention_spares_what_is_not_written(on_postgres: bool) {
    let policy = Policy::start().await;
    policy.deny_writes();
    let minio = Minio::with_policy(&policy).await;
    let plane = Plane::keeping_until_flushed(on_postgres, 1).await;
    flushes(&plane, &minio);
    plane.create_many(5, |_| {}).await;
    let all = kept(&plane).await;
    plane.pass_leading(3 * DAY).await;
    plane.has_run("retention").await;
    assert_eq!(kept(&plane).await, all, "nothing is written, so nothing is removed");
    policy.allow_writes();
    // What is removed is before the mark, which is at the last entry.
    let last = *all.last().unwrap();
    eventually("what is written is removed", || async {
        plane.pass_leading(2_500).await;
        (kept(&plane).await == [last]).then_some(())
    })
    .await;
    let written: BTreeSet<_> = lines(&minio).await.into_keys().collect();
    assert_eq!(written, all.iter().map(Uuid::to_string).collect());
}

crate::on_both_clocks!(the_audit_trail_is_written_by_hour_once, retention_spares_what_is_not_written);
