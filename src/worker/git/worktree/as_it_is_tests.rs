//! Real-world repositories: with old faults, other line endings, other names.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;

use super::tests::{Place, run};
use super::*;

/// Replaces the repository that is served.
fn serve(place: &Place, source: &str) {
    fs::remove_dir_all(place.root.join("served")).unwrap();
    run(&place.root, &["clone", "--quiet", "--bare", source, "served"]);
}

/// A source repository with one commit of `file`.
fn source(place: &Place, options: &[&str]) -> PathBuf {
    let dir = place.root.join("other-source");
    fs::create_dir(&dir).unwrap();
    run(&dir, &[&["init", "--quiet"], options].concat());
    fs::write(dir.join("file"), "one\n").unwrap();
    run(&dir, &["add", "."]);
    run(&dir, &["commit", "--quiet", "-m", "one"]);
    dir
}

#[tokio::test]
async fn old_commits_with_odd_dates_and_names_are_fetched() {
    let place = Place::new();
    let source = source(&place, &[]);
    let tree = run(&source, &["write-tree"]);
    for (name, author) in [("zone", "A <a@b> 1234567890 -700"), ("name", "A<a@b> 1234567890 +0000"), ("email", "A 1234567890 +0000")] {
        let commit = format!("tree {tree}\nauthor {author}\ncommitter {author}\n\n{name}\n");
        fs::write(source.join("commit"), commit).unwrap();
        let id = run(&source, &["hash-object", "-t", "commit", "-w", "--literally", "commit"]);
        run(&source, &["branch", name, &id]);
    }
    serve(&place, "other-source");
    let dir = place.context("a");
    let tree = place.tree("agent", &dir);
    let begun = tree.prepared_for(Some("zone")).await.unwrap();
    // The run merges the other branch.
    run(&dir, &["merge", "--quiet", "--allow-unrelated-histories", "-m", "both", "origin/name"]);
    let merged = tree.committed(&begun, "merged").await.unwrap().unwrap();
    assert_eq!(tree.repository.commit_with(&merged.commit).await, Some(merged.commit));
}

#[tokio::test]
async fn files_that_no_run_has_changed_stay_as_they_were_committed() {
    let place = Place::new();
    let source = source(&place, &[]);
    for name in ["dos", "run", "\"odd\" näme\n"] {
        fs::write(source.join(name), "one\r\ntwo\r\n").unwrap();
    }
    fs::write(source.join(OsStr::from_bytes(b"latin-\xe4")), "one\r\n").unwrap();
    run(&source, &["add", "."]);
    run(&source, &["commit", "--quiet", "-m", "line ends of Windows"]);
    fs::write(source.join(".gitattributes"), "* text eol=lf\n").unwrap();
    run(&source, &["add", ".gitattributes"]);
    run(&source, &["commit", "--quiet", "-m", "those of Unix are wanted"]);
    serve(&place, "other-source");
    let dir = place.context("a");
    let tree = place.tree("agent", &dir);
    let begun = tree.prepared_for(None).await.unwrap();
    assert_eq!(tree.committed(&begun, "nothing").await, Ok(None));
    fs::write(dir.join("dos"), "one\r\nthree\r\n").unwrap();
    std::process::Command::new("chmod").arg("+x").arg(dir.join("run")).status().unwrap();
    let changes = tree.committed(&begun, "two files").await.unwrap().unwrap();
    let changed = run(&place.root.join("agent/git"), &["diff", "--raw", &begun.base, &changes.commit]);
    assert!(changed.contains(" M\tdos") && changed.contains("100644 100755") && changed.lines().count() == 2, "{changed}");
    assert!(changes.text().contains("+three\n") && !changes.text().contains("näme"), "{}", changes.text());
    assert_eq!(run(&dir, &["show", "HEAD:run"]), "one\r\ntwo");
}

/// As `pip install -e git+…` makes them.
#[tokio::test]
async fn a_repository_in_an_ignored_directory_is_ignored() {
    let place = Place::new();
    let dir = place.context("a");
    let tree = place.tree("agent", &dir);
    let begun = tree.prepared_for(None).await.unwrap();
    fs::write(dir.join(".gitignore"), ".venv/\n").unwrap();
    for inside in [".venv/src/module", "shown"] {
        fs::create_dir_all(dir.join(inside)).unwrap();
        run(&dir.join(inside), &["init", "--quiet"]);
        fs::write(dir.join(inside).join("file"), "").unwrap();
    }
    fs::write(dir.join("new"), "new\n").unwrap();
    let changes = tree.committed(&begun, "-").await.unwrap().unwrap();
    assert_eq!(run(&dir, &["diff", "--name-only", &begun.base, &changes.commit]), ".gitignore\nnew");
    assert_eq!(changes.left_out, [".venv/src/module", "shown"]);
}

