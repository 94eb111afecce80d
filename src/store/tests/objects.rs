//! Tests of what the object store needs from the database.

use super::*;
use bloom_core::command::ArtifactObject;
use bloom_core::run_result::StoredObject;
use bloom_store::AUDIT_FLUSHED;

fn stored(bytes: i64) -> StoredObject {
    StoredObject { url: "minio://bucket/artifacts/a".into(), bytes, preview: "the beginning".into() }
}

crate::on_both! {

async fn outputs_are_moved_once(database) {
    let bench = Bench::new(database).await;
    let mut writer = bench.writer().await;
    register(&mut writer, "w", 4).await;
    let ids = create(&mut writer, vec![spec("a"), spec("b"), spec("c")]).await;
    let at_limit = "x".repeat(65_536);
    let above = "\u{1F600}".repeat(16_385);
    for (id, output) in [(ids[0], &*at_limit), (ids[1], &above)] {
        commit(&mut writer, vec![lease(id, "w"), success(id, output)]).await;
    }
    let mut written = success(ids[2], "");
    let Op::Complete(completion) = &mut written else { panic!("a completion") };
    let artifact_id = Uuid::from_u128(START.unsigned_abs() as u128 * (1 << 80) + 7);
    (completion.output, completion.object) = (None, Some(ArtifactObject { artifact_id, stored: stored(70_000), until: i64::MAX }));
    commit(&mut writer, vec![lease(ids[2], "w"), written]).await;
    let there = bench.store.newest_result(ids[2]).await.unwrap().unwrap();
    assert_eq!((there.artifact_id, &there.output, &there.object), (artifact_id, &None, &Some(stored(70_000))));
    assert_eq!(bench.store.artifact_sizes(Some(ids[2]), None, &PAGE).await.unwrap().rows, [(artifact_id, 70_000)]);
    assert_eq!(bench.store.artifact(artifact_id).await.unwrap(), Some(there));

    let before = bench.store.newest_result(ids[1]).await.unwrap().unwrap();
    assert_eq!(bench.store.outputs_to_move(Uuid::nil(), 10).await.unwrap(), [before.artifact_id]);
    assert!(bench.store.outputs_to_move(before.artifact_id, 10).await.unwrap().is_empty());
    assert_eq!((bench.store.output_backlog(10).await.unwrap(), bench.store.output_backlog(0).await.unwrap()), (1, 0));
    let object = stored(before.output_bytes() as i64);
    let job = Maintenance::MoveOutput { artifact: before.artifact_id, object: object.clone() };
    assert_eq!(writer.maintain(&job).await.unwrap().rows, 1);
    let again = Maintenance::MoveOutput { artifact: before.artifact_id, object: stored(1) };
    assert_eq!(writer.maintain(&again).await.unwrap().rows, 0, "it was moved already");
    let after = bench.store.newest_result(ids[1]).await.unwrap().unwrap();
    assert_eq!(after, bloom_core::run_result::RunResult { output: None, object: Some(object), ..before });
    assert_eq!(bench.store.output_backlog(10).await.unwrap(), 0);
    let asked = [after.artifact_id, Uuid::max(), artifact_id];
    assert_eq!(bench.store.existing_artifacts(&asked).await.unwrap().len(), 2);
}

async fn entries_are_pruned_up_to_the_mark(database) {
    let bench = Bench::new(database).await;
    let mut writer = bench.writer().await;
    create(&mut writer, vec![spec("a"); 5]).await;
    let entries: Vec<_> = bench.store.audit_after(Uuid::nil(), START + DAY, 100).await.unwrap().iter().map(|entry| entry.id).collect();
    assert_eq!(entries.len(), 5);
    assert_eq!(bench.store.audit_after(entries[1], START + DAY, 2).await.unwrap()[0].id, entries[2]);
    assert!(bench.store.audit_after(Uuid::nil(), START, 100).await.unwrap().is_empty(), "made at that time or later");
    bench.at(2 * DAY);
    let prune = Maintenance::PruneAudit { older_than_ms: DAY, limit: 100, only_flushed: true };
    assert_eq!(writer.maintain(&prune).await.unwrap().rows, 0, "without a mark, nothing is written");
    let set = |known: &str, value: Uuid| Maintenance::SetMark { name: AUDIT_FLUSHED, known: known.into(), value: value.to_string() };
    assert_eq!(writer.maintain(&set("", entries[1])).await.unwrap().rows, 1);
    assert_eq!(writer.maintain(&set("", entries[4])).await.unwrap().rows, 0, "another leader has set it");
    assert_eq!(writer.maintain(&set(&entries[1].to_string(), entries[3])).await.unwrap().rows, 1);
    assert_eq!(bench.store.object_mark(AUDIT_FLUSHED).await.unwrap(), Some(entries[3].to_string()));
    assert_eq!(bench.store.object_mark("another").await.unwrap(), None);
    assert_eq!(writer.maintain(&prune).await.unwrap().rows, 3);
    let left: Vec<_> = bench.store.audit_after(Uuid::nil(), START + DAY, 100).await.unwrap().iter().map(|entry| entry.id).collect();
    assert_eq!(left, entries[3..]);
}

}
