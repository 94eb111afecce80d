//! Pools whose pods do not run, or that lose something.

use bloom_operator::crds::WorkerPool;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret, ServiceAccount};
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use kube::{Resource, ResourceExt};
use serde_json::json;

use crate::cluster::shared;
use crate::site::{ADMIN_KEY, Site, condition, is, named, namespace, with_agents};
use crate::support::direct::execute;
use crate::support::server::Plan;
use crate::support::{Database, Server, eventually, run, unique};

#[test]
fn a_pool_that_vanished_leaves_no_keys() {
    run(async {
        let site = Site::start().await;
        let team = &site.team;
        let pool = site.pool(json!({})).await;
        team.key(&pool, 0).await;
        site.server.stop();
        let (pools, gone): (Api<WorkerPool>, _) = (team.api(), json!({ "metadata": { "finalizers": null } }));
        pools.patch(&pool, &PatchParams::default(), &Patch::Merge(gone)).await.unwrap();
        pools.delete(&pool, &DeleteParams::default()).await.unwrap();
        team.no_longer_has::<WorkerPool>(&pool).await;
        site.server.start_again();
        eventually("its key is revoked", || async { site.keys().await.is_empty().then_some(()) }).await;
    });
}

#[test]
fn a_lost_or_damaged_secret_gets_a_new_key() {
    run(async {
        let site = Site::start().await;
        let team = &site.team;
        let pool = site.pool(json!({})).await;
        let member = site.agent(&pool, 0).await;
        team.is_ready(&pool).await;
        let (secrets, name): (Api<Secret>, _) = (team.api(), format!("{pool}-0"));
        let key = team.key(&pool, 0).await;
        // While its agent is online, the old key stays: the agent has read it.
        secrets.delete(&name, &DeleteParams::default()).await.unwrap();
        let damaged = json!({ "metadata": { "name": name }, "stringData": { "key": "damaged" } });
        let mut damaged: Secret = serde_json::from_value(damaged).unwrap();
        let owner = team.api::<WorkerPool>().get(&pool).await.unwrap().controller_owner_ref(&()).unwrap();
        damaged.metadata.owner_references = Some(vec![owner]);
        secrets.create(&PostParams::default(), &damaged).await.unwrap();
        member.api.post(&format!("workers/{}/claim", member.name), json!({ "max": 1 })).await.ok();
        // The pod is moved to another node.
        team.api::<Pod>().delete(&name, &DeleteParams::default()).await.unwrap();
        let renewed = || async { Some(team.key(&pool, 0).await).filter(|renewed| *renewed != key && renewed != "damaged") };
        eventually("another key", renewed).await;
        let refused = || async { (member.api.post("workers", json!({ "name": member.name })).await.status == 401).then_some(()) };
        eventually("the old key is revoked", refused).await;
        // A pod whose agent is not online gets a Secret again, and starts with the new key.
        let before = team.key(&pool, 0).await;
        let running = team.runs(&pool, 0).await.uid();
        site.admin.post("workers", json!({ "name": member.name, "status": "offline" })).await.ok();
        secrets.delete(&name, &DeleteParams::default()).await.unwrap();
        let again = || async { Some(team.key(&pool, 0).await).filter(|again| *again != before) };
        eventually("a Secret again", again).await;
        let replaced = || async { Some(team.pod(&pool, 0).await).filter(|pod| pod.uid() != running) };
        eventually("another pod", replaced).await;
        assert_eq!(site.keys().await.len(), 1);
    });
}

