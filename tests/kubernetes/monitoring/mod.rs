//! A real Prometheus, with the configuration and the rules that are shipped: each alert fires by its cause, and resolves when the cause is
//! gone. The dashboard shows what the same Prometheus knows.

mod accounts;
mod calls;
mod dashboard;
mod operator;
mod postgres;
mod prometheus;
mod rules;
mod sqlite;
mod workers;

use crate::support::certificates::Authority;
use crate::support::run;
use prometheus::{Job, Prometheus};

/// Each installation is a job of its own, as it is for people with several ones. All causes happen at once, because most alerts wait.
#[test]
fn every_alert_fires_by_its_cause_and_resolves() {
    run(async {
        let authority = Authority::new();
        let plain = ["disk", "workers", "calls", "accounts", "replicas", "slow", "operator"].map(Job::plain);
        let prometheus = Prometheus::start(&[&plain[..], &[Job { name: "https", authority: Some(&authority) }]].concat()).await;
        let p = &prometheus;
        tokio::join!(
            sqlite::disks_backups_and_control_plane(p),
            sqlite::certificate(p, &authority),
            workers::no_worker_and_no_room(p),
            calls::leases_pushes_and_connections(p),
            accounts::accounts_costs_and_failures(p),
            postgres::leaders(p),
            postgres::slow_and_down(p),
            operator::operator(p),
        );
        assert_eq!(prometheus.resolved(), rules::alerts(), "each alert has a cause here");
    });
}
