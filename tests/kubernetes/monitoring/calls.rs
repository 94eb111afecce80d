//! A server whose workers die and whose agents can't be reached, and one that has too few connections.

use tokio::net::TcpSocket;

use super::prometheus::Prometheus;
use crate::support::pushed::nowhere;
use crate::support::{Database, Server, json};

const FEW_FILES: &str = r#"ulimit -n 256 && exec "$0" "$@""#;

pub async fn leases_and_pushes(prometheus: &Prometheus) {
    const JOB: &str = "calls";
    let server = Server::on(Database::Sqlite).start();
    prometheus.scrapes(JOB, &[&server]);
    let crew = server.crew();

    // Workers that are never heard of again.
    let die = async || {
        let worker = crew.worker().slots(4).register().await;
        for _ in 0..4 {
            crew.task().attempts(1).create().await.lease_for(&worker, 1).await;
        }
    };
    let unreachable = server.worker().with("url", json!(nowhere())).slots(32).register().await;
    let push = async || drop(crew.task().create().await.dispatch(json!({ "worker_id": unreachable.name })).await);
    tokio::join!(
        prometheus.fires_while(JOB, "BloomLeasesExpire", die),
        prometheus.fires(JOB, "BloomTasksDead"),
        prometheus.fires_while(JOB, "BloomPushesFail", push),
    );
    for alert in ["BloomLeasesExpire", "BloomTasksDead", "BloomPushesFail"] {
        prometheus.resolves(JOB, alert).await;
    }
}

pub async fn too_many_connections(prometheus: &Prometheus) {
    const JOB: &str = "crowded";
    let server = Server::on(Database::Sqlite).through(FEW_FILES).start();
    prometheus.scrapes(JOB, &[&server]);
    let address = server.base().trim_start_matches("http://").parse().unwrap();
    // From another address than Prometheus and the tests, whose connections count by themselves.
    let connect = async || {
        let mut open = Vec::new();
        for _ in 0..256 {
            let socket = TcpSocket::new_v4().unwrap();
            socket.bind("127.0.0.2:0".parse().unwrap()).unwrap();
            open.extend(socket.connect(address).await.ok());
        }
    };
    prometheus.fires_while(JOB, "BloomConnectionsRefused", connect).await;
    prometheus.resolves(JOB, "BloomConnectionsRefused").await;
}
