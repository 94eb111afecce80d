//! Runs that try to make the agent's git execute something, or wait forever.

use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use super::tests::{Place, run};
use super::*;

#[tokio::test]
async fn nothing_that_a_run_wrote_is_executed() {
    let place = Place::new();
    let dir = place.context("a");
    let tree = place.tree("agent", &dir);
    let prepared = tree.prepared_for(None).await.unwrap();
    let mark = place.root.join("executed");
    let command = format!("touch {}; cat", mark.display());
    // Files that a sandboxed run can write: its worktree, with attributes, a false `.git`, and a repository within.
    fs::write(dir.join(".gitattributes"), "* filter=evil diff=evil merge=evil\n").unwrap();
    let config = format!(
        "[core]\n\tfsmonitor = {command}\n\thooksPath = {0}\n\tsshCommand = {command}\n\teditor = {command}\n\tpager = {command}\n\
         [filter \"evil\"]\n\tclean = {command}\n\tsmudge = {command}\n\tprocess = {command}\n\trequired = true\n\
         [diff \"evil\"]\n\ttextconv = {command}\n\tcommand = {command}\n[diff]\n\texternal = {command}\n\
         [credential]\n\thelper = !{command}\n[gpg]\n\tprogram = {command}\n[commit]\n\tgpgSign = true\n[alias]\n\tadd = !{command}\n",
        dir.join("hooks").display()
    );
    let hooks = dir.join("hooks");
    fs::create_dir(&hooks).unwrap();
    for hook in
        ["pre-commit", "post-commit", "reference-transaction", "post-index-change", "pre-push", "post-checkout", "fsmonitor-watchman"]
    {
        fs::write(hooks.join(hook), format!("#!/bin/sh\n{command}\n")).unwrap();
        fs::set_permissions(hooks.join(hook), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    }
    // One of the names is not UTF-8.
    let odd = PathBuf::from(std::ffi::OsStr::from_bytes(b"odd\xff"));
    for inner in [Path::new("inner"), Path::new("deep/inner"), &odd] {
        fs::create_dir_all(dir.join(inner)).unwrap();
        run(&dir.join(inner), &["init", "--quiet"]);
        fs::write(dir.join(inner).join("file"), "inner\n").unwrap();
        fs::write(dir.join(inner).join(".gitattributes"), "* filter=evil\n").unwrap();
        run(&dir.join(inner), &["add", "."]);
        run(&dir.join(inner), &["commit", "--quiet", "-m", "inner"]);
        fs::write(dir.join(inner).join(".git/config"), &config).unwrap();
    }
    fs::remove_file(dir.join(".git")).unwrap();
    run(&dir, &["init", "--quiet"]);
    fs::write(dir.join(".git/config"), &config).unwrap();
    fs::write(dir.join("file"), "changed\n").unwrap();

    let changes = tree.committed(&prepared, "a run").await.unwrap().unwrap();
    assert!(changes.text().contains("+changed"), "{}", changes.text());
    assert_eq!(changes.left_out, ["deep/inner", "inner", "odd\u{fffd}"]);
    let git_dir = tree.repository.git_dir().display().to_string();
    let kept = run(&place.root, &["--git-dir", &git_dir, "ls-tree", "-r", "--name-only", &changes.commit]);
    assert!(!kept.contains("inner"), "no repository within is a part of it: {kept}");
    assert!(tree.push().await.unwrap().is_some());
    tree.prepared_for(None).await.unwrap();
    assert_eq!(tree.push().await, Ok(None), "the server has it");
    assert!(!mark.exists(), "a command of the run was executed");
}

/// A commit of the project may refer to repositories, which a run can put there. Git would look into them for changes.
#[tokio::test]
async fn a_repository_that_the_project_names_is_not_looked_into() {
    let place = Place::new();
    let dir = place.context("a");
    let tree = place.tree("agent", &dir);
    let odd = PathBuf::from(std::ffi::OsStr::from_bytes(b"odd\xff"));
    let mark = place.root.join("executed");
    let first = tree.prepared_for(None).await.unwrap();
    for inner in [Path::new("sub"), &odd] {
        let inner = dir.join(inner);
        fs::create_dir(&inner).unwrap();
        run(&inner, &["init", "--quiet"]);
        fs::write(inner.join("file"), "one\n").unwrap();
        fs::write(inner.join(".gitattributes"), "* filter=evil\n").unwrap();
        run(&inner, &["add", "."]);
        run(&inner, &["commit", "--quiet", "-m", "inner"]);
        run(&inner, &["config", "filter.evil.clean", &format!("touch {}; cat", mark.display())]);
    }
    // The run commits them as gitlinks, which are names of commits.
    run(&dir, &["-c", "advice.addEmbeddedRepo=false", "add", "."]);
    run(&dir, &["commit", "--quiet", "-m", "gitlinks"]);
    let _ = fs::remove_file(&mark);
    tree.committed(&first, "x").await.unwrap();
    let second = tree.prepared_for(None).await.unwrap();
    for inner in [Path::new("sub"), &odd] {
        fs::write(dir.join(inner).join("file"), "two\n").unwrap();
    }
    fs::write(dir.join("file"), "changed\n").unwrap();
    let changes = tree.committed(&second, "x").await.unwrap().unwrap();
    assert!(!mark.exists(), "a filter of the run was executed");
    assert!(changes.text().contains("+changed") && !changes.text().contains("Subproject"), "{}", changes.text());
}

#[tokio::test]
async fn pipes_and_devices_hold_nothing_up() {
    let place = Place::new();
    let dir = place.context("a");
    let tree = place.tree("agent", &dir);
    let prepared = tree.prepared_for(None).await.unwrap();
    let pipe = |name: &str| {
        let _ = fs::remove_file(dir.join(name));
        assert!(std::process::Command::new("mkfifo").arg(dir.join(name)).status().unwrap().success());
    };
    pipe(".git");
    pipe("pipe");
    assert_eq!(tree.committed(&prepared, "x").await, Ok(None));
    tree.prepared_for(None).await.unwrap();
    assert!(fs::read_to_string(dir.join(".git")).unwrap().starts_with("gitdir: "));
    fs::remove_file(dir.join(".git")).unwrap();
    std::os::unix::fs::symlink("/dev/zero", dir.join(".git")).unwrap();
    tree.prepared_for(None).await.unwrap();
    pipe(".gitignore");
    assert!(matches!(tree.committed(&prepared, "x").await, Err(Trouble::State(why)) if why.contains(".gitignore")));
    fs::remove_file(dir.join(".gitignore")).unwrap();
    fs::File::create(dir.join("large")).unwrap().set_len(1 << 40).unwrap();
    assert!(matches!(tree.committed(&prepared, "x").await, Err(Trouble::Size(why)) if why.contains("--max-clone-mib")));
}

/// Makes a commit whose history has a tree that no git server should accept, and sets the branch to it.
const BAD_HISTORY: &str = r#"set -e
blob=$(echo x | git hash-object -w --stdin)
raw() { printf '%s %s\0' "$1" "$2"; printf "$(printf %s "$3" | sed 's/../\\x&/g')"; }
below=$(raw 100644 config "$blob" | git hash-object -w -t tree --literally --stdin)
bad=$(raw 40000 .git "$below" | git hash-object -w -t tree --literally --stdin)
middle=$(git commit-tree "$bad" -p HEAD -m bad)
git update-ref HEAD "$(git commit-tree 'HEAD^{tree}' -p "$middle" -m good)""#;

/// Otherwise it would be pushed, and no worker could fetch the repository any more.
#[tokio::test]
async fn objects_that_git_refuses_from_servers_are_refused_from_runs() {
    let place = Place::new();
    let dir = place.context("a");
    let tree = place.tree("agent", &dir);
    let prepared = tree.prepared_for(None).await.unwrap();
    let names = ["GIT_AUTHOR_NAME", "GIT_AUTHOR_EMAIL", "GIT_COMMITTER_NAME", "GIT_COMMITTER_EMAIL"].map(|name| (name, "t"));
    let made = std::process::Command::new("bash").args(["-c", BAD_HISTORY]).envs(names).current_dir(&dir).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let why = tree.committed(&prepared, "x").await.unwrap_err().to_string();
    assert!(why.contains("can't be taken over") && why.contains(".git"), "{why}");
    assert_eq!(tree.repository.commit_of("refs/heads/bloom/a").await, Some(prepared.base));
}

/// The context's settings name a filter that prints very much.
#[tokio::test]
async fn what_a_filter_says_is_not_kept() {
    let place = Place::new();
    let dir = place.context("a");
    let tree = place.tree("agent", &dir);
    let prepared = tree.prepared_for(None).await.unwrap();
    run(&dir, &["config", "filter.loud.clean", "head -c 300000000 /dev/zero >&2; cat"]);
    fs::write(dir.join(".gitattributes"), "* filter=loud\n").unwrap();
    fs::write(dir.join("file"), "changed\n").unwrap();
    assert!(tree.committed(&prepared, "x").await.unwrap().unwrap().text().contains("+changed"));
}
