//! `doctor`: what it finds, and what it says to do.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use serde_json::{Value, json};

use crate::keys::{ADMIN, create, keyed};
use crate::on_both;
use crate::support::certificates::Authority;
use crate::support::stub::{Reply, Stub};
use crate::support::*;

/// What `doctor` finds with the settings of the server and these: the exit code, and subject, state and text of each finding.
pub fn found(server: &Server, more: &[(&str, &str)]) -> (i32, Vec<[String; 3]>) {
    finds(server.plan().command(&["doctor", "--output", "json"]).env("PORT", port_of(server)).envs(more.iter().copied()))
}

/// The same without the key of the server's settings.
fn found_by_person(server: &Server, more: &[(&str, &str)]) -> Vec<[String; 3]> {
    let mut command = server.plan().command(&["doctor", "--output", "json"]);
    finds(command.env("PORT", port_of(server)).env_remove("RUNTIME_API_KEY").envs(more.iter().copied())).1
}

fn finds(command: &mut Command) -> (i32, Vec<[String; 3]>) {
    let output = command.output().unwrap();
    let all: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
    let field = |one: &Value, name: &str| one[name].as_str().unwrap().to_owned();
    let all = all.as_array().unwrap().iter().map(|one| ["subject", "state", "text"].map(|name| field(one, name)));
    (output.status.code().unwrap(), all.collect())
}

#[track_caller]
pub fn has(all: &[[String; 3]], subject: &str, state: &str, words: &str) {
    let is_it = |[of, is, text]: &[String; 3]| of == subject && is == state && text.contains(words);
    assert!(all.iter().any(is_it), "{subject} {state} {words}: {all:?}");
}

on_both! { alone:
    async fn a_server_is_looked_at(database) {
        let server = keyed(database);
        let admin = server.with_key(ADMIN);
        let (code, all) = found(&server, &[]);
        assert_eq!(code, 0, "{all:?}");
        for subject in ["settings", "database", "schema", "server", "control plane", "keys"] {
            has(&all, subject, "fine", "");
        }
        if server.is_postgres() {
            has(&all, "clock", "fine", "agree");
        }
        has(&all, "workers", "warning", "bloom-runtime agent");

        for (name, status, version) in [("good", "online", env!("CARGO_PKG_VERSION")), ("old", "online", "0.0.1"), ("sick", "error", ""), ("paused", "syncing", "")] {
            admin.post("workers", json!({ "name": name, "status": status, "agent_version": version })).await.created();
        }
        let pause = json!({ "kind": "account", "name": "a", "cause": "billing", "since": 1, "until": 2, "message": "top it up" });
        admin.post("workers", json!({ "name": "paused", "pauses": [pause] })).await.ok();
        create(&admin, "ending", "read", json!({ "expires_in_sec": 3_600 })).await;
        create(&admin, "joining", "join", json!({})).await;
        let (code, all) = found(&server, &[]);
        assert_eq!(code, 0, "{all:?}");
        has(&all, "workers", "fine", "3 of 4 are online, 1 is paused");
        has(&all, "workers", "warning", "old has version 0.0.1");
        has(&all, "workers", "warning", "sick reports an error");
        has(&all, "workers", "warning", "paused is paused: top it up");
        has(&all, "keys", "warning", "bloom-runtime key rotate ending --expires 90d");
        assert!(!all.iter().any(|[subject, ..]| subject == "agent key"), "nobody listens: {all:?}");
        has(&all, "queues", "fine", "none is paused");
        for call in ["workers/good/drain", "queues/coder/pause", "queues:pause"] {
            admin.poke(call).await.ok();
        }
        let (_, forgotten) = found(&server, &[]);
        has(&forgotten, "workers", "warning", "good gets no new tasks, because it was cordoned or drained: bloom-runtime worker uncordon good");
        has(&forgotten, "queues", "warning", "s, and 0 tasks wait: bloom-runtime queue resume --agent coder");
        has(&forgotten, "queues", "warning", "s, and 0 tasks wait: bloom-runtime queue resume --all");
        admin.post("workers", json!({ "name": "old", "url": "http://127.0.0.1:9" })).await.ok();
        has(&found(&server, &[]).1, "agent key", "warning", "MEMBRIDGE_AGENT_KEY is not set");
        let (_, with_key) = found(&server, &[("MEMBRIDGE_AGENT_KEY", "a-key-of-the-agents-0123")]);
        assert!(!with_key.iter().any(|[subject, ..]| subject == "agent key"), "{with_key:?}");
        assert!(!all.iter().any(|[.., text]| text.contains("joining")), "a join token lasts a day by design: {all:?}");

        // A key that the server does not know, and a port at which nobody listens.
        let (code, all) = found(&server, &[("RUNTIME_API_KEY", "another key of this server")]);
        assert_eq!(code, 0, "{all:?}");
        has(&all, "workers", "warning", "can't be looked at: doctor needs RUNTIME_API_KEY");
        let nobody = janitor::free_port().to_string();
        let mut command = server.plan().command(&["doctor"]);
        let output = command.env("PORT", &nobody).output().unwrap();
        let told = String::from_utf8(output.stdout).unwrap();
        assert_eq!(output.status.code(), Some(1), "{told}");
        assert!(told.contains("wrong    server") && told.contains("no server answers"), "{told}");
    }
}

