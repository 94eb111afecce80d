//! Tasks of Kubernetes objects: each is created once, and namespaces share no names.

use bloom_core::namespace::{KubernetesObject, qualified};
use bloom_core::op;
use bloom_core::task::TaskSpec;
use bloom_test_world::world::{World, spec, world};
use uuid::Uuid;

fn of_object(namespace: &str, uid: u128, context: &str) -> TaskSpec {
    let object = KubernetesObject { namespace: namespace.into(), name: format!("object-{uid}"), uid: Uuid::from_u128(uid) };
    TaskSpec { object: Some(object), ..spec(&qualified(namespace, context)) }
}

fn refused(world: &mut World, task: TaskSpec) -> String {
    let before = world.db.clone();
    let refused = world.run(op::Create { tasks: vec![spec("good"), task] }).unwrap_err().to_string();
    assert_eq!(before, world.db);
    refused
}

#[test]
fn an_object_has_one_task() {
    let mut world = world().worker("w1", 4);
    world.strict = true;
    let made = world.ok(op::Create { tasks: vec![of_object("a", 1, "c"), of_object("a", 2, "c"), of_object("a", 1, "c")] });
    assert_eq!(made.iter().map(|task| task.existed).collect::<Vec<_>>(), [false, false, true]);
    assert_eq!(made[0].spec.id, made[2].spec.id);
    // Whatever was edited since, the object is the same.
    let edited = TaskSpec { prompt: "other".into(), ..of_object("a", 1, "c") };
    let again = world.ok(op::Create { tasks: vec![edited] });
    assert!(again[0].existed && again[0].spec.id == made[0].spec.id);
    assert_eq!(world.db.tasks.len(), 2);
}

#[test]
fn no_task_enters_another_namespace() {
    let mut world = world().worker("w1", 4);
    world.strict = true;
    let inside = || qualified("a", "c");
    for task in [
        spec(&inside()),
        TaskSpec { exclusive_key: Some(inside()), ..spec("c") },
        TaskSpec { idempotency_key: Some(inside()), ..spec("c") },
        TaskSpec { context_id: "c".into(), ..of_object("a", 1, "c") },
        TaskSpec { context_id: qualified("b", "c"), ..of_object("a", 1, "c") },
        // `a` is not the namespace `ab`, and a name in it may contain anything.
        TaskSpec { context_id: qualified("ab", "c"), ..of_object("a", 1, "c") },
        TaskSpec { exclusive_key: Some("k".into()), ..of_object("a", 1, "c") },
    ] {
        assert!(refused(&mut world, task).contains("must not begin with 'namespace:'"));
    }
    world.ok(op::Create { tasks: vec![of_object("a", 1, "b/../namespace:b/c"), spec("a/c"), spec("the namespace:a/c")] });
}
