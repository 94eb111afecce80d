//! Worktrees in real repositories.

use std::path::Path;
use std::sync::Arc;

use super::commit::MAX_PATCH;
use super::*;
use crate::git::GitSettings;

pub(super) struct Place {
    _dir: tempfile::TempDir,
    pub root: PathBuf,
    settings: GitSettings,
    url: String,
}

/// The result of a git command that uses nothing of the machine's user.
fn ended(dir: &Path, words: &[&str]) -> std::process::Output {
    let mut command = std::process::Command::new("git");
    command.args(["-c", "user.name=t", "-c", "user.email=t@localhost", "-c", "init.defaultBranch=main"]);
    command.args(words).current_dir(dir).output().expect("git")
}

pub(super) fn run(dir: &Path, words: &[&str]) -> String {
    let ended = ended(dir, words);
    assert!(ended.status.success(), "git {words:?}: {}", String::from_utf8_lossy(&ended.stderr));
    String::from_utf8_lossy(&ended.stdout).trim().to_owned()
}

/// Runs the command that a message contains, as a person would.
pub(super) fn mend(why: &Trouble) {
    let told = why.to_string();
    let command = told.split_once("Mend it on the worker with ").and_then(|(_, rest)| rest.split_once(", or use another context"));
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", command.unwrap_or_else(|| panic!("{told}")).0]).env("GIT_CONFIG_GLOBAL", "/dev/null");
    shell.envs(CommitAuthor::default().env());
    let ended = shell.output().expect("sh");
    assert!(ended.status.success(), "{told}: {}", String::from_utf8_lossy(&ended.stderr));
}

impl Place {
    /// A bare repository with the branches `main` and `other` and the tag `v1`.
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        let source = root.join("source");
        fs::create_dir(&source).unwrap();
        run(&source, &["init", "--quiet"]);
        fs::write(source.join("file"), "one\n").unwrap();
        run(&source, &["add", "."]);
        run(&source, &["commit", "--quiet", "-m", "one"]);
        run(&source, &["tag", "v1"]);
        run(&source, &["branch", "other"]);
        fs::write(source.join("file"), "two\n").unwrap();
        run(&source, &["commit", "--quiet", "-am", "two"]);
        run(&root, &["clone", "--quiet", "--bare", "source", "served"]);
        let url = format!("file://{}", root.join("served").display());
        let settings = GitSettings { protocols: vec!["file".into()], max_bytes: 64 << 20 };
        Self { _dir: dir, root, settings, url }
    }

    pub(crate) fn context(&self, name: &str) -> PathBuf {
        self.root.join("contexts").join(name)
    }

    pub(crate) fn tree(&self, agent: &str, dir: &Path) -> Worktree {
        let name = dir.file_name().unwrap().to_str().unwrap();
        let (settings, url) = (self.settings.clone(), self.url.clone());
        let repository = Repository { settings, dir: self.root.join(agent), url, home: self.root.clone(), lock: Arc::default() };
        Worktree {
            repository,
            context_id: name.to_owned(),
            project: "site".into(),
            dir: dir.to_owned(),
            branch: branch("bloom", name),
            former_branches: Vec::new(),
        }
    }
}

fn author() -> CommitAuthor {
    CommitAuthor { name: "Bloom".into(), email: "bloom@localhost".into() }
}

impl Worktree {
    pub(super) async fn prepared_for(&self, wanted: Option<&str>) -> Result<Prepared, Trouble> {
        self.prepare(&Confinement::default(), wanted, false).await
    }

    pub(super) async fn committed(&self, begun: &Prepared, message: &str) -> Result<Option<Changes>, Trouble> {
        let message = format!("{message}\n\n{}", self.trailer());
        self.commit(&Confinement::default(), begun, &message, &author(), Path::new("/dev/null")).await
    }
}

