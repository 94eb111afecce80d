//! A namespace with pools. There is no kubelet here: the tests say which pods run, and play their agents with the keys from their Secrets.

use bloom_operator::crds::WorkerPool;
use k8s_openapi::api::core::v1::{Pod, Secret, ServiceAccount};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::api::{Api, ListParams, Patch, PatchParams, PostParams};
use kube::core::ObjectMeta;
use kube::{Resource, ResourceExt};
use serde_json::{Value, json};

use crate::cluster::{Tenant, shared};
use crate::support::server::Plan;
use crate::support::{Api as HttpApi, Database, Server, eventually, unique};

pub const ADMIN_KEY: &str = "the-admin-key-of-the-tests";
pub const SERVER_URL: &str = "http://bloom.example:5000";
pub const IMAGE: &str = "registry.example/agent:1";

/// A namespace in which pods can be created.
pub async fn namespace() -> Tenant {
    let team = shared().await.namespace().await;
    let account = ServiceAccount { metadata: named("default"), ..ServiceAccount::default() };
    team.api::<ServiceAccount>().create(&PostParams::default(), &account).await.unwrap();
    team
}

pub fn named(name: &str) -> ObjectMeta {
    ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() }
}

pub fn with_agents(plan: Plan) -> Plan {
    plan.env("OPERATOR_AGENT_IMAGE", IMAGE).env("OPERATOR_AGENT_SERVER", SERVER_URL)
}

pub fn server(team: &Tenant) -> Plan {
    with_agents(team.server(Database::Sqlite)).env("RUNTIME_API_KEY", ADMIN_KEY)
}

/// A namespace with a server, which needs keys.
pub struct Site {
    pub team: Tenant,
    pub server: Server,
    pub admin: HttpApi,
}

impl Site {
    pub async fn start() -> Self {
        let team = namespace().await;
        let server = server(&team).start();
        let admin = server.with_key(ADMIN_KEY);
        Self { team, server, admin }
    }

    pub async fn pool(&self, spec: Value) -> String {
        self.team.pool(spec).await
    }

    pub fn worker(&self, pool: &str, ordinal: u32) -> String {
        format!("{}.{pool}-{ordinal}", self.team.name)
    }

    /// The agent of a pod, which runs from now on, and has registered.
    pub async fn agent(&self, pool: &str, ordinal: u32) -> Member {
        let pod = self.team.runs(pool, ordinal).await;
        let env = environment(&pod);
        let key = self.team.key(pool, ordinal).await;
        let member = Member { api: self.server.with_key(&key), name: env["BLOOM_AGENT_NAME"].as_str().unwrap().to_owned() };
        let slots: u32 = env["BLOOM_MAX_CONCURRENCY"].as_str().unwrap().parse().unwrap();
        let namespaces: Vec<&str> = env["BLOOM_NAMESPACES"].as_str().unwrap().split(',').collect();
        let mut capabilities = json!({ "max_concurrency": slots, "namespaces": namespaces });
        if env.get("BLOOM_PROFILES").is_some() {
            capabilities["agents"] = json!(["coder"]);
        }
        let registered = || async {
            let answer = member.api.post("workers", json!({ "name": member.name, "capabilities": capabilities })).await;
            matches!(answer.status, 200 | 201).then_some(())
        };
        eventually("its key opens the server", registered).await;
        member
    }

    pub async fn knows_worker(&self, name: &str) -> bool {
        self.admin.get(&format!("workers/{name}")).await.status == 200
    }

    pub async fn worker_is_gone(&self, name: &str) {
        eventually(&format!("worker {name} is gone"), || async { (!self.knows_worker(name).await).then_some(()) }).await;
    }

    pub async fn keys(&self) -> Vec<Value> {
        self.admin.get("keys").await.ok().as_array().unwrap().clone()
    }
}

/// An agent that a test plays over HTTP, with the key of its pod.
pub struct Member {
    pub api: HttpApi,
    pub name: String,
}

impl Member {
    pub async fn claim(&self) -> Value {
        let answer = self.api.post(&format!("workers/{}/claim", self.name), json!({ "max": 1, "wait_sec": 30 })).await.ok();
        answer["leases"].as_array().unwrap().first().cloned().unwrap_or_else(|| panic!("no task for {}: {answer}", self.name))
    }

    pub async fn finds_nothing(&self) -> bool {
        self.api.post(&format!("workers/{}/claim", self.name), json!({ "max": 1 })).await.ok()["leases"] == json!([])
    }

    pub async fn complete(&self, claimed: &Value) {
        let id = claimed["task"]["id"].as_str().unwrap();
        let body = json!({
            "status": "success", "output": "done", "metrics": { "duration_ms": 5 }, "lease_id": claimed["lease"]["id"],
        });
        self.api.post(&format!("llm-tasks/{id}/complete"), body).await.ok();
    }
}

