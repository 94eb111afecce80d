//! The Helm chart: what it renders, and what a cluster makes of it. `tests/run kubernetes` builds helm.

mod generated;
mod monitoring;
mod objects;
mod pods;
mod release;
mod roles;
mod values;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Deserialize as _;
use serde_json::Value;

pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

pub fn chart() -> PathBuf {
    root().join("charts/bloom-runtime")
}

pub fn text(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// All documents of a text.
pub fn yaml(text: &str) -> Vec<Value> {
    let documents = serde_norway::Deserializer::from_str(text).map(|document| Value::deserialize(document).unwrap());
    documents.filter(|document| !document.is_null()).collect()
}

pub fn helm() -> Command {
    Command::new(std::env::var_os("HELM").expect("HELM: run tests/run kubernetes"))
}

/// Runs helm without a cluster. Returns its output if it succeeds, else the text of its error.
pub fn offline(arguments: &[&str]) -> Result<String, String> {
    let output = helm().args(arguments).env_remove("KUBECONFIG").output().expect("helm");
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    if output.status.success() { Ok(text(output.stdout)) } else { Err(text(output.stderr)) }
}

/// The sets of values that the chart is tested with.
pub fn sets() -> Vec<PathBuf> {
    let files = fs::read_dir(chart().join("ci")).unwrap().map(|file| file.unwrap().path());
    let mut sets: Vec<PathBuf> = files.collect();
    sets.sort();
    assert!(sets.len() >= 5, "{sets:?}");
    sets
}

pub fn set(name: &str) -> PathBuf {
    chart().join(format!("ci/{name}-values.yaml"))
}

/// The text of what `helm template` makes of the chart, as the release `r`.
pub fn template(namespace: &str, values: &Path, more: &[&str]) -> Result<String, String> {
    template_as("r", namespace, values, more)
}

pub fn template_as(release: &str, namespace: &str, values: &Path, more: &[&str]) -> Result<String, String> {
    let (chart, values) = (chart(), values.display().to_string());
    let arguments = ["template", release, chart.to_str().unwrap(), "--namespace", namespace, "--values", &values];
    offline(&[&arguments[..], more].concat())
}

/// The objects of a set of values.
pub fn rendered(name: &str, more: &[&str]) -> Vec<Value> {
    yaml(&template("here", &set(name), more).unwrap())
}

pub fn of_kind<'a>(objects: &'a [Value], kind: &str) -> Vec<&'a Value> {
    objects.iter().filter(|object| object["kind"] == kind).collect()
}

/// The one object of this kind.
pub fn the<'a>(objects: &'a [Value], kind: &str) -> &'a Value {
    let found = of_kind(objects, kind);
    assert_eq!(found.len(), 1, "objects of kind {kind}");
    found[0]
}
