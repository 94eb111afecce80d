//! Projects with files in git-lfs: runs have the files, commits have the pointers.

use sha2::Digest as _;

use super::worktrees::{SHELL, diff, failed, plan, repository_of};
use super::*;
use crate::support::agent::{Agent, AgentPlan};
use crate::support::repository::{Repository, git};
use crate::support::stub::Stub;
use crate::support::{Database, Server};

/// A repository with `large.bin` in git-lfs, whose `.lfsconfig` names another server.
async fn repository(server: &Server) -> (Repository, Stub) {
    let (repository, elsewhere) = (Repository::serve(), Stub::start().await);
    repository.add_large_file(&format!("[lfs]\n\turl = {0}\n\tpushurl = {0}\n", elsewhere.url));
    repository.add_to(server).await;
    (repository, elsewhere)
}

/// What the large files are that a repository has.
fn stored(dir: &Path) -> Vec<String> {
    let found = std::process::Command::new("find").arg(dir.join("lfs/objects")).args(["-type", "f"]).output().expect("find");
    let names = String::from_utf8(found.stdout).expect("paths");
    let mut names: Vec<String> = names.lines().map(|path| path.rsplit('/').next().unwrap().to_owned()).collect();
    names.sort();
    names
}

async fn with_large_file(profile: &str, body: impl AsyncFnOnce(&Server, &Repository, &dyn Fn(&str) -> AgentPlan)) {
    let server = Server::on(Database::Sqlite).keyed().start();
    let (repository, elsewhere) = repository(&server).await;
    let agent = |name: &str| repository.by_path(server.agent(name).slots(3).profile(profile));
    body(&server, &repository, &agent).await;
    assert!(elsewhere.seen("/objects/batch").is_empty(), "the server that .lfsconfig names was asked");
}

/// The run reads the file, and its changes are pointers that go to the project's server with the file.
async fn works(server: &Server, repository: &Repository, one: &Agent, start_two: impl FnOnce() -> Agent) {
    let of_run = async |context: &str, script: &str| {
        let task = plan(server, context, script).with("push", json!("branch")).create().await;
        task.reaches("completed").await;
        task
    };
    let read = of_run("a", "cat large.bin; git status --short").await;
    assert_eq!(result(&read).await["output"], json!("a large file\n"));
    let head = git(&repository.bare(), &["rev-parse", "main"]);
    assert_eq!(result(&read).await["commit"], json!(head), "a run that changes nothing commits nothing");
    let before = stored(&repository.bare());
    let changed =
        of_run("a", "echo other >large.bin; cp large.bin more.bin; git add more.bin; git commit -qm mine; echo third >more.bin").await;
    let shown = diff(&changed).await;
    assert!(shown.contains("+oid sha256:") && !shown.contains("+other") && !shown.contains("+third"), "{shown}");
    let after = stored(&repository.bare());
    assert_eq!((before.len(), after.len()), (1, 3), "the file of each commit is there");
    assert_eq!(stored(&repository_of(one)), after, "the files are there once for all contexts");
    let again = of_run("b", "cat large.bin; find $(git rev-parse --git-dir)/lfs/objects -type f").await;
    assert_eq!(result(&again).await["output"], json!("a large file\n"));
    // The branch goes on elsewhere, and comes back.
    assert!(one.stop().success());
    let two = start_two();
    let there = of_run("a", "cat large.bin more.bin; echo fourth >more.bin").await;
    assert_eq!(result(&there).await["output"], json!("other\nthird\n"));
    assert!(two.stop().success());
    one.start_again();
    assert_eq!(result(&of_run("a", "cat large.bin more.bin; git status --short").await).await["output"], json!("other\nfourth\n"));
    one.has_no_processes().await;
}

#[test]
fn runs_have_the_files_and_commits_the_pointers() {
    run(with_large_file(SHELL, async |server, repository, agent| {
        works(server, repository, &agent("one").start(), || agent("two").start()).await;
    }));
}

#[test]
fn runs_in_a_sandbox_have_them_too() {
    let profile = format!("{SHELL}\nsandbox = \"bubblewrap\"");
    run(with_large_file(&profile, async |server, repository, agent| {
        works(server, repository, &agent("one").start(), || agent("two").start()).await;
    }));
}

#[test]
fn a_run_takes_no_file_over_that_is_not_what_its_name_says() {
    run(with_large_file(SHELL, async |server, repository, agent| {
        let one = agent("one").start();
        let script = "echo other >large.bin; git add large.bin; for f in $(find $(git rev-parse --git-dir)/lfs/objects -type f); \
                      do chmod u+w $f; echo wrong >$f; done";
        let task = plan(server, "a", &format!("{script}; git commit -qm mine; echo third >large.bin")).with("push", json!("branch"));
        failed(&task.create().await, "failed", "project", "git-lfs: a commit has a pointer to a file that is not there").await;
        assert_eq!(git(&repository.bare(), &["branch", "--list", "bloom/*"]), "");
        let other = plan(server, "b", "cat large.bin").create().await;
        other.reaches("completed").await;
        assert_eq!(result(&other).await["output"], json!("a large file\n"));
        one.has_no_processes().await;
    }));
}

