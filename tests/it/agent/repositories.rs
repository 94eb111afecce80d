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
            assert_eq!(clone("first/in/second").await.ok()["status"], json!("cloned"), "it is there already");
            assert_eq!(clone("first/in").await.status, 409, "this is no clone");
            let other = json!({"repo_url": "https://host.invalid/other", "project_name": "p", "target_path": "first"});
            assert_eq!(push_server.post("/clone", other).await.status, 409, "this is a clone of something else");
            let left: Vec<_> = std::fs::read_dir(&projects).expect("the directory").flatten().map(|entry| entry.file_name()).collect();
            assert_eq!(left, ["first"], "what could not be moved is removed");
        },
    );
    let _ = std::fs::remove_dir_all(&dir);
}

/// A repository with one commit, at a URL that git is told of in the settings that are returned.
fn served(dir: &Path, name: &str, fill: impl FnOnce(&Path)) -> String {
    let repository = dir.join(name);
    std::fs::create_dir_all(&repository).expect("a directory");
    git(&repository, &["init", "--quiet"]);
    fill(&repository);
    git(&repository, &["add", "."]);
    git(&repository, &["commit", "--quiet", "-m", "first"]);
    format!("[url \"file://{}\"]\n\tinsteadOf = https://host.invalid/{name}\n", repository.display())
}

#[test]
fn a_clone_executes_nothing_and_has_limits() {
    let dir = janitor::new_path("limits-of-clones");
    std::fs::create_dir_all(&dir).expect("a directory");
    let inner = served(&dir, "inner", |repository| std::fs::write(repository.join("file"), "").expect("a file"));
    let outer = served(&dir, "outer", |repository| {
        std::fs::write(repository.join("file"), "").expect("a file");
        let url = format!("file://{}", dir.join("inner").display());
        git(repository, &["-c", "protocol.file.allow=always", "submodule", "--quiet", "add", &url, "sub"]);
    });
    let large = served(&dir, "large", |repository| {
        let bytes: Vec<u8> = (0..3 << 20_u32).map(|n: u32| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        std::fs::write(repository.join("file"), bytes).expect("a file");
    });
    // The agent's user may have hooks for all repositories.
    let (hooks, mark) = (dir.join("template/hooks"), dir.join("executed"));
    std::fs::create_dir_all(&hooks).expect("a directory");
    for place in [hooks.clone(), dir.join("hooks")] {
        std::fs::create_dir_all(&place).expect("a directory");
        let hook = place.join("post-checkout");
        std::fs::write(&hook, format!("#!/bin/sh\ntouch {}\n", mark.display())).expect("a hook");
        std::fs::set_permissions(&hook, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("its mode");
    }
    let config = dir.join("gitconfig");
    let of_user = format!(
        "[init]\n\ttemplateDir = {}\n[core]\n\thooksPath = {}\n[submodule]\n\trecurse = true\n[protocol \"file\"]\n\tallow = always\n",
        dir.join("template").display(),
        dir.join("hooks").display()
    );
    std::fs::write(&config, [of_user, inner, outer, large].concat()).expect("the settings of git");
    // The hooks work.
    let mut plain = Command::new("git");
    plain.args(["clone", "--quiet", &format!("file://{}", dir.join("inner").display())]).arg(dir.join("plain"));
    assert!(plain.env("GIT_CONFIG_GLOBAL", &config).status().expect("git").success() && mark.exists());
    std::fs::remove_file(&mark).expect("the mark");

    let settings = config.display().to_string();
    with_agent(
        |agent| agent.env("GIT_CONFIG_GLOBAL", &settings).env("BLOOM_GIT_PROTOCOLS", "https,ssh,file").env("BLOOM_MAX_CLONE_MIB", 2),
        async |server, push_server, agent| {
            assert_eq!(server.get("workers/box").await.ok()["capabilities"]["git"], json!(true));
            let push_server = push_server.with_header(KEY.0, KEY.1);
            let clone = async |name: &str| {
                push_server.post("/clone", json!({"repo_url": format!("https://host.invalid/{name}"), "project_name": name})).await
            };
            clone("outer").await.ok();
            let projects = agent.work_dir().join("projects");
            assert!(projects.join("outer/file").exists() && !projects.join("outer/sub/file").exists(), "no submodule is fetched");
            assert!(!mark.exists(), "no hook was executed");
            let refused = clone("large").await;
            assert_eq!(refused.status, 502);
            assert!(refused.text.contains("larger than 2 MiB") && refused.text.contains("--max-clone-mib"), "{}", refused.text);
            let left: Vec<_> = std::fs::read_dir(&projects).expect("the directory").flatten().map(|entry| entry.file_name()).collect();
            assert_eq!(left, ["outer"], "nothing is left of it");
            let gone = clone("gone").await;
            assert_eq!(gone.status, 502, "{}", gone.text);
        },
    );
    with_agent(
        |agent| agent.env("GIT_CONFIG_GLOBAL", config.display()),
        async |_, push_server, _| {
            let body = json!({"repo_url": "https://host.invalid/inner", "project_name": "p"});
            let refused = push_server.with_header(KEY.0, KEY.1).post("/clone", body).await;
            assert_eq!(refused.status, 502);
            assert!(refused.text.contains("transport 'file' not allowed"), "{}", refused.text);
        },
    );
    let _ = std::fs::remove_dir_all(&dir);
}
