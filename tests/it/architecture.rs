//! What the compiler does not check of ARCHITECTURE.md: which crates must stay apart, that no two files use each other, how long a file
//! may be, words that have no place in the code.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Of code: what a public item means must not have to be short.
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

/// All that can be reached from there, step by step.
fn reached<T: Clone + Ord>(from: &T, next: impl Fn(&T) -> Vec<T>) -> BTreeSet<T> {
    let mut found = BTreeSet::new();
    let mut open = next(from);
    while let Some(one) = open.pop() {
        if found.insert(one.clone()) {
            open.extend(next(&one));
        }
    }
    found
}

#[test]
fn clients_build_without_the_server() {
    for client in ["client", "commands", "worker"] {
        let next = |name: &String| name.strip_prefix("bloom-").map(dependencies).unwrap_or_default();
        let reached = reached(&format!("bloom-{client}"), next);
        assert!(reached.contains("bloom-outbound"), "the scan sees {reached:?}");
        for server in ["bloom-engine", "bloom-http", "bloom-store", "sqlx", "utoipa-axum"] {
            assert!(!reached.contains(server), "{client} depends on {server}");
        }
    }
}

#[test]
fn the_core_depends_on_nothing_but_data() {
    // strsim compares texts: it has no clock, randomness or I/O either.
    assert_eq!(dependencies("core"), ["serde", "strsim", "utoipa", "uuid"]);
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

/// Pools that are made in another way have a task that may loop for ever.
#[test]
fn pools_are_made_in_one_place() {
    let sources = files("src/store", &["rs"]);
    let makers = ["PoolOptions::new", "PoolOptions::<", "Pool::connect", "PgListener::connect("];
    let made: Vec<_> = sources.iter().filter(|(_, text)| makers.iter().any(|maker| text.contains(maker))).map(|(path, _)| path).collect();
    assert_eq!(made, [Path::new("src/store/sql/conn.rs")]);
}

/// After a renaming, the old name would lead nowhere.
#[test]
fn the_modules_that_the_code_map_names_exist() {
    let text = fs::read_to_string(root().join("docs/design/code-map.md")).expect("the code map");
    let mut seen = 0;
    // The part about the root is about commands.
    for part in text.split("\n## ").filter(|part| part.starts_with('`')) {
        let (name, about) = part.split_once('\n').expect("a crate and its modules");
        let name = name.trim_matches('`');
        let of_crate: BTreeSet<String> = files(&format!("src/{name}"), &["rs"])
            .iter()
            .flat_map(|(path, _)| path.iter().map(|part| part.to_string_lossy().trim_end_matches(".rs").to_owned()).collect::<Vec<_>>())
            .collect();
        let is_module = |word: &&str| !word.is_empty() && word.chars().all(|c| c.is_ascii_lowercase() || c == '_' || c == '/');
        for module in about.split('`').skip(1).step_by(2).filter(is_module) {
            let last = module.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
            assert!(of_crate.contains(last) || root().join("src").join(last).is_dir(), "{name} has no module `{module}`");
            seen += 1;
        }
    }
    assert!(seen > 60, "the scan sees {seen} modules");
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

/// The paths that a text has wherever one of these words begins one, as in `use super::{a, b::{c, d as e}};`.
fn paths<'a>(text: &'a str, beginnings: &[&str]) -> Vec<Vec<&'a str>> {
    let mut found = Vec::new();
    for beginning in beginnings {
        // Not in the middle: `super::super::a` is one path.
        for (at, _) in text.match_indices(beginning).filter(|(at, _)| !text[..*at].ends_with("::")) {
            add_paths(&mut found, &[], text[at..].trim_start_matches("use "));
        }
    }
    found
}

/// Adds the paths of one tree and answers the text behind it.
fn add_paths<'a>(found: &mut Vec<Vec<&'a str>>, before: &[&'a str], tree: &'a str) -> &'a str {
    let is_name = |c: char| c.is_alphanumeric() || c == '_' || c == '*';
    let (name, rest) = tree.split_at(tree.find(|c| !is_name(c)).unwrap_or(tree.len()));
    let path = [before, &[name]].concat();
    let Some(below) = rest.strip_prefix("::") else {
        found.push(path);
        return rest;
    };
    let Some(mut group) = below.strip_prefix('{') else { return add_paths(found, &path, below) };
    loop {
        group = group.trim_start_matches(|c: char| c == ',' || c.is_whitespace());
        if group.is_empty() || group.starts_with('}') {
            return group.get(1..).unwrap_or_default();
        }
        // Behind the path may stand `as another_name`.
        group = add_paths(found, &path, group).trim_start_matches(|c| c != ',' && c != '}');
    }
}

/// The file in which a path ends that leads from this directory. `None`: the directory's head, or nothing of the crate.
fn file_of(directory: &Path, path: &[&str]) -> Option<PathBuf> {
    let (name, below) = path.split_first()?;
    let file = directory.join(name).with_extension("rs");
    if root().join(&file).exists() {
        return Some(file);
    }
    if root().join(directory).join(name).join("mod.rs").exists() {
        return file_of(&directory.join(name), below);
    }
    // The head may hand the name on from a file below.
    let head = fs::read_to_string(root().join(directory).join("mod.rs")).unwrap_or_default();
    let handed_on = paths(&head, &["use "]).into_iter().find(|path| path.len() == 2 && path[1] == *name)?;
    Some(directory.join(handed_on[0]).with_extension("rs")).filter(|file| root().join(file).exists())
}

