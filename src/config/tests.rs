use std::path::PathBuf;

use clap::{Args, Command, FromArgMatches};
use secrecy::ExposeSecret;

use super::resolve::{Program, resolve};
use super::*;

fn flags(given: &[&str]) -> Flags {
    let command = Flags::augment_args(Command::new("serve"));
    let matches = command.try_get_matches_from([&["serve"], given].concat()).unwrap();
    Flags::from_arg_matches(&matches).unwrap()
}

fn report(given: &[&str], environment: &[(&str, &str)]) -> Report {
    resolve(&flags(given), &environment.iter().copied().collect(), Program::Server)
}

fn mistakes(given: &[&str], environment: &[(&str, &str)]) -> Vec<String> {
    report(given, environment).mistakes.iter().map(ToString::to_string).collect()
}

fn row(report: &Report, setting: &str) -> (String, String) {
    let row = report.rows.iter().find(|row| row.setting == setting).unwrap();
    (row.value.clone().unwrap_or_default(), row.origin.clone())
}

fn written(text: &str) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("bloom.toml");
    std::fs::write(&path, text).unwrap();
    (dir, path)
}

#[test]
fn nothing_given_means_the_documented_defaults() {
    let serve = report(&[], &[("HOME", "/home/me")]).into_serve().unwrap();
    assert_eq!((serve.network.host.as_str(), serve.network.port), ("127.0.0.1", 5000));
    assert_eq!(serve.data.database_url.expose_secret(), "sqlite:/home/me/.local/share/bloom-runtime/bloom.db");
    assert_eq!(
        (serve.limits.requests_per_minute, serve.limits.test_connection_per_minute, serve.limits.worker_requests_per_minute),
        (100, 20, 6000)
    );
    assert_eq!(
        (
            serve.work.lease_ttl_ms,
            serve.work.worker_offline_after_ms,
            serve.membridge.worker_sync_ms,
            serve.work.session_wait_ms,
            serve.work.named_agent_wait_ms
        ),
        (300_000, 60_000, 10_000, 30_000, 30_000)
    );
    assert_eq!((serve.limits.body_bytes, serve.limits.output_bytes), (1 << 20, 16 << 20));
    assert!(serve.keys.api.is_none());
}

#[test]
fn the_data_directory_follows_the_environment() {
    let dir = |environment: &[(&str, &str)]| report(&[], environment).into_serve().unwrap().data.dir;
    assert_eq!(dir(&[("HOME", "/h"), ("XDG_DATA_HOME", "/x")]), PathBuf::from("/x/bloom-runtime"));
    assert_eq!(dir(&[("HOME", "/h"), ("XDG_DATA_HOME", "relative")]), PathBuf::from("/h/.local/share/bloom-runtime"));
    assert_eq!(dir(&[]), PathBuf::from("/var/lib/bloom-runtime"));
}

#[test]
fn flags_win_over_environment_over_file() {
    let (_dir, path) = written("port = 7001\nhost = \"::1\"\ntrusted_proxies = [\"10.0.0.0/8\", \"::1\"]\n");
    let path = path.to_str().unwrap();
    let report = report(&["--port", "7003", "--config", path], &[("PORT", "7002"), ("LEASE_TTL_SECONDS", "60"), ("HOST", "")]);
    assert_eq!(row(&report, "port"), ("7003".into(), "flag --port".into()));
    assert_eq!(row(&report, "lease_ttl_seconds"), ("60".into(), "environment LEASE_TTL_SECONDS".into()));
    assert_eq!(row(&report, "host"), ("::1".into(), format!("file {path}")));
    assert_eq!(row(&report, "log_level"), ("info".into(), "default".into()));
    assert_eq!(report.into_serve().unwrap().network.trusted_proxies.len(), 2);
}

#[test]
fn the_environment_can_name_the_file() {
    let (_dir, path) = written("port = 7001");
    assert_eq!(report(&[], &[("BLOOM_CONFIG", path.to_str().unwrap())]).into_serve().unwrap().network.port, 7001);
}

#[test]
fn all_mistakes_are_told_at_once_and_say_what_would_be_right() {
    let found = mistakes(
        &["--port", "70000"],
        &[("DATABASE_URL", "postgres://db.internal/bloom"), ("LOG_LEVEL", "inof"), ("MEMBRIDGE_SERVER_URL", "host:8000")],
    );
    assert_eq!(
        found,
        [
            r#"port = "70000" (flag --port): must be a whole number from 0 to 65535"#,
            "database_url (environment DATABASE_URL): does not name a user; write postgres://USER:PASSWORD@HOST/DATABASE; \
             characters such as @ : / ? # in user or password must be percent-encoded (@ is %40, # is %23)",
            r#"membridge_server_url = "host:8000" (environment MEMBRIDGE_SERVER_URL): must be an http or https URL, such as http://127.0.0.1:8000"#,
            r#"log_level = "inof" (environment LOG_LEVEL): must be one of error, warn, info, debug, trace, off, or levels per module such as info,sqlx=warn"#,
        ]
    );
}

