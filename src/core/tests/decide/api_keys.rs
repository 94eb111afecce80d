//! Named keys: their valid names and number, who may revoke them, and what a join token can be used for.

use std::sync::Arc;

use bloom_core::api_key::{ApiKey, FormerKey, MAX_KEYS, MAX_POOL_KEYS, MAX_POOL_KEYS_OF_NAMESPACE, Quota, Scope, is_key_name};
use bloom_core::command::{Command, Loss, Op, Rejection, Reply, Requester, WorkerChange};
use bloom_core::decide::decide;
use bloom_core::ids::InstanceId;
use bloom_core::op;
use bloom_core::worker::DispatchMode;
use bloom_core::working_set::{Loaded, WorkingSet};
use bloom_test_world::world::{START, World, registration, spec, world};

const DAY_MS: i64 = 86_400_000;

fn create(name: &str, scope: Scope) -> op::CreateKey {
    op::CreateKey {
        name: name.into(),
        digest: format!("digest of {name}"),
        scope,
        worker: None,
        push: false,
        namespaces: None,
        lasts_ms: None,
        quota: Quota::default(),
        team: None,
    }
}

fn token(name: &str, worker: Option<&str>) -> op::CreateKey {
    op::CreateKey { worker: worker.map(str::to_owned), lasts_ms: Some(DAY_MS), ..create(name, Scope::Join) }
}

fn enroll(token: &str, worker: &str) -> op::Enroll {
    op::Enroll {
        token: token.into(),
        token_digest: format!("digest of {token}"),
        worker: worker.into(),
        digest: format!("new digest for {worker}"),
        instance: None,
    }
}

fn strict() -> World {
    let mut world = world();
    world.strict = true;
    world
}

fn names(world: &World) -> Vec<&str> {
    world.db.api_keys.keys().map(String::as_str).collect()
}

fn audit(world: &World) -> Vec<String> {
    let told = |entry: &bloom_core::audit::AuditEntry| format!("{} {} by {}: {}", entry.action, entry.entity_id, entry.actor, entry.detail);
    world.db.audit.iter().filter(|entry| entry.entity_type.as_str() == "key").map(told).collect()
}

#[test]
fn a_key_is_created_and_revoked() {
    let mut world = strict();
    let created = world.ok(op::CreateKey { worker: Some("w".into()), lasts_ms: Some(DAY_MS), ..create("k", Scope::Worker) });
    let expected = ApiKey {
        name: "k".into(),
        digest: "digest of k".into(),
        former: None,
        scope: Scope::Worker,
        worker: Some("w".into()),
        push: false,
        namespaces: None,
        created_at: START,
        expires_at: Some(START + DAY_MS),
        created_by: "admin".into(),
        quota: Quota::default(),
        team: None,
    };
    assert_eq!(created, expected);
    assert_eq!(world.db.api_keys["k"], expected);
    assert!(!created.has_expired(START + DAY_MS - 1) && created.has_expired(START + DAY_MS));
    let before = world.db.clone();
    assert_eq!(world.run(create("k", Scope::Read)).unwrap_err(), Rejection::KeyExists("k".into()));
    assert_eq!(world.run(op::RevokeKey { name: "other".into() }).unwrap_err(), Rejection::KeyNotFound);
    assert_eq!(world.db, before);
    world.ok(op::RevokeKey { name: "k".into() });
    assert!(world.db.api_keys.is_empty());
    assert_eq!(audit(&world), ["key_created k by admin: scope worker, worker w", "key_revoked k by admin: scope worker"]);
}

#[test]
fn a_rotated_key_has_two_secrets_for_a_while() {
    let mut world = strict();
    let quota = Quota { max_open_tasks: Some(3), ..Quota::default() };
    let made = world.ok(op::CreateKey { quota, lasts_ms: Some(DAY_MS), ..create("k", Scope::Submit) });
    world.now += 1_000;
    let rotate = |digest: &str, overlap_ms, lasts_ms| op::RotateKey { name: "k".into(), digest: digest.into(), overlap_ms, lasts_ms };
    let rotated = world.ok(rotate("second", 5_000, None));
    let former = FormerKey { digest: "digest of k".into(), until: world.now + 5_000 };
    assert_eq!(rotated, ApiKey { digest: "second".into(), former: Some(former), ..made.clone() });
    assert_eq!(world.db.api_keys["k"], rotated);
    let before = rotated.before_rotation().unwrap();
    assert_eq!(before, ApiKey { expires_at: Some(world.now + 5_000), former: None, ..made.clone() });
    // It never outlives the key. Of three secrets, the oldest one ends.
    let rotated = world.ok(rotate("third", 2 * DAY_MS, None));
    assert_eq!(
        (rotated.former.as_ref().unwrap().digest.as_str(), rotated.before_rotation().unwrap().expires_at),
        ("second", made.expires_at)
    );
    let rotated = world.ok(rotate("fourth", 0, Some(9_000)));
    assert_eq!((rotated.former, rotated.expires_at), (None, Some(world.now + 9_000)));
    assert_eq!(audit(&world)[1], "key_rotated k by admin: the former key is valid for 5 more seconds");
    assert_eq!(audit(&world)[3], "key_rotated k by admin: the former key is no longer valid");

    world.ok(token("join", None));
    for (name, told) in [("nobody", "Key not found"), ("join", "A join token is used up by its first use: create a new one")] {
        let refused = world.run(op::RotateKey { name: name.into(), ..rotate("x", 0, None) }).unwrap_err();
        assert_eq!(refused.to_string(), told);
    }
    world.now += 9_000;
    assert!(world.run(rotate("x", 0, None)).unwrap_err().to_string().contains("has expired"));
}

