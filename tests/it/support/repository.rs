//! A git repository that is served over loopback.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;

use super::agent::AgentPlan;
use super::{Server, janitor};
use serde_json::json;

/// A bare repository with the branches `main` and `other` and the tag `v1`, served by git's own server. Agents know it as an https URL.
pub struct Repository {
    dir: PathBuf,
    port: u16,
    server: Mutex<Option<Child>>,
}

/// Runs git in the directory, and returns what it prints.
pub fn git(dir: &Path, words: &[&str]) -> String {
    let mut command = Command::new("git");
    command.args(["-c", "user.name=t", "-c", "user.email=t@localhost", "-c", "init.defaultBranch=main"]);
    let ended = command.args(words).current_dir(dir).env("GIT_CONFIG_GLOBAL", "/dev/null").output().expect("git");
    assert!(ended.status.success(), "git {words:?}: {}", String::from_utf8_lossy(&ended.stderr));
    String::from_utf8_lossy(&ended.stdout).trim().to_owned()
}

impl Repository {
    pub fn serve() -> Self {
        let dir = janitor::new_path("served-repository");
        let source = dir.join("source");
        std::fs::create_dir_all(&source).expect("a directory");
        git(&source, &["init", "--quiet"]);
        std::fs::write(source.join("file"), "one\n").expect("a file");
        git(&source, &["add", "."]);
        git(&source, &["commit", "--quiet", "-m", "one"]);
        git(&source, &["tag", "v1"]);
        git(&source, &["branch", "other"]);
        std::fs::write(source.join("file"), "two\n").expect("a file");
        git(&source, &["commit", "--quiet", "-am", "two"]);
        std::fs::create_dir(dir.join("served")).expect("a directory");
        git(&dir, &["clone", "--quiet", "--bare", "source", "served/r"]);
        let repository = Self { dir, port: janitor::free_port(), server: Mutex::new(None) };
        repository.start();
        repository
    }

    pub fn start(&self) {
        let served = self.dir.join("served");
        // Not by `git daemon`, which would start it as a child.
        let program = PathBuf::from(git(&self.dir, &["--exec-path"])).join("git-daemon");
        let mut daemon = janitor::bound(&program, None, janitor::AtTheEnd::Kill);
        daemon.args(["--listen=127.0.0.1", "--reuseaddr", "--export-all", "--enable=receive-pack"]);
        daemon.arg(format!("--port={}", self.port)).arg(format!("--base-path={}", served.display())).arg(&served);
        daemon.stdout(Stdio::null()).stderr(Stdio::null());
        let child = janitor::spawn(daemon).expect("git daemon");
        *self.server.lock().expect("the server") = Some(child);
        let answers = || std::net::TcpStream::connect(("127.0.0.1", self.port)).is_ok();
        while !answers() {
            std::thread::yield_now();
        }
    }

    pub fn stop(&self) {
        if let Some(mut child) = self.server.lock().expect("the server").take() {
            child.kill().expect("it can be killed");
            child.wait().expect("its end");
        }
    }

    /// Stops its server in the middle of what it does, or lets it go on.
    pub fn signal(&self, name: &str) {
        janitor::signal(self.server.lock().expect("the server").as_ref().expect("a server").id(), name);
    }

    /// What is served.
    pub fn bare(&self) -> PathBuf {
        self.dir.join("served/r")
    }

    /// Adds `large.bin` to its branch `main`, in git-lfs, and this `.lfsconfig`.
    pub fn add_large_file(&self, lfsconfig: &str) {
        let source = self.dir.join("source");
        for (name, text) in [(".gitattributes", "*.bin filter=lfs -text\n"), ("large.bin", "a large file\n")] {
            std::fs::write(source.join(name), text).expect("a file");
        }
        git(&source, &["lfs", "install", "--local"]);
        git(&source, &["remote", "add", "origin", &format!("file://{}", self.bare().display())]);
        git(&source, &["add", "."]);
        git(&source, &["commit", "--quiet", "-m", "a large file"]);
        git(&source, &["push", "--quiet", "origin", "main"]);
        std::fs::write(source.join(".lfsconfig"), lfsconfig).expect("a file");
        git(&source, &["add", "."]);
        git(&source, &["commit", "--quiet", "-m", "its server"]);
        git(&source, &["push", "--quiet", "--no-verify", "origin", "main"]);
    }

    /// An agent that can fetch and push it as a directory of this machine: git-lfs knows no server of git's own kind.
    pub fn by_path(&self, plan: AgentPlan) -> AgentPlan {
        let config = self.dir.join("gitconfig-path");
        let text = format!("[url \"file://{}/\"]\n\tinsteadOf = https://host.invalid/\n", self.dir.join("served").display());
        std::fs::write(&config, text).expect("the settings of git");
        plan.env("GIT_CONFIG_GLOBAL", config.display()).env("BLOOM_GIT_PROTOCOLS", "https,file")
    }

    /// Settings of git with which it can be fetched and pushed.
    pub fn settings(&self) -> PathBuf {
        let config = self.dir.join("gitconfig");
        let text = format!("[url \"git://127.0.0.1:{}/\"]\n\tinsteadOf = https://host.invalid/\n", self.port);
        std::fs::write(&config, text).expect("the settings of git");
        config
    }

    /// An agent that can fetch and push it.
    pub fn known_to(&self, plan: AgentPlan) -> AgentPlan {
        plan.env("GIT_CONFIG_GLOBAL", self.settings().display()).env("BLOOM_GIT_PROTOCOLS", "https,ssh,git")
    }

    /// Adds the project `site` to the server.
    pub async fn add_to(&self, server: &Server) {
        server.post("projects", json!({"name": "site", "repo_url": "https://host.invalid/r"})).await.expect(201);
    }
}

impl Drop for Repository {
    fn drop(&mut self) {
        self.stop();
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}
