//! LLMTasks that show one task because they have the same idempotency key, and one that is cancelled from the start.

use serde_json::json;

use crate::cluster::shared;
use crate::objects::Player;
use crate::support::{Database, run, unique};

#[test]
fn each_object_stands_for_the_task() {
    run(async {
        let team = shared().await.namespace().await;
        let server = team.server(Database::Sqlite).start();
        let slug = unique("agent");
        let player = Player::join(&server, &slug, 1).await;
        let first = team.create(&slug, json!({ "idempotencyKey": "once", "ttlSecondsAfterFinished": 0 })).await;
        let id = team.task_id(&first).await;
        let second = team.create(&slug, json!({ "idempotencyKey": "once" })).await;
        assert_eq!(team.task_id(&second).await, id);
        let third = team.create(&slug, json!({ "dependsOn": [second] })).await;
        team.task_id(&third).await;
        player.complete(&player.claim().await, json!({})).await;
        // The task stays as long as another object shows it.
        team.is_gone(&first).await;
        team.is_in_phase(&second, "Completed").await;
        assert_eq!(player.claim().await["task"]["kubernetes"]["name"], third);
    });
}

#[test]
fn what_is_cancelled_from_the_start_is_never_leased() {
    run(async {
        let team = shared().await.namespace().await;
        let server = team.server(Database::Sqlite).start();
        let slug = unique("agent");
        let player = Player::join(&server, &slug, 1).await;
        let submit = async {
            for _ in 0..10 {
                let name = team.create(&slug, json!({ "cancel": true })).await;
                team.is_in_phase(&name, "Cancelled").await;
            }
            team.create(&slug, json!({})).await
        };
        let (claimed, name) = tokio::join!(player.claim(), submit);
        assert_eq!(claimed["task"]["kubernetes"]["name"], name);
    });
}
