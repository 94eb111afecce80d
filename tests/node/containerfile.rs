//! Reads a Containerfile: what its last stage copies, and how its containers start.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use crate::support::{Value, json};

/// One file or directory that is copied from an earlier stage.
pub struct Copy {
    pub stage: String,
    pub source: String,
    pub target: String,
    /// As in `--chown=USER:GROUP` and `--chmod=MODE`.
    pub owner: Option<String>,
    pub mode: Option<String>,
}

/// The last stage of a Containerfile.
#[derive(Default)]
pub struct Stage {
    /// The image that it begins with; `scratch` is none.
    pub base: String,
    pub copies: Vec<Copy>,
    environment: BTreeMap<String, String>,
    user: String,
    directory: String,
    entrypoint: Value,
    command: Value,
}

impl Stage {
    pub fn last_of(name: &str) -> Self {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("manifests/container").join(name);
        let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let text: String = text.lines().filter(|line| !line.starts_with('#')).map(|line| format!("{line}\n")).collect();
        let mut stage = Stage::default();
        for line in text.replace("\\\n", " ").lines().filter(|line| !line.trim().is_empty()) {
            let (word, rest) = line.split_once(' ').unwrap_or_else(|| panic!("{name}: {line}"));
            match word {
                // Each stage forgets the one before.
                "FROM" => {
                    let base = rest.split(' ').next().expect("an image");
                    stage = Stage { base: base.to_owned(), ..Stage::default() };
                }
                "COPY" => stage.copies.extend(copy(rest)),
                "ENV" => stage.environment.extend(rest.split(' ').map(|pair| {
                    let (name, value) = pair.split_once('=').expect("NAME=VALUE");
                    (name.to_owned(), value.to_owned())
                })),
                "USER" => rest.clone_into(&mut stage.user),
                "WORKDIR" => rest.clone_into(&mut stage.directory),
                "ENTRYPOINT" => stage.entrypoint = serde_json::from_str(rest).expect("a list of words"),
                "CMD" => stage.command = serde_json::from_str(rest).expect("a list of words"),
                // `tests/run` runs those of a last stage on its base.
                "RUN" => assert!(stage.copies.is_empty(), "{name}: RUN after COPY can't be done here: {line}"),
                "ARG" | "EXPOSE" => {}
                _ => panic!("{name}: this can't be done here: {line}"),
            }
        }
        stage
    }

    /// What the image says about its containers.
    pub fn configuration(&self) -> Value {
        let environment: Vec<String> = self.environment.iter().map(|(name, value)| format!("{name}={value}")).collect();
        json!({
            "Env": environment, "User": self.user, "WorkingDir": self.directory, "Entrypoint": self.entrypoint, "Cmd": self.command,
        })
    }
}

/// `None`: it is copied from the sources, into a stage before the last one.
fn copy(rest: &str) -> Option<Copy> {
    let (flags, paths): (Vec<&str>, Vec<&str>) = rest.split(' ').partition(|word| word.starts_with("--"));
    let flag = |name: &str| flags.iter().find_map(|flag| Some(flag.strip_prefix(name)?.strip_prefix('=')?.to_owned()));
    let [source, target] = paths[..] else { return None };
    let (source, target) = (source.to_owned(), target.to_owned());
    Some(Copy { stage: flag("--from")?, source, target, owner: flag("--chown"), mode: flag("--chmod") })
}

#[test]
fn the_server_is_built_from_the_sources_with_their_compiler() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let text = fs::read_to_string(root.join("manifests/container/Containerfile")).expect("the Containerfile");
    let compiler = format!("/rust:{}-", env!("CARGO_PKG_RUST_VERSION"));
    assert!(text.contains(&compiler), "no image {compiler}");
    let copied: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("COPY ")).filter(|copy| !copy.starts_with("--")).collect();
    let sources: Vec<&str> = copied.iter().flat_map(|copy| copy.rsplit_once(' ').expect("a target").0.split(' ')).collect();
    for source in &sources {
        assert!(root.join(source).exists(), "{source}");
    }
    // Without one of these, cargo or the compiler refuses.
    for needed in ["Cargo.toml", "Cargo.lock", "migrations", "src", "tests"] {
        assert!(sources.contains(&needed), "{needed} is not copied");
    }
}