#[test]
fn the_pool_tells_why_its_pods_do_not_run() {
    run(async {
        let team = shared().await.namespace().await;
        let server = team.server(Database::Sqlite).start();
        let pool = team.pool(json!({})).await;
        let shown = team.pool_shows(&pool, "no image", |pool| is(pool, "Accepted", "False", "NoImage")).await;
        assert!(condition(&shown, "Ready").unwrap().message.contains("OPERATOR_AGENT_IMAGE"));
        team.edit_pool(&pool, json!({ "image": "agent:1" })).await.unwrap();
        team.pool_shows(&pool, "no server", |pool| is(pool, "Accepted", "False", "NoServer")).await;
        assert!(team.pods(&pool).await.is_empty());
        server.stop();
        drop(server);

        let server = with_agents(team.server(Database::Sqlite)).start();
        // Without the account that every namespace has in a whole cluster, the API server refuses pods.
        let shown = team.pool_shows(&pool, "refused", |pool| is(pool, "Ready", "False", "Refused")).await;
        assert!(condition(&shown, "Ready").unwrap().message.contains("service account"), "{shown:?}");
        let account = ServiceAccount { metadata: named("default"), ..ServiceAccount::default() };
        team.api::<ServiceAccount>().create(&PostParams::default(), &account).await.unwrap();
        team.has_pods(&pool, &[0]).await;
        let state = json!({ "waiting": { "reason": "ImagePullBackOff", "message": "Back-off pulling image \"agent:1\"" } });
        let container = json!({ "name": "agent", "image": "agent:1", "imageID": "", "ready": false, "restartCount": 0, "state": state });
        team.pod_is(&pool, 0, json!({ "phase": "Pending", "containerStatuses": [container] })).await;
        let shown = team.pool_shows(&pool, "no such image", |pool| is(pool, "Ready", "False", "ImagePullBackOff")).await;
        assert!(condition(&shown, "Ready").unwrap().message.contains("Back-off pulling image"));
        // The pod waits for its volumes, and says nothing.
        team.pod_is(&pool, 0, json!({ "phase": "Pending", "containerStatuses": null })).await;
        team.edit_pool(&pool, json!({ "profiles": { "configMapName": "profiles" } })).await.unwrap();
        let shown = team.pool_shows(&pool, "no profiles", |pool| is(pool, "Ready", "False", "ProfilesNotUsable")).await;
        assert!(condition(&shown, "Ready").unwrap().message.contains("'profiles' of the profiles does not exist"), "{shown:?}");
        let data = [("profiles.toml".to_owned(), "[profiles.coder]".to_owned())].into();
        let profiles = ConfigMap { metadata: named("profiles"), data: Some(data), ..ConfigMap::default() };
        team.api::<ConfigMap>().create(&PostParams::default(), &profiles).await.unwrap();
        team.pool_shows(&pool, "the profiles are there", |pool| is(pool, "Ready", "False", "WaitingForWorkers")).await;
        // A pod that never ran is replaced at once.
        let before = team.pod(&pool, 0).await.uid();
        team.edit_pool(&pool, json!({ "image": "agent:2" })).await.unwrap();
        let replaced = || async { Some(team.pod(&pool, 0).await).filter(|pod| pod.uid() != before) };
        eventually("it is replaced", replaced).await;
        // Without keys, the server knows the name by which agents call it, and the agents get none.
        for (host, status) in [("bloom.example:5000", 200), ("other.example:5000", 403)] {
            assert_eq!(server.with_header("host", host).get("workers").await.status, status, "{host}");
        }
        assert!(team.api::<Secret>().get_opt(&format!("{pool}-0")).await.unwrap().is_none());
        drop(server);
    });
}

#[test]
fn what_belongs_to_others_is_left_alone() {
    run(async {
        let site = Site::start().await;
        let team = &site.team;
        let pool = unique("pool");
        let name = format!("{pool}-0");
        let (secrets, pods): (Api<Secret>, Api<Pod>) = (team.api(), team.api());
        secrets.create(&PostParams::default(), &Secret { metadata: named(&name), ..Secret::default() }).await.unwrap();
        let other = json!({ "metadata": { "name": name }, "spec": { "containers": [{ "name": "other", "image": "other" }] } });
        pods.create(&PostParams::default(), &serde_json::from_value(other).unwrap()).await.unwrap();
        let key = json!({ "name": pool, "scope": "worker", "worker": site.worker(&pool, 0) });
        site.admin.post("keys", key).await.created();
        team.create_pool(&pool, json!({})).await.unwrap();
        for reason in ["SecretExists", "KeyExists", "PodExists"] {
            let shown = team.pool_shows(&pool, reason, |pool| is(pool, "Ready", "False", reason)).await;
            let message = &condition(&shown, "Ready").unwrap().message;
            match reason {
                "SecretExists" => drop(secrets.delete(&name, &DeleteParams::default()).await.unwrap()),
                "KeyExists" => {
                    assert!(message.contains(&format!("The key '{pool}'")), "{message}");
                    drop(site.admin.delete(&format!("keys/{pool}")).await.ok());
                }
                _ => drop(pods.delete(&name, &DeleteParams::default()).await.unwrap()),
            }
        }
        site.agent(&pool, 0).await;
        team.is_ready(&pool).await;
        assert!(team.kubectl(&["get", "events"], "").unwrap().contains("PodExists"));
    });
}

