//! Pools of agents, see `site`.

use bloom_operator::crds::WorkerPool;
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Pod, Secret};
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::objects::{is_true as task_is, phase, writes_of};
use crate::site::{IMAGE, SERVER_URL, Site, condition, environment, is, named, namespace, server};
use crate::support::agent::AgentPlan;
use crate::support::{eventually, janitor, run, unique};

const KINDS: [&str; 5] = ["WorkerPool", "Pod", "Secret", "PersistentVolumeClaim", "Event"];

#[test]
fn a_task_runs_on_a_pod() {
    run(async {
        let site = Site::start().await;
        let team = &site.team;
        let pool = site.pool(json!({ "runner": "echo", "slots": 2, "env": [{ "name": "LANG", "value": "C.UTF-8" }] })).await;
        let pod = team.runs(&pool, 0).await;
        let env = environment(&pod);
        assert_eq!(env["BLOOM_SERVER"], SERVER_URL);
        assert_eq!((&env["BLOOM_MAX_CONCURRENCY"], &env["LANG"]), (&json!("2"), &json!("C.UTF-8")));

        // The agent starts as the container would, with the variables of the pod and the file of its Secret.
        let key_file = janitor::new_path("key");
        std::fs::write(&key_file, team.key(&pool, 0).await).unwrap();
        let mut plan = AgentPlan::at(site.server.base(), env["BLOOM_AGENT_NAME"].as_str().unwrap());
        for (name, value) in env.as_object().unwrap() {
            if !matches!(name.as_str(), "BLOOM_SERVER" | "BLOOM_WORK_DIR" | "HOME") {
                plan = plan.env(name, value.as_str().unwrap());
            }
        }
        let agent = plan.env("BLOOM_KEY_FILE", key_file.display()).start();
        let shown = team.is_ready(&pool).await;
        let status = shown.status.unwrap();
        assert_eq!(
            (status.replicas, status.ready_replicas, status.updated_replicas, status.busy_replicas),
            (Some(1), Some(1), Some(1), Some(0))
        );
        assert_eq!((status.image.as_deref(), status.namespaces), (Some(IMAGE), Some(vec![team.name.clone()])));
        let task = team.create("writer", json!({ "prompt": "Say hello" })).await;
        let done = team.is_in_phase(&task, "Completed").await;
        assert!(task_is(&done, "Complete"));
        assert_eq!(done.status.unwrap().worker_name, Some(site.worker(&pool, 0)));
        let id = team.task_id(&task).await;
        let about: Vec<String> = agent.log().lines().filter(|line| line.contains(" INFO run ")).map(str::to_owned).collect();
        assert!(!about.is_empty() && about.iter().all(|line| line.contains(&id)), "{about:?}");
        assert!(team.kubectl(&["get", "bwp", &pool, "-o", "wide"], "").unwrap().contains(IMAGE));
    });
}

