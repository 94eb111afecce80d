//! Settings: their sources, the values in effect, and errors in them.

use std::fs;
use std::process::Output;

use crate::support::*;

/// Runs `config check` with these variables, this configuration file and these flags. Returns the exit code and all output.
fn check(env: &[(&str, &str)], file: Option<&str>, flags: &[&str]) -> (i32, String) {
    let output = run_program(env, file, &[&["config", "check"], flags].concat());
    let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).expect("text")).concat();
    (output.status.code().expect("an exit code"), text)
}

fn run_program(env: &[(&str, &str)], file: Option<&str>, arguments: &[&str]) -> Output {
    let dir = janitor::new_path("config");
    fs::create_dir_all(&dir).unwrap();
    let mut command = std::process::Command::new(server::BINARY);
    command.env_clear().env("HOME", &dir).envs(env.iter().copied()).args(arguments).current_dir(&dir);
    if let Some(text) = file {
        let path = dir.join("bloom.toml");
        fs::write(&path, text).unwrap();
        command.env("BLOOM_CONFIG", path);
    }
    command.output().expect("the program runs")
}

/// The line of the report about this setting.
#[track_caller]
fn line<'a>(report: &'a str, name: &str) -> &'a str {
    let found = report.lines().find(|line| line.to_uppercase().replace('-', "_").contains(name));
    found.unwrap_or_else(|| panic!("nothing of {name} in:\n{report}"))
}

#[test]
fn the_report_tells_each_value_and_where_it_came_from() {
    let file = "port = 7001\nlease_ttl_seconds = 60\nhost = \"127.0.0.2\"\n";
    let (code, report) = check(&[("PORT", "7002"), ("HOST", "127.0.0.3")], Some(file), &["--port", "7003"]);
    assert_eq!(code, 0, "{report}");
    let port = line(&report, "PORT");
    assert!(port.contains("7003") && port.contains("--port"), "flags take precedence: {port}");
    let host = line(&report, "HOST");
    assert!(host.contains("127.0.0.3") && host.contains("HOST"), "the environment comes second: {host}");
    let ttl = line(&report, "LEASE_TTL_SECONDS");
    assert!(ttl.contains("60") && ttl.contains("bloom.toml"), "the file comes third: {ttl}");
    let offline = line(&report, "WORKER_OFFLINE_AFTER_SECONDS");
    assert!(offline.contains("60") && offline.contains("default"), "{offline}");
}

#[test]
fn the_documented_defaults_are_in_force() {
    let (code, report) = check(&[], None, &[]);
    assert_eq!(code, 0, "{report}");
    for (name, value) in [
        ("PORT", "5000"),
        ("HOST", "127.0.0.1"),
        ("RATE_LIMIT_PER_MINUTE", "100"),
        ("TEST_CONNECTION_PER_MINUTE", "20"),
        ("WORKER_RATE_LIMIT_PER_MINUTE", "6000"),
        ("MAX_BODY_BYTES", "1048576"),
        ("MAX_OUTPUT_BYTES", "16777216"),
        ("REQUEST_TIMEOUT_SECONDS", "30"),
        ("LEASE_TTL_SECONDS", "300"),
        ("WORKER_OFFLINE_AFTER_SECONDS", "60"),
        ("WORKER_SYNC_SECONDS", "10"),
        ("SESSION_WAIT_SECONDS", "30"),
        ("NAMED_AGENT_WAIT_SECONDS", "30"),
        ("MAX_TIMEOUT_SECONDS", "86400"),
        ("TASK_RETENTION_DAYS", "0"),
        ("AUDIT_RETENTION_DAYS", "0"),
        ("BACKUP_EVERY_SECONDS", "86400"),
        ("BACKUP_KEEP", "7"),
        ("LOG_FORMAT", "text"),
        ("DATA_DIR", ".local/share/bloom-runtime"),
        ("DATABASE_URL", "sqlite:"),
    ] {
        // Some names are part of others (TEST_CONNECTION_PER_MINUTE, WORKER_RATE_LIMIT_PER_MINUTE), so the line must start with the name.
        let found = report.lines().filter(|line| {
            let upper = line.trim_start().to_uppercase().replace('-', "_");
            upper.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).next() == Some(name)
        });
        let found = found.collect::<Vec<_>>();
        assert!(found.iter().any(|line| line.contains(value)), "{name} is not {value}: {found:?}\n{report}");
    }
}

