//! What runs write into their worktrees and repositories, and the agent's own git.

use super::sandbox::AS_A_USER;
use super::worktrees::{SHELL, diff, plan, repository_of, task, with_project};
use super::*;
use crate::support::repository::git;

/// Settings of git that name the command wherever git executes something, for the repository of the run.
fn hostile(command: &str) -> String {
    let settings = [
        "core.fsmonitor",
        "core.sshCommand",
        "core.editor",
        "core.pager",
        "filter.evil.clean",
        "filter.evil.smudge",
        "diff.external",
        "gpg.program",
        "credential.helper",
        "core.alternateRefsCommand",
        "uploadpack.packObjectsHook",
        "alias.add",
    ];
    let set: String = settings.iter().map(|name| format!("git config {name} '{command}'\n")).collect();
    format!("{set}git config commit.gpgSign true\necho '* filter=evil diff=evil' >.gitattributes\n")
}

#[test]
fn what_a_run_in_a_sandbox_wrote_is_executed_in_its_sandbox_only() {
    with_project(
        |plan| plan.profile(&format!("{SHELL}\nsandbox = \"bubblewrap\"")),
        async |server, _, agent| {
            let outside = janitor::new_path("outside");
            std::fs::create_dir_all(&outside).expect("a directory");
            // It says where it is executed, and what it reaches there.
            let reach = format!(
                "touch {0}/mark; ls {1}/agent.json >>reached; env | grep -c BLOOM_KEY >>reached; echo executed >>executed; cat",
                outside.display(),
                agent.work_dir().display()
            );
            let first = task(server, "a", &format!("{}echo three >file; echo done", hostile(&reach))).await;
            first.reaches("completed").await;
            assert_eq!(result(&first).await["output"], json!("done\n"));
            assert!(diff(&first).await.contains("+three"), "it is committed");
            let later = task(server, "a", "cat executed | head -1; sort -u reached").await;
            later.reaches("completed").await;
            assert_eq!(result(&later).await["output"], json!("executed\n0\n"), "its own filter works for it, and reaches nothing");
            assert_eq!(std::fs::read_dir(&outside).expect("the directory").count(), 0, "nothing was executed outside");
            let settings = git(&repository_of(agent), &["config", "--local", "--list", "--name-only"]);
            assert!(!settings.contains("evil") && settings.contains("core.bare"), "{settings}");
            let _ = std::fs::remove_dir_all(outside);
        },
    );
}

#[test]
fn the_repository_of_a_context_is_its_own() {
    with_project(
        |plan| plan,
        async |server, repository, agent| {
            let mark = janitor::new_path("mark");
            let evil = format!(
                "{}git config url.file:///nowhere/.insteadOf https://host.invalid/\ngit config user.email run@localhost\n\
                 echo stashed >file; git stash -q; git branch mine; echo three >file",
                hostile(&format!("touch {}; cat", mark.display()))
            );
            task(server, "a", &evil).await.reaches("completed").await;
            let _ = std::fs::remove_file(&mark);
            let script = "echo '* filter=evil' >.gitattributes; echo four >file; git stash list; git branch --list mine; git config user.email; true";
            let other = plan(server, "b", script).with("push", json!("branch")).create().await;
            other.reaches("completed").await;
            assert_eq!(result(&other).await["output"], json!(""));
            assert_eq!(json!(git(&repository.bare(), &["rev-parse", "bloom/b"])), result(&other).await["commit"]);
            assert!(!mark.exists(), "settings of another context had an effect");
            let again = task(server, "a", "git stash list | wc -l; git branch --list mine").await;
            again.reaches("completed").await;
            assert_eq!(result(&again).await["output"], json!("1\n  mine\n"), "its own are kept");
            agent.has_no_processes().await;
        },
    );
}

#[test]
fn what_the_filter_of_a_run_starts_ends_with_the_run() {
    with_project(
        |plan| plan,
        async |server, _, agent| {
            let daemon = "(setsid sh -c \"while :; do sleep 0.1; done\" </dev/null >/dev/null 2>&1 &); cat";
            let script = format!("git config filter.evil.clean '{daemon}'; echo '* filter=evil' >.gitattributes; echo three >file");
            let task = task(server, "a", &script).await;
            task.reaches("completed").await;
            assert!(diff(&task).await.contains("+three"));
            agent.has_no_processes().await;
        },
    );
}

#[test]
fn what_the_filter_of_a_run_writes_counts_for_the_limit_of_the_run() {
    with_project(
        |plan| plan.profile(&format!("{SHELL}\nlimits = {{ disk_mib = 4 }}")),
        async |server, _, agent| {
            let fill = "for n in 1 2 3; do head -c 3000000 /dev/zero >large$n; done; sleep 150; cat";
            let much = "head -c 3000000 /dev/zero";
            let hold = format!("exec 3>a; rm a; {much} >&3; exec 4>b; rm b; {much} >&4; sleep 150; cat");
            for (context, filter) in [("fills", fill), ("holds", &hold)] {
                let script = format!("git config filter.evil.clean '{filter}'; echo '* filter=evil' >.gitattributes; echo three >file");
                let failed = task(server, context, &script).await.reaches("failed").await;
                assert_eq!(failed["failure"]["reason"], json!("disk_limit"), "{context}: {failed}");
            }
            agent.has_no_processes().await;
        },
    );
}

/// Git could not look into it either. A run must not fail for it after it was paid.
#[test]
fn a_directory_that_the_agent_may_not_read_is_left_out() {
    with_project(
        |plan| plan.through(AS_A_USER),
        async |server, _, _| {
            let hides =
                "mkdir ignored other; echo ignored >.gitignore; touch ignored/file other/file; chmod 0 ignored other; echo new >new";
            let hides = task(server, "a", hides).await;
            hides.reaches("completed").await;
            let shown = diff(&hides).await;
            assert!(shown.contains("+new") && !shown.contains("other"), "{shown}");
            task(server, "a", "echo more >more").await.reaches("completed").await;
        },
    );
}

/// Else it could change what the agent commits, while git reads it.
#[test]
fn a_run_without_a_project_follows_the_others_of_its_worktree() {
    with_project(
        |plan| plan,
        async |server, _, _| {
            task(server, "a", "true").await.reaches("completed").await;
            let latch = Latch::new();
            let first = plan(server, "a", &format!("{}; echo first >first", latch.wait())).create().await;
            first.reaches("running").await;
            let without = server.crew().task().context("a").with("session", json!("none")).prompt("ls").create().await;
            without.reaches("running").await;
            latch.open();
            without.reaches("completed").await;
            assert_eq!(result(&without).await["output"], json!("file\nfirst\n"));
        },
    );
}

/// A context whose first run with a project begins while one without it is there.
#[test]
fn a_worktree_is_made_after_the_runs_that_are_in_its_directory() {
    with_project(
        |plan| plan,
        async |server, _, _| {
            let latch = Latch::new();
            let without = server.crew().task().context("a").with("session", json!("none")).prompt(&latch.wait()).create().await;
            without.reaches("running").await;
            let first = plan(server, "a", "ls").with("session", json!("none")).create().await;
            first.reaches("running").await;
            latch.open();
            first.reaches("completed").await;
            assert_eq!(result(&first).await["output"], json!("file\n"));
        },
    );
}