/// The files of its crate that a file uses, but for its tests.
fn used_files(file: &Path, text: &str) -> Vec<PathBuf> {
    let code = text.split("#[cfg(test)]").next().unwrap_or_default();
    let code: String = code.lines().filter(|line| !line.trim_start().starts_with("//")).map(|line| format!("{line}\n")).collect();
    let paths = paths(&code, &["super::", "crate::"]);
    let found = paths.iter().filter_map(|path| {
        let ups = path.iter().take_while(|name| **name == "super").count();
        let is_crate = |dir: &&Path| dir.as_os_str() == "src" || root().join(dir).join("Cargo.toml").exists();
        let directory = if ups > 0 { file.ancestors().nth(ups) } else { file.ancestors().skip(1).find(is_crate) };
        file_of(directory?, &path[ups.max(1)..])
    });
    found.filter(|used| used != file).collect()
}

/// A directory's head, `mod.rs`, belongs to all files of the directory: a type that it defines may have its methods in several of them.
#[test]
fn no_files_use_each_other_in_a_circle() {
    let sources = files("src", &["rs"]).into_iter().filter(|(file, _)| !file.ends_with("mod.rs"));
    let uses: BTreeMap<PathBuf, Vec<PathBuf>> = sources.map(|(file, text)| (file.clone(), used_files(&file, &text))).collect();
    let scanned = |file: &str, used: &str| uses[Path::new(file)].contains(&PathBuf::from(used));
    assert!(scanned("src/store/reads/lists.rs", "src/store/reads/page.rs"), "a file beside it");
    assert!(scanned("src/bench/queue.rs", "src/bench/load.rs"), "in a group");
    assert!(scanned("src/commands/term.rs", "src/commands/error.rs"), "by its crate's head");
    let next = |file: &PathBuf| uses.get(file).cloned().unwrap_or_default();
    let circles: Vec<_> = uses.iter().filter(|(file, _)| reached(*file, next).contains(*file)).collect();
    assert!(circles.is_empty(), "these files use each other in a circle: {circles:#?}");
}

#[test]
fn files_are_short_enough_to_see_whole() {
    let all = files("src", &["rs"]).into_iter().chain(files("tests", &["rs"]));
    let code = |text: &str| text.lines().map(str::trim_start).filter(|line| !line.is_empty() && !line.starts_with("//")).count();
    let long = all.map(|(path, text)| (code(&text), path)).filter(|(lines, _)| *lines > LINES).collect::<Vec<_>>();
    assert!(long.is_empty(), "more than {LINES} lines of code: {long:#?}");
}

#[test]
fn all_libraries_require_documentation() {
    let manifests = files("src", &["toml"]);
    let libraries: BTreeSet<_> = manifests.iter().map(|(path, _)| path.with_file_name("mod.rs")).collect();
    let heads = files("src", &["rs"]).into_iter().filter(|(path, _)| libraries.contains(path));
    let without: Vec<_> =
        heads.filter(|(_, text)| !text.contains("\n#![warn(missing_docs, unreachable_pub)]\n")).map(|(path, _)| path).collect();
    assert!(without.is_empty(), "{without:#?}");
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
    let pages: Vec<_> = ["docs", "charts", "manifests"].iter().flat_map(|dir| files(dir, &["md"])).collect();
    assert!(pages.len() > 5, "the scan sees {} pages", pages.len());
    let named = ["README.md", "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"].map(|name| {
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

/// Who reads it first must see the whole.
#[test]
fn the_architecture_is_a_page() {
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).expect("ARCHITECTURE.md");
    assert!(text.lines().count() <= 200, "{} lines", text.lines().count());
    let cells = text.lines().filter(|line| line.starts_with('|')).flat_map(|line| line.split('|'));
    let long: Vec<_> = cells.filter(|cell| cell.trim().chars().count() > 200).collect();
    assert!(long.is_empty(), "{long:#?}");
}

#[test]
fn both_dialects_have_the_same_migrations() {
    let names = |dialect: &str| {
        let listed = files(&format!("migrations/{dialect}"), &["sql"]);
        listed.iter().map(|(path, _)| path.file_name().expect("a name").to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(names("sqlite"), names("postgres"));
}

#[test]
fn the_version_is_the_same_everywhere() {
    let read = |path: &str| fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"));
    let version = env!("CARGO_PKG_VERSION");
    for (path, line) in [
        ("charts/bloom-runtime/Chart.yaml", "version: "),
        ("charts/bloom-runtime/Chart.yaml", "appVersion: "),
        ("manifests/alpine/APKBUILD", "pkgver="),
    ] {
        assert!(read(path).lines().any(|text| text == format!("{line}{version}")), "{path} has no line {line}{version}");
    }
    let changelog = read("CHANGELOG.md");
    let newest = changelog.lines().find_map(|line| line.strip_prefix("## ")).expect("a version");
    assert_eq!(newest.split(',').next(), Some(version), "the first heading of CHANGELOG.md");
}
