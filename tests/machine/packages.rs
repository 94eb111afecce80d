//! The APKBUILD: its functions run into a directory, as abuild runs them, and what they install is complete.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use bloom_config::SETTINGS;

use crate::chroot::static_program;
use crate::support::janitor;

pub fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// A directory with a checkout in which the program was built.
fn built() -> PathBuf {
    let dir = janitor::new_path("built");
    fs::create_dir_all(dir.join("target/release")).unwrap();
    symlink(static_program(), dir.join("target/release/bloom-runtime")).unwrap();
    for name in ["README.md", "docs", "manifests"] {
        symlink(repository().join(name), dir.join(name)).unwrap();
    }
    dir
}

/// Runs functions of the APKBUILD in the shell of Alpine. What abuild itself provides is as small as can be.
fn abuild(functions: &str, pkgdir: &Path, subpkgdir: &Path) {
    let script = format!(
        r#"
        default_openrc() {{ amove etc/init.d; }}
        amove() {{ for path; do mkdir -p "$(dirname "$subpkgdir/$path")"; mv "$pkgdir/$path" "$subpkgdir/$path"; done; }}
        . "$0/manifests/alpine/APKBUILD"
        {functions}
        "#
    );
    let mut command = Command::new("busybox");
    command.args(["sh", "-euc", &script]).arg(repository()).current_dir(built());
    let done = command.env("pkgdir", pkgdir).env("subpkgdir", subpkgdir).output().expect("busybox");
    assert!(done.status.success(), "{done:?}");
}

/// Installs what all the packages contain below `root`.
pub fn install(root: &Path) {
    abuild("package", root, Path::new("/nonexistent"));
}

fn files(dir: &Path) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut left = vec![dir.to_owned()];
    while let Some(next) = left.pop() {
        for entry in fs::read_dir(&next).unwrap().flatten() {
            match entry.file_type().unwrap().is_dir() {
                true => left.push(entry.path()),
                false => _ = found.insert(entry.path().strip_prefix(dir).unwrap().display().to_string()),
            }
        }
    }
    found
}

#[test]
fn the_packages_contain_the_program_and_all_that_its_services_need() {
    let (main, services) = (janitor::new_path("main"), janitor::new_path("openrc"));
    abuild("check; package; openrc", &main, &services);
    let modes = [
        ("etc/init.d/bloom-agent", 0o755),
        ("etc/init.d/bloom-membridge", 0o755),
        ("etc/init.d/bloom-runtime", 0o755),
        ("etc/bloom-agent.env", 0o600),
        ("etc/bloom-runtime.env", 0o600),
        ("etc/bloom-runtime.toml", 0o644),
        ("etc/logrotate.d/bloom-agent", 0o644),
        ("etc/logrotate.d/bloom-membridge", 0o644),
        ("etc/logrotate.d/bloom-runtime", 0o644),
        ("usr/libexec/bloom-runtime/openrc.sh", 0o644),
        ("usr/sbin/bloom-runtime-as-service", 0o755),
    ];
    assert_eq!(files(&services), modes.iter().map(|(path, _)| (*path).to_owned()).collect());
    for (path, mode) in modes {
        assert_eq!(fs::metadata(services.join(path)).unwrap().permissions().mode() & 0o777, mode, "{path}");
    }
    let main = files(&main);
    // abuild moves the rest into -doc and into the packages of the shells by these directories.
    let by = |start: &str| main.iter().filter(|path| path.starts_with(start)).count();
    assert_eq!((by("usr/bin/"), by("usr/bin/bloom-runtime")), (1, 1));
    assert!(by("usr/share/man/man1/bloom-runtime") > 20 && by("usr/share/doc/bloom-runtime/") > 10, "{main:?}");
    for completion in [
        "usr/share/bash-completion/completions/bloom-runtime",
        "usr/share/zsh/site-functions/_bloom-runtime",
        "usr/share/fish/vendor_completions.d/bloom-runtime.fish",
    ] {
        assert!(main.contains(completion), "{completion}");
    }
    let known = ["usr/bin/", "usr/share/man/", "usr/share/doc/", "usr/share/bash-", "usr/share/zsh/", "usr/share/fish/"];
    assert_eq!(known.map(by).iter().sum::<usize>(), main.len(), "{main:?}");
}