#[tokio::test]
async fn a_context_goes_on_where_it_was() {
    let place = Place::new();
    let dir = place.context("a");
    let tree = place.tree("agent", &dir);
    let first = tree.prepared_for(None).await.unwrap();
    assert_eq!((first.branch.as_str(), first.origin), ("bloom/a", Origin::Fresh));
    assert_eq!(fs::read_to_string(dir.join("file")).unwrap(), "two\n");
    assert_eq!(tree.committed(&first, "nothing").await, Ok(None));
    fs::write(dir.join("file"), "three\n").unwrap();
    fs::write(dir.join("new"), "new\n").unwrap();
    let changes = tree.committed(&first, "the first run").await.unwrap().unwrap();
    assert!(changes.text().contains("+three") && changes.stat.contains("new") && !changes.is_cut, "{changes:?}");
    assert_eq!(run(&dir, &["status", "--porcelain"]), "");
    assert_eq!(run(&dir, &["log", "-1", "--format=%an %ae %s"]), "Bloom bloom@localhost the first run");
    let second = tree.prepared_for(Some("v1")).await.unwrap();
    assert_eq!((second.base.clone(), second.origin), (changes.commit.clone(), Origin::Kept));
    fs::write(dir.join("новий"), "quite another line\n").unwrap();
    fs::remove_file(dir.join("new")).unwrap();
    let next = tree.committed(&second, "the second run").await.unwrap().unwrap();
    assert!(next.text().contains("deleted file") && next.text().contains("b/новий") && next.stat.contains("новий"), "{}", next.text());
    // Removed by age: the branch is still there.
    tree.remove().unwrap();
    let third = tree.prepared_for(None).await.unwrap();
    assert_eq!((third.base, third.origin), (next.commit, Origin::Kept));
    assert_eq!(fs::read_to_string(dir.join("file")).unwrap(), "three\n");
}

#[tokio::test]
async fn an_empty_repository_is_told() {
    let place = Place::new();
    run(&place.root, &["init", "--quiet", "--bare", "empty"]);
    let mut tree = place.tree("agent", &place.context("a"));
    tree.repository.url = format!("file://{}", place.root.join("empty").display());
    assert_eq!(tree.prepared_for(None).await, Err(Trouble::Empty));
}

#[tokio::test]
async fn contexts_do_not_disturb_each_other() {
    let place = Place::new();
    let (a, b) = (place.context("a"), place.context("b"));
    let (one, two) = (place.tree("agent", &a), place.tree("agent", &b));
    let (first, second) = (one.prepared_for(Some("v1")).await.unwrap(), two.prepared_for(Some("main")).await.unwrap());
    assert_ne!(first.base, second.base);
    fs::write(a.join("file"), "a\n").unwrap();
    fs::write(b.join("file"), "b\n").unwrap();
    let (changed, other) = tokio::join!(one.committed(&first, "a"), two.committed(&second, "b"));
    assert!(changed.unwrap().unwrap().text().contains("+a") && other.unwrap().unwrap().text().contains("+b"));
}

#[tokio::test]
async fn a_pushed_branch_goes_on_elsewhere() {
    let place = Place::new();
    let dir = place.context("a");
    let tree = place.tree("agent", &dir);
    let prepared = tree.prepared_for(None).await.unwrap();
    fs::write(dir.join("file"), "pushed\n").unwrap();
    let changes = tree.committed(&prepared, "a run").await.unwrap().unwrap();
    assert!(tree.push().await.unwrap().is_some());
    assert_eq!(run(&place.root.join("served"), &["rev-parse", "bloom/a"]), changes.commit);
    let elsewhere = place.root.join("elsewhere/a");
    let other = place.tree("other-agent", &elsewhere);
    let moved = other.prepared_for(None).await.unwrap();
    assert_eq!((&moved.base, moved.origin), (&changes.commit, Origin::Fetched));
    // And back again.
    fs::write(elsewhere.join("file"), "pushed elsewhere\n").unwrap();
    let changes = other.committed(&moved, "a run").await.unwrap().unwrap();
    other.push().await.unwrap();
    let back = tree.prepared_for(None).await.unwrap();
    assert_eq!((&back.base, back.origin), (&changes.commit, Origin::Fetched));
    assert_eq!(fs::read_to_string(dir.join("file")).unwrap(), "pushed elsewhere\n");
    assert_eq!(run(&dir, &["status", "--porcelain"]), "");
}

