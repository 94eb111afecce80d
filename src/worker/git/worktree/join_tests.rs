//! Branches that others have changed on the project's server as well.

use super::tests::{Place, run};
use super::*;

/// Two agents with a worktree of the same context, both at the commit that the first one has pushed.
struct Two {
    place: Place,
    here: (PathBuf, Worktree),
    there: (PathBuf, Worktree),
}

impl Two {
    async fn new() -> Self {
        let place = Place::new();
        let dirs = [place.context("a"), place.root.join("elsewhere/a")];
        let [here, there] = dirs.map(|dir| (dir.clone(), place.tree(if dir == place.context("a") { "agent" } else { "other" }, &dir)));
        let two = Self { place, here, there };
        two.here().runs("first", "one\n", true).await;
        two.there().runs("there", "two\n", true).await;
        let followed = two.here.1.prepared_for(None).await.unwrap();
        assert_eq!(followed.origin, Origin::Fetched);
        two
    }

    fn here(&self) -> Side<'_> {
        Side(&self.here)
    }

    fn there(&self) -> Side<'_> {
        Side(&self.there)
    }

    fn served(&self) -> PathBuf {
        self.place.root.join("served")
    }

    fn tip(&self) -> String {
        run(&self.served(), &["rev-parse", "bloom/a"])
    }

    /// Resets the branch on the server to this commit, as a person would.
    fn reset_to(&self, commit: &str) {
        run(&self.served(), &["update-ref", "refs/heads/bloom/a", commit]);
    }
}

struct Side<'a>(&'a (PathBuf, Worktree));

