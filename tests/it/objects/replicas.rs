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
        are_moved(&minio, &servers[1 - leading], &outputs).await;
        assert_eq!((minio.objects("artifacts").len(), kept(&url).await), (4, 0));
    });
}
