//! Quotas of submit keys: what is refused, what counts, and which keys have none.

use bloom_core::api_key::{Quota, Scope};
use bloom_core::command::{Command, Op, Rejection, Reply, Requester};
use bloom_core::op;
use bloom_core::task::{TASK_BYTES, TaskSpec};
use bloom_core::task_limits::LimitChange;
use bloom_test_world::world::{START, World, spec, world};

const NONE: Quota = Quota { max_open_tasks: None, max_tasks_per_minute: None, max_stored_bytes: None };

/// A world with the submit keys `team` and `other`, which both have this quota.
fn limited(quota: Quota) -> World {
    let mut world = world().worker("w", 9);
    world.strict = true;
    for name in ["team", "other"] {
        world.ok(op::CreateKey {
            name: name.into(),
            digest: format!("digest of {name}"),
            scope: Scope::Submit,
            worker: None,
            push: false,
            namespaces: None,
            lasts_ms: None,
            quota,
            team: None,
        });
    }
    world
}

fn run_as(world: &mut World, key: &str, op: impl Into<Op>) -> Result<Reply, Rejection> {
    let by = Requester { key: Some(key.into()), has_quota: true, ..Requester::default() };
    world.run_commands(vec![Command { op: op.into(), by, epoch: None }]).remove(0)
}

fn tasks(key: &str, names: &[&str]) -> op::Create {
    let task = |name: &&str| TaskSpec { owner: Some(key.into()), idempotency_key: Some((*name).into()), ..spec(name) };
    op::Create { tasks: names.iter().map(task).collect() }
}

#[test]
fn open_tasks_are_limited_until_some_end() {
    let mut world = limited(Quota { max_open_tasks: Some(2), ..NONE });
    run_as(&mut world, "team", tasks("team", &["a", "b"])).unwrap();
    let full = Rejection::QuotaOfOpenTasks { most: 2, open: 2 };
    let before = world.db.clone();
    assert_eq!(run_as(&mut world, "team", tasks("team", &["c"])).unwrap_err(), full);
    assert_eq!(world.db, before);
    // A repeat creates nothing, and other keys have separate quotas.
    run_as(&mut world, "team", tasks("team", &["a"])).unwrap();
    run_as(&mut world, "other", tasks("other", &["d", "e"])).unwrap();
    let ids: Vec<_> = world.db.specs.values().filter(|spec| spec.owner.as_deref() == Some("team")).map(|spec| spec.id).collect();
    run_as(&mut world, "team", op::Cancel { task: ids[0] }).unwrap();
    run_as(&mut world, "team", tasks("team", &["c"])).unwrap();
    // Requeuing opens a task again. An administrator may do it.
    let again = op::Requeue { task: ids[0], limits: LimitChange::default() };
    assert_eq!(run_as(&mut world, "team", again.clone()).unwrap_err(), full);
    world.ok(again);
    assert_eq!(run_as(&mut world, "team", tasks("team", &["f"])).unwrap_err(), Rejection::QuotaOfOpenTasks { most: 2, open: 3 });
}

#[test]
fn calls_of_one_batch_share_the_room() {
    let mut world = limited(Quota { max_open_tasks: Some(1), max_tasks_per_minute: Some(1), max_stored_bytes: None });
    let by = || Requester { key: Some("team".into()), has_quota: true, ..Requester::default() };
    let create = |name: &str| Command { op: tasks("team", &[name]).into(), by: by(), epoch: None };
    let outcomes = world.run_commands(vec![create("a"), create("b"), create("c")]);
    assert_eq!(outcomes.iter().filter(|outcome| outcome.is_ok()).count(), 1);
}