#[test]
fn a_named_key_opens_what_only_the_server_knows() {
    let server = keyed(Database::Sqlite);
    run(async {
        let admin = server.with_key(ADMIN);
        let boss = create(&admin, "boss", "admin", json!({})).await;
        // As from the shell of a person, who does not have the key of the server's settings.
        let all = found_by_person(&server, &[("BLOOM_KEY", &boss)]);
        for subject in ["reconcilers", "workers", "queues", "keys"] {
            assert!(!all.iter().any(|[of, _, text]| of == subject && text.contains("can't be looked at")), "{subject}: {all:?}");
        }
        has(&all, "keys", "fine", "named keys");
        // The key of another server is not sent to this one.
        let all = found_by_person(&server, &[("BLOOM_KEY", &boss), ("BLOOM_SERVER", "https://bloom.example")]);
        has(&all, "workers", "warning", "BLOOM_KEY or BLOOM_KEY_FILE");
    });
}

#[test]
fn a_dev_at_another_port_is_found() {
    run(async {
        let server = Server::on(Database::Sqlite).words(&["dev"]).env("BLOOM_RUNNER", "echo").start();
        let address = server.data_dir().join("dev.address");
        eventually("its address", || async { address.exists().then_some(()) }).await;
        let nobody = janitor::free_port().to_string();
        let doctor = || {
            let mut command = server.plan().command(&["doctor"]);
            let output = command.env("PORT", &nobody).env("BLOOM_SERVER", "https://bloom.example").output().unwrap();
            String::from_utf8(output.stdout).unwrap()
        };
        let told = doctor();
        assert!(told.contains(&format!("it is ready at {}", server.base())) && !told.contains("no server answers"), "{told}");
        assert!(server.stop().success());
        let told = doctor();
        assert!(told.contains("no server answers") && told.contains("BLOOM_SERVER is none of them"), "{told}");
    });
}

