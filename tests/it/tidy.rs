//! The shape of the house: which room may use which, how long a file may be, words that have no place in it.

use std::fs;
use std::path::{Path, PathBuf};

/// What each room may use; what a room does not list, it does not see. A room of its own `Cargo.toml` is a crate.
const ROOMS: &[(&str, &[&str])] = &[
    ("core", &[]),
    ("database", &["core"]),
    ("telemetry", &["core"]),
    ("store", &["core", "database"]),
    ("engine", &["core", "database", "telemetry"]),
    ("reconcile", &["core", "database", "engine"]),
    ("outbound", &[]),
    ("api", &["core"]),
    ("membridge", &["core", "engine", "outbound", "reconcile", "store"]),
    ("agents", &["core", "engine", "outbound", "reconcile"]),
    ("http", &["core", "api", "database", "engine", "store", "agents", "membridge", "telemetry"]),
    ("config", &["core", "telemetry"]),
    ("client", &["outbound"]),
    ("agent", &["core", "client", "telemetry"]),
    (
        "cli",
        &[
            "core",
            "api",
            "database",
            "store",
            "engine",
            "reconcile",
            "agents",
            "membridge",
            "http",
            "config",
            "client",
            "agent",
            "telemetry",
        ],
    ),
];

const LINES: usize = 400;

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Every file below, with these endings, by its path from the root.
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

/// The room of a file under `src`.
fn room(path: &Path) -> Option<String> {
    let inner = path.strip_prefix("src").ok()?;
    let first = inner.components().next()?.as_os_str().to_str()?;
    inner.parent().is_some_and(|dir| dir != Path::new("")).then(|| first.to_owned())
}

/// The manifest of a room that is a crate.
fn manifest(room: &str) -> Option<String> {
    fs::read_to_string(root().join("src").join(room).join("Cargo.toml")).ok()
}

/// The rooms that a crate's own code may use: those of tests, which have a section of their own, may be more.
fn dependencies(manifest: &str) -> Vec<&str> {
    let own = manifest.split("[dependencies]").nth(1).and_then(|rest| rest.split("\n[").next()).unwrap_or_default();
    own.lines().filter_map(|line| line.strip_prefix("bloom-")).filter_map(|line| line.split(['.', ' ', '=']).next()).collect()
}

/// The rooms that a line names by `crate::room`, also within braces: `use crate::{core::…, store}`.
fn named(text: &str) -> Vec<&str> {
    let mut rooms = Vec::new();
    for (at, _) in text.match_indices("crate::") {
        // `$crate::` is a macro's; `my_crate::` is somebody else's.
        if text[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == '$') {
            continue;
        }
        let rest = &text[at + "crate::".len()..];
        if let Some(list) = rest.strip_prefix('{') {
            let mut depth = 0;
            let mut start = 0;
            for (i, c) in list.char_indices() {
                match c {
                    '{' => depth += 1,
                    '}' if depth == 0 => {
                        rooms.push(list[start..i].trim());
                        break;
                    }
                    '}' => depth -= 1,
                    ',' if depth == 0 => {
                        rooms.push(list[start..i].trim());
                        start = i + 1;
                    }
                    _ => {}
                }
            }
        } else {
            rooms.push(rest);
        }
    }
    rooms
        .iter()
        .map(|path| path.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default())
        .filter(|word| !word.is_empty())
        .collect()
}

#[test]
fn rooms_use_only_what_they_may() {
    let mut wrong = Vec::new();
    for (path, text) in files("src", &["rs"]) {
        let Some(own) = room(&path) else { continue };
        let Some((_, allowed)) = ROOMS.iter().find(|(name, _)| *name == own) else {
            panic!("{} is in a room that the plan does not know", path.display());
        };
        if manifest(&own).is_some() {
            continue;
        }
        if ROOMS.iter().any(|(name, _)| text.contains(&format!("bloom_{name}::"))) {
            wrong.push(format!("{}: a crate is used past its name here", path.display()));
        }
        for other in named(&text) {
            let is_room = ROOMS.iter().any(|(name, _)| *name == other);
            if is_room && other != own && !allowed.contains(&other) {
                wrong.push(format!("{}: {own} uses {other}", path.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn rooms_that_are_crates_depend_only_on_what_they_may() {
    let mut crates = 0;
    for (room, allowed) in ROOMS {
        let Some(manifest) = manifest(room) else { continue };
        crates += 1;
        let wrong: Vec<_> = dependencies(&manifest).into_iter().filter(|other| !allowed.contains(other)).collect();
        assert!(wrong.is_empty(), "{room} depends on {wrong:?}");
    }
    assert_eq!(crates, 6);
}

#[test]
fn the_scan_sees_what_it_should() {
    let manifest = "[package]\n[dependencies]\nbloom-core.workspace = true\nbloom-store = { path = \"x\" }\nserde = \"1\"\n[dev-dependencies]\nbloom-http = \"1\"";
    assert_eq!(dependencies(manifest), ["core", "store"]);
    assert_eq!(named("use crate::core::task; crate::store::x()"), ["core", "store"]);
    assert_eq!(named("use crate::{core::{a, b}, http, api::x};"), ["core", "http", "api"]);
    assert_eq!(named("$crate::support::run(my_crate::x)"), Vec::<&str>::new());
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
        // Tests may do as they please.
        let text = text.split("#[cfg(test)]").next().unwrap_or_default();
        for word in forbidden {
            assert!(!text.contains(word), "{}: {word}", path.display());
        }
    }
}

#[test]
fn sql_is_written_in_the_store_alone() {
    for (path, text) in files("src", &["rs"]) {
        if room(&path).as_deref() != Some("store") {
            assert!(!text.contains("sqlx::query") && !text.contains("INSERT INTO "), "{}", path.display());
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
    for name in ["README.md", "ARCHITECTURE.md", "CHANGELOG.md"] {
        let text = fs::read_to_string(root().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
        for part in text.split("](").skip(1) {
            let target = part.split(')').next().unwrap_or_default().split('#').next().unwrap_or_default();
            if !target.is_empty() && !target.contains("://") {
                assert!(root().join(target).exists(), "{name} points to {target}, which is not there");
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
