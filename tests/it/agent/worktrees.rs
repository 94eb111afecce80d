//! Tasks of projects: each context works on a branch of its own, and what its runs change is committed there.

use super::*;
use std::os::unix::fs::PermissionsExt as _;

use crate::on_both;
use crate::support::agent::{Agent, AgentPlan};
use crate::support::claude::Anthropic;
use crate::support::fixtures::NewTask;
use crate::support::proxy::Proxy;
use crate::support::repository::{Repository, git};
use crate::support::{Database, Server};

pub(super) const SHELL: &str = "runner = \"command\"\ncommand = [\"sh\"]";

pub(super) fn with_project(plan: impl FnOnce(AgentPlan) -> AgentPlan, body: impl AsyncFnOnce(&Server, &Repository, &Agent)) {
    run(async {
        let (server, repository) = (Server::on(Database::Sqlite).keyed().start(), Repository::serve());
        repository.add_to(&server).await;
        let agent = plan(repository.known_to(server.agent("box").slots(3)).profile(SHELL)).start();
        body(&server, &repository, &agent).await;
        agent.has_no_processes().await;
    });
}

/// A task of the project with this shell script.
pub(super) async fn task<'a>(server: &'a Server, context: &str, script: &str) -> Task<'a> {
    plan(server, context, script).create().await
}

pub(super) fn plan<'a>(server: &'a Server, context: &str, script: &str) -> NewTask<'a> {
    server.crew().task().context(context).with("project", json!("site")).prompt(script)
}

/// The bare repository of the only project of the agent.
pub(super) fn repository_of(agent: &Agent) -> PathBuf {
    let entries = std::fs::read_dir(agent.work_dir().join("repositories")).expect("repositories");
    entries.flatten().next().expect("a repository").path().join("git")
}

/// The worktrees that the agent has.
pub(super) fn worktrees(agent: &Agent) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(agent.work_dir().join("contexts")).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).filter(|path| path.join(".git").exists()).collect()
}

/// What the run's phase tells.
async fn phase(task: &Task<'_>, phase: &str) -> Value {
    let phases = told(task, "lifecycle").await;
    phases.iter().find(|data| data["phase"] == json!(phase)).unwrap_or_else(|| panic!("no {phase}: {phases:?}")).clone()
}

/// The newest diff of the task.
pub(super) async fn diff(task: &Task<'_>) -> String {
    let artifacts = task.api.get(&format!("artifacts?task_id={}", task.id)).await.ok();
    let diff = artifacts.as_array().unwrap().iter().find(|artifact| artifact["type"] == json!("GIT_DIFF")).expect("a diff").clone();
    task.api.get(&format!("artifacts/{}/content", diff["id"].as_str().unwrap())).await.expect(200).text.clone()
}

pub(super) async fn failed(task: &Task<'_>, status: &str, reason: &str, message: &str) {
    let failure = task.reaches(status).await["failure"].clone();
    assert_eq!(failure["reason"], json!(reason), "{failure}");
    assert!(failure["message"].as_str().unwrap().contains(message), "{failure}");
}

