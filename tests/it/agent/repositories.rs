//! Clones of repositories stay in the work directory.

use std::path::Path;
use std::process::Command;

use super::push_server::{KEY, with_agent};
use super::*;

fn git(dir: &Path, words: &[&str]) {
    let mut command = Command::new("git");
    command.args(["-c", "user.name=t", "-c", "user.email=t@localhost"]).args(words).current_dir(dir);
    assert!(command.status().expect("git").success(), "git {words:?}");
}

#[test]
fn a_clone_does_not_follow_the_link_of_an_earlier_one() {
    let dir = janitor::new_path("repository");
    let (repository, outside) = (dir.join("repository"), dir.join("outside"));
    for path in [&repository, &outside] {
        std::fs::create_dir_all(path).expect("a directory");
    }
    git(&repository, &["init", "--quiet"]);
    std::os::unix::fs::symlink(&outside, repository.join("out")).expect("a link");
    std::fs::create_dir(repository.join("in")).expect("a directory");
    std::fs::write(repository.join("in/file"), "").expect("a file");
    git(&repository, &["add", "."]);
    git(&repository, &["commit", "--quiet", "-m", "a link"]);
    // Only https and git@ are taken; git itself is told where that is.
    let config = dir.join("gitconfig");
    let text = format!("[url \"file://{}\"]\n\tinsteadOf = https://host.invalid/r\n", repository.display());
    std::fs::write(&config, text).expect("the settings of git");

    with_agent(
        |agent| agent.env("GIT_CONFIG_GLOBAL", config.display()).env("BLOOM_GIT_PROTOCOLS", "https,ssh,file"),
        async |_, push_server, agent| {
            let push_server = push_server.with_header(KEY.0, KEY.1);
            let clone = async |target: &str| {
                let body = json!({"repo_url": "https://host.invalid/r", "project_name": "p", "target_path": target});
                push_server.post("/clone", body).await
            };
            assert_eq!(clone("first").await.ok()["status"], json!("cloned"));
            for target in ["first/out/second", "first/out/a/b", "first/out"] {
                let answer = clone(target).await;
                assert!((400..500).contains(&answer.status), "{target}: {} {}", answer.status, answer.text);
            }
            assert_eq!(std::fs::read_dir(&outside).expect("the directory").count(), 0, "nothing is written outside");
            let projects = agent.work_dir().join("projects");
            assert_eq!(clone("first/in/second").await.ok()["path"], json!(projects.canonicalize().unwrap().join("first/in/second")));
            assert!(projects.join("first/in/second/in/file").exists());
            assert_eq!(clone("first/in/second").await.status, 409);
            let left: Vec<_> = std::fs::read_dir(&projects).expect("the directory").flatten().map(|entry| entry.file_name()).collect();
            assert_eq!(left, ["first"], "what could not be moved is removed");
        },
    );
    let _ = std::fs::remove_dir_all(&dir);
}
