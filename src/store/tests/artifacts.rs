//! Tests of files: their chunks, their removal, and the tasks that use them.

use super::*;
use bloom_core::file::{ArtifactKind, File, FileId, Input, UNUSED_MS};
use bloom_database::Chunk;
use bloom_test_world::samples;

const HOUR: i64 = 3_600_000;

/// An id that was made when the test began.
fn id(n: u128) -> FileId {
    Uuid::from_u128(START.unsigned_abs() as u128 * (1 << 80) + (7 << 76) + (2 << 62) + n)
}

async fn chunk(writer: &mut Box<dyn Writer>, file: FileId, number: i64, content: &[u8]) {
    let job = Maintenance::StoreChunk { file, number, content: Chunk(content.to_vec()), due_at: START + 2 * HOUR };
    assert_eq!(writer.maintain(&job).await.unwrap().rows, 1);
}

async fn add(writer: &mut Box<dyn Writer>, add: op::AddFile) -> File {
    match commit(writer, vec![Op::AddFile(add)]).await.remove(0) {
        Reply::File(added) => added.file,
        other => panic!("{other:?}"),
    }
}

async fn upload(writer: &mut Box<dyn Writer>, n: u128) -> File {
    chunk(writer, id(n), 0, b"one").await;
    add(writer, op::AddFile { id: id(n), ..samples::file(0, 1, START, None) }).await
}

async fn remove_all(writer: &mut Box<dyn Writer>) {
    while writer.maintain(&Maintenance::RemoveFiles { limit: 10 }).await.unwrap().rows > 0 {}
}

fn with(spec: TaskSpec, inputs: &[FileId]) -> TaskSpec {
    let input =
        |id: &FileId| Input { artifact_id: *id, path: format!("in/{id}"), content_type: String::new(), bytes: 0, sha256: String::new() };
    TaskSpec { inputs: inputs.iter().map(input).collect(), outputs: vec!["out/*".into()], ..spec }
}