#[test]
fn an_affinity_that_is_none_is_named() {
    run(async {
        let site = Site::start().await;
        let pool = site.pool(json!({ "affinity": { "nodeAffinity": 7 } })).await;
        let shown = site.team.pool_shows(&pool, "invalid", |pool| is(pool, "Accepted", "False", "Invalid")).await;
        assert!(condition(&shown, "Accepted").unwrap().message.contains("affinity"));
    });
}

#[test]
fn pods_that_vanish_or_end_are_replaced() {
    run(async {
        let site = Site::start().await;
        let team = &site.team;
        let pool = site.pool(json!({ "replicas": 2 })).await;
        for ordinal in 0..2 {
            site.agent(&pool, ordinal).await;
        }
        team.is_ready(&pool).await;
        let before = [team.pod(&pool, 0).await.uid(), team.pod(&pool, 1).await.uid()];
        team.api::<Pod>().delete(&format!("{pool}-0"), &DeleteParams::default()).await.unwrap();
        team.pod_is(&pool, 1, json!({ "phase": "Failed", "reason": "Evicted" })).await;
        for (ordinal, before) in (0..2).zip(before) {
            let replaced = || async { Some(team.pod(&pool, ordinal).await).filter(|pod| pod.uid() != before) };
            eventually("it is replaced", replaced).await;
            site.agent(&pool, ordinal).await;
        }
        team.is_ready(&pool).await;
        assert_eq!(site.keys().await.len(), 2);
    });
}

#[test]
fn a_namespace_has_its_share_of_keys() {
    run(async {
        let team = namespace().await;
        let plan = with_agents(team.with_operator(Server::on(Database::Postgres), "operator-0"));
        let server = plan.env("RUNTIME_API_KEY", ADMIN_KEY).start();
        let keys = format!(
            "INSERT INTO api_keys (name, digest, scope, worker, created_at, created_by) \
             SELECT 'other-' || n, 'digest ' || n, 'worker', 'other-' || n, 0, 'key:kubernetes:{}' FROM generate_series(1, 1000) n",
            team.name
        );
        execute(&server.database_url(), &keys).await;
        let pool = team.pool(json!({})).await;
        let shown = team.pool_shows(&pool, "no key", |pool| is(pool, "Ready", "False", "KeyRefused")).await;
        let message = &condition(&shown, "Ready").unwrap().message;
        assert!(
            message.contains(&format!("the namespace '{}' have 1000 keys", team.name)) && message.contains("scale some down"),
            "{message}"
        );
        assert!(team.pods(&pool).await.is_empty());
        // Others have their own.
        let admin = server.with_key(ADMIN_KEY);
        admin.post("keys", json!({ "name": "of-admin", "scope": "read" })).await.created();
        admin.delete("keys/other-7").await.ok();
        team.has_pods(&pool, &[0]).await;
    });
}

#[test]
fn another_replica_continues() {
    run(async {
        let team = namespace().await;
        let plan = |plan: Plan, pod: &str| with_agents(team.with_operator(plan, pod)).env("RUNTIME_API_KEY", ADMIN_KEY);
        let first = plan(Server::on(Database::Postgres), "operator-0").start();
        let pool = team.pool(json!({ "replicas": 2 })).await;
        team.has_pods(&pool, &[0, 1]).await;
        let second = plan(Server::on_url(&first.database_url()), "operator-1").start();
        let admin = second.with_key(ADMIN_KEY);
        let site = Site { team, server: second, admin };
        let team = &site.team;
        let members = [site.agent(&pool, 0).await, site.agent(&pool, 1).await];
        team.is_ready(&pool).await;
        let task = team.create("coder", json!({})).await;
        let claimed = members[1].claim().await;
        team.is_in_phase(&task, "Running").await;
        team.edit_pool(&pool, json!({ "replicas": 0 })).await.unwrap();
        team.is_marked(&pool, 1, Some("surplus")).await;
        first.kill9();
        members[1].complete(&claimed).await;
        team.has_pods(&pool, &[]).await;
        for ordinal in 0..2 {
            team.no_longer_has::<Secret>(&format!("{pool}-{ordinal}")).await;
        }
        site.worker_is_gone(&members[1].name).await;
    });
}
