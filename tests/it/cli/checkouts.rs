//! `task submit --here` and `task checkout`: from the repository where a person works, and back into it.

use std::path::{Path, PathBuf};

use super::*;
use crate::support::repository::{Repository, git};

const SHELL: &str = "runner = \"command\"\ncommand = [\"sh\"]";

/// A clone of the repository, with its URL as the remote `origin`.
fn clone_of(repository: &Repository, user: &User) -> PathBuf {
    let clone = user.home().join("site");
    git(user.home(), &["clone", "--quiet", &repository.bare().display().to_string(), "site"]);
    git(&clone, &["remote", "set-url", "origin", "https://host.invalid/r/"]);
    clone
}

fn in_repository(body: impl AsyncFnOnce(&Server, &Repository, User, &Path)) {
    run(async {
        let (server, repository) = (Server::on(Database::Sqlite).keyed().start(), Repository::serve());
        repository.add_to(&server).await;
        let agent = repository.known_to(server.agent("box").slots(1)).profile(SHELL).start();
        let settings = repository.settings().display().to_string();
        let user = User::at(&server).with("GIT_CONFIG_GLOBAL", &settings);
        let clone = clone_of(&repository, &user);
        body(&server, &repository, user, &clone).await;
        agent.has_no_processes().await;
    });
}

/// Submits this script with these flags, waits for its end, and returns the task.
fn runs(user: &User, flags: &[&str], script: &str) -> String {
    let id = user.does(&[&["task", "submit"][..], flags, &[script]].concat()).ok().trim_end().to_owned();
    user.does(&["task", "wait", &id]).ok();
    id
}