crate::on_both! {

async fn a_file_is_there_when_it_is_added(database) {
    let bench = Bench::new(database).await;
    let mut writer = bench.writer().await;
    let content: Vec<u8> = (0..=255).collect();
    chunk(&mut writer, id(1), 0, &content).await;
    chunk(&mut writer, id(1), 1, b"end").await;
    let again = Maintenance::StoreChunk { file: id(1), number: 1, content: Chunk(b"end".to_vec()), due_at: START + 2 * HOUR };
    assert_eq!(writer.maintain(&again).await.unwrap().rows, 0, "a repeat after an unknown outcome");
    assert_eq!(bench.store.file(id(1)).await.unwrap(), None);
    assert!(bench.store.artifact_sizes(None, None, &PAGE).await.unwrap().rows.is_empty());
    let file = add(&mut writer, op::AddFile { id: id(1), bytes: 259, ..samples::file(0, 1, START, None) }).await;
    assert_eq!(bench.store.file(id(1)).await.unwrap(), Some(file.clone()));
    assert_eq!(bench.store.files(&[id(1), id(2)]).await.unwrap(), [file]);
    assert_eq!(bench.store.file_chunk(id(1), 0).await.unwrap(), Some(content));
    assert_eq!(bench.store.file_chunk(id(1), 2).await.unwrap(), None);
    assert_eq!(bench.store.artifact_sizes(None, None, &PAGE).await.unwrap().rows.len(), 1);
    // Another file does not arrive completely.
    chunk(&mut writer, id(2), 0, b"part").await;
    bench.at(2 * HOUR + 1);
    remove_all(&mut writer).await;
    assert_eq!(bench.store.file_chunk(id(2), 0).await.unwrap(), None);
    assert_eq!(bench.store.file_chunk(id(1), 1).await.unwrap(), Some(b"end".to_vec()));
}

async fn uploads_go_when_no_task_uses_them(database) {
    let bench = Bench::new(database).await;
    let mut writer = bench.writer().await;
    for n in 1..=3 {
        upload(&mut writer, n).await;
    }
    let ids = create(&mut writer, vec![with(spec("a"), &[id(1), id(2)]), with(spec("b"), &[id(1)])]).await;
    let shown = bench.store.task(ids[0]).await.unwrap().unwrap();
    assert_eq!((shown.spec.inputs[0].artifact_id, shown.spec.inputs[0].bytes, &*shown.spec.outputs[0]), (id(1), 3, "out/*"));
    bench.at(UNUSED_MS + 1);
    remove_all(&mut writer).await;
    let there = || async { bench.store.existing_files(&[id(1), id(2), id(3)]).await.unwrap().len() };
    assert_eq!((there().await, bench.store.file_chunk(id(3), 0).await.unwrap()), (2, None));
    for (at, left) in [(0, 1), (1, 0)] {
        commit(&mut writer, vec![Op::Cancel(op::Cancel { task: ids[at] })]).await;
        commit(&mut writer, vec![Op::Delete(op::Delete { task: ids[at] })]).await;
        remove_all(&mut writer).await;
        assert_eq!(there().await, left);
    }
    assert_eq!(bench.store.file_chunk(id(1), 0).await.unwrap(), None);
}

async fn files_of_runs_go_with_their_tasks(database) {
    let bench = Bench::new(database).await;
    let mut writer = bench.writer().await;
    let brief = || TaskSpec { ttl_after_finished_sec: Some(1), ..spec("a") };
    let ids = create(&mut writer, vec![brief(), brief()]).await;
    for (n, task) in ids.iter().enumerate() {
        let worker = format!("w{n}");
        register(&mut writer, &worker, 1).await;
        let lease = held(&commit(&mut writer, vec![lease(*task, &worker)]).await[0]);
        let run = Some(op::FileOfRun { task: *task, lease, worker: Some(worker) });
        chunk(&mut writer, id(n as u128), 0, b"one").await;
        add(&mut writer, op::AddFile { id: id(n as u128), ..samples::file(0, 1, START, run) }).await;
    }
    assert!(bench.store.artifact_sizes(Some(ids[0]), None, &PAGE).await.unwrap().rows.len() == 1);
    for task in &ids {
        commit(&mut writer, vec![success(*task, "done")]).await;
    }
    assert_eq!(bench.store.artifact_sizes(Some(ids[0]), None, &PAGE).await.unwrap().rows.len(), 2);
    for kind in ArtifactKind::ALL {
        assert_eq!(bench.store.artifact_sizes(Some(ids[0]), Some(*kind), &PAGE).await.unwrap().rows.len(), 1, "{kind}");
        assert_eq!(bench.store.artifact_sizes(None, Some(*kind), &PAGE).await.unwrap().rows.len(), 2, "{kind}");
    }
    assert_eq!(bench.store.artifact_sizes(None, None, &Page { limit: 3, before: None }).await.unwrap().rows.len(), 3);
    commit(&mut writer, vec![Op::Delete(op::Delete { task: ids[0] })]).await;
    assert_eq!(bench.store.existing_files(&[id(0), id(1)]).await.unwrap(), [id(1)]);
    bench.at(HOUR);
    writer.maintain(&Maintenance::RemoveTasks { finished_for_ms: None, limit: 10 }).await.unwrap();
    assert!(bench.store.existing_files(&[id(0), id(1)]).await.unwrap().is_empty());
    remove_all(&mut writer).await;
    for n in 0..2 {
        assert_eq!(bench.store.file_chunk(id(n), 0).await.unwrap(), None);
    }
}

async fn large_files_are_moved_once(database) {
    let bench = Bench::new(database).await;
    let mut writer = bench.writer().await;
    for (n, bytes) in [(1, 65_536), (2, 65_537)] {
        chunk(&mut writer, id(n), 0, b"x").await;
        add(&mut writer, op::AddFile { id: id(n), bytes, ..samples::file(0, 1, START, None) }).await;
    }
    assert_eq!(bench.store.files_to_move(Uuid::nil(), 10).await.unwrap(), [id(2)]);
    assert_eq!(bench.store.output_backlog(10).await.unwrap(), 1);
    let moved = || Maintenance::MoveFile { file: id(2), url: "minio://b/files/2".into() };
    assert_eq!(writer.maintain(&moved()).await.unwrap().rows, 1);
    assert_eq!(writer.maintain(&moved()).await.unwrap().rows, 0);
    assert_eq!(bench.store.file(id(2)).await.unwrap().unwrap().object_url.as_deref(), Some("minio://b/files/2"));
    remove_all(&mut writer).await;
    assert!(bench.store.file_chunk(id(2), 0).await.unwrap().is_some(), "somebody may be reading it");
    bench.at(HOUR);
    remove_all(&mut writer).await;
    assert_eq!(bench.store.file_chunk(id(2), 0).await.unwrap(), None);
}

}