/// The variables of a pod that have values of their own.
pub fn environment(pod: &Pod) -> Value {
    let env = pod.spec.as_ref().unwrap().containers[0].env.as_ref().unwrap();
    env.iter().map(|one| (one.name.clone(), one.value.clone().unwrap_or_default().into())).collect::<serde_json::Map<_, _>>().into()
}

pub fn condition<'a>(pool: &'a WorkerPool, kind: &str) -> Option<&'a Condition> {
    pool.status.as_ref()?.conditions.iter().find(|condition| condition.type_ == kind)
}

pub fn is(pool: &WorkerPool, kind: &str, state: &str, reason: &str) -> bool {
    condition(pool, kind).is_some_and(|condition| condition.status == state && condition.reason == reason)
}

impl Tenant {
    pub async fn pool(&self, spec: Value) -> String {
        let name = unique("pool");
        self.create_pool(&name, spec).await.expect("it is created");
        name
    }

    pub async fn create_pool(&self, name: &str, spec: Value) -> kube::Result<WorkerPool> {
        let object = json!({ "metadata": { "name": name }, "spec": spec });
        self.api::<WorkerPool>().create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await
    }

    pub async fn edit_pool(&self, name: &str, spec: Value) -> kube::Result<WorkerPool> {
        self.api::<WorkerPool>().patch(name, &PatchParams::default(), &Patch::Merge(json!({ "spec": spec }))).await
    }

    pub async fn pool_shows(&self, name: &str, what: &str, holds: impl Fn(&WorkerPool) -> bool) -> WorkerPool {
        let api: Api<WorkerPool> = self.api();
        eventually(&format!("{name}: {what}"), || async { api.get(name).await.ok().filter(&holds) }).await
    }

    pub async fn is_ready(&self, name: &str) -> WorkerPool {
        let is_current = |pool: &WorkerPool| pool.status.as_ref().unwrap().observed_generation == pool.metadata.generation;
        let holds = |pool: &WorkerPool| is(pool, "Ready", "True", "WorkersOnline") && is(pool, "Progressing", "False", "Complete");
        self.pool_shows(name, "ready", |pool| pool.status.is_some() && is_current(pool) && holds(pool)).await
    }

    pub async fn pod(&self, pool: &str, ordinal: u32) -> Pod {
        let (api, name): (Api<Pod>, _) = (self.api(), format!("{pool}-{ordinal}"));
        eventually(&format!("pod {name}"), || async { api.get_opt(&name).await.ok()? }).await
    }

    /// The names of the pool's pods.
    pub async fn pods(&self, pool: &str) -> Vec<String> {
        let pods = self.api::<Pod>().list(&ListParams::default().labels(&format!("bloom-runtime.dev/pool={pool}"))).await.unwrap();
        pods.iter().map(ResourceExt::name_any).collect()
    }

    pub async fn has_pods(&self, pool: &str, ordinals: &[u32]) {
        let wanted: Vec<String> = ordinals.iter().map(|ordinal| format!("{pool}-{ordinal}")).collect();
        eventually(&format!("{pool} has the pods {ordinals:?}"), || async { (self.pods(pool).await == wanted).then_some(()) }).await;
    }

    /// What the kubelet would write when the pod's container runs.
    pub async fn runs(&self, pool: &str, ordinal: u32) -> Pod {
        self.pod_is(pool, ordinal, json!({ "phase": "Running" })).await
    }

    pub async fn pod_is(&self, pool: &str, ordinal: u32, status: Value) -> Pod {
        let name = self.pod(pool, ordinal).await.name_any();
        self.api::<Pod>().patch_status(&name, &PatchParams::default(), &Patch::Merge(json!({ "status": status }))).await.unwrap()
    }

    pub async fn key(&self, pool: &str, ordinal: u32) -> String {
        let (secrets, name): (Api<Secret>, _) = (self.api(), format!("{pool}-{ordinal}"));
        let secret = eventually(&format!("Secret {name}"), || async { secrets.get_opt(&name).await.ok()? }).await;
        String::from_utf8(secret.data.unwrap()["key"].0.clone()).unwrap()
    }

    pub async fn is_marked(&self, pool: &str, ordinal: u32, why: Option<&str>) -> Pod {
        let pods: Api<Pod> = self.api();
        let name = format!("{pool}-{ordinal}");
        let found = || async {
            let pod = pods.get_opt(&name).await.ok()??;
            (pod.annotations().get("bloom-runtime.dev/drain").map(String::as_str) == why).then_some(pod)
        };
        eventually(&format!("{name} is marked {why:?}"), found).await
    }

    pub async fn no_longer_has<K>(&self, name: &str)
    where
        K: Resource<Scope = kube::core::NamespaceResourceScope> + Clone + serde::de::DeserializeOwned + std::fmt::Debug,
        K::DynamicType: Default,
    {
        let api: Api<K> = self.api();
        eventually(&format!("{name} is gone"), || async { api.get_opt(name).await.ok()?.is_none().then_some(()) }).await;
    }
}