#[test]
fn secrets_are_masked() {
    let secrets = [
        ("RUNTIME_API_KEY", "secret-admin-value"),
        ("RUNTIME_WORKER_KEY", "secret-worker-value"),
        ("RUNTIME_READ_KEY", "secret-read-value"),
        ("MEMBRIDGE_ADMIN_KEY", "secret-membridge-value"),
        ("MEMBRIDGE_AGENT_KEY", "secret-agent-value"),
        ("DATABASE_URL", "postgres://bloom:secret-database-value@127.0.0.1/bloom"),
    ];
    for flags in [&[][..], &["-o", "json"]] {
        let (code, report) = check(&secrets, None, flags);
        assert_eq!(code, 0, "{report}");
        for (name, secret) in secrets {
            line(&report, name);
            let inner = secret.split([':', '@']).find(|part| part.starts_with("secret")).unwrap();
            assert!(!report.contains(inner), "{name} is shown:\n{report}");
        }
    }
}

#[test]
fn the_report_comes_as_json_too() {
    let output = run_program(&[("PORT", "7002")], None, &["config", "check", "-o", "json"]);
    assert!(output.status.success());
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert!(report.to_string().contains("7002"), "{report}");
}

#[test]
fn a_secret_may_stand_in_a_file() {
    let dir = janitor::new_path("secret");
    fs::create_dir_all(&dir).unwrap();
    let path = dir.join("key");
    fs::write(&path, "key-from-a-file\n").unwrap();
    let path = path.display().to_string();
    run(async {
        let server = Server::on(Database::Sqlite).env("RUNTIME_API_KEY_FILE", &path).start();
        server.get("stats").await.fails(401, "Unauthorized");
        server.with_key("key-from-a-file").get("stats").await.ok();
    });
    for name in ["RUNTIME_API_KEY", "RUNTIME_WORKER_KEY", "RUNTIME_READ_KEY", "MEMBRIDGE_ADMIN_KEY", "MEMBRIDGE_AGENT_KEY"] {
        let by_file = format!("{name}_FILE");
        let (code, report) = check(&[(&by_file, &path)], None, &[]);
        assert_eq!(code, 0, "{report}");
        let (code, report) = check(&[(&by_file, &path), (name, "both")], None, &[]);
        assert_ne!(code, 0, "giving both is an error:\n{report}");
        assert!(report.contains(name), "{report}");
        let (code, report) = check(&[(&by_file, "/nowhere/to/be/found")], None, &[]);
        assert_ne!(code, 0, "{report}");
        assert!(report.contains("/nowhere/to/be/found"), "{report}");
    }
}

#[test]
fn every_mistake_says_which_value_and_what_would_be_right() {
    for (name, bad) in [
        ("PORT", "70000"),
        ("PORT", "http"),
        ("DATABASE_URL", "mysql://x/y"),
        ("DATABASE_URL", "postgres://127.0.0.1/bloom"),
        ("RATE_LIMIT_PER_MINUTE", "-1"),
        ("TEST_CONNECTION_PER_MINUTE", "many"),
        ("TRUSTED_PROXIES", "10.0.0.0/33"),
        ("PUBLIC_URL", "not a url"),
        ("MAX_BODY_BYTES", "1 MiB"),
        ("LEASE_TTL_SECONDS", "0"),
        ("LOG_FORMAT", "xml"),
        ("LOG_FILE", "/nowhere/bloom.log"),
        ("LOG_FILE", "/tmp"),
        ("MEMBRIDGE_SERVER_URL", "ftp://x"),
        ("WORKER_OFFLINE_AFTER_SECONDS", "soon"),
        ("TASK_RETENTION_DAYS", "-5"),
        ("REQUEST_TIMEOUT_SECONDS", "0"),
    ] {
        let (code, report) = check(&[(name, bad)], None, &[]);
        assert_ne!(code, 0, "{name}={bad}:\n{report}");
        assert!(report.contains(name), "{name}={bad} is not named:\n{report}");
        assert!(!report.contains("panicked") && !report.contains("Err("), "the error is readable:\n{report}");
        let start = Server::on(Database::Sqlite).env(name, bad).start_in_vain();
        assert_eq!(start.status.code(), Some(2), "{name}={bad}");
        let words = String::from_utf8(start.stderr).unwrap();
        assert!(words.contains(name), "{name}={bad}: {words}");
    }
}

