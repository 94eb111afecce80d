//! A branch of the repository that is called like that of a context: it is taken for it only if runs of the context made it.

use super::branch_prefix::edit;
use super::worktrees::{SHELL, failed, plan, with_project};
use super::*;
use crate::support::janitor;
use crate::support::repository::git;

/// Lets the branch of a repository end with a commit of a person.
fn adds(bare: &Path, branch: &str, from: &str, message: &str) -> String {
    let commit = git(bare, &["commit-tree", &format!("{from}^{{tree}}"), "-p", from, "-m", message]);
    git(bare, &["update-ref", &format!("refs/heads/{branch}"), &commit]);
    commit
}

#[test]
fn a_branch_of_a_person_is_not_taken_for_that_of_a_context() {
    with_project(
        |plan| plan,
        async |server, repository, _| {
            let bare = repository.bare();
            edit(server, "team").await;
            let theirs = adds(&bare, "team/alice", "main", "Mine\n\nBloom-Context: alice2");
            let mark = janitor::new_path("mark");
            let pushes = |context: &str, script: &str| plan(server, context, script).with("push", json!("branch"));
            let why = "the branch team/alice of the project's repository was not made by runs of this context";
            for reference in ["main", "team/alice"] {
                let refused = pushes("alice", &format!("touch {}", mark.display())).with("ref", json!(reference)).create().await;
                failed(&refused, "failed", "project", why).await;
            }
            let refused = pushes("alice", "echo mine >mine").create().await;
            failed(&refused, "failed", "project", "bloom-runtime project edit site --branch-prefix").await;
            assert!(!mark.exists(), "the run has begun");
            // Under another prefix it has a branch of its own.
            edit(server, "bots").await;
            server.post(&refused.path("/requeue"), json!({})).await.ok();
            refused.reaches("completed").await;
            assert_eq!(result(&refused).await["branch"], json!("bots/alice"));
            assert_eq!(
                git(&bare, &["rev-parse", "team/alice", "bots/alice^"]),
                format!("{theirs}\n{}", git(&bare, &["rev-parse", "main"]))
            );
            // Nor is one that is the default branch, that is merged or an old state of it, that is at the ref of the task, or into which a person
            // has merged a branch of the context.
            let main = git(&bare, &["rev-parse", "main"]);
            let of_runs = adds(&bare, "team/alice2", "main", "Theirs\n\nBloom-Context: merges");
            let carl = adds(&bare, "bots/carl", "main", "Mine");
            let both = git(&bare, &["commit-tree", "main^{tree}", "-p", &carl, "-p", &of_runs, "-m", "Both"]);
            git(&bare, &["update-ref", "refs/heads/bots/merges", &both]);
            git(&bare, &["branch", "bots/old", "main"]);
            git(&bare, &["branch", "feature", "bots/carl"]);
            git(&bare, &["update-ref", "refs/heads/main", &git(&bare, &["commit-tree", "main^{tree}", "-p", "main", "-m", "More"])]);
            git(&bare, &["symbolic-ref", "HEAD", "refs/heads/bots/default"]);
            git(&bare, &["branch", "bots/default", "main"]);
            let tip = pushes("default", "true").create().await;
            failed(&tip, "failed", "project", "bots/default is the default branch").await;
            git(&bare, &["symbolic-ref", "HEAD", "refs/heads/main"]);
            for (context, reference) in [("carl", "feature"), ("carl", &carl), ("merges", "main"), ("old", "main"), ("old", &main)] {
                let refused = pushes(context, "true").with("ref", json!(reference)).create().await;
                failed(&refused, "failed", "project", &format!("bots/{context} of the project's repository was not made by")).await;
            }
            // What the message says helps.
            adds(&bare, "bots/carl", &carl, "For the context\n\nBloom-Context: carl");
            pushes("carl", "true").create().await.reaches("completed").await;
            // A context that has work here is not led to it either.
            adds(&bare, "bots/bob", "main", "Mine");
            let bob = plan(server, "bob", "true").create().await;
            failed(&bob, "failed", "project", "bots/bob").await;
            git(&bare, &["branch", "-D", "bots/bob"]);
            server.post(&bob.path("/requeue"), json!({})).await.ok();
            bob.reaches("completed").await;
            adds(&bare, "bots/bob", "main", "Mine");
            failed(&pushes("bob", "true").create().await, "failed", "project", "bots/bob").await;
        },
    );
}

