//! The script that installs the agent: every value in it is quoted, so no value can run as code.

use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::keys::{ADMIN, create, keyed};
use crate::on_both;
use crate::support::json;
use crate::support::server::BINARY;

fn query(parameters: &[(&str, &str)]) -> String {
    let mut url = reqwest::Url::parse("http://host/").unwrap();
    url.query_pairs_mut().extend_pairs(parameters);
    format!("agent-install-script?{}", url.query().unwrap_or_default())
}

fn write(path: &Path, text: &str, mode: u32) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

/// A program with a clean environment.
fn clean(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    command.env_clear().env("PATH", "/usr/bin:/bin").stdin(Stdio::null());
    command
}

/// Runs the script with a staging directory, for one service manager.
fn install(script: &str, dir: &Path, init: &str) -> Output {
    let program = dir.join("program");
    // The installed program prints its arguments and variables.
    let told = r#"printf '%s|%s|%s|%s|%s|' "$@" "$BLOOM_SERVER" "$BLOOM_AGENT_NAME" "$BLOOM_KEY" "$BLOOM_LABELS""#;
    write(&program, &format!("#!/bin/sh\n{told}\n"), 0o755);
    write(&dir.join("key"), "se'cret\n", 0o600);
    write(&dir.join("install.sh"), script, 0o644);
    let mut command = clean("sh");
    command.arg(dir.join("install.sh")).env("DESTDIR", dir.join("root")).env("BLOOM_RUNTIME_BIN", program);
    command.env("BLOOM_KEY_FILE", dir.join("key")).env("BLOOM_INIT", init).env("BLOOM_LABELS", "it's,$HOME");
    command.env("BLOOM_GRACE_SECONDS", "1000").output().unwrap()
}

/// The arguments and variables that the installed program gets from the service. Paths are replaced by those of the staging directory.
fn heard(dir: &Path, init: &str) -> String {
    let root = dir.join("root");
    let settings = root.join("etc/bloom-agent.env");
    let text = std::fs::read_to_string(&settings).unwrap().replace("/etc/", &format!("{}/etc/", root.display()));
    write(&settings, &text, 0o600);
    let (service, start) = match init {
        // Between double quotes, systemd reads a value as a shell does.
        "systemd" => ("etc/systemd/system/bloom-agent.service", "set -a; . \"$1\"; exec $(sed -n 's/^ExecStart=//p' \"$0\")"),
        _ => (
            "etc/init.d/bloom-agent",
            ". \"${1%/etc/*}/usr/libexec/bloom-runtime/openrc.sh\"; read_environment \"$1\"
             eval \"$(grep -E '^command(_args)?=' \"$0\")\"; eval \"exec $command $command_args\"",
        ),
    };
    let output = clean("sh").args(["-euc", start]).arg(root.join(service)).arg(&settings).output().unwrap();
    assert!(output.status.success(), "{output:?}\n{text}");
    String::from_utf8(output.stdout).unwrap()
}

/// Runs the script with an /etc of its own, where the server has a key.
const OWN_ETC: &str = r#"
    [ "$(id -u)" = 0 ] || own=--map-root-user
    exec unshare --mount $own sh -euc '
        mount -t tmpfs tmpfs /etc
        echo "ann:x:1000:1000::/nonexistent/ann:/bin/sh" >/etc/passwd
        echo "ann:x:1000:" >/etc/group
        mkdir /etc/bloom-runtime
        echo secret >/etc/bloom-runtime/admin.key
        exec sh "$0"' "$0""#;

const HOSTILE: [&str; 6] = ["plain", "two words", "'; touch /tmp/pwned; '", "$(id) `id` \\ \"$HOME\" %n", "EOF", "ü-'\\''-ñ"];