#[test]
fn all_mistakes_are_told_at_once() {
    let wrong = [("PORT", "x"), ("LOG_FORMAT", "xml"), ("OPERATOR_AGENT_IMAGE", "two words"), ("OPERATOR_AGENT_SERVER", "bloom:5000")];
    let (code, report) = check(&wrong, Some("max_body_bytes = \"big\"\n"), &[]);
    assert_ne!(code, 0);
    for (name, _) in wrong {
        assert!(report.contains(name), "{name}:\n{report}");
    }
    assert!(report.to_lowercase().contains("max_body_bytes"), "{report}");
    assert!(!report.contains("SETTING  "), "the settings that are right hide no mistake:\n{report}");
}

#[test]
fn what_is_no_regular_file_is_not_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let pipe = dir.path().join("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    for name in ["RUNTIME_API_KEY_FILE", "BLOOM_CONFIG"] {
        let (code, report) = check(&[(name, &pipe.display().to_string())], None, &[]);
        assert!(code != 0 && report.contains("must be a regular file"), "{report}");
    }
}

#[test]
fn an_unknown_key_in_the_file_is_a_mistake() {
    let (code, report) = check(&[], Some("prot = 5000\n"), &[]);
    assert_ne!(code, 0);
    assert!(report.contains("prot") && report.contains("port"), "the error suggests the right name: {report}");
    let (code, report) = check(&[], Some("port = \n"), &[]);
    assert_ne!(code, 0, "{report}");
    assert!(report.contains("bloom.toml"), "{report}");
}

#[test]
fn empty_variables_and_node_env_mean_nothing() {
    let (code, report) = check(&[("PORT", ""), ("DATABASE_URL", ""), ("NODE_ENV", "production"), ("RUNTIME_API_KEY", "")], None, &[]);
    assert_eq!(code, 0, "{report}");
    assert!(line(&report, "PORT").contains("5000"), "{report}");
}

#[test]
fn the_data_directory_follows_the_desktops_rules() {
    let (_, report) = check(&[("XDG_DATA_HOME", "/somewhere/data")], None, &[]);
    assert!(report.contains("/somewhere/data/bloom-runtime"), "{report}");
}

#[test]
fn no_part_of_a_password_is_shown() {
    for password in
        ["q7x@w9z", "q7x#w9z", "7301#8402@w9z", "q7x/w9z", "7301/8402@w9z", "q7x?w9z", "q7x@w9z:k5v@8402", "q7x%40w9z", "q7x@k5v/w9z"]
    {
        let url = format!("postgres://bloom:{password}@127.0.0.1:1/bloom");
        let (_, report) = check(&[("DATABASE_URL", &url)], None, &[]);
        let start = Server::on_url(&url).start_in_vain();
        let said = String::from_utf8([start.stdout, start.stderr].concat()).unwrap();
        for part in ["q7x", "w9z", "k5v", "7301", "8402"] {
            assert!(!report.contains(part) && !said.contains(part), "{part} of {url}:\n{report}\n{said}");
        }
    }
    for password in ["q7x#w9z", "q7x/w9z", "7301#8402", "7301/8402", "q7x?w9z", "7301?8402"] {
        let (code, report) = check(&[("DATABASE_URL", &format!("postgres://bloom:{password}@127.0.0.1/bloom"))], None, &[]);
        assert_eq!(code, 1, "{report}");
        assert!(report.contains("percent-encoded") && report.contains("%23"), "{password}: {report}");
    }
    let (code, report) = check(&[("DATABASE_URL", "postgres://bloom@h/bloom?password=pass&sslmode=verify-full")], None, &[]);
    assert!(code == 0 && !report.contains("pass"), "{report}");
    let (code, report) = check(&[("MEMBRIDGE_SERVER_URL", "http://me:q7x@127.0.0.1:1")], None, &[]);
    assert!(code == 0 && !report.contains("q7x") && report.contains("http://****@127.0.0.1:1"), "{report}");
    let (code, report) = check(&[("PUBLIC_URL", "htp://me:q7x@h"), ("MINIO_ENDPOINT", "http://me:q7x@h")], None, &[]);
    assert!(code == 1 && !report.contains("q7x"), "{report}");
}

