//! Assembles images without a registry and without a container builder: the layers of the Containerfiles, from files of this machine.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::containerfile::{Copy, Stage};
use crate::support::{Value, janitor, json};

/// An image as a directory: `manifest.json`, a configuration and layers.
pub struct Image {
    dir: PathBuf,
}

pub const SERVER: &str = "localhost/bloom-runtime:test";
pub const AGENT: &str = "localhost/bloom-runtime-agent:test";
pub const POSTGRES: &str = "localhost/postgres:test";

/// A path that `tests/run` sets.
fn given(variable: &str) -> PathBuf {
    PathBuf::from(std::env::var_os(variable).unwrap_or_else(|| panic!("{variable} is not set: run tests/run node")))
}

fn done(command: &mut Command) -> String {
    let output = command.stdin(Stdio::null()).output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

impl Image {
    pub fn server() -> Self {
        Self::of(SERVER, "Containerfile")
    }

    pub fn agent() -> Self {
        Self::of(AGENT, "Containerfile.agent")
    }

    fn of(name: &str, containerfile: &str) -> Self {
        let stage = Stage::last_of(containerfile);
        let dir = new_dir();
        let layer = dir.join("files.tar");
        for copy in &stage.copies {
            add(&layer, &source(copy), copy);
        }
        let base = (stage.base != "scratch").then(|| given("AGENT_ROOT"));
        Self::from(dir, name, base.into_iter().chain([layer]), &stage.configuration())
    }

    /// What the kubelet starts to keep a pod's namespaces.
    pub fn pause() -> Self {
        let dir = new_dir();
        fs::write(dir.join("pause.c"), "#include <unistd.h>\nint main(void) { for (;;) pause(); }\n").expect("a source");
        done(Command::new("cc").args(["-static", "-o", "pause", "pause.c"]).current_dir(&dir));
        let layer = dir.join("files.tar");
        done(Command::new("tar").arg("-cf").arg(&layer).args(["-C", &dir.display().to_string(), "pause"]));
        Self::from(dir, "localhost/pause:1", [layer], &json!({ "Entrypoint": ["/pause"], "User": "65535:65535" }))
    }

    /// PostgreSQL as this machine has it: its programs, the libraries that they need, a shell for `initdb`, and the time zone of clients.
    pub fn postgres() -> Self {
        let dir = new_dir();
        let layer = dir.join("files.tar");
        let programs = crate::support::postgres::bin_dir();
        let version = programs.parent().and_then(Path::file_name).expect("a version").to_owned();
        let library = programs.with_file_name("lib");
        let share = Path::new("/usr/share/postgresql").join(version);
        let modules = ["plpgsql.so", "dict_snowball.so", "libpqwalreceiver.so"].map(|name| library.join(name));
        let files = ["postgres", "initdb"].map(|name| programs.join(name));
        let files: Vec<PathBuf> = files.into_iter().chain(modules).chain(["/bin/sh".into(), "/usr/share/zoneinfo/UTC".into()]).collect();
        let mut all: BTreeSet<PathBuf> = files.iter().flat_map(|file| libraries(file)).collect();
        all.extend(files);
        fs::write(dir.join("passwd"), "postgres:x:65532:65532::/tmp:/bin/sh\n").expect("the users");
        let mut tar = Command::new("tar");
        tar.args(["--dereference", "--absolute-names", "--numeric-owner", "--transform=s|^.*/passwd$|etc/passwd|", "--transform=s|^/||"]);
        done(tar.arg("-cf").arg(&layer).args(all).arg(share).arg(dir.join("passwd")));
        let path = format!("PATH={}:/bin", programs.display());
        Self::from(dir, POSTGRES, [layer], &json!({ "Env": [path], "User": "65532:65532", "Entrypoint": ["/bin/sh", "-c"] }))
    }

    fn from(dir: PathBuf, name: &str, layers: impl IntoIterator<Item = PathBuf>, configuration: &Value) -> Self {
        let (mut names, mut ids) = (Vec::new(), Vec::new());
        for (at, layer) in layers.into_iter().enumerate() {
            let sum = done(Command::new("sha256sum").arg(&layer));
            ids.push(format!("sha256:{}", sum.split(' ').next().expect("a sum")));
            names.push(format!("{at}.tar"));
            std::os::unix::fs::symlink(&layer, dir.join(format!("{at}.tar"))).expect("a link");
        }
        let architecture = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
        let image = json!({
            "architecture": architecture, "os": "linux", "config": configuration, "rootfs": { "type": "layers", "diff_ids": ids },
        });
        fs::write(dir.join("config.json"), image.to_string()).expect("the configuration");
        let manifest = json!([{ "Config": "config.json", "RepoTags": [name], "Layers": names }]);
        fs::write(dir.join("manifest.json"), manifest.to_string()).expect("the manifest");
        Self { dir }
    }

    /// A process that writes the image, in the form of `docker save`, to its output.
    pub fn archive(&self) -> Command {
        let mut tar = Command::new("tar");
        tar.args(["--dereference", "--create", "--exclude=files.tar", "."]).current_dir(&self.dir).stdin(Stdio::null());
        tar
    }
}

fn new_dir() -> PathBuf {
    let dir = janitor::new_path("image");
    fs::create_dir(&dir).expect("a directory");
    dir
}

/// What an earlier stage of a Containerfile makes, as this machine has it.
fn source(copy: &Copy) -> PathBuf {
    match (copy.stage.as_str(), copy.source.as_str()) {
        ("build" | "server", "/bloom-runtime") => given("STATIC_PROGRAM"),
        ("build", "/empty") => new_dir(),
        ("build", path) if path.starts_with("/etc/ssl/") => PathBuf::from(path),
        ("claude", "/claude") => fs::canonicalize(crate::support::claude::cli()).expect("the Claude CLI"),
        (stage, path) => panic!("the tests don't know what stage {stage} has at {path}"),
    }
}

/// Adds a file or an empty directory to a layer.
fn add(layer: &Path, source: &Path, copy: &Copy) {
    let (user, group) = copy.owner.as_deref().unwrap_or("0:0").split_once(':').expect("USER:GROUP");
    let mut tar = Command::new("tar");
    tar.args(["--append", "--absolute-names", "--dereference", "--numeric-owner", "--mtime=@0"]).arg("--file").arg(layer);
    tar.args([format!("--owner=+{user}"), format!("--group=+{group}")]);
    tar.args(copy.mode.iter().map(|mode| format!("--mode={mode}")));
    tar.arg(format!("--transform=s|^.*$|{}|", copy.target.trim_start_matches('/')));
    done(tar.arg(source));
}

/// The shared libraries that a program or library loads, its loader included.
fn libraries(file: &Path) -> Vec<PathBuf> {
    let listed = Command::new("ldd").arg(file).output().expect("ldd starts").stdout;
    let listed = String::from_utf8_lossy(&listed);
    listed.split_whitespace().filter(|word| word.starts_with('/')).map(PathBuf::from).collect()
}
