//! The rules of ARCHITECTURE.md that the compiler does not check: which crates must be independent, how long a file may be, and words that
//! must not appear in the code.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

const LINES: usize = 400;

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// All files below a directory with these extensions, by their path from the root.
fn files(below: &str, endings: &[&str]) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    let mut open = vec![root().join(below)];
    while let Some(dir) = open.pop() {
        let Ok(entries) = fs::read_dir(&dir) else { continue };
        for path in entries.flatten().map(|entry| entry.path()) {
            if path.is_dir() {
                open.push(path);
            } else if path.extension().and_then(|end| end.to_str()).is_some_and(|end| endings.contains(&end)) {
                let text = fs::read_to_string(&path).expect("a text file");
                found.push((path.strip_prefix(root()).expect("below the root").to_owned(), text));
            }
        }
    }
    found.sort();
    assert!(!found.is_empty(), "nothing below {below}");
    found
}

/// The `[dependencies]` of a crate below `src`, without those of its tests.
fn dependencies(name: &str) -> Vec<String> {
    let path = root().join("src").join(name).join("Cargo.toml");
    let manifest = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let own = manifest.split("\n[dependencies]\n").nth(1).and_then(|rest| rest.split("\n[").next()).unwrap_or_default();
    own.lines().filter_map(|line| line.split(['.', ' ', '=']).next()).filter(|word| !word.is_empty()).map(str::to_owned).collect()
}

/// All dependencies of a crate below `src`, including those of other crates of this workspace.
fn reached(name: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut open = vec![name.to_owned()];
    while let Some(next) = open.pop() {
        for dependency in dependencies(&next) {
            if found.insert(dependency.clone()) {
                open.extend(dependency.strip_prefix("bloom-").map(str::to_owned));
            }
        }
    }
    found
}

#[test]
fn clients_build_without_the_server() {
    for client in ["client", "commands", "worker"] {
        let reached = reached(client);
        assert!(reached.contains("bloom-outbound"), "the scan sees {reached:?}");
        for server in ["bloom-engine", "bloom-http", "bloom-store", "sqlx", "utoipa-axum"] {
            assert!(!reached.contains(server), "{client} depends on {server}");
        }
    }
}

#[test]
fn the_core_depends_on_nothing_but_data() {
    assert_eq!(dependencies("core"), ["serde", "utoipa", "uuid"]);
}

#[test]
fn only_the_store_knows_sql() {
    for entry in fs::read_dir(root().join("src")).expect("src").flatten() {
        let name = entry.file_name().into_string().expect("a name");
        if entry.path().join("Cargo.toml").exists() && name != "store" {
            assert!(!dependencies(&name).iter().any(|dependency| dependency == "sqlx"), "{name} depends on sqlx");
        }
    }
}

#[test]
fn the_core_knows_no_clock_no_chance_and_no_outside() {
    let forbidden = [
        "std::time::",
        "SystemTime",
        "Instant::now",
        "tokio",
        "async fn",
        "std::fs",
        "std::net",
        "std::env",
        "rand::",
        "sqlx",
        "Uuid::now_v7",
        "println!",
    ];
    for (path, text) in files("src/core", &["rs"]) {
        // Tests may use all of these.
        if path.starts_with("src/core/tests") {
            continue;
        }
        let text = text.split("#[cfg(test)]").next().unwrap_or_default();
        for word in forbidden {
            assert!(!text.contains(word), "{}: {word}", path.display());
        }
    }
}

#[test]
fn files_are_short_enough_to_see_whole() {
    let all = files("src", &["rs"]).into_iter().chain(files("tests", &["rs"]));
    let long = all.map(|(path, text)| (text.lines().count(), path)).filter(|(lines, _)| *lines > LINES).collect::<Vec<_>>();
    assert!(long.is_empty(), "more than {LINES} lines: {long:#?}");
}

#[test]
fn nothing_is_left_for_later() {
    let words = ["TODO", "FIXME", "XXX", "HACK", "unimplemented!", "todo!(", "dbg!("];
    for (path, text) in files("src", &["rs"]) {
        for word in words {
            assert!(!text.contains(word), "{}: {word}", path.display());
        }
    }
}

#[test]
fn documents_lead_where_they_say() {
    let pages = files("docs", &["md"]);
    assert!(pages.len() > 5, "the scan sees {} pages", pages.len());
    let named = ["README.md", "ARCHITECTURE.md", "CHANGELOG.md"].map(|name| {
        let text = fs::read_to_string(root().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
        (PathBuf::from(name), text)
    });
    for (path, text) in named.into_iter().chain(pages) {
        let dir = root().join(path.parent().expect("a directory"));
        for part in text.split("](").skip(1) {
            let target = part.split(')').next().unwrap_or_default().split('#').next().unwrap_or_default();
            if !target.is_empty() && !target.contains("://") {
                assert!(dir.join(target).exists(), "{} points to {target}, which is not there", path.display());
            }
        }
    }
}

#[test]
fn both_dialects_have_the_same_migrations() {
    let names = |dialect: &str| {
        let listed = files(&format!("migrations/{dialect}"), &["sql"]);
        listed.iter().map(|(path, _)| path.file_name().expect("a name").to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(names("sqlite"), names("postgres"));
}
