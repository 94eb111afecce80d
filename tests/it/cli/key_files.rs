//! Files with keys: who can read them, and that none is lost.

use std::os::unix::fs::PermissionsExt;

use super::*;
use crate::keys::{ADMIN, keyed};

fn mode(path: &std::path::Path) -> u32 {
    std::fs::metadata(path).expect("the file").permissions().mode() & 0o777
}

#[test]
fn a_key_goes_into_a_file_of_its_own() {
    let server = keyed(Database::Sqlite);
    let user = User::at(&server).with("BLOOM_KEY", ADMIN);
    let create = ["key", "create", "ci", "--scope", "submit", "--out", "ci.key"];
    let made = user.does(&create).ends(0);
    let path = user.home.join("ci.key");
    let key = std::fs::read_to_string(&path).unwrap();
    assert!(key.starts_with("bloom_") && key.ends_with('\n') && made.out.is_empty() && !made.err.contains(key.trim()), "{made:?}");
    assert!(made.err.contains("ci.key"), "{}", made.err);
    assert_eq!(mode(&path), 0o600);
    let own = User::at(&server).with("BLOOM_KEY_FILE", path.to_str().unwrap());
    let listed = own.does(&["task", "list"]).ends(0);
    assert!(!listed.err.contains("Warning"), "nobody else can read the file: {}", listed.err);

    // The file is there: nothing is created on the server, and the key that it has stays.
    let said = user.does(&["key", "create", "other", "--scope", "submit", "--out", "ci.key"]).complains(2);
    assert!(said.contains("ci.key exists already"), "{said}");
    assert_eq!(user.does(&["key", "list", "-o", "name"]).ok(), "ci\n");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), key);
    // The call is refused: no file stays.
    let said = user.does(&["key", "create", "ci", "--scope", "submit", "--out", "second.key"]).complains(1);
    assert!(said.contains("revoke it first") && !user.home.join("second.key").exists(), "{said}");
    // The file can't be made: nothing is created on the server.
    user.does(&["key", "create", "third", "--scope", "read", "--out", "no/such/dir/third.key"]).complains(1);
    assert_eq!(user.does(&["key", "list", "-o", "name"]).ok(), "ci\n");

    let whole = user.does(&["key", "create", "w", "--scope", "read", "--out", "w.key", "-o", "json"]).json();
    assert_eq!((&whole["name"], whole.get("key")), (&json!("w"), None), "the key is in the file only");
    user.does(&["key", "create", "t", "--scope", "join", "--out", "join.token"]).ok();
    let enroll = ["key", "enroll", "w2", "--key-file", "join.token", "--out", "w2.key"];
    let mut machine = User::at(&server);
    machine.home.clone_from(&user.home);
    let made = machine.does(&enroll).ends(0);
    assert!(made.out.is_empty() && mode(&user.home.join("w2.key")) == 0o600, "{made:?}");
    machine.does(&["key", "enroll", "w3", "--key-file", "join.token", "--out", "w3.key"]).complains(1);
    assert!(!user.home.join("w3.key").exists());
}

#[test]
fn a_key_file_that_others_can_read_is_warned_of() {
    let server = keyed(Database::Sqlite);
    let user = User::at(&server);
    let path = user.home.join("admin.key");
    std::fs::write(&path, ADMIN).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
    let by_flag = user.does(&["stats", "--key-file", "admin.key"]).ends(0);
    assert!(by_flag.err.contains("admin.key") && by_flag.err.contains("0644") && by_flag.err.contains("chmod 600"), "{}", by_flag.err);
    let by_variable = user.clone().with("BLOOM_KEY_FILE", "admin.key").does(&["stats"]).ends(0);
    assert!(by_variable.err.contains("chmod 600"), "{}", by_variable.err);
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!(user.does(&["stats", "--key-file", "admin.key"]).ends(0).err, "");
}

#[test]
fn an_empty_key_file_is_explained() {
    let user = User::new();
    std::fs::write(user.home.join("ci.key"), "\n").unwrap();
    let said = user.does(&["stats", "--key-file", "ci.key"]).complains(2);
    assert!(said.contains("ci.key: it is empty") && said.contains("`> FILE` empties") && said.contains("--out FILE"), "{said}");
}

#[test]
fn a_key_of_a_flag_wins_over_both_variables() {
    let server = keyed(Database::Sqlite);
    let user = User::at(&server).with("BLOOM_KEY", "another").with("BLOOM_KEY_FILE", "gone.key");
    std::fs::write(user.home.join("own.key"), ADMIN).unwrap();
    user.does(&["stats", "--key-file", "own.key"]).ends(0);
    user.does(&["stats", "--key", ADMIN]).ends(0);
    for words in [&["stats"][..], &["agent"]] {
        let said = user.does(words).complains(2);
        assert!(said.contains("BLOOM_KEY and BLOOM_KEY_FILE are"), "{said}");
    }
    for flag in ["--key-file", "--join-token-file"] {
        let said = user.does(&["agent", flag, "missing.key"]).complains(2);
        assert!(said.contains("the key file missing.key"), "{said}");
    }
    let said = user.does(&["agent", "--key", "k", "--key-file", "own.key"]).complains(2);
    assert!(said.contains("--key-file") && said.contains("cannot be used with"), "{said}");
}