/// A run in a sandbox can't read it there, so the agent must not read it for the run.
#[test]
fn a_run_takes_no_file_over_that_is_beyond_its_repository() {
    let profile = format!("{SHELL}\nsandbox = \"bubblewrap\"");
    run(with_large_file(&profile, async |server, repository, agent| {
        let one = agent("one").start();
        let secret = "of another project";
        let name = hex::encode(sha2::Sha256::digest(secret));
        let (first, second) = (&name[..2], &name[2..4]);
        let elsewhere = one.work_dir().join("elsewhere");
        let dir = elsewhere.join("lfs/objects").join(first).join(second);
        std::fs::create_dir_all(&dir).expect("a directory");
        std::fs::write(dir.join(&name), secret).expect("a file");
        let pointer = format!("version https://git-lfs.github.com/spec/v1\\noid sha256:{name}\\nsize {}\\n", secret.len());
        for (context, linked) in ["lfs/objects", &format!("lfs/objects/{first}")].into_iter().enumerate() {
            let link = format!(
                "own=$(git rev-parse --absolute-git-dir); rm -rf $own/{linked}; ln -s {}/{linked} $own/{linked}",
                elsewhere.display()
            );
            let task = plan(server, &format!("c{context}"), &format!("git rm -qf large.bin; printf '{pointer}' >stolen.bin; {link}"))
                .create()
                .await;
            let ended = eventually("it ends", || async {
                Some(task.now().await).filter(|now| now["failure"] != json!(null) || now["status"] == json!("completed"))
            })
            .await;
            assert!(!stored(&repository_of(&one)).contains(&name), "{linked}");
            assert_eq!(ended["status"], json!("completed"), "{ended}");
            assert!(diff(&task).await.contains(&name), "the pointer is committed");
        }
        assert_eq!(stored(&repository.bare()).len(), 1);
        one.has_no_processes().await;
    }));
}

/// git-lfs reads `.lfsconfig` of what it takes for `HEAD`.
#[test]
fn no_branch_and_no_tag_makes_git_lfs_read_lfsconfig() {
    run(with_large_file(SHELL, async |server, repository, agent| {
        let main = git(&repository.bare(), &["rev-parse", "main"]);
        git(&repository.bare(), &["update-ref", "refs/tags/HEAD", &main]);
        let one = agent("one").start();
        let reads = async |context: &str| {
            let task = plan(server, context, "cat large.bin").create().await;
            task.reaches("completed").await;
            assert_eq!(result(&task).await["output"], json!("a large file\n"));
        };
        reads("a").await;
        // As if somebody had made a branch there.
        let own = repository_of(&one);
        std::fs::write(own.join("HEAD"), "ref: refs/heads/none\n").expect("it can be written");
        git(&own, &["update-ref", "refs/heads/none", &main]);
        std::fs::remove_dir_all(own.join("lfs")).expect("it can be removed");
        reads("b").await;
        one.has_no_processes().await;
    }));
}

#[test]
fn a_worker_without_git_lfs_fails_the_task_before_it_is_paid_for() {
    run(with_large_file(SHELL, async |server, _, agent| {
        // All programs but that one.
        let without = r#"mkdir programs; for dir in /usr/local/bin /usr/bin /bin; do ln -s $dir/* programs/ 2>/dev/null; done; rm programs/git-lfs
            PATH="$PWD/programs" exec "$0" "$@""#;
        let one = agent("one").through(without).start();
        let mark = janitor::new_path("mark");
        let task = plan(server, "a", &format!("touch {}", mark.display())).create().await;
        failed(&task, "failed", "project", "install git-lfs").await;
        assert!(!mark.exists(), "the run has begun");
        let other = plan(server, "b", "cat file").with("ref", json!("v1")).create().await;
        other.reaches("completed").await;
        assert_eq!(result(&other).await["output"], json!("one\n"), "a commit without such files needs no git-lfs");
        one.has_no_processes().await;
    }));
}

#[test]
fn a_repository_that_is_full_tells_whose_work_fills_it() {
    run(with_large_file(SHELL, async |server, _, agent| {
        let one = agent("one").env("BLOOM_MAX_CLONE_MIB", "3").start();
        let adds = |context: &str| plan(server, context, "head -c 2000000 /dev/urandom >more.bin");
        adds("a").create().await.reaches("completed").await;
        let full = adds("b").create().await;
        failed(&full, "failed", "project", "larger than --max-clone-mib of the agent allows; part of it is what contexts have committed")
            .await;
        failed(&full, "failed", "project", "and not pushed, largest first: bloom/a (2 MiB): raise --max-clone-mib").await;
        one.has_no_processes().await;
    }));
}

/// Each time is a process, and a run that changes nothing needs the answer for one commit.
#[test]
fn a_run_asks_once_whether_a_commit_has_such_files() {
    run(with_large_file(SHELL, async |server, _, agent| {
        let noting = r#"mkdir programs; printf '#!/bin/sh\ncase "$*" in *filter=lfs*) echo asked >>%s/asked;; esac\nexec %s "$@"\n' \
            "$BLOOM_WORK_DIR" "$(command -v git)" >programs/git
            chmod +x programs/git; PATH="$PWD/programs:$PATH" exec "$0" "$@""#;
        let one = agent("one").through(noting).start();
        for count in [1, 2] {
            let read = plan(server, "a", "cat large.bin").create().await;
            read.reaches("completed").await;
            assert_eq!(result(&read).await["output"], json!("a large file\n"));
            assert_eq!(std::fs::read_to_string(one.work_dir().join("asked")).expect("it was asked").lines().count(), count);
        }
        one.has_no_processes().await;
    }));
}