#[test]
fn pods_have_no_more_rights_than_they_need() {
    run(async {
        let site = Site::start().await;
        let team = &site.team;
        // The API server refuses pods that are not restricted.
        let level = json!({ "metadata": { "labels": { "pod-security.kubernetes.io/enforce": "restricted" } } });
        let namespaces: Api<k8s_openapi::api::core::v1::Namespace> = Api::all(team.client.clone());
        namespaces.patch(&team.name, &PatchParams::default(), &Patch::Merge(level)).await.unwrap();
        let map = ConfigMap { metadata: named("profiles"), ..ConfigMap::default() };
        team.api::<ConfigMap>().create(&PostParams::default(), &map).await.unwrap();
        let pool = site
            .pool(json!({
                "image": "other:2", "imagePullPolicy": "Always", "imagePullSecrets": [{ "name": "registry" }],
                "env": [{ "name": "ANTHROPIC_API_KEY", "valueFrom": { "secretKeyRef": { "name": "claude", "key": "key" } } }],
                "envFrom": [{ "secretRef": { "name": "more" } }], "profiles": { "configMapName": "profiles", "key": "p.toml" },
                "resources": { "limits": { "memory": "1Gi", "cpu": 2 } }, "workspace": { "volumeClaim": { "storage": "5Gi" } },
                "nodeSelector": { "disk": "ssd" }, "tolerations": [{ "key": "gpu", "operator": "Exists" }],
                "affinity": { "podAntiAffinity": {} }, "podLabels": { "team": "a" }, "podAnnotations": { "note": "b" },
                "terminationGracePeriodSeconds": 90,
            }))
            .await;
        let pod = team.pod(&pool, 0).await;
        let spec = pod.spec.as_ref().unwrap();
        assert_eq!((spec.automount_service_account_token, spec.containers[0].image.as_deref()), (Some(false), Some("other:2")));
        assert_eq!(spec.termination_grace_period_seconds, Some(90));
        let env = environment(&pod);
        assert_eq!((&env["BLOOM_GRACE_SECONDS"], &env["BLOOM_KEY_FILE"]), (&json!("60"), &json!("/etc/bloom-runtime/key/key")));
        assert_eq!(env["BLOOM_PROFILES"], "/etc/bloom-runtime/profiles/p.toml");
        assert_eq!((pod.labels()["team"].as_str(), pod.annotations()["note"].as_str()), ("a", "b"));
        assert_eq!(pod.annotations()["cluster-autoscaler.kubernetes.io/safe-to-evict"], "false");
        let claim = team.api::<PersistentVolumeClaim>().get(&format!("workspace-{pool}-0")).await.unwrap();
        assert_eq!(claim.owner_references()[0].name, pool, "it goes with the pool");

        // The key is for this worker and this namespace.
        let member = site.agent(&pool, 0).await;
        let refused = async |body: Value| member.api.post("workers", body).await.error(403);
        assert!(refused(json!({ "name": "other" })).await.contains("only"));
        let foreign = json!({ "name": member.name, "capabilities": { "namespaces": ["other"] } });
        assert!(refused(foreign).await.contains("namespaces"));
        let key = &site.keys().await[0];
        assert_eq!((&key["scope"], &key["worker"], &key["namespaces"]), (&json!("worker"), &json!(member.name), &json!([team.name])));
    });
}

#[test]
fn scaling_down_never_ends_a_run() {
    run(async {
        let site = Site::start().await;
        let team = &site.team;
        let pool = site.pool(json!({ "replicas": 3 })).await;
        let [first, busy, last] = [site.agent(&pool, 0).await, site.agent(&pool, 1).await, site.agent(&pool, 2).await];
        team.is_ready(&pool).await;
        let task = team.create("coder", json!({})).await;
        let claimed = busy.claim().await;
        team.pool_shows(&pool, "one is busy", |pool| pool.status.as_ref().unwrap().busy_replicas == Some(1)).await;

        team.kubectl(&["scale", "bwp", &pool, "--replicas=2"], "").unwrap();
        // Idle pods go first, those with high numbers before the others.
        team.has_pods(&pool, &[0, 1]).await;
        team.kubectl(&["scale", "bwp", &pool, "--replicas=0"], "").unwrap();
        team.has_pods(&pool, &[1]).await;
        for (member, ordinal) in [(&first, 0), (&last, 2)] {
            site.worker_is_gone(&member.name).await;
            team.no_longer_has::<Secret>(&format!("{pool}-{ordinal}")).await;
            member.api.post("workers", json!({ "name": member.name })).await.expect(401);
        }
        team.is_marked(&pool, 1, Some("surplus")).await;
        let shown = team.pool_shows(&pool, "draining", |pool| is(pool, "Progressing", "True", "Draining")).await;
        assert!(condition(&shown, "Progressing").unwrap().message.contains(&format!("{pool}-1")), "{shown:?}");
        // Somebody who takes the worker back into service does not keep it from being drained.
        let other = team.create("coder", json!({})).await;
        site.admin.poke(&format!("workers/{}/uncordon", busy.name)).await.ok();
        let cordoned = || async { (site.admin.get(&format!("workers/{}", busy.name)).await.ok()["cordoned"] == true).then_some(()) };
        eventually("it is cordoned again", cordoned).await;
        assert!(busy.finds_nothing().await);
        // The object of the worker agrees.
        let object = || async {
            let workers: Api<bloom_operator::crds::Worker> = team.api();
            workers.get(&busy.name).await.ok().filter(|worker| worker.spec.unschedulable)
        };
        eventually("its object is cordoned", object).await;

        busy.complete(&claimed).await;
        team.is_in_phase(&task, "Completed").await;
        team.has_pods(&pool, &[]).await;
        site.worker_is_gone(&busy.name).await;
        eventually("no key is left", || async { site.keys().await.is_empty().then_some(()) }).await;
        let shown = team.is_ready(&pool).await;
        assert_eq!(shown.status.unwrap().replicas, Some(0));
        assert_ne!(phase(&team.get(&other).await), Some("Completed"));
        let scale = team
            .kubectl(&["get", "--raw", &format!("/apis/bloom-runtime.dev/v1alpha1/namespaces/{}/workerpools/{pool}/scale", team.name)], "");
        let scale: Value = serde_json::from_str(&scale.unwrap()).unwrap();
        assert_eq!(scale["status"], json!({ "replicas": 0, "selector": format!("bloom-runtime.dev/pool={pool}") }));
    });
}