on_both! { alone:
    async fn claude_works_on_a_branch_of_the_context(database) {
        let (server, api, repository) = (Server::on(database).start(), Anthropic::start().await, Repository::serve());
        repository.add_to(&server).await;
        let profile = "allowed_tools = [\"Bash(*)\"]\ncommit_author = \"A Builder <builder@example.org>\"";
        let plan = |name: &str| repository.known_to(server.agent(name).slots(2)).claude(&api, profile);
        let (one, two) = (plan("one").start(), plan("two").start());
        let ask = async |context: &str, command: &str| {
            let prompt = format!("MODE-TOOL RUN: {command}\nSAY: done");
            let task = server.crew().task().context(context).with("project", json!("site")).prompt(&prompt).create().await;
            task.reaches("completed").await;
            task
        };
        let first = ask("talk", "echo three >>file").await;
        let told = result(&first).await;
        assert_eq!(told["branch"], json!("bloom/talk"));
        let shown = diff(&first).await;
        assert!(shown.contains(" file | 1 +") && shown.contains("+three") && !shown.contains("+two"), "{shown}");
        let (now, task_now) = (first.now().await, &first.now().await["worker_id"]);
        assert_eq!((&now["project"], &now["ref"], &now["push"]), (&json!("site"), &json!(null), &json!("never")));
        // A second task of the context builds on it, and a task of another context does not see it.
        let second = ask("talk", "grep -c . file >lines").await;
        let third = ask("other", "grep -c . file >lines").await;
        let worker = |name: &Value| if *name == json!("one") { &one } else { &two };
        let bare = repository_of(worker(task_now));
        let commit = result(&second).await["commit"].as_str().unwrap().to_owned();
        assert_eq!(json!(git(&bare, &["rev-parse", &format!("{commit}^")])), told["commit"]);
        assert_eq!(git(&bare, &["show", &format!("{commit}:lines")]), "2");
        assert_eq!(git(&bare, &["log", "-1", "--format=%an <%ae>", &commit]), "A Builder <builder@example.org>");
        let message = git(&bare, &["log", "-1", "--format=%B", &commit]);
        assert!(message.starts_with("MODE-TOOL RUN: grep -c . file >lines\n\n") && message.contains(&second.id), "{message}");
        let (other, commit) = (repository_of(worker(&third.now().await["worker_id"])), result(&third).await["commit"].clone());
        assert_eq!(git(&other, &["show", &format!("{}:lines", commit.as_str().unwrap())]), "1");
        assert_eq!(git(&repository.bare(), &["branch", "--list", "bloom/*"]), "", "nothing is pushed unless the task says so");
        for agent in [one, two] {
            agent.has_no_processes().await;
        }
    }
}

#[test]
fn a_branch_that_was_pushed_goes_on_elsewhere() {
    with_project(
        |plan| plan,
        async |server, repository, agent| {
            let pushed = plan(server, "a", "echo mine >mine").with("push", json!("branch")).with("ref", json!("v1")).create().await;
            pushed.reaches("completed").await;
            let commit = result(&pushed).await["commit"].as_str().unwrap().to_owned();
            assert_eq!(git(&repository.bare(), &["rev-parse", "bloom/a"]), commit);
            assert_eq!(git(&repository.bare(), &["rev-parse", "bloom/a^"]), git(&repository.bare(), &["rev-parse", "v1"]));
            let kept = task(server, "b", "echo kept >kept").await;
            kept.reaches("completed").await;
            // What an earlier run left is pushed, although this one changes nothing.
            let unpushed = task(server, "c", "echo mine >mine").await;
            unpushed.reaches("completed").await;
            let later = plan(server, "c", "true").with("push", json!("branch")).create().await;
            later.reaches("completed").await;
            assert_eq!(json!(git(&repository.bare(), &["rev-parse", "bloom/c"])), result(&unpushed).await["commit"]);
            let idle = plan(server, "d", "true").with("push", json!("branch")).create().await;
            idle.reaches("completed").await;
            assert_eq!(git(&repository.bare(), &["branch", "--list", "bloom/d"]), "", "there is nothing of it to push");
            assert!(agent.stop().success());

            let other = repository.known_to(server.agent("other")).profile(SHELL).start();
            let goes_on = plan(server, "a", "cat mine").with("session", json!("none")).create().await;
            goes_on.reaches("completed").await;
            assert_eq!(result(&goes_on).await["output"], json!("mine\n"));
            assert_eq!(phase(&goes_on, "prepared").await["origin"], json!("fetched"));
            let afresh = plan(server, "b", "ls").with("session", json!("none")).create().await;
            afresh.reaches("completed").await;
            assert_eq!(result(&afresh).await["output"], json!("file\n"));
            assert!(phase(&afresh, "prepared").await["text"].as_str().unwrap().starts_with("begins at the default branch"));
            agent.start_again();
            other.has_no_processes().await;
        },
    );
}

