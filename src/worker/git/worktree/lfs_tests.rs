//! When the files of git-lfs are removed.

use super::tests::{Place, run};
use super::*;

#[tokio::test]
#[ignore = "needs git-lfs, which tests/run unit installs"]
async fn large_files_go_that_no_branch_needs_and_the_server_has() {
    let place = Place::new();
    let source = place.root.join("source");
    run(&source, &["lfs", "install", "--local"]);
    fs::write(source.join(".gitattributes"), "*.bin filter=lfs\n").unwrap();
    let commit = |text: &str| {
        fs::write(source.join("a.bin"), text).unwrap();
        run(&source, &["add", "."]);
        run(&source, &["commit", "--quiet", "-m", text]);
        run(&source, &["push", "--quiet", &format!("file://{}", place.root.join("served").display()), "main"]);
    };
    commit("first");
    let dir = place.context("a");
    let tree = place.tree("agent", &dir);
    let begun = tree.prepared_for(None).await.unwrap();
    fs::write(dir.join("a.bin"), "of a run").unwrap();
    tree.committed(&begun, "x").await.unwrap();
    let begun = tree.prepared_for(None).await.unwrap();
    fs::write(dir.join("a.bin"), "of the next run").unwrap();
    tree.committed(&begun, "x").await.unwrap();
    let stored = || {
        let found = std::process::Command::new("find").arg(place.root.join("agent/git/lfs/objects")).args(["-type", "f"]).output().unwrap();
        String::from_utf8(found.stdout).unwrap().lines().count()
    };
    assert_eq!(stored(), 3);
    tree.repository.tidy_large_files(0).await.unwrap();
    assert_eq!(stored(), 3, "all are new");
    tree.repository.tidy_large_files(i64::MAX).await.unwrap();
    assert_eq!(stored(), 2, "those that were not pushed stay");
    // A context that needs the file again gets it again.
    let other = place.context("b");
    place.tree("agent", &other).prepared_for(None).await.unwrap();
    assert_eq!((fs::read_to_string(other.join("a.bin")).unwrap(), stored()), ("first".to_owned(), 3));
    tree.push().await.unwrap();
    tree.repository.fetch(FETCH_LIMIT).await.unwrap();
    tree.repository.tidy_large_files(i64::MAX).await.unwrap();
    assert_eq!(stored(), 2, "each branch keeps what its files are");
}