#[test]
fn a_database_far_away_is_spoken_to_with_tls_or_a_warning() {
    let at = |rest: &str| check(&[("DATABASE_URL", &format!("postgres://bloom:hidden@{rest}"))], None, &[]);
    for open in
        ["db.example/bloom", "192.0.2.1/bloom?sslmode=disable", "db.example/bloom?sslmode=prefer", "[2001:db8::1]/bloom?ssl-mode=allow"]
    {
        let (code, report) = at(open);
        assert!(code == 0 && report.contains("sslmode=verify-full"), "{open}: {report}");
    }
    for fine in [
        "db.example/bloom?sslmode=require",
        "db.example/bloom?sslmode=verify-ca",
        "db.example/bloom?sslmode=verify-full&sslrootcert=/dev/null",
        "127.0.0.1/bloom",
        "localhost/bloom?sslmode=disable",
        "[::1]/bloom",
        "localhost/bloom?host=/run/postgresql",
    ] {
        let (code, report) = at(fine);
        assert!(code == 0 && !report.contains("warning"), "{fine}: {report}");
    }
    assert!(at("127.0.0.1/bloom?host=db.example").1.contains("warning"), "the query names the host");
    // The certificates would be read and nothing compared with them.
    for pointless in
        ["require&", "prefer&", "disable&", ""].map(|mode| if mode.is_empty() { String::new() } else { format!("sslmode={mode}") })
    {
        let (code, report) = at(&format!("db.example/bloom?{pointless}sslrootcert=/ca.pem"));
        assert!(code == 1 && report.contains("verify-ca") && report.contains("sslrootcert"), "{pointless}: {report}");
    }
    let (code, report) = at("db.example/bloom?sslmode=always");
    assert!(code == 1 && report.contains("sslmode") && report.contains("verify-full"), "{report}");
}

#[test]
fn a_short_key_is_warned_of() {
    for name in ["RUNTIME_API_KEY", "RUNTIME_WORKER_KEY", "RUNTIME_READ_KEY", "MEMBRIDGE_AGENT_KEY"] {
        let given = |key| check(&[("RUNTIME_API_KEY", "0123456789abcdef"), (name, key)], None, &[]).1;
        let short = given("fifteen-letters");
        assert!(short.contains("warning") && short.contains("16 characters") && short.contains(name), "{short}");
        assert!(!short.contains("fifteen-letters"), "{short}");
        assert!(!given("sixteen-letters!").contains("warning"), "{name}");
    }
}

#[test]
fn without_keys_only_loopback_is_listened_on() {
    for (env, refused) in [
        (&[("HOST", "0.0.0.0")][..], true),
        (&[("HOST", "bloom.internal")], true),
        (&[("HOST", "0.0.0.0"), ("ALLOW_NO_KEY", "true")], false),
        (&[("HOST", "0.0.0.0"), ("RUNTIME_API_KEY", "0123456789abcdef")], false),
        (&[("HOST", "::1")], false),
        (&[("HOST", "127.9.9.9")], false),
    ] {
        let (code, report) = check(env, None, &[]);
        assert_eq!(code == 1, refused, "{env:?}: {report}");
        assert_eq!(report.contains("set RUNTIME_API_KEY"), refused, "{report}");
    }
    let (code, report) = check(&[("ALLOW_NO_KEY", "perhaps")], None, &[]);
    assert!(code == 1 && report.contains("true or false"), "{report}");
    let (code, report) = check(&[("HOST", "0.0.0.0")], Some("allow_no_key = true\nallowed_hosts = [\"a.example\", \"b.example\"]\n"), &[]);
    assert_eq!(code, 0, "{report}");
    for bad in ["http://a", "a.example:80", "a b"] {
        let (code, report) = check(&[("ALLOWED_HOSTS", bad)], None, &[]);
        assert!(code == 1 && report.contains("allowed_hosts"), "{bad}: {report}");
    }
}