#[test]
fn what_can_not_be_used_says_why() {
    with_project(
        |plan| plan,
        async |server, repository, _| {
            let missing = plan(server, "a", "true").with("ref", json!("nowhere")).create().await;
            failed(&missing, "failed", "project", "no branch, tag or commit 'nowhere'").await;

            let used = server.crew().task().context("used").prompt("echo >here").create().await;
            used.reaches("completed").await;
            failed(&task(server, "used", "true").await, "failed", "project", "files of runs without this project").await;

            let merging =
                "git checkout -q -b side v1; echo side >file; git commit -qam side; git checkout -q bloom/m; git merge side; true";
            let left = task(server, "m", merging).await;
            failed(&left, "failed", "project", "left a merge unfinished").await;
            assert!(result(&left).await["error_message"].as_str().unwrap().contains("contexts/m-"), "a person can find it");
            failed(&task(server, "m", "true").await, "failed", "project", "left a merge unfinished").await;

            let elsewhere = task(server, "e", "git checkout -q --detach v1").await;
            failed(&elsewhere, "failed", "project", "does not build on bloom/e").await;

            // The server takes no branch.
            let hook = repository.bare().join("hooks/update");
            std::fs::create_dir_all(hook.parent().unwrap()).unwrap();
            std::fs::write(&hook, "#!/bin/sh\nexit 1\n").unwrap();
            std::fs::set_permissions(&hook, std::fs::Permissions::from_mode(0o755)).unwrap();
            let refused = plan(server, "p", "echo again >mine").with("push", json!("branch")).create().await;
            failed(&refused, "failed", "project", "the branch bloom/p can't be pushed").await;
            assert!(diff(&refused).await.contains("+again"), "it is committed and shown all the same");

            repository.stop();
            let gone = plan(server, "g", "true").attempts(1).create().await;
            let waits = eventually("it waits for the repository", || async {
                let now = gone.now().await;
                (now["failure"]["reason"] == json!("project") && now["status"] == json!("queued")).then_some(now)
            })
            .await;
            assert!(waits["failure"]["message"].as_str().unwrap().contains("can't be fetched"), "{waits}");
            let why = waits["waiting"]["message"].as_str().unwrap();
            assert!(why.starts_with("is tried again at ") && why.contains("can't be fetched"), "{waits}");
            assert_eq!((&waits["attempts"], &waits["waiting"]["reason"]), (&json!(0), &json!("not_before")), "an outage costs no attempt");
            // What is here is enough.
            let goes_on = task(server, "p", "echo more >more").await;
            goes_on.reaches("completed").await;
            let text = phase(&goes_on, "prepared").await["text"].as_str().unwrap().to_owned();
            assert!(text.contains("where the last run of the context left it; the project's repository can't be fetched"), "{text}");
        },
    );
}

#[test]
fn a_full_disk_is_named() {
    let small = r#"
        [ "$(id -u)" = 0 ] || own=--map-root-user
        mkdir -p "$BLOOM_WORK_DIR/repositories"
        exec unshare --mount $own sh -c 'mount -t tmpfs -o size=1m tmpfs "$BLOOM_WORK_DIR/repositories" && exec "$0" "$@"' "$0" "$@""#;
    with_project(
        |plan| plan.through(small),
        async |server, _, _| {
            let fill = "head -c 3000000 /dev/urandom >large; echo done";
            let full = plan(server, "a", fill).attempts(1).create().await;
            failed(&full, "failed", "worker_disk", "No space left on device").await;
            assert_eq!(result(&full).await["output"], json!("done\n"), "what it answered is kept");
        },
    );
}

#[test]
fn a_run_that_is_killed_leaves_no_half_commit_and_is_resumed() {
    with_project(
        |plan| plan,
        async |server, _, agent| {
            let script = "if [ -e begun ]; then echo second >>begun; else echo first >begun; while :; do sleep 0.1; done; fi";
            let task = task(server, "a", script).await;
            let begun = eventually("the run has begun", || async {
                worktrees(agent).first().map(|tree| tree.join("begun")).filter(|begun| begun.exists())
            })
            .await;
            agent.kill9();
            agent.kill_processes();
            assert!(begun.exists());
            assert_eq!(git(&repository_of(agent), &["rev-parse", "bloom/a"]), git(&repository_of(agent), &["rev-parse", "origin/main"]));
            agent.start_again();
            task.reaches("completed").await;
            let commit = result(&task).await["commit"].as_str().unwrap().to_owned();
            assert_eq!(git(&repository_of(agent), &["show", &format!("{commit}:begun")]), "first\nsecond");
        },
    );
}