on_both! {
    async fn names_stay_names_whatever_is_in_them(server) {
        for name in HOSTILE {
            let answer = server.get(&query(&[("node_id", name), ("server_url", "http://bloom.example:5000/it's/")])).await.expect(200);
            assert_eq!(answer.header("content-type"), Some("text/x-shellscript; charset=utf-8"));
            for init in ["systemd", "openrc"] {
                let dir = tempfile::tempdir().unwrap();
                let done = install(&answer.text, dir.path(), init);
                assert!(done.status.success(), "{name}: {done:?}");
                assert_eq!(heard(dir.path(), init), format!("agent|http://bloom.example:5000/it's|{name}|se'cret|it's,$HOME|"));
            }
        }
    }

    async fn both_service_managers_are_served(server) {
        let script = server.get(&query(&[("node_id", "worker-01")])).await.expect(200).text;
        assert!(script.contains(&format!("\nSERVER_URL='{}'\n", server.base())), "the script names this server");
        for (init, service, written) in [
            ("systemd", "etc/systemd/system/bloom-agent.service", ["User=ann", "TimeoutStopSec=1030", " -/var/lib/bloom-agent/"]),
            ("openrc", "etc/init.d/bloom-agent", ["command_user=ann", "/var/log/bloom-agent.log", "${BLOOM_GRACE_SECONDS:-300} + 30"]),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let done = install(&format!("BLOOM_USER=ann\n{script}"), dir.path(), init);
            assert!(done.status.success(), "{done:?}");
            let root = dir.path().join("root");
            let service = std::fs::read_to_string(root.join(service)).unwrap();
            let program = dir.path().join("program").display().to_string();
            assert!(written.iter().all(|text| service.contains(text)) && service.contains(&program), "{service}");
            assert!(!service.contains("worker-01") && !service.contains("/usr/bin/bloom-runtime"), "{service}");
            for secret in ["etc/bloom-runtime/agent.key", "etc/bloom-agent.env"] {
                assert_eq!(std::fs::metadata(root.join(secret)).unwrap().permissions().mode() & 0o777, 0o600, "{secret}");
            }
            let settings = std::fs::read_to_string(root.join("etc/bloom-agent.env")).unwrap();
            assert!(settings.contains("\nBLOOM_KEY=\"se'cret\"\n") && !settings.contains("KEY_FILE"), "the agent reads no file: {settings}");
            let rotated = std::fs::read_to_string(root.join("etc/logrotate.d/bloom-agent"));
            assert_eq!(rotated.is_ok_and(|text| text.contains("create 0640 ann ann")), init == "openrc");
        }
        for (variable, value) in [("BLOOM_RUNTIME_BIN", "/bin/["), ("BLOOM_WORK_DIR", "/srv/$x"), ("BLOOM_GRACE_SECONDS", "5m"), ("BLOOM_LABELS", "a\nb"), ("BLOOM_CA_FILE", "ca.pem")] {
            let dir = tempfile::tempdir().unwrap();
            let refused = install(&format!("{variable}='{value}'\n{script}"), dir.path(), "systemd");
            let said = String::from_utf8_lossy(&refused.stderr);
            assert!(!refused.status.success() && said.contains(variable), "{variable}: {said}");
            assert!(!dir.path().join("root/etc/bloom-agent.env").exists(), "nothing was installed");
        }
        let dir = tempfile::tempdir().unwrap();
        assert!(!install(&script, dir.path(), "runit").status.success());
        assert!(!dir.path().join("root").exists(), "nothing was installed");
    }

    async fn a_second_run_may_name_the_key_that_the_first_one_installed(server) {
        let script = server.get(&query(&[("node_id", "worker-01")])).await.expect(200).text;
        let dir = tempfile::tempdir().unwrap();
        let installed = dir.path().join("root/etc/bloom-runtime/agent.key");
        assert!(install(&script, dir.path(), "systemd").status.success());
        let again = install(&format!("BLOOM_KEY_FILE={}\n{script}", installed.display()), dir.path(), "systemd");
        assert!(again.status.success(), "{again:?}");
        assert_eq!(std::fs::read_to_string(&installed).unwrap(), "se'cret\n");
        let refused = install(&format!("BLOOM_KEY_FILE=/etc\n{script}"), dir.path(), "systemd");
        let said = String::from_utf8_lossy(&refused.stderr);
        assert!(!refused.status.success() && said.contains("/etc can't be read: correct BLOOM_KEY_FILE"), "{said}");
        assert_eq!(std::fs::read_to_string(&installed).unwrap(), "se'cret\n");
        let files: Vec<_> = std::fs::read_dir(installed.parent().unwrap()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(files, ["agent.key"]);
    }

    async fn the_user_of_the_agent_gets_no_other_keys(server) {
        let script = server.get(&query(&[("node_id", "worker-01")])).await.expect(200).text;
        let dir = tempfile::tempdir().unwrap();
        let (programs, given) = (dir.path().join("programs"), dir.path().join("given"));
        for (name, text) in [("chown", "echo \"$@\" >>\"$GIVEN\""), ("systemctl", ""), ("bloom-runtime", "")] {
            write(&programs.join(name), &format!("#!/bin/sh\n{text}\n"), 0o755);
        }
        // Debian's leads through /etc.
        std::os::unix::fs::symlink(std::fs::canonicalize("/usr/bin/awk").unwrap(), programs.join("awk")).unwrap();
        write(&dir.path().join("key"), "key", 0o600);
        write(&dir.path().join("install.sh"), &script, 0o644);
        let mut command = clean("sh");
        command.args(["-c", OWN_ETC]).arg(dir.path().join("install.sh")).env("PATH", format!("{}:/usr/bin:/bin", programs.display()));
        command.env("BLOOM_USER", "ann").env("BLOOM_INIT", "systemd").env("BLOOM_RUNTIME_BIN", programs.join("bloom-runtime"));
        let done = command.env("BLOOM_KEY_FILE", dir.path().join("key")).env("GIVEN", &given).output().unwrap();
        assert!(done.status.success(), "{done:?}");
        assert_eq!(std::fs::read_to_string(&given).unwrap(), "root /etc/bloom-runtime/agent.key\n");
    }

    async fn an_agent_that_gets_a_port_listens_for_pushes(server) {
        let script = server.get(&query(&[("node_id", "worker-01"), ("port", "9400")])).await.expect(200).text;
        let dir = tempfile::tempdir().unwrap();
        let refused = install(&script, dir.path(), "systemd");
        let said = String::from_utf8_lossy(&refused.stderr);
        assert!(!refused.status.success() && said.contains("set MEMBRIDGE_AGENT_KEY_FILE"), "{said}");
        write(&dir.path().join("push.key"), "pu'sh\n", 0o600);
        let done = install(&format!("MEMBRIDGE_AGENT_KEY_FILE={}\n{script}", dir.path().join("push.key").display()), dir.path(), "systemd");
        assert!(done.status.success(), "{done:?}");
        let again = install(&script, dir.path(), "systemd");
        assert!(again.status.success(), "it keeps the key: {again:?}");
        let settings = std::fs::read_to_string(dir.path().join("root/etc/bloom-agent.env")).unwrap();
        assert!(settings.contains("\nBLOOM_LISTEN=\"0.0.0.0:9400\"\n") && settings.contains("\nMEMBRIDGE_AGENT_KEY=\"pu'sh\"\n"), "{settings}");
    }

    async fn every_shell_can_read_it(server) {
        let script = server.get("agent-install-script").await.expect(200).text;
        assert!(script.starts_with("#!/bin/sh\nNODE_ID=''\n"));
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("install.sh");
        write(&path, &script, 0o644);
        for shell in ["sh", "dash", "bash", "busybox"] {
            let mut command = Command::new(shell);
            if shell == "busybox" {
                command.arg("sh");
            }
            // Checks those of the shells that are installed.
            if let Ok(done) = command.arg("-n").arg(&path).output() {
                assert!(done.status.success(), "{shell}: {done:?}");
            }
        }
    }

    async fn what_is_no_name_or_address_is_refused(server) {
        let long = "x".repeat(129);
        for name in ["a\nb", "a\0b", "a\u{7f}", long.as_str()] {
            server.get(&query(&[("node_id", name)])).await.refuses(&["node_id"]);
        }
        for url in ["ftp://h", "h:5000", "http://user:password@h", "http://h/\nx", "http://h x"] {
            server.get(&query(&[("server_url", url)])).await.refuses(&["server_url"]);
        }
        for port in ["0", "65536", "+1", "1;id", "x"] {
            server.get(&query(&[("port", port)])).await.refuses(&["port"]);
        }
    }
}

on_both! { alone:
    async fn a_join_token_becomes_a_key_of_the_worker(database) {
        let server = keyed(database);
        let admin = server.with_key(ADMIN);
        let token = create(&admin, "join", "join", json!({})).await;
        let script = admin.get(&query(&[("node_id", "worker-01"), ("server_url", server.base())])).await.expect(200).text;
        let dir = tempfile::tempdir().unwrap();
        write(&dir.path().join("token"), &format!("{token}\n"), 0o600);
        write(&dir.path().join("install.sh"), &script, 0o644);
        let install = |key_file: &str| {
            let mut command = clean("sh");
            command.arg(dir.path().join("install.sh")).env("DESTDIR", dir.path().join("root")).env("BLOOM_RUNTIME_BIN", BINARY);
            command.env("BLOOM_JOIN_TOKEN_FILE", dir.path().join("token")).env("BLOOM_INIT", "systemd").env("HOME", dir.path());
            command.env("BLOOM_KEY_FILE", key_file).output().unwrap()
        };
        let refused = install("also.key");
        assert!(!refused.status.success() && String::from_utf8_lossy(&refused.stderr).contains("only one"), "{refused:?}");
        let done = install("");
        assert!(done.status.success(), "{done:?}");
        let path = dir.path().join("root/etc/bloom-runtime/agent.key");
        let key = std::fs::read_to_string(&path).unwrap().trim_end().to_owned();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let own = server.with_key(&key);
        own.post("workers", json!({ "name": "worker-01" })).await.created();
        own.post("workers", json!({ "name": "worker-02" })).await.error(403);
        let settings = std::fs::read_to_string(dir.path().join("root/etc/bloom-agent.env")).unwrap();
        let expected = ["BLOOM_AGENT_NAME=\"worker-01\"\n".to_owned(), format!("BLOOM_KEY=\"{key}\"\n")];
        assert!(expected.iter().all(|line| settings.contains(line)), "{settings}");
        let again = install("");
        assert!(!again.status.success() && String::from_utf8_lossy(&again.stderr).contains("can be used once"), "{again:?}");
        assert_eq!(std::fs::read_to_string(&path).unwrap().trim_end(), key, "the key of the first run stays");
        assert!(!path.with_extension("key.new").exists());
        for secret in [&token, &key] {
            for text in [&done.stdout, &done.stderr, &again.stderr] {
                assert!(!String::from_utf8_lossy(text).contains(secret.as_str()));
            }
            assert!(!server.log().contains(secret.as_str()));
        }
    }
}
