//! Keys that were created again with another team, or got one: what their former and their new team reach of what they made.

use crate::files::upload;
use crate::key_limits::ids;
use crate::keys::{ADMIN, keyed, with_new_key};
use crate::on_both;
use crate::support::fixtures::NewTask;
use crate::support::*;

fn task(api: &Api) -> NewTask<'_> {
    Crew { api, slug: "coder".into() }.task()
}

/// The name is free, and a key with it is created in this team, or in none.
async fn again(admin: &Api, server: &Api, name: &str, scope: &str, team: Option<&str>) -> Api {
    admin.delete(&format!("keys/{name}")).await.ok();
    with_new_key(admin, server, name, scope, json!({ "team": team })).await
}

/// Runs the task to its end, with this session.
async fn run_to_end(admin: &Api, worker: &Worker<'_>, task: &str, session: &str) {
    admin.task(task).lease_to(worker).await.complete("success", json!({ "output": "said", "session_id": session })).await.ok();
}

on_both! { alone:
    async fn a_conversation_that_others_have_part_in_is_closed_to_a_team(database) {
        let server = keyed(database);
        let admin = server.with_key(ADMIN);
        let ann = with_new_key(&admin, &server, "ann", "member", json!({ "team": "red" })).await;
        let eve = with_new_key(&admin, &server, "eve", "member", json!({ "team": "blue" })).await;
        let worker = admin.worker().slots(8).register().await;
        let conversations = [("none", None, Some("red")), ("red", Some("red"), Some("blue")), ("gone", Some("red"), None)];
        for (conv, before, after) in conversations {
            let context = format!("{conv}/talk");
            let path = format!("contexts/{conv}%2Ftalk");
            let former = with_new_key(&admin, &server, conv, "submit", json!({ "team": before })).await;
            let first = task(&former).context("talk").create().await;
            run_to_end(&admin, &worker, &first.id, "of-former").await;
            let waiting = task(&former).context("talk").create().await;
            waiting.cancel().await.ok();
            if before == Some("red") {
                assert_eq!(ann.get(&path).await.ok()["session_id"], "of-former");
                task(&ann).context(&context).create().await.cancel().await.ok();
            }
            let moved = again(&admin, &server, conv, "submit", after).await;
            let later = task(&moved).context("talk").create().await;
            run_to_end(&admin, &worker, &later.id, "of-later").await;

            for (member, team) in [(&ann, "red"), (&eve, "blue")] {
                let has_part = before == Some(team) || after == Some(team);
                let answer = task(member).context(&context).answer().await;
                if !has_part {
                    // As if nobody had such a context.
                    assert_eq!(answer.created()["context_id"], format!("team:{team}/{context}"));
                    member.get(&path).await.ok();
                    assert_eq!(ids(&member.get(&format!("llm-tasks?context_id={context}")).await.ok()).len(), 1);
                    continue;
                }
                let said = answer.error(409);
                assert!(said.contains(&format!("'{context}'")) && said.contains(team), "{said}");
                let seen = member.get(&path).await.ok();
                let is_last = after == Some(team);
                assert_eq!(seen["session_id"], if is_last { json!("of-later") } else { Value::Null }, "{conv} {team}");
                assert_eq!(seen["worker_id"].is_string(), is_last, "{conv} {team}");
                member.poke(&format!("{path}/reset")).await.error(409);
                assert_eq!(admin.get(&path).await.ok()["reset_at"], Value::Null);
                if before == Some(team) {
                    assert_eq!(ids(&member.get(&format!("llm-tasks?context_id={context}")).await.ok()).len(), 3);
                    // A task of before would run in what the others have said since.
                    let said = member.poke(&waiting.path("/requeue")).await.error(409);
                    assert!(said.contains(&context), "{said}");
                    let many = member.post("llm-tasks:requeue", json!({ "ids": [waiting.id] })).await.ok();
                    assert_eq!((&many["matched"], &many["changed"]), (&json!(0), &json!(0)));
                }
            }
            assert_eq!(admin.task(&waiting.id).status().await, "cancelled");
            // The key itself and an administrator go on.
            let own = task(&moved).context("talk").create().await;
            assert_eq!(own.now().await["context_id"], context);
            assert_eq!(admin.poke(&waiting.path("/requeue")).await.ok()["status"], "queued");
            assert_eq!(admin.get(&path).await.ok()["session_id"], "of-later");
            admin.poke(&format!("{path}/reset")).await.ok();
        }
    }

    async fn an_administrators_task_leaves_a_conversation_open_to_the_team(database) {
        let server = keyed(database);
        let admin = server.with_key(ADMIN);
        let ann = with_new_key(&admin, &server, "ann", "member", json!({ "team": "red" })).await;
        let ci = with_new_key(&admin, &server, "ci", "submit", json!({ "team": "red" })).await;
        let worker = admin.worker().slots(8).register().await;
        run_to_end(&admin, &worker, &task(&ci).context("talk").create().await.id, "s").await;
        run_to_end(&admin, &worker, &task(&admin).context("ci/talk").create().await.id, "s2").await;
        assert_eq!(task(&ann).context("ci/talk").create().await.now().await["context_id"], "ci/talk");
        ann.poke("contexts/ci%2Ftalk/reset").await.ok();
    }

    async fn an_upload_stays_with_the_team_of_its_key(database) {
        let server = keyed(database);
        let admin = server.with_key(ADMIN);
        let key = async |name: &str, scope: &str, team: &str| with_new_key(&admin, &server, name, scope, json!({ "team": team })).await;
        let (ann, eve) = (key("ann", "member", "red").await, key("eve", "member", "blue").await);
        for scope in ["member", "submit"] {
            let before = with_new_key(&admin, &server, scope, scope, json!({ "team": "red" })).await;
            let sent = async |name: &str| upload(&before, &format!("name={name}"), name.as_bytes()).await.created()["id"].as_str().unwrap().to_owned();
            let (free, used) = (sent("free").await, sent("used").await);
            let inputs = |id: &str| json!([{ "artifact_id": id }]);
            let content = |id: &str| format!("artifacts/{id}/content");
            ann.get(&content(&used)).await.error(404);
            task(&ann).with("inputs", inputs(&used)).answer().await.refuses(&["inputs"]);
            let made = task(&before).with("inputs", inputs(&used)).create().await;

            // A task of the team uses it: the team reads it, and uses it too.
            for member in [&ann, &before] {
                assert_eq!(member.get(&content(&used)).await.expect(200).text, "used");
                task(member).with("inputs", inputs(&used)).create().await;
            }
            assert!(ann.delete(&format!("artifacts/{used}")).await.error(409).contains("uses the artifact"));
            ann.get(&content(&free)).await.error(404);
            ann.delete(&format!("artifacts/{free}")).await.error(404);

            let moved = again(&admin, &server, scope, scope, Some("blue")).await;
            for other in [&moved, &eve] {
                other.get(&content(&free)).await.error(404);
                other.delete(&format!("artifacts/{free}")).await.error(404);
                task(other).with("inputs", inputs(&free)).answer().await.refuses(&["inputs"]);
            }
            eve.get(&content(&used)).await.error(404);
            task(&eve).with("inputs", inputs(&used)).answer().await.refuses(&["inputs"]);
            // A submit key sees the tasks that its name created, with what they use; a member key sees those of its team.
            let of_task = moved.get(&content(&used)).await;
            if scope == "submit" { of_task.expect(200) } else { of_task.expect(404) };
            assert_eq!(moved.get(&made.path("")).await.status, if scope == "submit" { 200 } else { 404 });
            let back = again(&admin, &server, scope, scope, Some("red")).await;
            assert_eq!(back.get(&content(&free)).await.expect(200).text, "free");
            back.delete(&format!("artifacts/{free}")).await.ok();
        }
    }
}
