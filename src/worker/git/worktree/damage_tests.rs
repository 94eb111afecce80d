//! Runs that damage the repository of their context. The agent repairs it before it uses it, or its message says how to.

use std::path::Path;

use super::tests::{Place, mend, run};
use super::*;

/// What is committed after a run has damaged the repository of its context in this way, and where the next run begins.
async fn commits_after(damage: impl FnOnce(&Path, &Path)) -> (Place, Worktree, Changes) {
    let place = Place::new();
    let dir = place.context("a");
    let tree = place.tree("agent", &dir);
    let begun = tree.prepared_for(None).await.unwrap();
    fs::write(dir.join("file"), "changed\n").unwrap();
    damage(&dir, &tree.own_git_dir());
    let changes = tree.committed(&begun, "a run").await.unwrap().unwrap();
    assert!(changes.text().contains("+changed"), "{}", changes.text());
    let next = tree.prepared_for(None).await.unwrap();
    assert_eq!((&next.base, next.origin), (&changes.commit, Origin::Kept));
    assert_eq!(run(&dir, &["status", "--porcelain"]), "");
    assert!(tree.push().await.unwrap().is_some());
    (place, tree, changes)
}

#[tokio::test]
async fn settings_of_a_run_do_not_decide_how_the_agents_git_works() {
    for settings in [
        "[core]\n\tcompression = 99\n",
        "[core]\n\tbare = xyz\n",
        "[core]\n\tbare = true\n\tworktree = /nowhere\n",
        "[core]\n\trepositoryformatversion = 99\n",
        "[core]\n\trepositoryformatversion = 1\n[extensions]\n\tfoo = bar\n",
        "[core]\n\trepositoryformatversion = 1\n[extensions]\n\tobjectFormat = sha256\n",
        "[user]\n\tname\n\tuseConfigOnly = xyz\n[push]\n\tdefault = xyz\n[branch]\n\tautoSetupRebase = xyz\n",
        "[[[ no settings",
    ] {
        commits_after(|_, own| fs::write(own.join("config"), settings).unwrap()).await;
    }
    commits_after(|_, own| fs::remove_file(own.join("config")).unwrap()).await;
    commits_after(|_, own| {
        fs::remove_file(own.join("config")).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(own.join("config")).status().unwrap().success());
    })
    .await;
    commits_after(|dir, own| {
        run(dir, &["config", "extensions.worktreeConfig", "true"]);
        fs::write(own.join("config.worktree"), "[core]\n\tcompression = 99\n").unwrap();
    })
    .await;
    commits_after(|_, own| fs::write(own.join("commondir"), "/nowhere\n").unwrap()).await;
}

#[tokio::test]
async fn line_ends_that_a_run_wants_of_git_do_not_keep_its_changes_from_being_committed() {
    let (_place, tree, changes) = commits_after(|dir, _| {
        run(dir, &["config", "core.safecrlf", "true"]);
        run(dir, &["config", "core.autocrlf", "input"]);
        fs::write(dir.join(".gitattributes"), "* text=auto\n").unwrap();
        fs::write(dir.join("dos"), "one\r\n").unwrap();
    })
    .await;
    let size = run(&tree.dir, &["cat-file", "-s", &format!("{}:dos", changes.commit)]);
    assert_eq!(size, "4", "as the project wants it");
}

#[tokio::test]
async fn settings_that_runs_need_later_are_kept() {
    let name = "A \"B\" \\ C; # D\nE\t";
    let (place, tree, _) = commits_after(|dir, _| {
        for (key, value) in [
            ("user.name", name),
            ("user.email", "run@localhost"),
            ("remote.upstream.url", "/nowhere/x y"),
            ("remote.upstream.fetch", "+refs/heads/*:refs/remotes/upstream/*"),
            ("branch.my/branch.remote", "upstream"),
            ("branch.my/branch.merge", "refs/heads/main"),
            ("alias.st", "status"),
            ("submodule.a b.url", "/nowhere"),
            ("filter.strip.clean", "sed s/secret//"),
            ("core.hooksPath", ".husky"),
        ] {
            run(dir, &["config", key, value]);
        }
        run(dir, &["config", "--add", "remote.upstream.fetch", "+refs/x/*:refs/x/*"]);
        fs::write(dir.join(".gitattributes"), "* filter=strip\n").unwrap();
        fs::write(dir.join("key"), "a secret\n").unwrap();
    })
    .await;
    let of_run = |key: &str| {
        let config = tree.own_git_dir().join("config");
        run(&place.root, &["config", "--file", config.to_str().unwrap(), "--get-all", key])
    };
    assert_eq!(of_run("user.name"), name.trim());
    assert_eq!(of_run("remote.upstream.fetch").lines().count(), 2);
    assert_eq!((of_run("remote.upstream.url"), of_run("branch.my/branch.merge")), ("/nowhere/x y".into(), "refs/heads/main".into()));
    assert_eq!(
        (of_run("alias.st"), of_run("submodule.a b.url"), of_run("core.hooksPath")),
        ("status".into(), "/nowhere".into(), ".husky".into())
    );
    assert_eq!(run(&tree.dir, &["show", "bloom/a:key"]), "a", "a filter keeps what shall not be committed out of commits");
}