#[test]
fn the_room_of_a_minute_comes_back_evenly() {
    let mut world = limited(Quota { max_tasks_per_minute: Some(2), ..NONE });
    assert_eq!(run_as(&mut world, "team", tasks("team", &["a", "b", "c"])).unwrap_err(), Rejection::QuotaOfOneCall { most: 2 });
    run_as(&mut world, "team", tasks("team", &["a", "b"])).unwrap();
    let wait = |wait_ms| Rejection::QuotaOfTasksPerMinute { most: 2, wait_ms };
    assert_eq!(run_as(&mut world, "team", tasks("team", &["c"])).unwrap_err(), wait(30_000));
    assert_eq!(wait(29_001).retry_after_sec(), Some(30));
    world.now = START + 29_999;
    assert_eq!(run_as(&mut world, "team", tasks("team", &["c"])).unwrap_err(), wait(1));
    world.now = START + 30_000;
    run_as(&mut world, "team", tasks("team", &["c"])).unwrap();
    assert_eq!(run_as(&mut world, "team", tasks("team", &["d"])).unwrap_err(), wait(30_000));
    // After the clock was set back, nobody waits for more than a minute.
    world.now = START - 3_600_000;
    assert_eq!(run_as(&mut world, "team", tasks("team", &["d"])).unwrap_err(), wait(30_000));
}

#[test]
fn stored_bytes_count_prompts_and_uploads_at_once() {
    let mut world = limited(Quota { max_stored_bytes: Some(1_000 + 3 * TASK_BYTES), ..NONE });
    let of = |name: &str, bytes: usize| {
        let mut create = tasks("team", &[name]);
        create.tasks[0].prompt = "x".repeat(bytes);
        create
    };
    run_as(&mut world, "team", of("a", 900)).unwrap();
    let full = |stored| Rejection::QuotaOfStoredBytes { most: 1_000 + 3 * TASK_BYTES, stored };
    assert_eq!(run_as(&mut world, "team", of("b", 101 + 2 * TASK_BYTES as usize)).unwrap_err(), full(900 + TASK_BYTES));
    run_as(&mut world, "team", of("b", 100 + TASK_BYTES as usize)).unwrap();
    assert_eq!(run_as(&mut world, "team", of("c", 1)).unwrap_err(), full(1_000 + 3 * TASK_BYTES));
    // A run of a requeued task would store more, too.
    let id = world.db.specs.values().next().unwrap().id;
    run_as(&mut world, "team", op::Cancel { task: id }).unwrap();
    let again = op::Requeue { task: id, limits: LimitChange::default() };
    assert_eq!(run_as(&mut world, "team", again.clone()).unwrap_err(), full(1_000 + 3 * TASK_BYTES));
    world.ok(again);
}

#[test]
fn a_quota_is_changed_and_removed() {
    let mut world = limited(Quota { max_open_tasks: Some(1), ..NONE });
    run_as(&mut world, "team", tasks("team", &["a"])).unwrap();
    let set = |name: &str, quota| op::SetQuota { name: name.into(), quota };
    world.ok(set("team", Quota { max_open_tasks: Some(2), ..NONE }));
    run_as(&mut world, "team", tasks("team", &["b"])).unwrap();
    assert_eq!(run_as(&mut world, "team", tasks("team", &["c"])).unwrap_err(), Rejection::QuotaOfOpenTasks { most: 2, open: 2 });
    world.ok(set("team", NONE));
    run_as(&mut world, "team", tasks("team", &["c", "d", "e"])).unwrap();
    let told: Vec<_> = world.db.audit.iter().filter(|entry| entry.action.as_str() == "quota_changed").map(|entry| &*entry.detail).collect();
    assert_eq!(told, ["2 open tasks", "no quota"]);
    assert_eq!(world.run(set("nobody", NONE)).unwrap_err(), Rejection::KeyNotFound);
    // If a key is revoked while its call is on its way, there are no limits to check.
    world.ok(op::RevokeKey { name: "team".into() });
    assert_eq!(run_as(&mut world, "team", tasks("team", &["f"])).unwrap_err(), Rejection::KeyGone);
}
