//! Which server and which key a command uses.

use std::os::unix::fs::PermissionsExt;

use super::*;

fn guarded() -> Server {
    Server::on(Database::Sqlite).env("RUNTIME_API_KEY", "the-secret-key").start()
}

#[test]
fn a_key_comes_by_flag_file_or_variable() {
    let server = guarded();
    let user = User::at(&server);
    std::fs::write(user.home.join("key"), "the-secret-key\n").unwrap();
    let said = user.does(&["stats"]).complains(1);
    assert!(said.contains("--key") && said.contains("BLOOM_KEY"), "the error says how to give a key: {said}");
    user.does(&["stats", "--key", "the-secret-key"]).ok();
    user.does(&["stats", "--key-file", "key"]).ok();
    user.clone().with("BLOOM_KEY", "the-secret-key").does(&["stats"]).ok();
    user.clone().with("BLOOM_KEY_FILE", "key").does(&["stats"]).ok();
    let said = user.clone().with("BLOOM_KEY", "wrong-key").does(&["stats"]).complains(1);
    assert!(!said.contains("wrong-key"), "{said}");
    user.does(&["task", "list", "--key-file", "nowhere"]).complains(2);
    user.does(&["stats", "--server", "ftp://x"]).complains(2);
    let without_scheme = server.base().trim_start_matches("http://");
    user.does(&["stats", "--server", without_scheme, "--key-file", "key"]).ok();
    for far in ["far.example.com", "far.example.com:5000", "192.0.2.1:5000"] {
        let said = user.does(&["stats", "--server", far]).complains(2);
        assert!(said.contains("begins with neither https:// nor http://"), "{said}");
    }
}

#[test]
fn an_error_tells_where_the_address_comes_from() {
    let server = guarded();
    let nowhere = format!("http://127.0.0.1:{}", janitor::free_port());
    let user = User::new();
    user.does(&["context", "set", "prod", "--server", &nowhere]).ok();
    user.does(&["context", "set", "home", "--server", server.base()]).ok();
    let said = user.does(&["stats"]).complains(1);
    assert!(said.contains(&format!("can't connect to {nowhere}, from the context prod, which is in use")), "{said}");
    let said = user.clone().with("BLOOM_CONTEXT", "home").does(&["stats"]).complains(1);
    assert!(said.contains("needs a key") && said.contains("dev.key") && said.contains("from the context home of BLOOM_CONTEXT"), "{said}");
    let said = user.clone().with("BLOOM_SERVER", &nowhere).does(&["stats"]).complains(1);
    assert!(said.contains(&format!("{nowhere}, from BLOOM_SERVER")), "{said}");
    let said = user.does(&["stats", "--server", &nowhere]).complains(1);
    assert!(!said.contains("from"), "{said}");
}

#[test]
fn contexts_are_kept_under_names() {
    let (server, other) = (guarded(), sqlite());
    let user = User::new();
    let done = user.does(&["context", "set", "prod", "--server", server.base(), "--key", "the-secret-key"]).ends(0);
    assert!(done.out.is_empty() && done.err == "prod is the current context now.\nIt works: scope admin.\n", "{done:?}");
    let done = user.does(&["context", "set", "home", "--server", other.base()]).ends(0);
    assert_eq!(done.err, "It works: the server asks for no key.\n", "the current context stays");
    let file = user.home.join(".config/bloom-runtime/config.toml");
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);

    user.does(&["stats"]).ok();
    let list = user.does(&["context", "list"]).ok();
    assert!(list.lines().any(|line| line.starts_with('*') && line.contains("prod")), "the first context is in use: {list}");
    let all = list + &user.does(&["context", "list", "-o", "json"]).ok() + &user.does(&["context", "list", "-o", "wide"]).ok();
    assert!(!all.contains("the-secret-key"), "{all}");

    assert_eq!(user.does(&["context", "use", "home"]).ends(0).err, "home is the current context now.\n");
    run(async {
        let crew = other.crew();
        let task = crew.task().create().await;
        user.does(&["task", "get", &task.id]).ok();
        user.does(&["task", "get", &task.id, "--use-context", "prod"]).complains(1);
        user.clone().with("BLOOM_CONTEXT", "prod").does(&["task", "get", &task.id]).complains(1);
    });
    user.does(&["stats", "--use-context", "prod"]).ok();
    let said = user.does(&["stats", "--use-context", "lost"]).complains(2);
    assert!(said.contains("home, prod"), "the error lists the contexts: {said}");
    user.does(&["context", "use", "lost"]).complains(2);
    let said = user.does(&["context", "rm", "home"]).ends(0).err;
    assert!(said.contains("home was the current context; none is current now") && said.contains("context use prod"), "{said}");
    assert_eq!(user.does(&["context", "list", "-o", "name"]).ok(), "prod\n");
    let said = user.does(&["context", "rm", "home"]).complains(2);
    assert!(said.contains("there is no context named home; there are: prod"), "{said}");
    let done = user.does(&["context", "rm", "prod"]).ends(0);
    assert_eq!(done.err, "", "it was not the current one");
    user.does(&["context", "set", "last", "--server", other.base()]).ok();
    let said = user.does(&["context", "rm", "last"]).ends(0).err;
    assert!(said.contains("last was the current context") && said.contains("context set NAME"), "{said}");
}