#[test]
fn a_batch_may_rotate_a_key_and_revoke_it() {
    let mut world = strict();
    let rotate = || Op::from(op::RotateKey { name: "k".into(), digest: "second".into(), overlap_ms: 1, lasts_ms: None });
    let revoke = || Op::from(op::RevokeKey { name: "k".into() });
    world.ok(create("k", Scope::Read));
    assert!(world.run_batch(vec![rotate(), revoke()]).iter().all(Result::is_ok));
    assert!(world.db.api_keys.is_empty());
    assert!(world.run_batch(vec![create("k", Scope::Read).into(), rotate()]).iter().all(Result::is_ok));
    assert_eq!(world.db.api_keys["k"].digest, "second");
}

#[test]
fn a_batch_may_revoke_what_it_creates_and_create_what_it_revokes() {
    let mut world = strict();
    let revoke = || Op::from(op::RevokeKey { name: "k".into() });
    let make = |scope| Op::from(create("k", scope));
    assert!(world.run_batch(vec![make(Scope::Read), revoke()]).iter().all(Result::is_ok));
    assert!(world.db.api_keys.is_empty());
    assert!(world.run_batch(vec![make(Scope::Read)]).iter().all(Result::is_ok));
    assert!(world.run_batch(vec![revoke(), make(Scope::Submit), revoke(), make(Scope::Admin)]).iter().all(Result::is_ok));
    assert_eq!(world.db.api_keys["k"].scope, Scope::Admin);
}

#[test]
fn the_number_of_keys_is_limited_and_expired_join_tokens_do_not_count() {
    let mut world = strict();
    world.ok(token("old", None));
    world.ok(op::CreateKey { lasts_ms: Some(1), ..create("expired", Scope::Read) });
    world.now += DAY_MS;
    for n in 0..MAX_KEYS - 1 {
        world.ok(create(&format!("k{n}"), Scope::Submit));
    }
    assert!(!names(&world).contains(&"old") && names(&world).contains(&"expired"));
    assert_eq!(world.run(create("more", Scope::Read)).unwrap_err(), Rejection::TooManyKeys);
    world.ok(op::RevokeKey { name: "expired".into() });
    world.ok(create("more", Scope::Read));
}

/// A command of a WorkerPool of this namespace.
fn of_pool(namespace: &str, op: impl Into<Op>) -> Command {
    Command { op: op.into(), by: Requester::of_namespace(namespace), epoch: None }
}

fn run_for(world: &mut World, namespace: &str, op: impl Into<Op>) -> Result<Reply, Rejection> {
    world.run_commands(vec![of_pool(namespace, op)]).remove(0)
}

/// Adds keys of WorkerPools of this namespace, with the same result as creating them one by one.
fn with_pool_keys(world: &mut World, namespace: &str, count: usize) {
    for n in 0..count {
        let key = ApiKey {
            name: format!("pool-{namespace}-{n}"),
            digest: format!("digest {n} of {namespace}"),
            former: None,
            scope: Scope::Worker,
            worker: Some(format!("{namespace}.pool-{n}")),
            push: false,
            namespaces: Some(vec![namespace.to_owned()]),
            created_at: START,
            expires_at: None,
            created_by: format!("key:kubernetes:{namespace}"),
            quota: Quota::default(),
            team: None,
        };
        world.db.api_keys.insert(key.name.clone(), key);
    }
}

