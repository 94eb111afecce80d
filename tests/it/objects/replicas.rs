//! Several replicas and one bucket.

use super::{are_moved, ended, kept, large};
use crate::replicas::{leader, replicas_of};
use crate::support::minio::{Minio, Policy};
use crate::support::*;

#[test]
fn each_writes_and_reads_and_one_moves() {
    run(async {
        let policy = Policy::start().await;
        let minio = Minio::with_policy(&policy).await;
        let url = postgres::database();
        let servers = replicas_of(2, || Minio::used_by(Server::on_url(&url), &minio.url()));
        let mut outputs = Vec::new();
        for server in &servers {
            let output = large(&unique("written"));
            outputs.push((ended(server, &output).await.id, output));
        }
        for server in &servers {
            are_moved(&minio, server, &outputs).await;
        }
        policy.deny_writes();
        for server in &servers {
            let output = large(&unique("kept"));
            outputs.push((ended(server, &output).await.id, output));
        }
        assert_eq!(kept(&url).await, 2);
        let leading = eventually("one replica leads", || async { leader(&servers).await }).await;
        servers[leading].kill9();
        policy.allow_writes();
        // The other one leads now.
        let other = &servers[1 - leading];
        are_moved(&minio, other, &outputs).await;
        assert_eq!((minio.objects("artifacts").len(), kept(&url).await), (4, 0));
    });
}

/// The replica that does not lead writes nothing by itself, and yet its metrics tell that it could.
#[test]
fn a_replica_that_does_not_lead_notices_that_it_can_write_again() {
    run(async {
        let policy = Policy::start().await;
        let minio = Minio::with_policy(&policy).await;
        let url = postgres::database();
        let servers = replicas_of(2, || Minio::used_by(Server::on_url(&url), &minio.url()));
        let leading = eventually("one replica leads", || async { leader(&servers).await }).await;
        let follower = &servers[1 - leading];
        policy.deny_writes();
        ended(follower, &large("kept")).await;
        let shows = async |line: &str| follower.get("/metrics").await.expect(200).text.lines().any(|one| one == line);
        assert!(shows("bloom_object_store_up 0").await);
        policy.allow_writes();
        eventually("it can write", || async { shows("bloom_object_store_up 1").await.then_some(()) }).await;
        assert!(!follower.get("/metrics").await.text.contains("\nbloom_object_backlog"), "only the leader counts");
    });
}