#[test]
fn a_pool_that_grows_again_keeps_what_it_drains() {
    run(async {
        let site = Site::start().await;
        let team = &site.team;
        let pool = site.pool(json!({ "replicas": 1 })).await;
        let member = site.agent(&pool, 0).await;
        team.create("coder", json!({})).await;
        let claimed = member.claim().await;
        team.edit_pool(&pool, json!({ "replicas": 0 })).await.unwrap();
        let before = team.is_marked(&pool, 0, Some("surplus")).await;
        team.edit_pool(&pool, json!({ "replicas": 2 })).await.unwrap();
        let after = team.is_marked(&pool, 0, None).await;
        assert_eq!(before.uid(), after.uid());
        team.has_pods(&pool, &[0, 1]).await;
        member.complete(&claimed).await;
        team.create("coder", json!({})).await;
        member.claim().await;
    });
}

#[test]
fn the_queue_decides_how_many_pods_there_are() {
    run(async {
        let site = Site::start().await;
        let team = &site.team;
        let profiles = json!({ "data": { "profiles.toml": "[profiles.coder]\nrunner = \"echo\"" }, "metadata": { "name": "profiles" } });
        team.api::<ConfigMap>().create(&PostParams::default(), &serde_json::from_value(profiles).unwrap()).await.unwrap();
        let pool = site
            .pool(json!({ "maxReplicas": 3, "slots": 2, "scaleDownDelaySeconds": 0, "profiles": { "configMapName": "profiles" } }))
            .await;
        let shown = team.is_ready(&pool).await;
        assert_eq!(shown.status.unwrap().desired_replicas, Some(0));
        // Nobody in this pool could take this one.
        team.create("writer", json!({})).await;
        for _ in 0..3 {
            team.create("coder", json!({})).await;
        }
        team.has_pods(&pool, &[0, 1]).await;
        let [first, second] = [site.agent(&pool, 0).await, site.agent(&pool, 1).await];
        team.is_ready(&pool).await;
        let held = [first.claim().await, second.claim().await, second.claim().await];
        first.complete(&held[0]).await;
        team.has_pods(&pool, &[1]).await;
        second.complete(&held[1]).await;
        second.complete(&held[2]).await;
        team.has_pods(&pool, &[]).await;

        // A paused queue needs no pods, and a limited one no more than the limit.
        site.admin.poke("queues/coder/pause").await.ok();
        for _ in 0..8 {
            let task = team.create("coder", json!({})).await;
            team.is_in_phase(&task, "Queued").await;
        }
        let edited = team.edit_pool(&pool, json!({ "scaleDownDelaySeconds": 1 })).await.unwrap().metadata.generation;
        let shown = team.pool_shows(&pool, "a later look", |pool| pool.status.as_ref().unwrap().observed_generation == edited).await;
        assert_eq!(shown.status.unwrap().desired_replicas, Some(0), "the queue is paused");
        site.admin.post("queues/coder/limit", json!({ "max_concurrency": 1 })).await.ok();
        site.admin.poke("queues/coder/resume").await.ok();
        team.create("coder", json!({})).await;
        team.pool_shows(&pool, "one pod is enough", |pool| pool.status.as_ref().unwrap().desired_replicas == Some(1)).await;
        team.has_pods(&pool, &[0]).await;
        team.edit_pool(&pool, json!({ "minReplicas": 2 })).await.unwrap();
        team.has_pods(&pool, &[0, 1]).await;
        team.edit_pool(&pool, json!({ "minReplicas": null, "maxReplicas": null, "replicas": 0 })).await.unwrap();
        team.has_pods(&pool, &[]).await;
    });
}