#[test]
fn keys_of_pools_have_limits_of_their_own() {
    let mut world = strict();
    let create = |name: &str| create(name, Scope::Worker);
    run_for(&mut world, "a", create("pool-a-first")).unwrap();
    assert_eq!(world.db.api_keys["pool-a-first"].pool_namespace(), Some("a"));
    with_pool_keys(&mut world, "a", MAX_POOL_KEYS_OF_NAMESPACE - 2);
    run_for(&mut world, "a", create("pool-a-last")).unwrap();
    let before = world.db.clone();
    assert_eq!(run_for(&mut world, "a", create("more")).unwrap_err(), Rejection::TooManyPoolKeysOf("a".into()));
    assert_eq!(world.db, before);
    run_for(&mut world, "b", create("pool-b-first")).unwrap();

    // Keys of WorkerPools do not use up the room of other keys, or the reverse. A key's name does not show whose it is.
    for n in 0..MAX_KEYS {
        world.ok(create(&format!("pool-a-of-admin-{n}")));
    }
    assert_eq!(world.run(create("more")).unwrap_err(), Rejection::TooManyKeys);
    run_for(&mut world, "b", create("pool-b-second")).unwrap();
    run_for(&mut world, "a", op::RevokeKey { name: "pool-a-first".into() }).unwrap();
    assert_eq!(world.run(create("more")).unwrap_err(), Rejection::TooManyKeys);
    run_for(&mut world, "a", create("pool-a-first")).unwrap();

    for namespace in ["c", "d", "e", "f", "g", "h", "i", "j"] {
        with_pool_keys(&mut world, namespace, MAX_POOL_KEYS_OF_NAMESPACE);
    }
    with_pool_keys(&mut world, "b", MAX_POOL_KEYS_OF_NAMESPACE - 3);
    assert_eq!(world.db.api_keys.values().filter(|key| key.pool_namespace().is_some()).count(), MAX_POOL_KEYS - 1);
    run_for(&mut world, "b", create("pool-b-third")).unwrap();
    assert_eq!(run_for(&mut world, "k", create("pool-k-first")).unwrap_err(), Rejection::TooManyPoolKeys);
    // An administrator may revoke any of them.
    world.ok(op::RevokeKey { name: "pool-b-third".into() });
    run_for(&mut world, "k", create("pool-k-first")).unwrap();
    for (rejection, parts) in [
        (Rejection::TooManyKeys, ["1000 keys", "revoke"]),
        (Rejection::TooManyPoolKeys, ["10000 keys", "scale some down"]),
        (Rejection::TooManyPoolKeysOf("a".into()), ["namespace 'a' have 1000 keys", "scale some down"]),
    ] {
        assert!(parts.iter().all(|part| rejection.to_string().contains(part)), "{rejection}");
    }
}

#[test]
fn a_batch_counts_the_keys_that_it_creates_and_revokes() {
    let mut world = strict();
    with_pool_keys(&mut world, "a", MAX_POOL_KEYS_OF_NAMESPACE - 1);
    let make = |name: &str| of_pool("a", create(name, Scope::Worker));
    let revoke = |name: &str| of_pool("a", op::RevokeKey { name: name.into() });
    let answers =
        world.run_commands(vec![make("one"), make("two"), revoke("one"), make("three"), revoke("pool-a-7"), make("four"), make("five")]);
    let full = Rejection::TooManyPoolKeysOf("a".into());
    let refused: Vec<usize> =
        answers.iter().enumerate().filter(|(_, answer)| answer.as_ref().err() == Some(&full)).map(|(at, _)| at).collect();
    assert_eq!(refused, [1, 6], "{answers:?}");
    assert_eq!(world.db.api_keys.len(), MAX_POOL_KEYS_OF_NAMESPACE);
}

#[test]
fn names_and_workers_of_pools_are_taken() {
    let mut world = strict();
    let for_w = op::CreateKey { worker: Some("w".into()), ..create("pool-a-0", Scope::Worker) };
    run_for(&mut world, "a", for_w.clone()).unwrap();
    assert_eq!(world.run(for_w.clone()).unwrap_err(), Rejection::KeyExists("pool-a-0".into()));
    assert_eq!(run_for(&mut world, "b", for_w).unwrap_err(), Rejection::KeyExists("pool-a-0".into()));
    world.ok(token("join", None));
    world.ok(token("for-w", Some("w")));
    assert_eq!(world.run(enroll("join", "w")).unwrap_err(), Rejection::WorkerTaken("w".into()));
    world.ok(enroll("for-w", "w"));
    assert_eq!(names(&world), ["join", "worker-w"], "the key of the pool is replaced");
    let named = create("worker-v", Scope::Worker);
    run_for(&mut world, "a", named).unwrap();
    assert_eq!(world.run(enroll("join", "v")).unwrap_err(), Rejection::KeyExists("worker-v".into()));
}

