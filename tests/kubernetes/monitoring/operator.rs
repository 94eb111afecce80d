//! A server with the operator and everything else that the dashboard shows. Its API server refuses writes, and goes away.

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::api::rbac::v1::ClusterRole;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, ListParams, PostParams};
use serde_json::json;

use super::dashboard;
use super::prometheus::Prometheus;
use crate::cluster::{Cluster, Tenant};
use crate::objects::Player;
use crate::site::named;
use crate::support::minio::Minio;
use crate::support::stub::{Reply, Stub};
use crate::support::{Database, eventually, janitor};

/// More objects than the alert allows errors.
const OBJECTS: usize = 12;

pub async fn operator(prometheus: &Prometheus) {
    const JOB: &str = "operator";
    let cluster: &'static Cluster = Box::leak(Box::new(Cluster::start()));
    cluster.set_up().await;
    let team = cluster.namespace().await;
    held_by_a_dead_replica(&team).await;
    let control_plane = Stub::start().await;
    control_plane.always("/agents", Reply::new(200, "[]"));
    let backups = janitor::new_path("backups");
    let minio = Minio::start().await;
    let server = Minio::used_by(team.server(Database::Sqlite), &minio.url())
        .env("BACKUP_DIR", backups.display())
        .env("MEMBRIDGE_SERVER_URL", &control_plane.url)
        .env("MEMBRIDGE_ADMIN_KEY", "the-key-of-the-control-plane")
        .start();
    prometheus.scrapes(JOB, &[&server]);
    prometheus.fires(JOB, "BloomKubernetesNoLeader").await;
    // Its Lease ends.
    prometheus.resolves(JOB, "BloomKubernetesNoLeader").await;

    let roles: Api<ClusterRole> = Api::all(cluster.admin().await);
    let role = roles
        .list(&ListParams::default())
        .await
        .unwrap()
        .into_iter()
        .find(|role| role.rules.iter().flatten().any(|rule| rule.resources.iter().flatten().any(|name| name == "llmtasks/status")));
    let whole = role.expect("the operator's role");
    let player = Player::join(&server, "coder", 2).await;
    let done = team.create("coder", json!({})).await;
    let claimed = player.claim().await;
    player.complete(&claimed, json!({ "usage": { "input_tokens": 1, "output_tokens": 1, "cost_usd": 0.5 } })).await;
    team.is_in_phase(&done, "Completed").await;
    replace(&roles, &whole, "llmtasks/status").await;
    for _ in 0..OBJECTS {
        team.create("coder", json!({})).await;
    }
    prometheus.fires(JOB, "BloomKubernetesWriteErrors").await;
    dashboard::is_whole(prometheus, JOB, &server).await;
    replace(&roles, &whole, "").await;
    prometheus.resolves(JOB, "BloomKubernetesWriteErrors").await;

    cluster.kill_api_server();
    prometheus.fires(JOB, "BloomKubernetesDown").await;
    cluster.start_api_server();
    cluster.is_ready().await;
    prometheus.resolves(JOB, "BloomKubernetesDown").await;
    eventually("the operator works", || async { server.get("/readyz").await.text.contains("leading").then_some(()) }).await;
    cluster.end();
}

/// The Lease of a replica that can no longer renew it.
async fn held_by_a_dead_replica(team: &Tenant) {
    let now = MicroTime(Timestamp::now());
    let spec = LeaseSpec {
        holder_identity: Some("operator-9".into()),
        lease_duration_seconds: Some(15),
        acquire_time: Some(now.clone()),
        renew_time: Some(now),
        ..LeaseSpec::default()
    };
    let lease = Lease { metadata: named("bloom-runtime"), spec: Some(spec) };
    team.api::<Lease>().create(&PostParams::default(), &lease).await.unwrap();
}

/// Makes the role as it was, without this resource.
async fn replace(roles: &Api<ClusterRole>, whole: &ClusterRole, without: &str) {
    let name = whole.metadata.name.as_ref().unwrap();
    let mut role = roles.get(name).await.unwrap();
    role.rules.clone_from(&whole.rules);
    for rule in role.rules.iter_mut().flatten() {
        rule.resources.iter_mut().for_each(|names| names.retain(|name| name != without));
    }
    role.rules.iter_mut().for_each(|rules| rules.retain(|rule| rule.resources.iter().flatten().next().is_some()));
    roles.replace(name, &PostParams::default(), &role).await.unwrap();
}