#[test]
fn a_changed_pool_replaces_its_pods_one_by_one() {
    run(async {
        let site = Site::start().await;
        let team = &site.team;
        let pool = site.pool(json!({ "replicas": 2 })).await;
        let members = [site.agent(&pool, 0).await, site.agent(&pool, 1).await];
        team.is_ready(&pool).await;
        team.create("coder", json!({})).await;
        let claimed = members[1].claim().await;
        let before = [team.pod(&pool, 0).await.uid(), team.pod(&pool, 1).await.uid()];
        team.edit_pool(&pool, json!({ "image": "agent:2" })).await.unwrap();
        let replaced = async |ordinal: u32| {
            let pods: Api<Pod> = team.api();
            let name = format!("{pool}-{ordinal}");
            let found = || async { pods.get_opt(&name).await.ok()?.filter(|pod| pod.uid() != before[ordinal as usize]) };
            eventually(&format!("{name} is replaced"), found).await
        };
        // The idle one is the first.
        let pod = replaced(0).await;
        assert_eq!(pod.spec.unwrap().containers[0].image.as_deref(), Some("agent:2"));
        // As long as its agent is not online, the other one stays as it is.
        team.pool_shows(&pool, "one is current", |pool| pool.status.as_ref().unwrap().updated_replicas == Some(1)).await;
        assert_eq!(team.is_marked(&pool, 1, None).await.uid(), before[1]);
        site.agent(&pool, 0).await;
        team.is_marked(&pool, 1, Some("outdated")).await;
        assert_eq!(team.pod(&pool, 1).await.uid(), before[1], "its worker has a task");
        members[1].complete(&claimed).await;
        replaced(1).await;
        site.agent(&pool, 1).await;
        let shown = team.is_ready(&pool).await;
        assert_eq!(shown.status.unwrap().updated_replicas, Some(2));
        // The new pods take tasks.
        assert_eq!(site.admin.get(&format!("workers/{}", site.worker(&pool, 1))).await.ok()["cordoned"], false);
    });
}

#[test]
fn a_deleted_pool_leaves_nothing() {
    run(async {
        let site = Site::start().await;
        let team = &site.team;
        let pool = site.pool(json!({ "replicas": 2 })).await;
        let busy = site.agent(&pool, 0).await;
        let task = team.create("coder", json!({})).await;
        busy.claim().await;
        team.has_pods(&pool, &[0, 1]).await;
        team.key(&pool, 1).await;
        team.api::<WorkerPool>().delete(&pool, &DeleteParams::default()).await.unwrap();
        team.no_longer_has::<WorkerPool>(&pool).await;
        team.has_pods(&pool, &[]).await;
        for ordinal in 0..2 {
            team.no_longer_has::<Secret>(&format!("{pool}-{ordinal}")).await;
        }
        assert!(site.keys().await.is_empty() && !site.knows_worker(&busy.name).await);
        // The task is queued again without the loss of an attempt.
        let back = team.is_in_phase(&task, "Queued").await;
        assert_eq!(back.status.unwrap().attempts, Some(0));
    });
}

