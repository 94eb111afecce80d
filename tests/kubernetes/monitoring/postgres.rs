//! Servers on PostgreSQL: leaders, a slow database, and one that does not answer.

use super::prometheus::Prometheus;
use crate::support::checker::Link;
use crate::support::proxy::Proxy;
use crate::support::{Database, Server, direct, eventually};

/// Each batch takes more than a second.
const SLOW: &str = "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(1.2); RETURN NEW; END $$; \
    CREATE TRIGGER slow BEFORE INSERT ON batches FOR EACH ROW EXECUTE FUNCTION slow()";

async fn leads(server: &Server) -> bool {
    server.get("/metrics").await.expect(200).text.contains("\nbloom_leader 1\n")
}

pub async fn leaders(prometheus: &Prometheus) {
    const JOB: &str = "replicas";
    let first = Server::on(Database::Postgres).start();
    let second = Server::on_url(&first.database_url()).start();
    prometheus.scrapes(JOB, &[&first, &second]);
    // The leader freezes, and the other one takes over.
    let change = async || {
        let (leader, other) = eventually("a leader", || async {
            let (one, two) = (leads(&first).await, leads(&second).await);
            (one != two).then_some(if one { (&first, &second) } else { (&second, &first) })
        })
        .await;
        leader.pause();
        eventually("the other one leads", || async { leads(other).await.then_some(()) }).await;
        leader.resume();
    };
    prometheus.fires_while(JOB, "BloomLeaderFlaps", change).await;
    prometheus.resolves(JOB, "BloomLeaderFlaps").await;

    // Somebody's open transaction.
    let mut session = Link::open(&first.database_url()).await;
    session.rows("BEGIN").await;
    session.rows("SELECT holder FROM leader FOR UPDATE").await;
    prometheus.fires(JOB, "BloomNoLeader").await;
    session.rows("ROLLBACK").await;
    prometheus.resolves(JOB, "BloomNoLeader").await;

    // A table that one reconciler needs.
    session.rows("ALTER TABLE wakeups RENAME TO wakeups_away").await;
    prometheus.fires(JOB, "BloomReconcileErrors").await;
    session.rows("ALTER TABLE wakeups_away RENAME TO wakeups").await;
    prometheus.resolves(JOB, "BloomReconcileErrors").await;
}

pub async fn slow_and_down(prometheus: &Prometheus) {
    const JOB: &str = "slow";
    let url = bloom_test_support::postgres::database();
    let proxy = Proxy::start(&url).await;
    let server = Server::on_url(&proxy.url).start();
    prometheus.scrapes(JOB, &[&server]);
    let crew = server.crew();
    let write = async || drop(crew.task().create().await);
    direct::execute(&url, SLOW).await;
    prometheus.fires_while(JOB, "BloomCommitsSlow", write).await;
    direct::execute(&url, "DROP TRIGGER slow ON batches").await;
    write().await;
    prometheus.resolves(JOB, "BloomCommitsSlow").await;

    proxy.hold();
    prometheus.fires(JOB, "BloomDatabaseDown").await;
    proxy.release();
    prometheus.resolves(JOB, "BloomDatabaseDown").await;
}