#[test]
fn a_join_token_enrolls_one_worker_once() {
    let mut world = strict();
    world.ok(token("join", None));
    let key = world.ok(enroll("join", "w1"));
    assert_eq!((key.name.as_str(), key.worker.as_deref(), key.scope, key.expires_at), ("worker-w1", Some("w1"), Scope::Worker, None));
    assert_eq!(key.digest, "new digest for w1");
    assert_eq!(names(&world), ["worker-w1"]);
    assert_eq!(world.run(enroll("join", "w2")).unwrap_err(), Rejection::JoinTokenGone);
    assert_eq!(audit(&world).last().unwrap(), "worker_enrolled worker-w1 by api: worker w1");
}

#[test]
fn what_a_join_token_allows_the_key_allows() {
    for push in [false, true] {
        let mut world = strict();
        world.ok(op::CreateKey { push, ..token("join", None) });
        assert_eq!(world.ok(enroll("join", "w1")).push, push);
    }
}

#[test]
fn the_url_that_a_key_has_named_ends_with_the_key() {
    let with_url = || {
        let mut world = strict().worker("w", 1);
        world.ok(op::CreateKey { worker: Some("w".into()), push: true, ..create("by-hand", Scope::Worker) });
        let worker = world.db.workers.get_mut("w").unwrap();
        (worker.url, worker.dispatch) = ("http://w".into(), DispatchMode::Push);
        world
    };
    let url = |world: &World| (world.db.workers["w"].url.clone(), world.db.workers["w"].dispatch);
    let mut world = with_url();
    world.ok(op::RevokeKey { name: "by-hand".into() });
    assert_eq!(url(&world), (String::new(), DispatchMode::Manual));

    let mut world = with_url();
    world.ok(token("join", Some("w")));
    world.ok(enroll("join", "w"));
    assert_eq!(url(&world), (String::new(), DispatchMode::Manual));

    // Another key, from the environment, may have set it.
    let mut world = strict().worker("w", 1);
    world.db.workers.get_mut("w").unwrap().url = "http://w".into();
    world.ok(op::CreateKey { worker: Some("w".into()), ..create("by-hand", Scope::Worker) });
    world.ok(op::RevokeKey { name: "by-hand".into() });
    assert_eq!(url(&world).0, "http://w");
}

#[test]
fn one_of_two_enrollments_in_a_batch_wins() {
    let mut world = strict();
    world.ok(token("join", None));
    let outcomes = world.run_batch(vec![enroll("join", "w1").into(), enroll("join", "w2").into()]);
    assert!(outcomes[0].is_ok());
    assert_eq!(outcomes[1].as_ref().unwrap_err(), &Rejection::JoinTokenGone);
    assert_eq!(names(&world), ["worker-w1"]);
}

#[test]
fn what_a_join_token_does_not_do() {
    let mut world = strict().worker("known", 1);
    let refused = |world: &mut World, op: op::Enroll| {
        let before = world.db.clone();
        let rejection = world.run(op).unwrap_err();
        assert_eq!(world.db, before, "a rejection changes nothing");
        rejection
    };
    world.ok(token("join", None));
    world.ok(token("for-w2", Some("w2")));
    world.ok(create("read", Scope::Read));
    world.ok(op::CreateKey { worker: Some("w3".into()), ..create("by-hand", Scope::Worker) });
    world.ok(create("worker-w4", Scope::Admin));
    assert_eq!(refused(&mut world, enroll("join", "known")), Rejection::WorkerTaken("known".into()));
    assert_eq!(refused(&mut world, enroll("join", "w3")), Rejection::WorkerTaken("w3".into()));
    assert_eq!(refused(&mut world, enroll("join", "w4")), Rejection::KeyExists("worker-w4".into()));
    assert_eq!(refused(&mut world, enroll("for-w2", "w1")), Rejection::JoinTokenFor("w2".into()));
    assert_eq!(refused(&mut world, enroll("read", "w1")), Rejection::JoinTokenGone);
    assert_eq!(refused(&mut world, enroll("nobody", "w1")), Rejection::JoinTokenGone);
    // A token that was created again with the same name is a different token.
    let stale = op::Enroll { token_digest: "digest of the former".into(), ..enroll("join", "w1") };
    assert_eq!(refused(&mut world, stale), Rejection::JoinTokenGone);
    world.now += DAY_MS;
    assert_eq!(refused(&mut world, enroll("join", "w1")), Rejection::JoinTokenGone);
}

