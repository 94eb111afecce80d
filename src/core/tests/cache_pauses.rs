//! The cache's view of paused workers: the pause that a task waits for, and the accounts that workers must not use.

use bloom_core::Ms;
use bloom_core::audit::Actor;
use bloom_core::cache::{Cache, Shortage};
use bloom_core::command::{Loss, WorkerChange};
use bloom_core::limits::{PAUSE_MS, TOLD_PAUSE_MS};
use bloom_core::op;
use bloom_core::pause::{Pause, PauseCause, PauseKind};
use bloom_test_world::world::{START, World, spec, world};

/// Registers a worker, and adds its row to the cache.
fn register(world: &mut World, cache: &mut Cache, worker: &str, pauses: Vec<Pause>) {
    register_in(world, cache, worker, None, pauses);
}

fn register_in(world: &mut World, cache: &mut Cache, worker: &str, namespaces: Option<&[&str]>, pauses: Vec<Pause>) {
    let namespaces = namespaces.map(|names| names.iter().map(|name| (*name).to_owned()).collect());
    world.ok(WorkerChange { id: worker.into(), pauses: Some(pauses), namespaces, actor: Actor::Api, ..WorkerChange::default() });
    put(world, cache, worker);
}

fn put(world: &World, cache: &mut Cache, worker: &str) {
    let read = cache.begin_read();
    cache.put_worker(world.db.workers[worker].clone(), &read);
    cache.end_read(&read);
}

fn quota(account: &str, until: Ms) -> Pause {
    let (kind, cause, message) = (PauseKind::Account, PauseCause::Quota, format!("until {until}"));
    Pause { kind, name: account.into(), cause, since: 1, until, message, agents: None, told_by: None, is_resumed: false }
}

#[test]
fn of_several_pauses_the_first_that_ends_by_itself_counts() {
    let (mut world, mut cache) = (world(), Cache::default());
    let told = |cache: &Cache| match cache.fleet.shortage(spec("c").requirement(), 0, START) {
        Some(Shortage::Paused { until, cause, .. }) => format!("{cause} until {}", until.0),
        other => format!("{other:?}"),
    };
    let refused = Pause { cause: PauseCause::Credentials, message: "sign in".into(), ..quota("b", 10) };
    register(&mut world, &mut cache, "z", vec![refused.clone()]);
    assert_eq!(told(&cache), "credentials until 10");
    register(&mut world, &mut cache, "a", vec![quota("a", 500), refused, quota("c", 300)]);
    register(&mut world, &mut cache, "m", vec![quota("a", 400)]);
    assert_eq!(told(&cache), "quota until 300");
    let disk = Pause { kind: PauseKind::Worker, cause: PauseCause::Disk, ..quota("a", 900) };
    register(&mut world, &mut cache, "a", vec![quota("c", 300), disk]);
    assert_eq!(told(&cache), "quota until 400", "the whole worker is paused for longer");
}

#[test]
fn workers_learn_what_others_found_out_of_quota() {
    let (mut world, mut cache) = (world(), Cache::default());
    let told = |cache: &Cache, worker: &str, now| {
        let paused = cache.fleet.paused_accounts(worker, &["team".into(), "own".into()], now);
        paused.into_iter().map(|paused| (paused.account, paused.until, paused.worker)).collect::<Vec<_>>()
    };
    let of = |account: &str, until: Ms, worker: &str| vec![(account.to_owned(), until, worker.to_owned())];
    let refused = Pause { cause: PauseCause::Credentials, ..quota("own", 500) };
    register(&mut world, &mut cache, "a", vec![quota("team", 500), quota("another", 500), refused]);
    register(&mut world, &mut cache, "b", vec![]);
    assert_eq!((told(&cache, "b", 499), told(&cache, "b", 500)), (of("team", 500, "a"), vec![]));
    assert_eq!(told(&cache, "a", 1), [], "its own pause");
    register(&mut world, &mut cache, "b", vec![Pause { told_by: Some("a".into()), ..quota("team", 500) }]);
    assert_eq!(told(&cache, "a", 1), [], "it does not come back from those who were told");
    register(&mut world, &mut cache, "c", vec![quota("team", 700)]);
    let both = (told(&cache, "a", 1), told(&cache, "c", 1));
    assert_eq!(both, (of("team", 700, "c"), of("team", 500, "a")), "the longest pause of another one");
    register_in(&mut world, &mut cache, "x", Some(&["one", "two"]), vec![quota("own", 800)]);
    register_in(&mut world, &mut cache, "y", Some(&["two", "one"]), vec![]);
    register_in(&mut world, &mut cache, "z", Some(&["one"]), vec![]);
    let (same, other) = (told(&cache, "y", 1), (told(&cache, "z", 1), told(&cache, "a", 1)));
    assert_eq!((same, other), (of("own", 800, "x"), (vec![], of("team", 700, "c"))), "only workers of the same namespaces");
    let far_away = world.now + PAUSE_MS;
    register(&mut world, &mut cache, "w", vec![quota("team", far_away)]);
    let (end, far) = (world.now + TOLD_PAUSE_MS, told(&cache, "a", world.now));
    assert_eq!(far, of("team", end, "w"), "an hour, whatever it says");
    register(&mut world, &mut cache, "w", vec![]);
    register(&mut world, &mut cache, "d", vec![quota("team", 900)]);
    assert_eq!(told(&cache, "a", 1), of("team", 900, "d"));
    world.ok(op::MarkOffline { worker: "d".into(), cause: Loss::Uninstalled });
    put(&world, &mut cache, "d");
    assert_eq!(told(&cache, "a", 1), of("team", 700, "c"), "the worker that found it is gone");
    register(&mut world, &mut cache, "c", vec![quota("team", 700)]);
    world.ok(op::ResumeAccount { account: "team".into(), workers: vec!["c".into(), "gone".into()] });
    put(&world, &mut cache, "c");
    assert_eq!(told(&cache, "a", 1), [], "an administrator has ended it");
    let resumed = |cache: &Cache, worker: &str| cache.fleet.resumed_accounts(worker).len();
    register(&mut world, &mut cache, "c", vec![quota("team", 800)]);
    assert_eq!((resumed(&cache, "c"), told(&cache, "a", 1)), (1, vec![]), "its agent has not heard of it yet");
    register(&mut world, &mut cache, "c", vec![Pause { since: 2, ..quota("team", 700) }]);
    assert_eq!((resumed(&cache, "c"), told(&cache, "a", 1)), (0, of("team", 700, "c")), "a new pause");
    register(&mut world, &mut cache, "a", vec![]);
    world.ok(op::RemoveWorker { worker: "c".into() });
    cache.remove_worker("c", world.db.tombstones["c"]);
    assert_eq!(told(&cache, "b", 1), [], "a pause ends with its origin");
}