#[tokio::test]
async fn a_sparse_checkout_ends_with_its_run() {
    let place = Place::new();
    let dir = place.context("a");
    let tree = place.tree("agent", &dir);
    let begun = tree.prepared_for(None).await.unwrap();
    fs::create_dir(dir.join("sub")).unwrap();
    fs::write(dir.join("sub/new"), "new\n").unwrap();
    let first = tree.committed(&begun, "one").await.unwrap().unwrap();
    let begun = tree.prepared_for(None).await.unwrap();
    run(&dir, &["sparse-checkout", "set", "--no-cone", "/file"]);
    assert!(!dir.join("sub/new").exists());
    fs::write(dir.join("file"), "changed\n").unwrap();
    let second = tree.committed(&begun, "two").await.unwrap().unwrap();
    assert!(dir.join("sub/new").exists(), "the next run has all files");
    let changed = run(&dir, &["diff", "--name-status", &first.commit, &second.commit]);
    assert_eq!(changed, "M\tfile");
}

#[tokio::test]
async fn names_that_are_no_text_are_shown_so_that_git_can_apply_them() {
    let place = Place::new();
    let dir = place.context("a");
    let tree = place.tree("agent", &dir);
    let begun = tree.prepared_for(None).await.unwrap();
    fs::write(dir.join(OsStr::from_bytes(b"latin-\xe4")), "new\n").unwrap();
    let changes = tree.committed(&begun, "a name").await.unwrap().unwrap();
    assert!(changes.text().contains(r#""b/latin-\344""#), "{}", changes.text());
    let other = place.tree("agent", &place.context("b"));
    other.prepared_for(Some("main")).await.unwrap();
    fs::write(place.root.join("patch"), &changes.patch).unwrap();
    run(&other.dir, &["apply", &place.root.join("patch").display().to_string()]);
    assert!(other.dir.join(OsStr::from_bytes(b"latin-\xe4")).exists());
}

#[tokio::test]
async fn a_patch_has_the_bytes_of_files_in_other_encodings() {
    let place = Place::new();
    let dir = place.context("a");
    let tree = place.tree("agent", &dir);
    let begun = tree.prepared_for(None).await.unwrap();
    fs::write(dir.join("latin"), b"\xe9t\xe9\nplain\n").unwrap();
    let changes = tree.committed(&begun, "in another encoding").await.unwrap().unwrap();
    let other = place.tree("agent", &place.context("b"));
    other.prepared_for(Some("main")).await.unwrap();
    fs::write(place.root.join("patch"), &changes.patch).unwrap();
    run(&other.dir, &["apply", &place.root.join("patch").display().to_string()]);
    assert_eq!(fs::read(other.dir.join("latin")).unwrap(), b"\xe9t\xe9\nplain\n");
}

#[tokio::test]
async fn a_submodule_that_is_another_commit_now_is_shown() {
    let place = Place::new();
    let dir = place.context("a");
    let tree = place.tree("agent", &dir);
    let begun = tree.prepared_for(None).await.unwrap();
    let commit = run(&dir, &["rev-parse", "HEAD"]);
    run(&dir, &["update-index", "--add", "--cacheinfo", &format!("160000,{commit},module")]);
    fs::create_dir(dir.join("module")).unwrap();
    run(&dir, &["commit", "--quiet", "-m", "a module"]);
    let changes = tree.committed(&begun, "-").await.unwrap().unwrap();
    assert!(changes.stat.contains("module") && changes.text().contains(&format!("+Subproject commit {commit}")), "{}", changes.text());
}

#[tokio::test]
async fn a_repository_with_longer_ids_works() {
    let place = Place::new();
    source(&place, &["--object-format=sha256"]);
    serve(&place, "other-source");
    let dir = place.context("a");
    let tree = place.tree("agent", &dir);
    let begun = tree.prepared_for(None).await.unwrap();
    assert_eq!(begun.base.len(), 64);
    fs::write(dir.join("file"), "two\n").unwrap();
    let changes = tree.committed(&begun, "longer").await.unwrap().unwrap();
    assert!(changes.commit.len() == 64 && tree.push().await.unwrap().is_some());
    assert_eq!(run(&place.root.join("served"), &["rev-parse", "bloom/a"]), changes.commit);
    // The settings survive a later start of the agent.
    let again = place.tree("agent", &dir).prepared_for(None).await.unwrap();
    assert_eq!((again.base, again.unfetched), (changes.commit, None));
}

#[tokio::test]
async fn a_shallow_clone_is_no_repository_for_runs() {
    let place = Place::new();
    let source = source(&place, &[]);
    for text in ["two", "three"] {
        fs::write(source.join("file"), text).unwrap();
        run(&source, &["commit", "--quiet", "--all", "-m", text]);
    }
    serve(&place, "other-source");
    let dir = place.context("a");
    let tree = place.tree("agent", &dir);
    tree.prepared_for(None).await.unwrap();
    // The same repository with a newer commit, but without its ancestors.
    fs::write(source.join("file"), "four").unwrap();
    run(&source, &["commit", "--quiet", "--all", "-m", "four"]);
    fs::remove_dir_all(place.root.join("served")).unwrap();
    let url = format!("file://{}", source.display());
    run(&place.root, &["clone", "--quiet", "--bare", "--depth=1", &url, "served"]);
    // A run continues with what its agent has, if anything, as with other repositories that can't be fetched.
    let unfetched = tree.prepared_for(None).await.unwrap().unfetched.unwrap();
    let refused = place.tree("another", &place.context("b")).prepared_for(None).await.unwrap_err().to_string();
    for told in [unfetched, refused] {
        assert!(told.contains("is a shallow clone") && told.contains("git fetch --unshallow"), "{told}");
    }
    run(&place.root.join("served"), &["fetch", "--quiet", "--unshallow", &url]);
    assert_eq!(place.tree("agent", &dir).prepared_for(None).await.unwrap().unfetched, None);
}

#[tokio::test]
async fn a_ref_may_be_written_as_git_shows_it() {
    let place = Place::new();
    let tree = place.tree("agent", &place.context("a"));
    let main = tree.prepared_for(None).await.unwrap().base;
    let other = run(&place.root.join("served"), &["rev-parse", "other"]);
    let repository = &tree.repository;
    for (name, commit) in [
        ("HEAD", &main),
        ("refs/heads/other", &other),
        ("origin/other", &other),
        ("refs/remotes/origin/other", &other),
        ("refs/tags/v1", &other),
        ("v1", &other),
        ("remotes/origin/other", &other),
        ("heads/other", &other),
        ("tags/v1", &other),
        ("origin/HEAD", &main),
        ("remotes/origin/HEAD", &main),
        ("refs/remotes/origin/HEAD", &main),
    ] {
        assert_eq!(repository.wanted_commit(Some(name)).await.as_ref(), Ok(commit), "{name}");
    }
    // Branches of other contexts have such names.
    assert!(matches!(repository.wanted_commit(Some("refs/bloom/a")).await, Err(Trouble::RefMissing(_))));
    assert!(matches!(repository.wanted_commit(Some("refs/heads/v1")).await, Err(Trouble::RefMissing(_))));
    let served = place.root.join("served");
    run(&served, &["update-ref", "--no-deref", "HEAD", &other]);
    assert_eq!(repository.wanted_commit(None).await, Ok(other), "a commit in place of a branch");
    run(&served, &["symbolic-ref", "HEAD", "refs/heads/gone"]);
    let gone = repository.wanted_commit(None).await.unwrap_err();
    assert!(gone.to_string().ends_with("it has main, other"), "{gone}");
}

#[tokio::test]
async fn a_branch_in_the_way_of_the_pushed_one_is_told() {
    let place = Place::new();
    let tree = place.tree("agent", &place.context("a"));
    let begun = tree.prepared_for(None).await.unwrap();
    assert_eq!(tree.check_branch_name(&begun.branch).await, Ok(()));
    for taken in ["bloom", "bloom/a/b"] {
        run(&place.root.join("served"), &["branch", taken, "main"]);
        tree.repository.fetch(FETCH_LIMIT).await.unwrap();
        let why = tree.check_branch_name(&begun.branch).await.unwrap_err().to_string();
        assert!(why.contains(&format!("has a branch {taken},")) && why.contains("project edit site --branch-prefix"), "{why}");
        run(&place.root.join("served"), &["branch", "-D", taken]);
    }
}

#[tokio::test]
async fn a_branch_that_leads_to_another_is_not_pushed_to() {
    let place = Place::new();
    let (dir, served) = (place.context("a"), place.root.join("served"));
    let tree = place.tree("agent", &dir);
    let begun = tree.prepared_for(None).await.unwrap();
    fs::write(dir.join("file"), "changed\n").unwrap();
    tree.committed(&begun, "x").await.unwrap().unwrap();
    for target in ["main", "other"] {
        run(&served, &["symbolic-ref", "refs/heads/bloom/a", &format!("refs/heads/{target}")]);
        tree.repository.fetch(FETCH_LIMIT).await.unwrap();
        let why = tree.check_branch_name(&begun.branch).await.unwrap_err().to_string();
        assert!(why.contains(&format!("leads to {target}")) && why.contains("git symbolic-ref --delete refs/heads/bloom/a"), "{why}");
        let before = run(&served, &["rev-parse", target]);
        assert!(tree.push().await.unwrap_err().to_string().contains("leads to"));
        assert_eq!(run(&served, &["rev-parse", target]), before);
        // The command in the message resolves the problem.
        run(&served, &["symbolic-ref", "--delete", "refs/heads/bloom/a"]);
        tree.repository.fetch(FETCH_LIMIT).await.unwrap();
        assert_eq!(tree.check_branch_name(&begun.branch).await, Ok(()));
    }
    assert!(tree.push().await.unwrap().is_some());
}