#[test]
fn a_mistake_in_an_address_shows_no_password() {
    for wrong in ["http://me:secret%2540h:8000", "http://me:secret%40h", "ftp://me:sec%2540ret@h", "http://me:secret@h:port"] {
        let found = mistakes(&[], &[("MEMBRIDGE_SERVER_URL", wrong)]);
        assert!(found.len() == 1 && found[0].contains("****@h") && !found[0].contains("sec"), "{found:?}");
    }
}

#[test]
fn a_mistyped_key_in_the_file_is_a_mistake_with_a_guess() {
    let (_dir, path) = written("lease_ttl_secs = 5\nruntime_api_key_file = 5\nPORT = 1\ncolour = \"red\"\n");
    let found = mistakes(&["--config", path.to_str().unwrap()], &[]).join("\n");
    assert!(found.contains("did you mean lease_ttl_seconds?"), "{found}");
    assert!(found.contains("did you mean port?"), "{found}");
    assert!(found.contains("colour (file"), "{found}");
}

#[test]
fn a_broken_file_is_told_by_its_line_and_never_quoted() {
    let (_dir, path) = written("port = 5000\nruntime_api_key = \"very-secret\n");
    let found = mistakes(&["--config", path.to_str().unwrap()], &[]).join("\n");
    assert!(found.contains("line 2") && !found.contains("very-secret"), "{found}");
    let found = mistakes(&["--config", "/nonexistent/bloom.toml"], &[]).join("\n");
    assert!(found.contains("/nonexistent/bloom.toml") && found.contains("can't be opened"), "{found}");
}

#[test]
fn secrets_come_from_files_and_are_never_shown() {
    let (_dir, path) = written("from-a-file\n");
    let path = path.to_str().unwrap();
    let given = [("RUNTIME_API_KEY_FILE", path), ("RUNTIME_READ_KEY", "in-the-clear"), ("DATABASE_URL", "postgres://me:hidden@db/x")];
    let report = report(&[], &given);
    assert_eq!(row(&report, "runtime_api_key"), ("****".into(), format!("environment RUNTIME_API_KEY_FILE ({path})")));
    assert_eq!(row(&report, "database_url").0, "postgres://me:****@db/x");
    let shown = format!("{}{}{report:?}", report.table(), report.json());
    assert!(!shown.contains("in-the-clear") && !shown.contains("hidden") && !shown.contains("from-a-file"), "{shown}");
    assert_eq!(report.into_serve().unwrap().keys.api.unwrap().expose_secret(), "from-a-file");
}

#[test]
fn a_secret_and_its_file_in_one_place_are_a_mistake_and_a_flag_beats_both() {
    let (_dir, path) = written("key-one");
    let both = [("RUNTIME_API_KEY", "key-two"), ("RUNTIME_API_KEY_FILE", path.to_str().unwrap())];
    assert_eq!(
        mistakes(&[], &both),
        ["runtime_api_key (environment RUNTIME_API_KEY): runtime_api_key_file is given as well; use only one of them"]
    );
    assert!(mistakes(&["--runtime-api-key", "key-three"], &both).is_empty());
    assert!(mistakes(&[], &[("RUNTIME_API_KEY_FILE", "/nonexistent")])[0].contains("can't be opened"));
}

#[test]
fn keys_need_their_scope_to_themselves() {
    assert!(report(&[], &[("RUNTIME_WORKER_KEY", "w")]).warnings[0].contains("RUNTIME_API_KEY is not set"));
    assert!(mistakes(&[], &[("RUNTIME_API_KEY", "k"), ("RUNTIME_READ_KEY", "k")])[0].contains("is the same as runtime_api_key"));
    assert!(mistakes(&[], &[("RUNTIME_API_KEY", " k")])[0].contains("without spaces"));
}

#[test]
fn an_open_door_is_warned_of() {
    assert!(mistakes(&["--host", "0.0.0.0"], &[])[0].contains("set RUNTIME_API_KEY"));
    let allowed = report(&["--host", "0.0.0.0", "--allow-no-key", "true"], &[]);
    assert!(allowed.mistakes.is_empty() && allowed.warnings[0].contains("NO AUTHENTICATION"));
    assert!(report(&["--host", "0.0.0.0"], &[("RUNTIME_API_KEY", "0123456789abcdef")]).warnings.is_empty());
    assert!(report(&["--host", "localhost"], &[]).warnings.is_empty());
}

