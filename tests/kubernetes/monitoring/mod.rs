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

/// Each installation is a job of its own, as it is for people with several ones. All causes happen at once, because most alerts wait; each in
/// a thread, because the start of a server blocks.
#[test]
fn every_alert_fires_by_its_cause_and_resolves() {
    let authority = Authority::new();
    let plain = ["disk", "workers", "calls", "crowded", "accounts", "replicas", "slow", "operator"].map(Job::plain);
    let prometheus = run(Prometheus::start(&[&plain[..], &[Job { name: "https", authority: Some(&authority) }]].concat()));
    let p = &prometheus;
    std::thread::scope(|scope| {
        scope.spawn(|| run(sqlite::what_it_depends_on(p)));
        scope.spawn(|| run(sqlite::certificate(p, &authority)));
        scope.spawn(|| run(workers::no_worker_and_no_room(p)));
        scope.spawn(|| run(calls::leases_and_pushes(p)));
        scope.spawn(|| run(calls::too_many_connections(p)));
        scope.spawn(|| run(accounts::accounts_costs_and_failures(p)));
        scope.spawn(|| run(postgres::leaders(p)));
        scope.spawn(|| run(postgres::slow_and_down(p)));
        scope.spawn(|| run(operator::operator(p)));
    });
    assert_eq!(prometheus.resolved(), rules::alerts(), "each alert has a cause here");
}