#[test]
fn what_a_pool_can_not_be_is_refused() {
    run(async {
        let team = namespace().await;
        for (spec, text) in [
            (json!({ "replicas": -1 }), "greater than or equal to 0"),
            (json!({ "replicas": 1001 }), "less than or equal to 1000"),
            (json!({ "slots": 33 }), "less than or equal to 32"),
            (json!({ "minReplicas": 1 }), "Needs maxReplicas"),
            (json!({ "minReplicas": 3, "maxReplicas": 2 }), "Must not be more than maxReplicas"),
            (json!({ "env": [{ "name": "BLOOM_SERVER", "value": "x" }] }), "Names that begin with BLOOM_"),
            (json!({ "workspace": { "sizeLimit": "1Gi", "volumeClaim": { "storage": "1Gi" } } }), "Give either sizeLimit"),
            (json!({ "namespaces": ["A"] }), "spec.namespaces[0]"),
            (json!({ "profiles": { "configMapName": "../secrets/a" } }), "spec.profiles.configMapName"),
            (json!({ "terminationGracePeriodSeconds": 59 }), "greater than or equal to 60"),
        ] {
            let told = team.create_pool(&unique("bad"), spec.clone()).await.unwrap_err().to_string();
            assert!(told.contains(text), "{spec}: {told}");
        }
        for name in ["a.b", &"n".repeat(59)] {
            let told = team.create_pool(name, json!({})).await.unwrap_err().to_string();
            assert!(told.contains("at most 58 characters and no dots"), "{told}");
        }
        let pool = team.create_pool(&"n".repeat(58), json!({})).await.unwrap();
        let spec = serde_json::to_value(&pool.spec).unwrap();
        assert_eq!((&spec["replicas"], &spec["slots"], &spec["scaleDownDelaySeconds"]), (&json!(1), &json!(1), &json!(300)));
        let explained = || async { team.kubectl(&["explain", "bwp.spec.workspace.volumeClaim"], "").ok() };
        assert!(eventually("it is described", explained).await.contains("kept for the next pod"));
    });
}

#[test]
fn a_pool_of_a_tenant_serves_no_other_tenant() {
    run(async {
        let (home, tenant) = (namespace().await, namespace().await);
        home.may_do_its_work_everywhere().await;
        let plan = server(&home).env("OPERATOR_NAMESPACES", format!("{},{}", home.name, tenant.name));
        let server = plan.start();
        let greedy = tenant.pool(json!({ "namespaces": [tenant.name, home.name] })).await;
        let shown = tenant.pool_shows(&greedy, "refused", |pool| is(pool, "Accepted", "False", "ForeignNamespaces")).await;
        assert!(condition(&shown, "Accepted").unwrap().message.contains(&format!("the tasks of namespace '{}'", home.name)));
        let unknown = home.pool(json!({ "namespaces": ["nobody-serves-it"] })).await;
        home.pool_shows(&unknown, "not served", |pool| is(pool, "Accepted", "False", "NotServed")).await;
        // The pool of the server's own namespace may name others.
        let common = home.pool(json!({ "namespaces": [tenant.name] })).await;
        let env = environment(&home.pod(&common, 0).await);
        assert_eq!(env["BLOOM_NAMESPACES"], tenant.name);
        assert!(tenant.pods(&greedy).await.is_empty() && home.pods(&unknown).await.is_empty());
        drop(server);
    });
}

#[test]
fn an_idle_pool_costs_no_writes() {
    run(async {
        let site = Site::start().await;
        let team = &site.team;
        let pool = site.pool(json!({ "maxReplicas": 4, "minReplicas": 1 })).await;
        let member = site.agent(&pool, 0).await;
        team.is_ready(&pool).await;
        // Another pool has this one looked at; what is written is its own.
        let runs = || async {
            let text = site.admin.get("/metrics").await.expect(200).text;
            let line = text.lines().find(|line| line.starts_with("bloom_reconcile_runs_total{loop=\"worker_pools\"}"))?.to_owned();
            line.rsplit(' ').next()?.parse::<f64>().ok()
        };
        let is_looked_at = async || {
            let looked = eventually("a number", runs).await;
            let poke = json!({ "name": member.name, "os_info": unique("os") });
            site.admin.post("workers", poke).await.ok();
            eventually("the pool was looked at", || async { runs().await.filter(|now| *now > looked) }).await;
        };
        // A write is counted when it is answered, which is after a watch may have shown it.
        is_looked_at().await;
        let before = writes_of(&site.admin, &KINDS).await;
        for _ in 0..3 {
            assert!(member.finds_nothing().await);
        }
        is_looked_at().await;
        let written = writes_of(&site.admin, &KINDS).await - before;
        assert!(written < 0.5, "{written} writes");
    });
}
