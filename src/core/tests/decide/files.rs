//! Files: when a file may be added, used and removed.

use bloom_core::command::Rejection;
use bloom_core::file::{
    File, FileKind, Input, MAX_FILE_BYTES_OF_TASK, MAX_FILES_OF_LEASE, MAX_UNUSED_BYTES, MAX_UNUSED_UPLOADS, UNUSED_MS,
};
use bloom_core::ids::TaskId;
use bloom_core::op;
use bloom_core::task::TaskSpec;
use bloom_test_world::samples::file;
use bloom_test_world::world::{World, spec, world};

fn upload(world: &mut World, id: u128, owner: &str) -> File {
    let wanted = op::AddFile { owner: owner.into(), ..file(id, 1, world.now, None) };
    world.ok(wanted).file
}

fn with(inputs: &[(TaskId, &str)]) -> TaskSpec {
    let input = |(id, path): &(TaskId, &str)| Input {
        artifact_id: *id,
        path: (*path).into(),
        content_type: String::new(),
        bytes: 0,
        sha256: String::new(),
    };
    TaskSpec { inputs: inputs.iter().map(input).collect(), ..spec("c") }
}

#[test]
fn a_task_gets_what_is_known_of_its_inputs() {
    let mut world = world();
    let (one, two) = (upload(&mut world, 1, "team"), upload(&mut world, 2, ""));
    assert_eq!((one.kind, one.remove_at), (FileKind::Input, Some(world.now + UNUSED_MS)));
    let created = world.ok(op::Create { tasks: vec![with(&[(one.id, ""), (two.id, "in/x")])] });
    let input = |file: &File, path: &str| Input {
        artifact_id: file.id,
        path: path.into(),
        content_type: file.content_type.clone(),
        bytes: file.bytes,
        sha256: file.sha256.clone(),
    };
    assert_eq!(created[0].spec.inputs, [input(&one, "file1"), input(&two, "in/x")]);
    assert_eq!(world.db.files.rows[&one.id].remove_at, None, "it is in use");
    assert_eq!(world.run(op::DeleteFile { file: one.id }).unwrap_err(), Rejection::ArtifactInUse);
    let clash = op::Create { tasks: vec![with(&[(one.id, "a"), (two.id, "a/b")])] };
    assert_eq!(world.run(clash).unwrap_err(), Rejection::InputsClash("a".into(), "a/b".into()));
    let gone = op::Create { tasks: vec![with(&[(TaskId::from_u128(9), "a")])] };
    assert_eq!(world.run(gone).unwrap_err(), Rejection::UnknownInputs(vec![TaskId::from_u128(9)]));
}

#[test]
fn an_unused_upload_can_be_removed() {
    let mut world = world();
    let one = upload(&mut world, 1, "");
    world.ok(op::DeleteFile { file: one.id });
    assert!(world.db.files.rows.is_empty());
    assert_eq!(world.run(op::DeleteFile { file: one.id }).unwrap_err(), Rejection::ArtifactNotFound);
}

#[test]
fn unused_uploads_have_a_limit_for_each_owner() {
    let mut world = world();
    for id in 0..MAX_UNUSED_UPLOADS {
        upload(&mut world, id.unsigned_abs().into(), "team");
    }
    let more = op::AddFile { owner: "team".into(), ..file(9_999, 1, world.now, None) };
    assert_eq!(world.run(more.clone()).unwrap_err(), Rejection::TooManyUploads);
    let large = op::AddFile { owner: "other".into(), bytes: MAX_UNUSED_BYTES + 1, ..more };
    assert_eq!(world.run(large.clone()).unwrap_err(), Rejection::TooManyUploads);
    world.ok(op::AddFile { bytes: MAX_UNUSED_BYTES, ..large });
}

#[test]
fn a_file_that_took_too_long_is_refused() {
    let mut world = world();
    let late = op::AddFile { until: world.now - 1, ..file(1, 1, world.now, None) };
    assert_eq!(world.run(late).unwrap_err(), Rejection::UploadTooOld);
}

#[test]
fn the_active_lease_adds_files_up_to_its_limits() {
    let mut world = world().worker("w", 1);
    let task = world.create(spec("c"));
    let lease = world.lease(task, "w");
    let run = || Some(op::FileOfRun { task, lease, worker: None });
    let first = world.ok(file(1, 1, world.now, run()));
    assert!(first.is_new && first.file.worker_id.is_some() && first.file.remove_at.is_none());
    let again = world.ok(file(2, 1, world.now, run()));
    assert!(!again.is_new && again.file == first.file);
    let other = op::FileOfRun { task, lease: TaskId::from_u128(5), worker: None };
    assert!(matches!(world.run(file(3, 1, world.now, Some(other))).unwrap_err(), Rejection::NotTheActiveLease(_)));
    let large = |bytes| op::AddFile { bytes, ..file(4, 2, 0, run()) };
    let large = |bytes, until| op::AddFile { until, ..large(bytes) };
    let now = world.now;
    assert_eq!(world.run(large(MAX_FILE_BYTES_OF_TASK - 2, now)).unwrap_err(), Rejection::TooManyFileBytes);
    for n in 1..MAX_FILES_OF_LEASE {
        world.ok(op::AddFile { name: format!("f{n}"), ..file(10 + n as u128, 1, now, run()) });
    }
    assert_eq!(world.run(op::AddFile { name: "more".into(), ..file(999, 1, now, run()) }).unwrap_err(), Rejection::TooManyFiles);
    assert!(!world.ok(file(998, 1, now, run())).is_new, "a repeat is no further file");
}