#[tokio::test]
async fn what_is_here_is_enough_while_the_repository_is_away() {
    let place = Place::new();
    let dir = place.context("a");
    let tree = place.tree("agent", &dir);
    let first = tree.prepared_for(None).await.unwrap();
    fs::rename(place.root.join("served"), place.root.join("away")).unwrap();
    let second = tree.prepared_for(None).await.unwrap();
    assert!(second.unfetched.as_ref().is_some_and(|why| why.contains("can't be fetched")), "{second:?}");
    assert_eq!(second, Prepared { origin: Origin::Kept, unfetched: second.unfetched.clone(), ..first });
}

#[tokio::test]
async fn a_lock_that_was_left_is_removed() {
    let place = Place::new();
    let tree = place.tree("agent", &place.context("a"));
    tree.prepared_for(None).await.unwrap();
    let lock = tree.repository.git_dir().join("refs/remotes/origin/next.lock");
    fs::write(&lock, "").unwrap();
    let old = std::time::SystemTime::now() - std::time::Duration::from_secs(600);
    fs::File::options().write(true).open(&lock).unwrap().set_modified(old).unwrap();
    run(&place.root.join("served"), &["branch", "next", "v1"]);
    tree.repository.fetch(repository::FETCH_LIMIT).await.unwrap();
    assert!(!lock.exists() && tree.repository.commit_of("refs/remotes/origin/next").await.is_some());
}

#[tokio::test]
async fn a_worktree_that_was_not_made_completely_is_made_again() {
    let place = Place::new();
    let dir = place.context("a");
    let tree = place.tree("agent", &dir);
    let first = tree.prepared_for(None).await.unwrap();
    // The agent was killed while git wrote the files.
    fs::remove_file(tree.complete_mark()).unwrap();
    fs::remove_file(dir.join("file")).unwrap();
    fs::write(tree.own_git_dir().join("locked"), "initializing").unwrap();
    let second = tree.prepared_for(None).await.unwrap();
    assert_eq!(second.base, first.base);
    assert_eq!(tree.committed(&second, "nothing").await, Ok(None));
}

#[tokio::test]
async fn ignored_files_are_not_committed() {
    let place = Place::new();
    let dir = place.context("a");
    let tree = place.tree("agent", &dir);
    let prepared = tree.prepared_for(None).await.unwrap();
    for name in ["input", "own"] {
        fs::write(dir.join(name), name).unwrap();
    }
    let ignored = place.root.join("ignored");
    fs::write(&ignored, "/input\n").unwrap();
    let changes = tree.commit(&Confinement::default(), &prepared, "x", &author(), &ignored).await.unwrap().unwrap();
    assert!(changes.stat.contains("own") && !changes.stat.contains("input"), "{}", changes.stat);
}

#[test]
fn a_branch_has_the_name_of_its_context() {
    assert_eq!(branch("bloom", "issue-12"), "bloom/issue-12");
    let of_another = branch("bloom", "team/issue.1");
    assert_ne!(
        branch("bloom", of_another.strip_prefix("bloom/").unwrap()),
        of_another,
        "names of contexts that are made of others are not theirs"
    );
    for odd in ["", "-f", "a/b", "a b", "..", "namespace:team/a", "x.lock", &"a".repeat(101)] {
        let branch = branch("bloom", odd);
        assert!(
            branch.len() < 70 && branch.strip_prefix("bloom/").unwrap().bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b)),
            "{branch}"
        );
    }
}

#[tokio::test]
async fn what_can_not_be_prepared_says_why() {
    let mut place = Place::new();
    let dir = place.context("a");
    assert_eq!(place.tree("agent", &dir).prepared_for(Some("nowhere")).await, Err(Trouble::RefMissing("nowhere".into())));
    for wrong in ["--upload-pack=touch x", "refs/../x", "@{-1}", "main:file", "HEAD~1"] {
        assert_eq!(place.tree("agent", &dir).prepared_for(Some(wrong)).await, Err(Trouble::RefMissing(wrong.into())));
    }
    let commit = run(&place.root.join("served"), &["rev-parse", "v1"]);
    assert_eq!(place.tree("agent", &dir).prepared_for(Some(&commit)).await.unwrap().base, commit);
    let used = place.context("used");
    fs::create_dir_all(&used).unwrap();
    fs::write(used.join("file"), "").unwrap();
    assert!(matches!(place.tree("agent", &used).prepared_for(None).await, Err(Trouble::State(why)) if why.contains("another context")));
    place.settings.max_bytes = 1_000;
    assert!(
        matches!(place.tree("small", &place.context("b")).prepared_for(None).await, Err(Trouble::Size(why)) if why.contains("larger than"))
    );
    place.settings.max_bytes = 64 << 20;
    place.url.push_str("-gone");
    assert!(matches!(place.tree("third", &place.context("c")).prepared_for(None).await, Err(Trouble::Repository(_))));
}