#[test]
fn mistakes_and_databases_that_are_away_are_wrong() {
    let server = keyed(Database::Sqlite);
    let (code, all) = found(&server, &[("LEASE_TTL_SECONDS", "never")]);
    assert_eq!(code, 1);
    has(&all, "settings", "wrong", "LEASE_TTL_SECONDS");
    let nowhere = format!("postgres://nobody:secret@127.0.0.1:{}/none", janitor::free_port());
    let (code, all) = found(&server, &[("DATABASE_URL", &nowhere)]);
    assert_eq!(code, 1);
    has(&all, "database", "wrong", "can't be reached or used");
    assert!(!format!("{all:?}").contains("secret"));
    // What is no database is not taken for one that does not exist yet.
    let place = tempfile::tempdir().unwrap();
    let link = place.path().join("link.db");
    std::os::unix::fs::symlink(place.path().join("bloom.db"), &link).unwrap();
    for (path, what) in [(place.path(), "no regular file"), (&link, "a symbolic link")] {
        let url = format!("sqlite:{}", path.display());
        has(&found(&server, &[("DATABASE_URL", &url)]).1, "database", "wrong", what);
        let refused = Server::on_url(&url).start_in_vain();
        assert!(String::from_utf8_lossy(&refused.stderr).contains(what), "{refused:?}");
    }
    // SQLite would leave files beside a database that it may only read, and they would keep the server from starting later.
    let database = place.path().join("bloom.db");
    assert!(Server::on_url(&format!("sqlite:{}", database.display())).start().stop().success());
    std::fs::set_permissions(&database, Permissions::from_mode(0o444)).unwrap();
    let doctor = |name: &str, value: String| {
        let output = without_override(&server.plan().command(&["doctor"])).env(name, value).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let said = doctor("DATABASE_URL", format!("sqlite:{}", database.display()));
    assert!(said.contains(&format!("this user can't write {}: Permission denied", database.display())), "{said}");
    assert!(!place.path().join("bloom.db-shm").exists());
    let said = doctor("LOG_FILE", database.display().to_string());
    assert!(said.contains("must be a file that this user can write"), "{said}");
    // A log without its database has changes that a new database would drop.
    std::fs::rename(&database, place.path().join("away.db")).unwrap();
    std::fs::write(place.path().join("bloom.db-wal"), "changes").unwrap();
    let refused = Server::on_url(&format!("sqlite:{}", database.display())).start_in_vain();
    assert!(String::from_utf8_lossy(&refused.stderr).contains("put the database back"), "{refused:?}");
    assert!(!database.exists());
    // A file that does not exist yet is not made.
    let dir = janitor::new_path("doctor");
    let (_, all) = found(&server, &[("DATABASE_URL", &format!("sqlite:{}/none.db", dir.display()))]);
    has(&all, "database", "fine", "does not exist yet");
    assert!(!dir.exists());
}

/// The same command for a user whom permissions concern: root may write each file.
fn without_override(command: &Command) -> Command {
    if !rustix::process::geteuid().is_root() {
        let mut same = Command::new(command.get_program());
        same.args(command.get_args()).envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
        return same;
    }
    let mut limited = Command::new("setpriv");
    limited.args(["--bounding-set=-dac_override,-dac_read_search", "--inh-caps=-dac_override,-dac_read_search"]);
    limited.arg(command.get_program()).args(command.get_args());
    limited.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    limited
}

/// What `healthcheck` says with the settings of the server and this port: the exit code, and both streams.
fn health_of(server: &Server, port: &str) -> (i32, String) {
    let output = server.plan().command(&["healthcheck"]).env("PORT", port).output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    (output.status.code().unwrap(), String::from_utf8(said).unwrap())
}

fn port_of(server: &Server) -> String {
    reqwest::Url::parse(server.base()).unwrap().port().unwrap().to_string()
}

#[test]
fn the_health_of_a_server_is_an_exit_status() {
    run(async {
        // Its certificate is for another name than that of the loopback address.
        let place = janitor::new_path("tls");
        Authority::new().issue("bloom.example").install(&place);
        let file = |name: &str| place.join(name).display().to_string();
        let with_tls = Server::on(Database::Sqlite).env("TLS_CERT_FILE", file("tls.crt")).env("TLS_KEY_FILE", file("tls.key")).start();
        for server in [keyed(Database::Sqlite), with_tls] {
            let (code, said) = health_of(&server, &port_of(&server));
            assert!(code == 0 && said.contains("is ready"), "{code} {said}");
        }
        let server = keyed(Database::Sqlite);
        let (code, said) = health_of(&server, &janitor::free_port().to_string());
        assert!(
            code == 1 && said.contains("does not answer: can't connect: Connection refused") && said.contains("bloom-runtime doctor"),
            "{code} {said}"
        );
        assert_eq!(health_of(&server, "0").0, 1);
        let stub = Stub::start().await;
        stub.always("/readyz", Reply::new(503, "the database can't be written to"));
        let (code, said) = health_of(&server, stub.url.rsplit(':').next().unwrap());
        assert!(code == 1 && said.contains("is not ready (status 503): the database can't be written to"), "{code} {said}");
    });
}

#[test]
fn a_database_that_can_not_be_made_is_told() {
    let server = Server::on(Database::Sqlite).start();
    let file = janitor::new_path("file");
    std::fs::write(&file, "").unwrap();
    let below = file.join("deep/data").display().to_string();
    for (dir, words) in
        [(file.display().to_string(), "Not a directory"), (below, "Not a directory"), ("/proc/nobody".into(), "can't be made")]
    {
        let (code, all) = found(&server, &[("DATA_DIR", &dir)]);
        assert_eq!(code, 1, "{all:?}");
        has(&all, "database", "wrong", words);
    }
    let fresh = janitor::new_path("fresh").join("data").display().to_string();
    has(&found(&server, &[("DATA_DIR", &fresh)]).1, "database", "fine", "does not exist yet");
}