#[test]
fn a_task_begins_where_the_person_works_and_comes_back() {
    in_repository(async |server, repository, user, clone| {
        let dir = clone.to_str().unwrap();
        git(clone, &["switch", "--quiet", "other"]);
        let pushed = runs(&user, &["--dir", dir, "--push"], "echo three >>file");
        let task = server.get(&format!("llm-tasks/{pushed}")).await.ok();
        assert_eq!((&task["project"], &task["ref"]), (&json!("site"), &json!("other")));
        let told = user.does(&["task", "checkout", &pushed, "--dir", dir]).ends(0).err;
        let branch = format!("task/{}", &pushed[pushed.len() - 8..]);
        assert!(told.contains(&format!("On branch {branch}")) && told.contains("git switch other"), "{told}");
        assert_eq!(git(clone, &["branch", "--show-current"]), branch);
        assert_eq!(std::fs::read_to_string(clone.join("file")).unwrap(), "one\nthree\n");
        assert_eq!(git(clone, &["rev-parse", "HEAD^"]), git(&repository.bare(), &["rev-parse", "other"]));
        let told = user.does(&["task", "checkout", &pushed, "--dir", dir]).ends(0).err;
        assert!(told.contains(&format!("already checked out as {branch}")), "{told}");
        // Again, and from elsewhere, it is only checked out.
        git(clone, &["switch", "--quiet", "main"]);
        user.does(&["task", "checkout", &pushed, "--dir", dir]).ends(0);
        assert_eq!(git(clone, &["branch", "--show-current"]), branch);

        // What was not pushed is in the index of a new branch.
        git(clone, &["switch", "--quiet", "main"]);
        let kept = runs(&user, &["--dir", dir], "echo three >>file; echo new >new");
        for again in [&["submit", "--like", &kept, "--context", "again"][..], &["reply", &kept, "echo four >>file"]] {
            let told = user.does(&[&["task"][..], again, &["--wait"]].concat()).ends(0).err;
            assert!(told.contains("What it changed: bloom-runtime task diff "), "{again:?}: {told}");
        }
        let told = user.does(&["task", "checkout", &kept, "--dir", dir, "--branch", "mine"]).ends(0).err;
        assert!(told.contains("was not pushed") && told.contains("git commit"), "{told}");
        let told = user.does(&["task", "checkout", &kept, "--dir", dir, "--branch", "mine"]).ends(0).err;
        assert!(told.contains("already checked out as mine"), "{told}");
        std::fs::write(clone.join("new"), "of the person\n").unwrap();
        assert!(user.does(&["task", "checkout", &kept, "--dir", dir, "--branch", "mine"]).complains(1).contains("git stash"));
        git(clone, &["checkout", "--quiet", "--", "new"]);
        assert_eq!(git(clone, &["status", "--porcelain"]), "M  file\nA  new");
        assert_eq!(git(clone, &["branch", "--show-current"]), "mine");
        // Nothing that is not committed is touched.
        assert!(user.does(&["task", "checkout", &pushed, "--dir", dir]).complains(1).contains("git stash"));
        git(clone, &["commit", "--quiet", "-m", "mine"]);
        assert!(user.does(&["task", "checkout", &pushed, "--dir", dir, "--branch", "main"]).complains(1).contains("--branch NAME"));

        // Also with a file that is no text, from a commit without a branch; what git ignores here is not overwritten.
        git(clone, &["checkout", "--quiet", "--detach", "main"]);
        let binary = runs(&user, &["--dir", dir], "printf 'PNG\\0\\1' >img.png; echo mine >own.cfg");
        std::fs::write(clone.join(".git/info/exclude"), "own.cfg\n").unwrap();
        std::fs::write(clone.join("own.cfg"), "of the person\n").unwrap();
        assert!(user.does(&["task", "checkout", &binary, "--dir", dir]).complains(1).contains("own.cfg"));
        assert_eq!(std::fs::read_to_string(clone.join("own.cfg")).unwrap(), "of the person\n");
        assert_eq!(git(clone, &["branch", "--show-current"]), "");
        std::fs::remove_file(clone.join("own.cfg")).unwrap();
        let told = user.does(&["task", "checkout", &binary, "--dir", dir]).ends(0).err;
        assert!(told.contains("git switch --detach "), "{told}");
        assert_eq!(std::fs::read(clone.join("img.png")).unwrap(), b"PNG\0\x01");
        git(clone, &["commit", "--quiet", "-m", "binary"]);
        // Of files that git does not look at, neither a commit nor a patch overwrites one.
        for (begin, id) in [("other", &pushed), ("main", &kept)] {
            git(clone, &["switch", "--quiet", begin]);
            git(clone, &["update-index", "--assume-unchanged", "file"]);
            std::fs::write(clone.join("file"), "of the person\n").unwrap();
            let told = user.does(&["task", "checkout", id, "--dir", dir, "--branch", "more"]).complains(1);
            assert!(told.contains("take as unchanged: file"), "{told}");
            assert_eq!(std::fs::read_to_string(clone.join("file")).unwrap(), "of the person\n");
            git(clone, &["update-index", "--no-assume-unchanged", "file"]);
            git(clone, &["checkout", "--quiet", "file"]);
        }
        // A branch that is gone at the remote is no loss: the patch is here.
        git(clone, &["switch", "--quiet", "main"]);
        let gone = runs(&user, &["--dir", dir, "--push"], "echo four >>file");
        let branches = git(&repository.bare(), &["for-each-ref", "--format=%(refname)", "refs/heads/bloom"]);
        branches.lines().for_each(|name| drop(git(&repository.bare(), &["update-ref", "-d", name])));
        let told = user.does(&["task", "checkout", &gone, "--dir", dir]).ends(0).err;
        assert!(told.contains("can't be fetched") && told.contains("in the index"), "{told}");
        git(clone, &["commit", "--quiet", "-m", "four"]);

        // A patch that does not fit leaves nothing behind.
        git(clone, &["switch", "--quiet", "--create", "far", "main"]);
        std::fs::write(clone.join("file"), "something else\n").unwrap();
        git(clone, &["commit", "--quiet", "-am", "far"]);
        let told = user.does(&["task", "checkout", &kept, "--dir", dir]).complains(1);
        assert!(told.contains("does not fit"), "{told}");
        assert_eq!((git(clone, &["branch", "--show-current"]).as_str(), git(clone, &["status", "--porcelain"]).as_str()), ("far", ""));
        assert_eq!(git(clone, &["branch", "--list", &format!("task/{}", &kept[kept.len() - 8..])]), "");

        let queued = user.does(&["task", "submit", "--dir", dir, "--ref", "main", "--suspend", "true"]).ok();
        let told = user.does(&["task", "checkout", queued.trim_end(), "--dir", dir]).complains(1);
        assert!(told.contains("no result yet, it is queued"), "{told}");
        let elsewhere = runs(&user, &[], "true");
        assert!(user.does(&["task", "checkout", &elsewhere, "--dir", dir]).complains(1).contains("has no project"));
        user.does(&["task", "checkout", &pushed, "--dir", dir, "--branch", "a..b"]).complains(2);
    });
}

