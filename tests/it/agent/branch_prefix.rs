//! The prefix of contexts' branches: a setting of the project, which may change while there are branches.

use super::worktrees::{SHELL, failed, plan, repository_of, task, with_project, worktrees};
use super::*;
use crate::support::Server;
use crate::support::repository::git;

pub(super) async fn edit(server: &Server, prefix: &str) {
    let id = server.get("projects").await.ok()[0]["id"].as_str().expect("an id").to_owned();
    server.patch(&format!("projects/{id}"), json!({ "branch_prefix": prefix })).await.ok();
}

/// The branches of contexts in a repository.
fn branches(repository: &Path) -> String {
    git(repository, &["for-each-ref", "--format=%(refname:lstrip=2)", "refs/heads/**/c*"])
}

#[test]
fn a_repository_with_a_branch_of_that_name_can_be_pushed_to() {
    with_project(
        |plan| plan,
        async |server, repository, agent| {
            git(&repository.bare(), &["branch", "bloom", "main"]);
            let unpushed = task(server, "c1", "echo first >mine").await;
            unpushed.reaches("completed").await;
            assert_eq!(result(&unpushed).await["branch"], json!("bloom/c1"));
            let stuck = plan(server, "c1", "echo second >>mine").with("push", json!("branch")).create().await;
            failed(&stuck, "failed", "project", "bloom-runtime project edit site --branch-prefix").await;
            // What the context has goes on under the new name.
            edit(server, "team/bots").await;
            server.post(&stuck.path("/requeue"), json!({})).await.ok();
            stuck.reaches("completed").await;
            assert_eq!(result(&stuck).await["branch"], json!("team/bots/c1"));
            assert_eq!(git(&repository.bare(), &["show", "team/bots/c1:mine"]), "first\nsecond");
            assert_eq!((branches(&repository_of(agent)), branches(&worktrees(agent)[0])), ("team/bots/c1".into(), "team/bots/c1".into()));
            let other = plan(server, "c2", "echo >other").with("push", json!("branch")).create().await;
            other.reaches("completed").await;
            assert_eq!(branches(&repository.bare()), "team/bots/c1\nteam/bots/c2");
        },
    );
}

#[test]
fn a_branch_that_was_pushed_keeps_its_name() {
    with_project(
        |plan| plan,
        async |server, repository, agent| {
            let pushes = async |script: &str| {
                let task = plan(server, "c", script).with("push", json!("branch")).with("session", json!("none")).create().await;
                task.reaches("completed").await;
                assert_eq!(result(&task).await["branch"], json!("bloom/c"));
            };
            pushes("echo first >mine").await;
            edit(server, "bots").await;
            pushes("echo second >>mine").await;
            assert!(agent.stop().success());
            // Also on a worker that learns of it from the repository only.
            let other = repository.known_to(server.agent("other")).profile(SHELL).start();
            pushes("echo third >>mine").await;
            assert_eq!(git(&repository.bare(), &["show", "bloom/c:mine"]), "first\nsecond\nthird");
            assert_eq!(branches(&repository.bare()), "bloom/c");
            assert!(other.stop().success());
            // The worktree goes; what was not pushed goes on under the new name.
            agent.start_again();
            git(&repository.bare(), &["branch", "-D", "bloom/c"]);
            let renamed = plan(server, "c", "cat mine").with("session", json!("none")).create().await;
            renamed.reaches("completed").await;
            assert_eq!(
                (&result(&renamed).await["branch"], &result(&renamed).await["output"]),
                (&json!("bots/c"), &json!("first\nsecond\n"))
            );
        },
    );
}

/// Branches on the worker are kept like files in directories, too: also those that nobody pushed.
#[test]
fn a_branch_of_another_context_on_the_worker_is_told() {
    with_project(
        |plan| plan,
        async |server, repository, agent| {
            task(server, "c", "echo mine >mine").await.reaches("completed").await;
            edit(server, "bloom/c").await;
            let below = task(server, "c2", "true").await;
            let why = "can have no branch bloom/c/c2 on the worker, because a context has the branch bloom/c there";
            failed(&below, "failed", "project", why).await;
            failed(&task(server, "c", "true").await, "failed", "project", "can have no branch bloom/c/c on the worker").await;
            edit(server, "bots/c3").await;
            server.post(&below.path("/requeue"), json!({})).await.ok();
            below.reaches("completed").await;
            edit(server, "bots").await;
            let above = plan(server, "c3", "true").with("push", json!("branch")).create().await;
            failed(&above, "failed", "project", "because a context has the branch bots/c3/c2 there").await;
            // What is in the way goes with the prefix: its context goes on under the new one.
            task(server, "c2", "true").await.reaches("completed").await;
            server.post(&above.path("/requeue"), json!({})).await.ok();
            above.reaches("completed").await;
            assert_eq!(branches(&repository_of(agent)), "bloom/c\nbots/c2\nbots/c3");
            assert_eq!(branches(&repository.bare()), "");
        },
    );
}