impl Side<'_> {
    async fn runs(&self, file: &str, text: &str, is_pushed: bool) {
        let (dir, tree) = self.0;
        let begun = tree.prepared_for(None).await.unwrap();
        fs::write(dir.join(file), text).unwrap();
        tree.committed(&begun, "a run").await.unwrap().unwrap();
        if is_pushed {
            assert!(tree.push().await.unwrap().is_some());
        }
    }

    async fn refused(&self) -> String {
        match self.0.1.prepared_for(None).await {
            Err(Trouble::State(why)) => why,
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn what_others_have_pushed_is_merged_before_the_run() {
    let two = Two::new().await;
    two.here().runs("mine", "mine\n", false).await;
    two.there().runs("yours", "yours\n", true).await;
    let (dir, tree) = &two.here;
    let merged = tree.prepared_for(None).await.unwrap();
    assert_eq!(merged.origin, Origin::Merged);
    assert!(dir.join("mine").exists() && dir.join("yours").exists() && run(dir, &["status", "--porcelain"]).is_empty());
    assert_eq!(tree.committed(&merged, "nothing").await, Ok(None), "a merge is no work of the run");
    assert_eq!(tree.push().await, Ok(Some(merged.base.clone())));
    assert_eq!(two.tip(), merged.base);
    assert_eq!(two.there.1.prepared_for(None).await.unwrap().base, merged.base);
}

#[tokio::test]
async fn what_can_not_be_merged_is_told_before_the_run_and_a_merge_by_hand_helps() {
    let two = Two::new().await;
    two.here().runs("file", "mine\n", false).await;
    two.there().runs("file", "yours\n", true).await;
    let why = two.here().refused().await;
    assert!(why.contains("both have changed file") && why.contains("merge origin/bloom/a"), "{why}");
    let (dir, tree) = &two.here;
    run(dir, &["merge", "--quiet", "-X", "ours", "-m", "Both", "origin/bloom/a"]);
    let begun = tree.prepared_for(None).await.unwrap();
    assert_eq!((begun.origin, tree.committed(&begun, "nothing").await), (Origin::Kept, Ok(None)));
    assert_eq!(tree.push().await, Ok(Some(begun.base.clone())));
    assert_eq!(two.tip(), begun.base);
}

#[tokio::test]
async fn what_is_pushed_while_a_run_works_is_merged_after_it() {
    let two = Two::new().await;
    let (dir, tree) = &two.here;
    let begun = tree.prepared_for(None).await.unwrap();
    two.there().runs("yours", "yours\n", true).await;
    let theirs = two.tip();
    fs::write(dir.join("mine"), "mine\n").unwrap();
    let changes = tree.committed(&begun, "a run").await.unwrap().unwrap();
    let pushed = tree.push().await.unwrap().unwrap();
    assert_eq!(two.tip(), pushed);
    assert_eq!(run(&two.served(), &["rev-parse", "bloom/a^1", "bloom/a^2"]), format!("{}\n{theirs}", changes.commit));
    let next = tree.prepared_for(None).await.unwrap();
    assert_eq!((next.base, next.origin), (pushed, Origin::Fetched));
    // If both have changed the same lines, the run does not count as done.
    let begun = tree.prepared_for(None).await.unwrap();
    two.there().runs("file", "yours\n", true).await;
    fs::write(dir.join("file"), "mine\n").unwrap();
    tree.committed(&begun, "a run").await.unwrap().unwrap();
    let why = tree.push().await.unwrap_err().to_string();
    assert!(why.contains("bloom/a can't be pushed") && why.contains("both have changed file"), "{why}");
}

#[tokio::test]
async fn what_a_person_has_taken_back_or_rewritten_does_not_come_back() {
    let two = Two::new().await;
    let first = run(&two.served(), &["rev-parse", "bloom/a^"]);
    let (dir, tree) = &two.here;
    two.reset_to(&first);
    let begun = tree.prepared_for(None).await.unwrap();
    assert_eq!((&begun.base, begun.origin, tree.push().await), (&first, Origin::Fetched, Ok(None)));
    assert!(!dir.join("there").exists() && run(dir, &["status", "--porcelain"]).is_empty());
    // A rewritten branch: its commits are new, and one of them names the context.
    let message = format!("Once more\n\n{}", tree.trailer());
    let made = run(&two.served(), &["commit-tree", &format!("{first}^{{tree}}"), "-p", &format!("{first}^"), "-m", &message]);
    two.reset_to(&made);
    assert_eq!(tree.prepared_for(None).await.unwrap().base, made);
    // If this machine has work that nobody else has, the conflict is left to a person.
    two.here().runs("mine", "mine\n", false).await;
    two.reset_to(&first);
    let why = two.here().refused().await;
    assert!(why.contains("taken back or replaced"), "{why}");
    run(dir, &["merge", "--quiet", "--no-edit", "origin/bloom/a"]);
    let why = two.here().refused().await;
    assert!(why.contains("taken back or replaced"), "{why}");
}

#[tokio::test]
async fn a_branch_that_lost_the_line_of_its_context_is_told_and_the_line_helps() {
    let two = Two::new().await;
    let main = run(&two.served(), &["rev-parse", "main"]);
    let amended = run(&two.served(), &["commit-tree", "bloom/a^{tree}", "-p", &main, "-m", "By a person"]);
    two.reset_to(&amended);
    let why = two.here().refused().await;
    assert!(why.contains("has pushed it") && why.contains("no commit of it has the line Bloom-Context: a any more"), "{why}");
    let command = why.split_once(": git commit").expect(&why).1;
    let clone = two.place.root.join("clone");
    run(&two.place.root, &["clone", "--quiet", "--branch", "bloom/a", "served", "clone"]);
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", &format!("git commit --quiet {command} && git push --quiet")]).envs(CommitAuthor::default().env());
    assert!(shell.env("GIT_CONFIG_GLOBAL", "/dev/null").current_dir(&clone).status().unwrap().success(), "{command}");
    let begun = two.here.1.prepared_for(None).await.unwrap();
    assert_eq!((begun.base, begun.origin), (two.tip(), Origin::Fetched));
    assert_eq!(run(&two.served(), &["rev-parse", "bloom/a^"]), amended);
}

#[tokio::test]
async fn files_of_a_run_that_was_interrupted_are_told_before_the_next() {
    let two = Two::new().await;
    two.there().runs("file", "yours\n", true).await;
    fs::write(two.here.0.join("file"), "half\n").unwrap();
    let why = two.here().refused().await;
    assert!(why.contains("without a commit") && why.contains("bloom/a"), "{why}");
    run(&two.here.0, &["checkout", "--quiet", "--", "file"]);
    assert_eq!(two.here.1.prepared_for(None).await.unwrap().base, two.tip());
}

#[tokio::test]
async fn a_run_that_is_to_push_needs_the_server_from_the_beginning() {
    let two = Two::new().await;
    fs::rename(two.served(), two.place.root.join("away")).unwrap();
    let tree = &two.here.1;
    assert!(matches!(tree.prepare(&Confinement::default(), None, true).await, Err(Trouble::Repository(_))));
    assert!(tree.prepare(&Confinement::default(), None, false).await.unwrap().unfetched.is_some());
}

#[tokio::test]
async fn locks_that_were_left_hold_no_run_up() {
    let two = Two::new().await;
    let git = two.here.1.repository.git_dir();
    let (now, long) = (std::time::SystemTime::now(), Duration::from_secs(7_200));
    // The clock may have been set back in between.
    for (name, at) in [("refs/heads/bloom/a", now - long), ("refs/bloom/a", now + long), ("refs/push/a/a", now + long)] {
        let lock = git.join(format!("{name}.lock"));
        fs::write(&lock, "").unwrap();
        fs::File::options().write(true).open(&lock).unwrap().set_modified(at).unwrap();
    }
    two.here().runs("mine", "mine\n", true).await;
}

/// This includes commits that this worker has only fetched, and commits that are pushed while it works.
#[tokio::test]
async fn what_is_taken_back_while_a_run_works_does_not_come_back() {
    let two = Two::new().await;
    let first = run(&two.served(), &["rev-parse", "bloom/a^"]);
    // The newest commit was made by the other agent, and was only fetched here.
    let (dir, tree) = &two.here;
    for is_known in [false, true] {
        let begun = tree.prepared_for(None).await.unwrap();
        fs::write(dir.join("mine"), format!("{is_known}\n")).unwrap();
        tree.committed(&begun, "a run").await.unwrap().unwrap();
        two.reset_to(&first);
        if is_known {
            tree.repository.fetch(FETCH_LIMIT).await.unwrap();
        }
        let why = tree.push().await.unwrap_err().to_string();
        assert!(why.contains("taken back") && two.tip() == first, "{why}");
        // The command in the message resolves the problem.
        let words: Vec<&str> = why.split("rebase ").nth(1).unwrap().split(',').next().unwrap().split(' ').collect();
        tree.show_refs(&Confinement::default()).await;
        run(dir, &[&["rebase", "--quiet"], &words[..]].concat());
        let begun = tree.prepared_for(None).await.unwrap();
        tree.committed(&begun, "nothing").await.unwrap();
        assert!(tree.push().await.unwrap().is_some());
        assert_eq!(run(&two.served(), &["rev-parse", "bloom/a^"]), first);
        assert!(dir.join("mine").exists() && !dir.join("there").exists());
        two.reset_to(&first);
        run(dir, &["reset", "--quiet", "--hard", &first]);
        two.there().0.1.prepared_for(None).await.unwrap();
        two.there().runs("there", &format!("{is_known}\n"), true).await;
        assert_eq!(tree.prepared_for(None).await.unwrap().base, two.tip());
    }
}

#[tokio::test]
async fn a_branch_that_was_removed_and_made_anew_is_another() {
    let two = Two::new().await;
    let served = two.served();
    run(&served, &["update-ref", "refs/heads/main", "bloom/a"]);
    run(&served, &["branch", "-D", "bloom/a"]);
    let (_, tree) = &two.here;
    assert_eq!(tree.prepared_for(None).await.unwrap().origin, Origin::Kept);
    let made = run(&served, &["commit-tree", "main^{tree}", "-p", "main", "-m", "By a person"]);
    two.reset_to(&made);
    assert!(two.here().refused().await.contains("was not made by runs of this context"));
    // A run that is working meanwhile does not push to it either.
    run(&served, &["branch", "-D", "bloom/a"]);
    two.here().runs("mine", "mine\n", true).await;
}

#[tokio::test]
async fn files_that_follow_are_not_left_half_way() {
    let two = Two::new().await;
    two.there().runs("file", "yours\n", true).await;
    let (dir, tree) = &two.here;
    two.there().runs("new", "new\n", true).await;
    // The agent was killed after git had written a file, but not its index. An earlier interrupted run has left its work there.
    tree.repository.fetch(FETCH_LIMIT).await.unwrap();
    let head = run(dir, &["rev-parse", "HEAD"]);
    fs::write(dir.join("file"), "yours\n").unwrap();
    fs::write(dir.join("first"), "half\n").unwrap();
    fs::write(tree.own_git_dir().with_extension("following"), format!("{head} {}", two.tip())).unwrap();
    assert_eq!(tree.prepared_for(None).await.unwrap().base, two.tip());
    assert_eq!(fs::read_to_string(dir.join("first")).unwrap(), "half\n", "the work of the interrupted run is still there");
    assert_eq!(run(dir, &["status", "--porcelain"]), "M first");
    assert!(!tree.own_git_dir().with_extension("following").exists());
    // The agent was killed later: only the mark is left to be removed.
    fs::write(tree.own_git_dir().with_extension("following"), format!("{head} {}", two.tip())).unwrap();
    assert_eq!(tree.prepared_for(None).await.unwrap().base, two.tip());
    assert_eq!(run(dir, &["status", "--porcelain"]), "M first");
}

#[tokio::test]
async fn a_branch_that_a_run_has_pushed_itself_stays_the_contexts() {
    let two = Two::new().await;
    let (served, dir) = (two.served(), two.place.context("b"));
    let tree = two.place.tree("agent", &dir);
    let begun = tree.prepared_for(None).await.unwrap();
    let push = || run(&dir, &["push", "--quiet", "--force", served.to_str().unwrap(), "HEAD:refs/heads/bloom/b"]);
    fs::write(dir.join("file"), "by the run\n").unwrap();
    run(&dir, &["commit", "--quiet", "-am", "By the run"]);
    push();
    tree.committed(&begun, "a run").await.unwrap().unwrap();
    let begun = tree.prepared_for(None).await.unwrap();
    // This time the run has rewritten a commit that it had pushed.
    fs::write(dir.join("file"), "pushed\n").unwrap();
    run(&dir, &["commit", "--quiet", "-am", "By the run"]);
    push();
    fs::write(dir.join("file"), "amended\n").unwrap();
    run(&dir, &["commit", "--quiet", "--amend", "-am", "By the run"]);
    tree.committed(&begun, "a run").await.unwrap().unwrap();
    let why = tree.push().await.unwrap_err().to_string();
    assert!(why.contains("both have changed file") && why.contains("merge origin/bloom/b"), "{why}");
    tree.show_refs(&Confinement::default()).await;
    run(&dir, &["merge", "--quiet", "-X", "ours", "-m", "Both", "origin/bloom/b"]);
    let begun = tree.prepared_for(None).await.unwrap();
    assert_eq!((tree.committed(&begun, "nothing").await, tree.push().await), (Ok(None), Ok(Some(begun.base))));
}

#[tokio::test]
async fn what_was_merged_for_a_push_and_taken_back_does_not_come_back() {
    let two = Two::new().await;
    let (dir, tree) = &two.here;
    let begun = tree.prepared_for(None).await.unwrap();
    two.there().runs("yours", "yours\n", true).await;
    let theirs = two.tip();
    fs::write(dir.join("mine"), "mine\n").unwrap();
    tree.committed(&begun, "a run").await.unwrap().unwrap();
    tree.push().await.unwrap().unwrap();
    // The next run does not see the merge.
    let away = two.place.root.join("away");
    fs::rename(two.served(), &away).unwrap();
    two.here().runs("more", "more\n", false).await;
    fs::rename(&away, two.served()).unwrap();
    two.reset_to(&theirs);
    let why = two.here().refused().await;
    assert!(why.contains("taken back"), "{why}");
    let words: Vec<&str> = why.split("rebase ").nth(1).unwrap().split(',').next().unwrap().split(' ').collect();
    run(dir, &[&["rebase", "--quiet"], &words[..]].concat());
    let begun = tree.prepared_for(None).await.unwrap();
    assert_eq!((tree.committed(&begun, "nothing").await, tree.push().await), (Ok(None), Ok(Some(begun.base))));
    assert_eq!(run(dir, &["ls-files"]).split_whitespace().collect::<Vec<_>>(), ["file", "first", "more", "there", "yours"]);
}

#[tokio::test]
async fn a_branch_that_a_person_makes_while_the_first_run_works_is_theirs() {
    let two = Two::new().await;
    let (served, dir) = (two.served(), two.place.context("b"));
    for is_known in [false, true] {
        let tree = two.place.tree("agent", &dir);
        let begun = tree.prepared_for(None).await.unwrap();
        fs::write(dir.join("mine"), format!("{is_known}\n")).unwrap();
        tree.committed(&begun, "a run").await.unwrap().unwrap();
        let made = run(&served, &["commit-tree", "main^{tree}", "-p", "main", "-m", "By a person"]);
        run(&served, &["update-ref", "refs/heads/bloom/b", &made]);
        if is_known {
            tree.repository.fetch(FETCH_LIMIT).await.unwrap();
        }
        let why = tree.push().await.unwrap_err().to_string();
        assert!(why.contains("was not made by runs of this context"), "{why}");
        assert_eq!(run(&served, &["rev-parse", "bloom/b"]), made);
        run(&served, &["branch", "-D", "bloom/b"]);
    }
}

#[tokio::test]
async fn what_becomes_the_default_branch_while_a_run_works_is_not_pushed_to() {
    let two = Two::new().await;
    let (dir, tree) = &two.here;
    let begun = tree.prepared_for(None).await.unwrap();
    let before = two.tip();
    run(&two.served(), &["symbolic-ref", "HEAD", "refs/heads/bloom/a"]);
    fs::write(dir.join("mine"), "mine\n").unwrap();
    tree.committed(&begun, "a run").await.unwrap().unwrap();
    let why = tree.push().await.unwrap_err().to_string();
    assert!(why.contains("is the default branch") && two.tip() == before, "{why}");
}

#[tokio::test]
async fn a_repository_without_its_default_branch_has_branches_of_contexts() {
    let two = Two::new().await;
    let served = two.served();
    let made = run(&served, &["commit-tree", "bloom/a^{tree}", "-p", "bloom/a", "-m", "By a person"]);
    two.reset_to(&made);
    run(&served, &["branch", "-m", "main", "trunk"]);
    run(&served, &["symbolic-ref", "HEAD", "refs/heads/main"]);
    let elsewhere = two.place.root.join("third/a");
    let tree = two.place.tree("third", &elsewhere);
    assert_eq!(tree.prepared_for(None).await.unwrap().base, made);
}

#[tokio::test]
async fn the_project_says_how_its_files_are_merged() {
    let two = Two::new().await;
    two.here().runs(".gitattributes", "*.log merge=union\n*.lock -merge\n", true).await;
    two.there().runs("a.log", "begin\n", true).await;
    two.there().runs("a.lock", "1\n2\n3\n4\n5\n", true).await;
    two.here().runs("a.log", "begin\nmine\n", false).await;
    two.there().runs("a.log", "begin\nyours\n", true).await;
    let merged = two.here.1.prepared_for(None).await.unwrap();
    assert_eq!((merged.origin, fs::read_to_string(two.here.0.join("a.log")).unwrap().lines().count()), (Origin::Merged, 3));
    two.here().runs("a.lock", "one\n2\n3\n4\n5\n", false).await;
    two.there().0.1.prepared_for(None).await.unwrap();
    two.there().runs("a.lock", "1\n2\n3\n4\nfive\n", true).await;
    assert!(two.here().refused().await.contains("a.lock"));
}
