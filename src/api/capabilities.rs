//! What a worker can do, as its agent says: what this program knows, and what else is kept and shown as it came.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;
use serde_json::value::RawValue;
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::Schema;

use super::json::Json;
use super::namespaces::Namespace;
use super::projects::ProjectName;
use super::values::{Int, List, ShortName, Text};
use super::wire::{Members, Problems, Wire, body, deserialize, problem, within};
use bloom_core::limits;
use bloom_core::project::MAX_WORKER_PROJECTS;
use bloom_core::worker::{KNOWN_CAPABILITIES, MAX_CONCURRENCY, other_capabilities};

body! {
    /// What a worker can do. Other fields are stored and returned unchanged: at most 32, and 4 KiB together.
    #[derive(Default)]
    pub struct NewCapabilities {
        /// Whether it can run the Claude CLI. Workers that claim tasks do not need it. Default true.
        claude_cli: Option<bool>,
        /// Number of slots: how many tasks it can run at a time. Default 1.
        max_concurrency: Option<Int<1, MAX_CONCURRENCY>>,
        /// Labels of the worker, for people. Default: none.
        labels: Option<List<Text<0, { limits::WORKER_LABEL_CHARS }>, 0, { limits::WORKER_LABELS }>>,
        /// The agents (slugs) that it serves; absent = all, even if the worker served only some before.
        agents: Option<List<ShortName, 0, { limits::WORKER_AGENTS }>>,
        /// The agents (slugs) for which it has profiles of their own, so that the server can warn of a task whose agent is misspelt. It
        /// serves them only if `agents` is absent or has them. Default: not reported.
        profiles: Option<List<ShortName, 0, { limits::WORKER_AGENTS }>>,
        /// The Kubernetes namespaces whose LLMTasks it serves, and no other tasks; absent = all tasks, also those of no namespace. With
        /// `agents`, at most 512 pairs of both.
        namespaces: Option<List<Namespace, 0, { limits::WORKER_NAMESPACES }>>,
        /// Whether it can clone any project. Default false, even if the worker could before.
        git: Option<bool>,
        /// The names of the projects whose tasks it serves, whether or not it has `git`; absent = all if it has `git`, else none. It also
        /// serves tasks without a project. `agents`, `namespaces` and `projects` may have at most 512 combinations; tasks without a project
        /// count as one more project.
        projects: Option<List<ProjectName, 0, MAX_WORKER_PROJECTS>>,
    }
}

/// The capabilities of a registration.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GivenCapabilities {
    /// The fields that this program knows.
    pub known: NewCapabilities,
    /// JSON texts by their names.
    pub other: BTreeMap<String, String>,
}

impl GivenCapabilities {
    /// The fields that this program knows no meaning of.
    fn read_other(members: &Members<'_>) -> Result<BTreeMap<String, String>, Problems> {
        let mut found = BTreeMap::new();
        for (name, raw) in members.iter().filter(|(name, raw)| !KNOWN_CAPABILITIES.contains(name) && raw.get() != "null") {
            let Json(text) = Json::<{ limits::OTHER_CAPABILITIES_BYTES }>::read(raw).map_err(|found| within(name.to_owned(), found))?;
            found.insert(name.to_owned(), text);
        }
        other_capabilities(found).or_else(problem)
    }
}

impl Wire for GivenCapabilities {
    fn read(raw: &RawValue) -> Result<Self, Problems> {
        let known = NewCapabilities::read(raw)?;
        Ok(Self { known, other: Self::read_other(&Members::of(raw)?)? })
    }

    fn describe() -> Schema {
        NewCapabilities::describe()
    }

    fn refer() -> RefOr<Schema> {
        NewCapabilities::refer()
    }

    fn components(found: &mut Vec<(String, RefOr<Schema>)>) {
        NewCapabilities::components(found);
    }
}

impl Serialize for GivenCapabilities {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Flat<'a> {
            #[serde(flatten)]
            known: &'a NewCapabilities,
            #[serde(flatten)]
            other: BTreeMap<&'a str, Value>,
        }
        Flat { known: &self.known, other: shown(&self.other) }.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for GivenCapabilities {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserialize(deserializer)
    }
}

/// What is kept, as JSON again.
pub fn shown(other: &BTreeMap<String, String>) -> BTreeMap<&str, Value> {
    other.iter().map(|(name, text)| (name.as_str(), serde_json::from_str(text).unwrap_or_default())).collect()
}