#[test]
fn every_shell_can_read_the_scripts_of_the_packages() {
    for name in [
        "APKBUILD",
        "bloom-runtime-openrc.pre-install",
        "bloom-runtime.initd",
        "bloom-agent.initd",
        "bloom-runtime-as-service",
        "openrc.sh",
    ] {
        for shell in [&["sh"][..], &["busybox", "sh"]] {
            let mut command = Command::new(shell[0]);
            let done = command.args(&shell[1..]).arg("-n").arg(repository().join("manifests/alpine").join(name)).output().unwrap();
            assert!(done.status.success(), "{name}: {done:?}");
        }
    }
}

#[test]
fn the_users_of_the_services_are_made() {
    let dir = janitor::new_path("users");
    fs::create_dir_all(&dir).unwrap();
    for name in ["adduser", "addgroup"] {
        // As busybox, they fail if the user is there already.
        fs::write(dir.join(name), format!("#!/bin/sh\necho {name} \"$@\"\nexit 1\n")).unwrap();
        fs::set_permissions(dir.join(name), fs::Permissions::from_mode(0o755)).unwrap();
    }
    let script = repository().join("manifests/alpine/bloom-runtime-openrc.pre-install");
    let done = Command::new("/bin/sh").arg(script).env("PATH", &dir).output().unwrap();
    let said = String::from_utf8(done.stdout).unwrap();
    assert!(done.status.success(), "{said}");
    for user in ["bloom-runtime", "bloom-agent"] {
        assert!(said.contains(&format!("addgroup -S {user}\n")), "{said}");
        assert!(
            said.lines().any(|line| line.starts_with("adduser -S -D") && line.contains(&format!("-G {user} ")) && line.ends_with(user))
        );
    }
}

#[test]
fn the_files_with_settings_are_right() {
    let file = |name: &str| fs::read_to_string(repository().join("manifests/settings").join(name)).unwrap();
    // What stands behind a # is an example.
    let examples: String = file("bloom-runtime.toml")
        .lines()
        .map(|line| line.strip_prefix('#').filter(|rest| !rest.starts_with(' ')).unwrap_or(line))
        .fold(String::new(), |text, line| text + line + "\n");
    let path = janitor::new_path("examples.toml");
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, examples).unwrap();
    let done = Command::new(static_program()).args(["config", "check", "--config"]).arg(&path).env_clear().output().unwrap();
    let shown = String::from_utf8(done.stdout).unwrap();
    let is_trusted = |line: &str| line.split_whitespace().take(2).eq(["trusted_proxies", "127.0.0.1"]);
    assert!(done.status.success() && shown.lines().any(is_trusted), "{shown}");

    let help = Command::new(static_program()).args(["agent", "--help"]).output().unwrap().stdout;
    let help = String::from_utf8(help).unwrap();
    let variables = |name: &str| -> Vec<String> {
        let names =
            file(name).lines().filter_map(|line| Some(line.trim_start_matches('#').split_once('=')?.0.to_owned())).collect::<Vec<_>>();
        let names: Vec<String> =
            names.into_iter().filter(|name| name.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'_')).collect();
        assert!(names.len() > 2, "{name}: {names:?}");
        names
    };
    for variable in variables("bloom-runtime.env") {
        assert!(SETTINGS.iter().any(|setting| setting.env_name() == variable), "{variable}");
    }
    for variable in variables("bloom-agent.env") {
        // Values that are secrets are not shown.
        let is_flag = ["=", "]"].iter().any(|end| help.contains(&format!("[env: {variable}{end}")));
        let is_of_traces = variable.starts_with("OTEL_") && SETTINGS.iter().any(|setting| setting.env_name() == variable);
        assert!(variable == "PATH" || is_flag || is_of_traces, "{variable}");
    }
}