#[tokio::test]
async fn a_state_that_a_run_left_is_named() {
    let place = Place::new();
    let dir = place.context("a");
    let tree = place.tree("agent", &dir);
    let prepared = tree.prepared_for(None).await.unwrap();
    // Commits that the run itself made count, on whatever branch.
    run(&dir, &["checkout", "--quiet", "-b", "feature"]);
    fs::write(dir.join("own"), "own\n").unwrap();
    run(&dir, &["add", "own"]);
    run(&dir, &["commit", "--quiet", "-m", "own"]);
    let changes = tree.committed(&prepared, "x").await.unwrap().unwrap();
    assert_eq!(run(&dir, &["rev-parse", "bloom/a^"]), run(&dir, &["rev-parse", "feature"]), "a commit of the agent says whose they are");
    assert_eq!(run(&dir, &["symbolic-ref", "HEAD"]), "refs/heads/bloom/a");
    assert!(changes.text().contains("+own"), "{}", changes.text());
    let prepared = tree.prepared_for(None).await.unwrap();
    // But they must build on what was there before.
    run(&dir, &["checkout", "--quiet", "--detach", "v1"]);
    for why in [tree.committed(&prepared, "x").await.unwrap_err(), tree.prepared_for(None).await.unwrap_err()] {
        assert!(matches!(&why, Trouble::State(why) if why.contains("bloom/a") && why.contains("use another context")), "{why}");
    }
    run(&dir, &["checkout", "--quiet", "bloom/a"]);
    // A merge with a conflict.
    fs::write(dir.join("file"), "ours\n").unwrap();
    run(&dir, &["commit", "--quiet", "-am", "ours"]);
    run(&dir, &["checkout", "--quiet", "-b", "side", "v1"]);
    fs::write(dir.join("file"), "theirs\n").unwrap();
    run(&dir, &["commit", "--quiet", "-am", "theirs"]);
    run(&dir, &["checkout", "--quiet", "bloom/a"]);
    assert!(!ended(&dir, &["merge", "side"]).status.success());
    for why in [tree.committed(&prepared, "x").await.unwrap_err(), tree.prepared_for(None).await.unwrap_err()] {
        assert!(why.to_string().contains("left a merge unfinished"), "{why}");
    }
    run(&dir, &["merge", "--abort"]);
    // Locks of a git process that was killed do no harm.
    fs::write(tree.own_git_dir().join("index.lock"), "").unwrap();
    tree.committed(&prepared, "x").await.unwrap();
}

#[tokio::test]
async fn a_patch_is_bounded() {
    let place = Place::new();
    let dir = place.context("a");
    let tree = place.tree("agent", &dir);
    let prepared = tree.prepared_for(None).await.unwrap();
    fs::write(dir.join("large"), "a line\n".repeat(MAX_PATCH / 4)).unwrap();
    let changes = tree.committed(&prepared, "x").await.unwrap().unwrap();
    assert!(changes.is_cut && changes.patch.len() == MAX_PATCH && changes.stat.contains("large"));
}

#[tokio::test]
async fn a_push_that_an_earlier_attempt_finished_is_no_obstacle() {
    let place = Place::new();
    let (a, b) = (place.context("a"), place.root.join("elsewhere/a"));
    let (one, other) = (place.tree("agent", &a), place.tree("other-agent", &b));
    let first = one.prepared_for(None).await.unwrap();
    fs::write(a.join("file"), "first\n").unwrap();
    one.committed(&first, "x").await.unwrap();
    one.push().await.unwrap();
    let second = other.prepared_for(None).await.unwrap();
    fs::write(b.join("file"), "second\n").unwrap();
    other.committed(&second, "x").await.unwrap();
    // This worktree knows an older state of the server.
    run(&place.root, &["--git-dir", &other.repository.git_dir().display().to_string(), "update-ref", "-d", "refs/remotes/origin/bloom/a"]);
    assert!(other.push().await.unwrap().is_some());
}