#[test]
fn the_key_of_a_context_is_tried() {
    let server = guarded();
    run(async {
        let user = User::new();
        let admin = user.clone().with("BLOOM_SERVER", server.base()).with("BLOOM_KEY", "the-secret-key");
        let key = admin.does(&["key", "create", "ann", "--scope", "submit"]).ok();
        let set = |server: &str, key: &str| user.does(&["context", "set", "x", "--server", server, "--key", key]).ends(0).err;
        let said = set(server.base(), key.trim_end());
        assert!(said.ends_with("It works: key ann, scope submit.\n"), "{said}");
        let said = set(server.base(), "wrong-key");
        assert!(said.starts_with("Warning: the server refuses this key") && !said.contains("wrong-key"), "{said}");
        let nowhere = format!("http://127.0.0.1:{}", janitor::free_port());
        let said = set(&nowhere, "a-key");
        assert!(said.starts_with(&format!("Warning: the server does not answer: can't connect to {nowhere}")), "{said}");
        assert!(user.does(&["context", "list"]).ok().contains(&nowhere), "it is stored all the same");
    });
}

#[test]
fn a_key_gets_to_no_other_server() {
    run(async {
        let stub = stub::Stub::start().await;
        let stats = r#"{"tasks":{"total":0,"by_status":{}},"leases":{"total":0,"active":0},"workers":{"total":0,"online":0}}"#;
        stub.always("/api/runtime/stats", stub::Reply::new(200, stats));
        let user = User::new();
        let elsewhere = "http://127.0.0.1:1";
        user.does(&["context", "set", "prod", "--server", elsewhere, "--key", "the-secret-key"]).ok();
        user.does(&["stats", "--server", &stub.url]).ok();
        user.clone().with("BLOOM_SERVER", &stub.url).does(&["stats"]).ok();
        let done = user.does(&["context", "set", "prod", "--server", &stub.url]).ends(0);
        assert!(done.err.contains("was removed"), "{}", done.err);
        user.does(&["stats"]).ok();
        user.does(&["context", "set", "prod", "--key", "another-key"]).ok();
        user.does(&["stats"]).ok();
        let seen = stub.seen("/api/runtime/stats");
        let keys: Vec<_> = seen.iter().map(|request| request.headers.get("x-runtime-api-key").map(|key| key.to_str().unwrap())).collect();
        assert_eq!(keys, [None, None, None, Some("another-key")]);
    });
}

#[test]
fn a_file_that_is_wrong_is_told_without_its_secrets() {
    let user = User::new();
    let dir = user.home.join(".config/bloom-runtime");
    std::fs::create_dir_all(&dir).unwrap();
    let file = dir.join("config.toml");
    std::fs::write(&file, "[contexts.a]\nserver = 'http://127.0.0.1:1'\nkey = 'the-secret-key' nonsense\n").unwrap();
    for command in [&["stats"][..], &["context", "list"], &["context", "set", "b", "--server", "http://127.0.0.1:1"]] {
        let said = user.does(command).complains(2);
        assert!(said.contains("config.toml") && said.contains("line 3") && !said.contains("the-secret-key"), "{said}");
    }
    user.does(&["context", "set", "b", "--server", "nonsense"]).complains(2);
    std::fs::write(&file, "[contexts.a]\nserver = 'http://127.0.0.1:1'\nkey = 'the-secret-key'\n").unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
    let done = user.does(&["context", "list"]).ends(0);
    assert!(done.err.contains("chmod 600"), "{}", done.err);
}

#[test]
fn who_looks_for_conversations_among_contexts_is_told() {
    let list = |form: &str| User::new().does(&["context", "list", "-o", form]).ends(0);
    assert!(list("table").err.contains("conversations are listed by bloom-runtime conversation list"));
    assert_eq!(list("json").err, "");
}