#[test]
fn a_branch_without_commits_or_with_the_trailer_is_taken() {
    with_project(
        |plan| plan,
        async |server, repository, _| {
            let bare = repository.bare();
            git(&bare, &["branch", "bloom/empty", "main"]);
            let given = adds(&bare, "bloom/given", "main", "Yours\n\nBloom-Context: given");
            adds(&bare, "bloom/given", &given, "More of mine");
            // The default branch has all its commits, and a person has merged commits of other contexts into it.
            let merged = adds(&bare, "bloom/merged", "main", "Yours\n\nbloom-context:merged");
            let with_others = adds(&bare, "bloom/long", "main", "Yours\n\nBloom-Context: long");
            let mut other = git(&bare, &["rev-parse", "main"]);
            for n in 0..25 {
                other = adds(&bare, "other", &other, &format!("{n}\n\nBloom-Context: longer\nX: {}", "x".repeat(3_000)));
            }
            let both = ["commit-tree", &format!("{with_others}^{{tree}}"), "-p", &with_others, "-p", &other, "-m", "Both"];
            git(&bare, &["update-ref", "refs/heads/bloom/long", &git(&bare, &both)]);
            git(&bare, &["update-ref", "refs/heads/main", &merged]);
            git(&bare, &["update-ref", "refs/heads/bloom/empty", &merged]);
            for context in ["empty", "given", "merged", "long"] {
                let before = git(&bare, &["rev-parse", &format!("bloom/{context}")]);
                let task = plan(server, context, "echo mine >mine").with("push", json!("branch")).create().await;
                task.reaches("completed").await;
                assert_eq!(git(&bare, &["rev-parse", &format!("bloom/{context}^")]), before, "{context}");
            }
        },
    );
}

/// Also if the runs have made all commits by themselves, and after people have added and merged some.
#[test]
fn people_and_workers_go_on_with_a_branch_of_runs() {
    with_project(
        |plan| plan,
        async |server, repository, agent| {
            let bare = repository.bare();
            let runs = async |script: &str| {
                let task = plan(server, "c", script).with("push", json!("branch")).with("session", json!("none")).create().await;
                task.reaches("completed").await;
                let result = result(&task).await;
                assert_eq!(result["commit"], json!(git(&bare, &["rev-parse", "bloom/c"])));
                result
            };
            let commits = "echo >>mine; git add mine; git -c user.name=r -c user.email=r@localhost commit -qm 'By a run'";
            runs(commits).await;
            let log = git(&bare, &["log", "--format=%s|%(trailers:key=Bloom-Context,valueonly,separator=,)", "main..bloom/c"]);
            assert!(log.lines().count() == 2 && log.contains("|c\n") && log.ends_with("By a run|"), "{log}");
            runs(commits).await;
            assert_eq!(git(&bare, &["rev-list", "--count", "main..bloom/c"]), "3", "it is said once");
            let added = adds(&bare, "bloom/c", "bloom/c", "By a person");
            assert!(agent.stop().success());
            let other = repository.known_to(server.agent("other")).profile(SHELL).start();
            runs("true").await;
            runs("echo >there").await;
            assert_eq!(git(&bare, &["rev-parse", "bloom/c^"]), added);
            // All is merged, and a person adds something: the worker has pushed that branch.
            git(&bare, &["update-ref", "refs/heads/main", "bloom/c"]);
            let added = adds(&bare, "bloom/c", "bloom/c", "By a person, again");
            runs("echo >here").await;
            assert_eq!(git(&bare, &["rev-parse", "bloom/c^"]), added);
            assert!(other.stop().success());
            agent.start_again();
        },
    );
}