#[test]
fn a_token_for_a_worker_replaces_its_keys() {
    let mut world = strict().worker("w", 1);
    world.ok(op::CreateKey { worker: Some("w".into()), ..create("by-hand", Scope::Worker) });
    world.ok(token("first", Some("w")));
    world.ok(enroll("first", "w"));
    assert_eq!(names(&world), ["worker-w"]);
    world.ok(token("second", Some("w")));
    world.ok(op::Enroll { digest: "newer".into(), ..enroll("second", "w") });
    assert_eq!(names(&world), ["worker-w"]);
    assert_eq!(world.db.api_keys["worker-w"].digest, "newer");
}

#[test]
fn an_agent_at_work_keeps_its_key() {
    let [first, second] = [1, 2].map(InstanceId::from_u128);
    let mut world = strict();
    world.ok(WorkerChange { instance: Some(first), ..registration("w", 1) });
    let enrolled = |world: &mut World, name: &str, instance: Option<InstanceId>| {
        world.ok(token(name, Some("w")));
        world.run(op::Enroll { instance, ..enroll(name, "w") })
    };
    enrolled(&mut world, "own", Some(first)).unwrap();
    let before = world.db.api_keys["worker-w"].clone();
    let refused = enrolled(&mut world, "other", Some(second)).unwrap_err();
    assert!(refused.to_string().contains("give one of the two another name"), "{refused}");
    assert_eq!(world.db.api_keys["worker-w"], before);
    assert!(world.db.api_keys.contains_key("other"), "the token is not used up");
    enrolled(&mut world, "by-hand", None).unwrap_err();
    assert_eq!(world.db.api_keys["worker-w"], before, "nor does one lose it to a caller that does not say which agent it is");
    world.ok(op::MarkOffline { worker: "w".into(), cause: Loss::PodEnded });
    world.ok(enroll("by-hand", "w"));
    world.ok(op::Enroll { instance: Some(second), ..enroll("other", "w") });
}

#[test]
fn the_actor_is_the_key_and_can_not_pose_as_another() {
    let act = |key: Option<&str>, op: Op| {
        let loaded = Loaded { now: START, ..world().db.load(START, &op.keys()) };
        let mut set = WorkingSet::new(loaded, 1);
        let command = Command { by: Requester { key: key.map(Arc::from), ..Requester::default() }, ..op.into() };
        decide(&mut set, &command).unwrap();
        set.dirty.audit.remove(0).actor
    };
    let create =
        || Op::from(op::Create { tasks: vec![bloom_core::task::TaskSpec { session: bloom_core::task::Session::None, ..spec("c") }] });
    assert_eq!(act(None, create()), "api");
    assert_eq!(act(Some("reconciler"), create()), "key:reconciler");
    assert_eq!(act(Some("ci"), super::api_keys::create("k", Scope::Read).into()), "key:ci");
    assert_eq!(act(None, super::api_keys::create("k", Scope::Read).into()), "admin");
}

#[test]
fn names_of_keys() {
    for right in ["a", "7", "ci.build_2-x", &"n".repeat(63)] {
        assert!(is_key_name(right), "{right}");
    }
    for wrong in ["", "-a", ".a", "_", "a/b", "a b", "a:b", "é", "a\n", &"n".repeat(64)] {
        assert!(!is_key_name(wrong), "{wrong}");
    }
}

#[test]
fn a_key_with_namespaces_limits_a_worker_that_was_registered_before() {
    let served = |world: &World| world.db.workers["w"].capabilities.namespaces.clone();
    let names = |names: &[&str]| Some(names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>());
    for (before, after) in [(None, names(&["a", "b"])), (names(&["b", "c"]), names(&["b"])), (names(&["c"]), names(&[]))] {
        let known = || {
            let mut world = strict().worker("w", 1);
            world.db.workers.get_mut("w").unwrap().capabilities.namespaces.clone_from(&before);
            world
        };
        let limited = |key: op::CreateKey| op::CreateKey { namespaces: names(&["a", "b"]), ..key };
        let mut world = known();
        world.ok(limited(op::CreateKey { worker: Some("w".into()), ..create("by-hand", Scope::Worker) }));
        assert_eq!(served(&world), after);
        world.check();

        let mut world = known();
        world.ok(limited(token("join", Some("w"))));
        assert_eq!(served(&world), before, "nobody has used the token");
        assert_eq!(world.ok(enroll("join", "w")).namespaces, names(&["a", "b"]));
        assert_eq!(served(&world), after);

        let mut world = known();
        world.ok(op::CreateKey { worker: Some("w".into()), ..create("by-hand", Scope::Worker) });
        assert_eq!(served(&world), before, "this key has no limit");
    }
}