#[test]
fn a_parameter_of_the_database_that_nobody_knows_is_refused() {
    let check_url = |query: &str| check(&[("DATABASE_URL", &format!("postgres://me:hidden@127.0.0.1/x?{query}"))], None, &[]);
    for (query, told) in [
        ("sslmod=require", "sslmod is not a parameter of DATABASE_URL; did you mean sslmode?"),
        ("sslMode=require", "sslMode is not a parameter of DATABASE_URL; did you mean sslmode?"),
        ("ssl=true", "ssl is not a parameter of DATABASE_URL; did you mean sslmode?"),
        ("passwort=hidden", "passwort is not a parameter of DATABASE_URL; did you mean password?"),
    ] {
        let (code, report) = check_url(query);
        assert!(code == 1 && report.contains(told) && report.contains("application_name"), "{query}: {report}");
        assert!(!report.contains("hidden"), "{report}");
    }
    for file in ["sslrootcert", "sslcert", "sslkey"] {
        let (code, report) = check_url(&format!("sslmode=verify-full&{file}=/nowhere/x.pem"));
        assert!(code == 1 && report.contains(&format!("the file of {file} can't be read")), "{report}");
        assert!(!report.contains("hidden"), "{report}");
    }
    let all = "sslmode=disable&application_name=b&options=-c%20x%3D1&options[geqo]=off&statement-cache-capacity=5&port=5432&dbname=x";
    let (code, report) = check_url(all);
    assert_eq!(code, 0, "{report}");
    assert!(!report.contains("hidden"), "{report}");
    let output = run_program(&[("DATABASE_URL", "postgres://me:hidden@127.0.0.1:1/x?sslmod=require")], None, &["serve"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(2) && said.contains("did you mean sslmode?") && !said.contains("hidden"), "{said}");
}

#[test]
fn an_object_store_has_settings_that_fit_together() {
    let keys = [("MINIO_ACCESS_KEY", "k1y"), ("MINIO_SECRET_KEY", "p1w")];
    let s3_keys = [("AWS_ACCESS_KEY_ID", "k1y"), ("AWS_SECRET_ACCESS_KEY", "p1w")];
    for endpoint in ["minio", "minio.example:9001", "http://10.0.0.1", "https://minio.example:9443"] {
        let (code, report) = check(&[&[("MINIO_ENDPOINT", endpoint)][..], &keys].concat(), None, &[]);
        assert_eq!(code, 0, "{endpoint}: {report}");
        assert!(
            line(&report, "MINIO_ENDPOINT").contains(endpoint) && line(&report, "MINIO_ARTIFACT_BUCKET").contains("bloom-artifacts"),
            "{report}"
        );
        assert!(!report.contains("k1y") && !report.contains("p1w"), "{report}");
    }
    let (code, report) = check(&[&[("AWS_S3_BUCKET", "bloom"), ("AWS_REGION", "eu-central-1")][..], &s3_keys].concat(), None, &[]);
    assert_eq!(code, 0, "{report}");
    let minio = ("MINIO_ENDPOINT", "minio");
    for (wrong, named) in [
        (&[minio][..], "MINIO_ACCESS_KEY"),
        (&[minio, keys[0]], "MINIO_SECRET_KEY"),
        (&[minio, keys[1]], "MINIO_ACCESS_KEY"),
        (&[("AWS_S3_BUCKET", "bloom")], "AWS_ACCESS_KEY_ID"),
        (&[("AWS_S3_BUCKET", "bloom"), s3_keys[0], s3_keys[1], minio, keys[0], keys[1]], "choose one of the two"),
        (&[("AWS_S3_BUCKET", "Bloom"), s3_keys[0], s3_keys[1]], "small letters"),
        (&[("MINIO_ENDPOINT", "http://minio/path"), keys[0], keys[1]], "without a path"),
        (&[("MINIO_ENDPOINT", "ftp://minio"), keys[0], keys[1]], "MINIO_ENDPOINT"),
        (&[("MINIO_ENDPOINT", "https://:p1w@minio"), keys[0], keys[1]], "MINIO_ENDPOINT"),
        (&[minio, ("MINIO_PORT", "70000"), keys[0], keys[1]], "MINIO_PORT"),
        (&[minio, ("MINIO_USE_SSL", "perhaps"), keys[0], keys[1]], "MINIO_USE_SSL"),
        (&[minio, ("MINIO_ARTIFACT_BUCKET", "a"), keys[0], keys[1]], "MINIO_ARTIFACT_BUCKET"),
        (&[("AWS_REGION", "two words")], "AWS_REGION"),
        (&[("OBJECT_GRACE_SECONDS", "29")], "OBJECT_GRACE_SECONDS"),
    ] {
        let (code, report) = check(wrong, None, &[]);
        assert!(code != 0 && report.contains(named), "{wrong:?}: {report}");
        assert!(!report.contains("p1w"), "{wrong:?}: {report}");
    }
}