#[test]
fn backups_of_the_server_are_for_sqlite() {
    let found = mistakes(&[], &[("BACKUP_DIR", "/backup"), ("DATABASE_URL", "postgres://me:hidden@db/x?password=too&sslmode=require")]);
    assert!(found[0].contains("backup_dir") && found[0].contains("postgres://me@db/x?sslmode=require with pg_dump"), "{found:?}");
    assert!(!found[0].contains("hidden") && !found[0].contains("too"), "{found:?}");
    assert!(mistakes(&[], &[("BACKUP_DIR", "/backup"), ("DATABASE_URL", "sqlite:x.db")]).is_empty());
}

#[test]
fn values_are_checked() {
    for (name, wrong) in [
        ("HOST", "http://x"),
        ("HOST", "1.2.3"),
        ("PORT", "-1"),
        ("DATABASE_URL", "mysql://u@h/d"),
        ("DATABASE_URL", "sqlite:"),
        ("DATABASE_URL", "sqlite::memory:"),
        ("TRUSTED_PROXIES", "10.0.0.0/40"),
        ("LEASE_TTL_SECONDS", "0"),
        ("MAX_BODY_BYTES", "1MiB"),
        ("BACKUP_EVERY_SECONDS", "0"),
        ("BACKUP_KEEP", "0"),
        ("LOG_FORMAT", "xml"),
        ("PUBLIC_URL", "ftp://x"),
        ("PUBLIC_URL", "https://x//evil.example"),
        ("PUBLIC_URL", "https://x/bloom//"),
        ("PUBLIC_URL", "https://x/a;b"),
        ("PUBLIC_URL", "https://x/bloom?a"),
        ("PUBLIC_URL", "https://x/bloom#a"),
    ] {
        assert_eq!(mistakes(&[], &[(name, wrong)]).len(), 1, "{name}={wrong}");
    }
    for (name, right) in [
        ("HOST", "[::]"),
        ("HOST", "bloom.internal"),
        ("PORT", "0"),
        ("PUBLIC_URL", "https://x/our-tools/bloom_2/"),
        ("DATABASE_URL", "postgresql:///bloom?host=/run/postgresql&user=me"),
        ("TRUSTED_PROXIES", "10.0.0.0/8, 192.168.1.1"),
        ("LOG_LEVEL", "info,bloom_engine=debug"),
        ("LOG_FILE", "/var/bloom.log"),
        ("LOG_FILE", "bloom.log"),
        ("TASK_RETENTION_DAYS", "0"),
        ("ALLOWED_HOSTS", "Bloom.example, 192.0.2.1,[2001:db8::1], ::1"),
    ] {
        assert_eq!(mistakes(&[], &[(name, right), ("ALLOW_NO_KEY", "true")]), [""; 0], "{name}={right}");
    }
}

#[test]
fn the_control_plane_by_itself_has_a_place_of_its_own() {
    let environment = [("HOME", "/home/me"), ("HOST", "0.0.0.0"), ("MEMBRIDGE_PORT", "8001"), ("MEMBRIDGE_SERVER_URL", "http://h")];
    let plane = |environment: &[(&str, &str)]| resolve(&flags(&[]), &environment.iter().copied().collect(), Program::ControlPlane);
    let settings = plane(&environment).into_serve().unwrap().into_membridge();
    assert_eq!((settings.network.host.as_str(), settings.network.port), ("127.0.0.1", 8001), "HOST and its rules are the server's");
    assert_eq!(settings.data.database_url.expose_secret(), "sqlite:/home/me/.local/share/bloom-runtime/membridge.db");
    let open = [("MEMBRIDGE_HOST", "0.0.0.0")];
    assert!(plane(&open).mistakes[0].to_string().contains("MEMBRIDGE_ADMIN_KEY"));
    assert!(plane(&[open[0], ("MEMBRIDGE_ADMIN_KEY", "key")]).mistakes.is_empty());
    assert!(plane(&[open[0], ("ALLOW_NO_KEY", "true")]).mistakes.is_empty());
    // The flag alone is true.
    assert!(report(&["--with-membridge", "--port", "1"], &[]).into_serve().unwrap().membridge.in_server);
    assert!(!report(&["--with-membridge", "false"], &[]).into_serve().unwrap().membridge.in_server);
}