#[test]
fn what_the_worker_would_not_have_is_told_before() {
    in_repository(async |server, repository, user, clone| {
        let dir = clone.to_str().unwrap();
        let submit = |more: &[&str]| user.does(&[&["task", "submit", "--dir", dir][..], more, &["true"]].concat());
        std::fs::write(clone.join("file"), "changed\n").unwrap();
        let told = submit(&["--suspend"]).ends(0).err;
        assert!(told.contains("1 file has changes that are not committed"), "{told}");
        git(clone, &["commit", "--quiet", "-am", "here only"]);
        let told = submit(&[]).complains(2);
        assert!(told.contains("1 commits of main are not in origin"), "{told}");
        git(clone, &["switch", "--quiet", "--create", "mine"]);
        let told = submit(&[]).complains(2);
        assert!(told.contains("git push -u origin mine"), "{told}");
        submit(&["--ref", "main", "--suspend"]).ends(0);
        let told = submit(&["--ref", "mian"]).complains(2);
        assert!(told.contains("--ref: ") && told.contains("branch, tag or commit mian (did you mean main?)"), "{told}");
        // Pushed under another name, and known here only by that.
        git(clone, &["push", "--quiet", &repository.bare().display().to_string(), "HEAD:theirs"]);
        git(clone, &["config", "branch.mine.remote", "origin"]);
        git(clone, &["config", "branch.mine.merge", "refs/heads/theirs"]);
        let id = submit(&["--suspend"]).ok();
        assert_eq!(server.get(&format!("llm-tasks/{}", id.trim_end())).await.ok()["ref"], "theirs");
        // One that was deleted there is gone, whatever is known of it here.
        git(clone, &["update-ref", "refs/remotes/origin/theirs", "HEAD"]);
        git(&repository.bare(), &["update-ref", "-d", "refs/heads/theirs"]);
        assert!(submit(&[]).complains(2).contains("has no branch mine"));
        git(clone, &["checkout", "--quiet", "--detach", "v1"]);
        let id = submit(&["--suspend"]).ok();
        let task = server.get(&format!("llm-tasks/{}", id.trim_end())).await.ok();
        assert_eq!(task["ref"], json!(git(clone, &["rev-parse", "v1"])));

        git(clone, &["remote", "set-url", "origin", "https://host.invalid/other"]);
        let told = submit(&[]).complains(2);
        assert!(told.contains("bloom-runtime project add https://host.invalid/other"), "{told}");
        let told = submit(&["--project", "site"]).complains(2);
        assert!(told.contains("is not the repository of the project site"), "{told}");
        let told = submit(&["--project", "nowhere"]).complains(2);
        assert!(told.contains("there is no project 'nowhere'"), "{told}");
        let told = submit(&["--project", "sites"]).complains(2);
        assert!(told.contains("there is no project 'sites' (did you mean site?)"), "{told}");
        let told = user.does(&["task", "submit", "--here", "true"]).complains(2);
        assert!(told.contains("not in the worktree of a git repository"), "{told}");
        user.does(&["task", "submit", "--here", "--dir", dir, "true"]).complains(2);
        // Without a remote, the directory is the repository of the project.
        git(clone, &["remote", "remove", "origin"]);
        let told = submit(&[]).complains(2);
        assert!(told.contains(&format!("bloom-runtime project add {dir}")), "{told}");
        let mut here = user.clone();
        here.home = clone.to_owned();
        let told = here.does(&["task", "submit", "--here", "true"]).complains(2);
        assert!(told.trim_end().ends_with("bloom-runtime project add ."), "{told}");
    });
}

#[test]
fn a_key_that_may_not_list_projects_names_the_project() {
    in_repository(async |server, _, user, clone| {
        let dir = clone.to_str().unwrap();
        let key = server.post("keys", json!({ "name": "team", "scope": "submit" })).await.created()["key"].as_str().unwrap().to_owned();
        let team = user.with("BLOOM_KEY", &key);
        let told = team.does(&["task", "submit", "--dir", dir, "true"]).complains(2);
        assert!(told.contains("--project NAME"), "{told}");
        let id = runs(&team, &["--dir", dir, "--project", "site", "--push"], "echo three >>file");
        team.does(&["task", "checkout", &id, "--dir", dir]).ends(0);
        assert_eq!(std::fs::read_to_string(clone.join("file")).unwrap(), "two\nthree\n");
    });
}

#[test]
fn a_run_that_does_not_see_the_repository_is_told() {
    in_repository(async |_, _, user, clone| {
        let mut here = user.clone();
        here.home = clone.to_owned();
        let told = |user: &User, flags: &[&str]| user.does(&[&["task", "submit", "--suspend"][..], flags, &["true"]].concat()).ends(0).err;
        let hint = "The run does not see this repository, which is the project site: --here runs it there.";
        assert!(told(&here, &[]).contains(hint));
        for flags in [&["--here"][..], &["--project", "site"], &["--context", "c"]] {
            let said = told(&here, flags);
            assert!(!said.contains(hint), "{flags:?}: {said}");
        }
        assert!(!told(&user, &[]).contains(hint), "no repository is here");
    });
}