#[test]
fn an_agent_that_is_killed_while_it_fetches_begins_again() {
    with_project(
        |plan| plan,
        async |server, repository, agent| {
            repository.signal("STOP");
            let task = task(server, "a", "cat file").await;
            eventually("it fetches", || async { (!agent.processes().is_empty()).then_some(()) }).await;
            let fetching = agent.processes();
            agent.kill9();
            agent.start_again();
            eventually("the new agent has ended the old fetch", || async {
                agent.processes().iter().all(|pid| !fetching.contains(pid)).then_some(())
            })
            .await;
            repository.signal("CONT");
            let done = task.reaches("completed").await;
            assert_eq!((&result(&task).await["output"], &done["attempts"]), (&json!("two\n"), &json!(1)));
        },
    );
}

#[test]
fn a_task_is_cancelled_while_its_project_is_fetched() {
    with_project(
        |plan| plan,
        async |server, repository, agent| {
            repository.signal("STOP");
            let task = task(server, "a", "true").await;
            eventually("it fetches", || async { (!agent.processes().is_empty()).then_some(()) }).await;
            task.cancel().await.ok();
            task.reaches("cancelled").await;
            agent.has_no_processes().await;
            repository.signal("CONT");
        },
    );
}

#[test]
fn a_run_in_a_sandbox_uses_the_repository_of_its_context() {
    with_project(
        |plan| plan.profile(&format!("{SHELL}\nsandbox = \"bubblewrap\"")),
        async |server, _, _| {
            let script = "git log --format=%s; echo three >file; git status --porcelain; git commit -qam mine && git diff --stat origin/main | tail -1";
            let task = task(server, "a", script).await;
            task.reaches("completed").await;
            let told = result(&task).await;
            assert_eq!(told["output"], json!("two\none\n M file\n 1 file changed, 1 insertion(+), 1 deletion(-)\n"));
            assert!(diff(&task).await.contains("+three"));
        },
    );
}

#[test]
fn runs_without_a_session_wait_for_one_another_in_a_worktree() {
    with_project(
        |plan| plan,
        async |server, _, _| {
            let latch = Latch::new();
            let first = plan(server, "a", &format!("{}; echo first >first", latch.wait())).with("session", json!("none")).create().await;
            first.reaches("running").await;
            let second = plan(server, "a", "ls").with("session", json!("none")).create().await;
            second.reaches("running").await;
            latch.open();
            second.reaches("completed").await;
            assert_eq!(result(&second).await["output"], json!("file\nfirst\n"));
            assert!(!diff(&first).await.is_empty());
        },
    );
}

#[test]
fn a_push_that_outlives_its_lease_is_made_again() {
    run(async {
        let (server, repository) = (Server::on(Database::Sqlite).env("LEASE_TTL_SECONDS", 3).start(), Repository::serve());
        repository.add_to(&server).await;
        let (latch, begun) = (Latch::new(), janitor::new_path("begun"));
        let hook = repository.bare().join("hooks/pre-receive");
        std::fs::write(&hook, format!("#!/bin/sh\ntouch {}\n{}\n", begun.display(), latch.wait())).expect("a hook");
        std::fs::set_permissions(&hook, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("its mode");
        let line = Proxy::start(server.base()).await;
        let agent = repository.known_to(AgentPlan::at(&line.url, "box")).profile(SHELL).start();
        let task = plan(&server, "a", "echo two >two").with("push", json!("branch")).create().await;
        eventually("the branch is being pushed", || async { begun.exists().then_some(()) }).await;
        line.hold();
        eventually("the lease is over", || async { (task.status().await == "queued").then_some(()) }).await;
        agent.has_no_processes().await;
        latch.open();
        line.release();
        task.reaches("completed").await;
        assert_eq!(result(&task).await["commit"], json!(git(&repository.bare(), &["rev-parse", "bloom/a"])));
        let _ = std::fs::remove_file(begun);
    });
}
