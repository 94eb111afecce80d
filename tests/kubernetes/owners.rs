//! Which server an object belongs to, and what an operator that was killed leaves.

use bloom_api::kubernetes::OPERATOR;
use bloom_operator::crds::{LLMTask, TaskLease, Worker, WorkerPool};
use kube::ResourceExt;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use serde_json::json;

use crate::cluster::{Tenant, shared};
use crate::objects::{Player, object, writes_of};
use crate::site::{is, with_agents};
use crate::support::{Database, Server, eventually, run, unique};

/// Creates an LLMTask that belongs to this server already, or to none.
async fn create(team: &Tenant, operator: Option<&str>) -> LLMTask {
    let mut wanted = object(&unique("task"), &unique("nobody"), json!({}));
    if let Some(operator) = operator {
        wanted["metadata"]["annotations"] = json!({ OPERATOR: operator });
    }
    team.api().create(&PostParams::default(), &serde_json::from_value(wanted).unwrap()).await.unwrap()
}

async fn has(server: &Server, task: &LLMTask) -> bool {
    server.get(&format!("llm-tasks/{}", task.uid().unwrap())).await.status == 200
}

#[test]
fn an_object_belongs_to_one_server() {
    run(async {
        let (one, two) = (shared().await.namespace().await, shared().await.namespace().await);
        two.may_do_its_work_everywhere().await;
        let first = with_agents(one.server(Database::Sqlite)).start();
        let second = with_agents(two.server(Database::Sqlite)).env("OPERATOR_NAMESPACES", &one.name).start();
        let named = create(&one, Some(&two.name)).await;
        let free = create(&one, None).await;
        for task in [&named, &free] {
            one.is_in_phase(&task.name_any(), "Queued").await;
        }
        let owner = one.get(&free.name_any()).await.annotations()[OPERATOR].clone();
        assert!(owner == one.name || owner == two.name, "{owner}");
        let pool = json!({ "metadata": { "name": unique("pool"), "annotations": { OPERATOR: two.name } }, "spec": {} });
        let pool: WorkerPool = serde_json::from_value(pool).unwrap();
        one.api::<WorkerPool>().create(&PostParams::default(), &pool).await.unwrap();
        one.pool_shows(&pool.name_any(), "it is served", |pool| is(pool, "Accepted", "True", "Accepted")).await;
        // By now each server has seen the objects of the other.
        for operator in [&one, &two] {
            let last = create(&one, Some(&operator.name)).await;
            one.is_in_phase(&last.name_any(), "Queued").await;
        }
        assert!(has(&second, &named).await && !has(&first, &named).await);
        assert_eq!((has(&first, &free).await, has(&second, &free).await), (owner == one.name, owner == two.name));
        // Somebody removes what marks the object, as `kubectl replace` does.
        for removed in [json!({ "annotations": { OPERATOR: null } }), json!({ "annotations": null, "finalizers": null })] {
            let patch = Patch::Merge(json!({ "metadata": removed }));
            one.api::<LLMTask>().patch(&free.name_any(), &PatchParams::default(), &patch).await.unwrap();
            let is_marked = |task: &LLMTask| task.annotations().get(OPERATOR) == Some(&owner) && !task.finalizers().is_empty();
            one.shows(&free.name_any(), "its server and its finalizer", is_marked).await;
        }
        assert!(writes_of(&first, &["WorkerPool", "Pod", "Secret"]).await < 0.5);
        assert!(writes_of(&second, &["WorkerPool"]).await > 0.5);
    });
}

#[test]
fn what_a_killed_operator_left_is_removed() {
    run(async {
        let team = shared().await.namespace().await;
        let server = team.server(Database::Sqlite).start();
        let slug = unique("agent");
        let player = Player::join(&server, &slug, 1).await;
        let name = team.create(&slug, json!({})).await;
        let claimed = player.claim().await;
        player.complete(&claimed, json!({})).await;
        team.is_in_phase(&name, "Completed").await;
        server.kill9();
        // It was killed after it had created these, and before it wrote a status.
        let owner = kube::Resource::controller_owner_ref(&team.get(&name).await, &()).unwrap();
        let spec = json!({ "taskName": name, "workerName": player.name, "leaseId": claimed["lease"]["id"], "attempt": 1 });
        let lease = json!({ "metadata": { "name": format!("{name}-left"), "ownerReferences": [owner] }, "spec": spec });
        let of_stranger = json!({ "metadata": { "name": unique("stranger") }, "spec": spec });
        for lease in [&lease, &of_stranger] {
            let lease: TaskLease = serde_json::from_value(lease.clone()).unwrap();
            team.api::<TaskLease>().create(&PostParams::default(), &lease).await.unwrap();
        }
        let worker = json!({ "metadata": { "name": unique("left"), "annotations": { OPERATOR: team.name } }, "spec": {} });
        let worker: Worker = serde_json::from_value(worker).unwrap();
        team.api::<Worker>().create(&PostParams::default(), &worker).await.unwrap();
        server.start_again();
        team.no_longer_has::<TaskLease>(&format!("{name}-left")).await;
        team.no_longer_has::<Worker>(&worker.name_any()).await;
        let left = team.api::<TaskLease>().list(&ListParams::default()).await.unwrap();
        assert_eq!(left.items.len(), 1, "that of nobody: {left:?}");
        let is_left = || async { team.api::<Worker>().get_opt(&player.name).await.ok()?.map(drop) };
        eventually("the object of a known worker stays", is_left).await;
    });
}
