//! Names of branches and tags that git could take for others: the agent looks up the ref that it means, and pushes to no other.

use super::worktrees::{SHELL, failed, plan, repository_of, task, with_project};
use super::*;
use crate::support::Server;
use crate::support::agent::Agent;
use crate::support::repository::{Repository, git};

/// Ends a shell script such that what it changed can't be committed, so that the worktree stays as the script left it.
const UNCOMMITTED: &str =
    "git config filter.bad.clean false; git config filter.bad.required true; echo '* filter=bad' >.gitattributes; echo >new";
/// Lets the next run commit.
const MENDED: &str = "git config --unset filter.bad.required; rm .gitattributes; echo mine >new";

fn with_sandbox(body: impl AsyncFnOnce(&Server, &Repository, &Agent)) {
    with_project(|plan| plan.profile(&format!("{SHELL}\nsandbox = \"bubblewrap\"")), body);
}

#[test]
fn a_run_leads_the_agent_to_no_branch_but_that_of_its_context() {
    with_sandbox(async |server, repository, agent| {
        let bare = repository.bare();
        git(&bare, &["branch", "none", "main"]);
        for name in ["main", "none", "x/other"] {
            git(&bare, &["update-ref", &format!("refs/tags/refs/heads/{name}"), "main"]);
        }
        let before = git(&bare, &["for-each-ref"]);
        for (context, branch) in [("main", "main"), ("none", "none"), ("other", "x/other")] {
            let leave = format!("git checkout -q -B {branch} origin/main; {UNCOMMITTED}");
            let left = task(server, context, &leave).await;
            left.reaches("failed").await;
            let next = plan(server, context, MENDED).with("push", json!("branch")).create().await;
            failed(&next, "failed", "project", &format!("something else than its branch bloom/{context}")).await;
        }
        assert_eq!(git(&bare, &["for-each-ref"]), before, "nothing was pushed");
        let heads = git(&repository_of(agent), &["for-each-ref", "--format=%(refname)", "refs/heads"]);
        assert_eq!(heads, "refs/heads/bloom/main\nrefs/heads/bloom/none\nrefs/heads/bloom/other");
    });
}

#[test]
fn a_tag_that_is_called_like_a_branch_is_no_obstacle() {
    with_project(
        |plan| plan,
        async |server, repository, agent| {
            let bare = repository.bare();
            let old = git(&bare, &["rev-parse", "v1"]);
            let tags = ["refs/heads/bloom/dos", "refs/remotes/origin/main", "refs/remotes/origin/bloom/dos"];
            tags.iter().for_each(|name| drop(git(&bare, &["update-ref", &format!("refs/tags/{name}"), &old])));
            for text in ["first", "second"] {
                let pushed = plan(server, "dos", &format!("cat file; echo {text} >>mine")).with("push", json!("branch")).create().await;
                pushed.reaches("completed").await;
                assert_eq!(result(&pushed).await["output"], json!("two\n"), "it begins at the branch");
                assert_eq!(json!(git(&bare, &["rev-parse", "refs/heads/bloom/dos"])), result(&pushed).await["commit"]);
            }
            tags.iter().for_each(|name| assert_eq!(git(&bare, &["rev-parse", &format!("refs/tags/{name}")]), old));
            assert_eq!(git(&repository_of(agent), &["tag"]), "v1", "such tags are not fetched");
        },
    );
}

/// A worktree goes on with the branch on which the agent left it, also when a task does not tell the prefix of that one.
#[test]
fn a_branch_goes_on_when_its_project_is_deleted() {
    with_project(
        |plan| plan,
        async |server, repository, _| {
            let id = server.get("projects").await.ok()[0]["id"].as_str().expect("an id").to_owned();
            server.patch(&format!("projects/{id}"), json!({ "branch_prefix": "bots" })).await.ok();
            let first = plan(server, "c", "echo first >mine").with("push", json!("branch")).create().await;
            first.reaches("completed").await;
            let latch = Latch::new();
            let holds = plan(server, "c", &latch.wait()).create().await;
            holds.reaches("running").await;
            let waits = plan(server, "c", "echo second >>mine").with("push", json!("branch")).create().await;
            server.delete(&format!("projects/{id}")).await.ok();
            latch.open();
            waits.reaches("completed").await;
            assert_eq!(result(&waits).await["branch"], json!("bots/c"));
            assert_eq!(git(&repository.bare(), &["show", "bots/c:mine"]), "first\nsecond");
        },
    );
}