/// What a filter would change must not be committed unfiltered: the filter may encrypt.
#[tokio::test]
async fn a_filter_that_does_not_work_is_told_and_costs_no_other_run() {
    for clean in ["false", "sleep 300"] {
        let place = Place::new();
        let dir = place.context("a");
        let tree = place.tree("agent", &dir);
        let begun = tree.prepared_for(None).await.unwrap();
        run(&dir, &["config", "filter.z'z.required", "true"]);
        run(&dir, &["config", "filter.zz.required", "true"]);
        run(&dir, &["config", "filter.zz.clean", clean]);
        fs::write(dir.join(".gitattributes"), "* filter=zz\n").unwrap();
        let mut told = vec![tree.committed(&begun, "a run").await.unwrap_err()];
        told.push(tree.prepared_for(None).await.unwrap_err());
        for why in &told {
            assert!(matches!(why, Trouble::State(why) if why.contains("filter zz") && why.contains("can't be committed")), "{why}");
        }
        mend(&told[1]);
        let begun = tree.prepared_for(None).await.unwrap();
        assert!(tree.committed(&begun, "a run").await.unwrap().unwrap().text().contains("+* filter=zz"));
    }
}

#[tokio::test]
async fn a_branch_that_a_run_has_removed_is_made_again() {
    commits_after(|dir, _| drop(run(dir, &["update-ref", "-d", "HEAD"]))).await;
    commits_after(|dir, _| {
        run(dir, &["checkout", "--quiet", "--detach"]);
        run(dir, &["branch", "-D", "bloom/a"]);
    })
    .await;
    commits_after(|dir, _| drop(run(dir, &["checkout", "--quiet", "--orphan", "zz"]))).await;
    for gone in ["HEAD", "objects", "objects/info/alternates", "refs"] {
        commits_after(|_, own| remove_all(&own.join(gone)).unwrap()).await;
    }
    // The filter is from a run that was interrupted.
    let place = Place::new();
    let dir = place.context("a");
    let tree = place.tree("agent", &dir);
    let first = tree.prepared_for(None).await.unwrap();
    fs::write(dir.join("file"), "half\n").unwrap();
    run(&dir, &["update-ref", "-d", "HEAD"]);
    let second = tree.prepared_for(None).await.unwrap();
    assert_eq!(second.base, first.base);
    assert!(tree.committed(&second, "x").await.unwrap().unwrap().text().contains("+half"));
    // If something else is checked out, the command in the message resolves the problem.
    tree.prepared_for(None).await.unwrap();
    run(&dir, &["checkout", "--quiet", "--detach", "v1"]);
    run(&dir, &["branch", "-D", "bloom/a"]);
    mend(&tree.prepared_for(None).await.unwrap_err());
    assert_eq!(tree.prepared_for(None).await.unwrap().origin, Origin::Kept);
}

#[tokio::test]
async fn a_history_that_a_run_has_begun_anew_is_built_on_the_branch_by_what_the_message_says() {
    let orphan: &[&[&str]] = &[&["checkout", "--quiet", "--orphan", "zz"], &["rm", "-rqf", "."]];
    let earlier: &[&[&str]] = &[&["checkout", "--quiet", "--detach", "v1"]];
    let reset: &[&[&str]] = &[&["reset", "--quiet", "--hard", "v1"]];
    for commands in [orphan, earlier, reset] {
        let place = Place::new();
        let dir = place.context("a");
        let tree = place.tree("agent", &dir);
        let begun = tree.prepared_for(None).await.unwrap();
        commands.iter().for_each(|words| drop(run(&dir, words)));
        fs::write(dir.join("anew"), "anew\n").unwrap();
        run(&dir, &["add", "."]);
        run(&dir, &["commit", "--quiet", "-m", "anew"]);
        fs::write(dir.join("more"), "more\n").unwrap();
        let why = tree.committed(&begun, "x").await.unwrap_err();
        assert!(why.to_string().contains("does not build on bloom/a"), "{why}");
        assert!(tree.prepared_for(None).await.is_err(), "the next run would be paid, and lose it");
        mend(&why);
        let next = tree.prepared_for(None).await.unwrap();
        assert!(dir.join("more").exists() && run(&dir, &["status", "--porcelain"]).is_empty());
        assert!(tree.repository.is_ancestor(&begun.base, &next.base).await);
        assert_eq!(run(&dir, &["show", &format!("{}:more", next.base)]), "more");
        assert_eq!(tree.committed(&next, "nothing").await, Ok(None));
        assert!(tree.push().await.unwrap().is_some());
    }
}
