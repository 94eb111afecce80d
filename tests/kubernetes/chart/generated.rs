//! Files that are made from others are up to date: copies in the chart, the table of values in its README, that of
//! settings in the docs, and the manifests for kubectl.
//! `UPDATE_GENERATED=1 tests/run generated_files` writes them.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use bloom_config::SETTINGS;
use serde_json::Value;

use super::{chart, of_kind, root, template_as, text, the, yaml};

/// Compares a file with what it should be, or writes it.
fn keep(path: &Path, wanted: &str) {
    if std::env::var_os("UPDATE_GENERATED").is_some() {
        fs::write(path, wanted).unwrap();
    }
    let kept = fs::read_to_string(path).unwrap_or_default();
    assert!(kept == wanted, "{} is not up to date: run UPDATE_GENERATED=1 tests/run generated_files", path.display());
}

/// The file with another text between these two, each of which ends a line.
fn with_part(path: &Path, begin: &str, end: &str, part: &str) -> String {
    let page = text(path);
    let (before, rest) = page.split_once(begin).unwrap_or_else(|| panic!("{} has no {begin:?}", path.display()));
    let (_, after) = rest.split_once(&format!("\n{end}")).unwrap_or_else(|| panic!("{} has no {end:?}", path.display()));
    format!("{before}{begin}{part}{end}{after}")
}

fn files(dir: &Path) -> BTreeSet<String> {
    fs::read_dir(dir).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap()).collect()
}

/// Helm reads only files of the chart, so it has copies; the manifests are rendered from them.
#[test]
fn generated_files_are_up_to_date() {
    let (crds, copies, manifests) = (root().join("crds"), chart().join("files/crds"), root().join("manifests/kubernetes"));
    let mut all = String::from("# The custom resource definitions, as `bloom-runtime crds` prints them.\n");
    for name in files(&crds) {
        let crd = text(&crds.join(&name));
        keep(&copies.join(&name), &crd);
        all += &format!("---\n{crd}");
    }
    assert_eq!(files(&copies), files(&crds));
    keep(&chart().join("files/operator-rbac.yaml"), &text(&manifests.join("operator-rbac.yaml")));
    for source in ["prometheus/rules.yaml", "grafana/dashboard.json"] {
        let source = root().join("manifests").join(source);
        keep(&chart().join("files").join(source.file_name().unwrap()), &text(&source));
    }
    keep(&chart().join("README.md"), &readme());
    keep(&root().join("docs/settings.md"), &settings());
    keep(&chart().join("Chart.yaml"), &head());
    keep(&manifests.join("crds.yaml"), &all);
    for name in ["install", "install-namespaced"] {
        keep(&manifests.join(format!("{name}.yaml")), &manifest(&manifests.join(format!("{name}.values.yaml"))));
    }
}

/// Chart.yaml with the list of definitions for Artifact Hub.
fn head() -> String {
    let mut list = String::new();
    for crd in bloom_operator::crds::all().unwrap() {
        let version = &crd.spec.versions[0];
        let schema = version.schema.as_ref().and_then(|schema| schema.open_api_v3_schema.as_ref()).unwrap();
        let about = schema.description.as_deref().unwrap().split_whitespace().collect::<Vec<_>>().join(" ");
        let sentence = about.split_once(". ").map_or(about.trim_end_matches('.'), |(first, _)| first);
        let (kind, name) = (&crd.spec.names.kind, crd.metadata.name.as_ref().unwrap());
        list += &format!("    - kind: {kind}\n      version: {}\n      name: {name}\n      displayName: {kind}\n", version.name);
        list += &format!("      description: {}\n", serde_json::to_string(&format!("{sentence}.")).unwrap());
    }
    with_part(&chart().join("Chart.yaml"), "  artifacthub.io/crds: |\n", "  artifacthub.io/crdsExamples: |\n", &list)
}

/// What Helm renders, without what only Helm needs.
fn manifest(values: &Path) -> String {
    let objects = template_as("bloom-runtime", "bloom-runtime", values, &["--skip-tests"]).unwrap();
    let of_helm = ["helm.sh/", "app.kubernetes.io/managed-by: Helm", "# Source: "];
    let kept = objects.lines().filter(|line| !line.trim().is_empty() && !of_helm.iter().any(|word| line.trim_start().starts_with(word)));
    // A key whose only member was of Helm.
    let text = kept.map(|line| format!("{line}\n")).collect::<String>().replace("  annotations:\nspec:", "spec:");
    format!(
        "# See README.md: the Secret `bloom-runtime-keys` must exist. Made from the chart with {}.\n{text}",
        values.file_name().unwrap().display()
    )
}

/// The README with the table of values as their comments in values.yaml describe them.
fn readme() -> String {
    let values: Value = serde_norway::from_str(&text(&chart().join("values.yaml"))).unwrap();
    let mut table = String::from("| value | default | meaning |\n| --- | --- | --- |\n");
    for (path, meaning) in described() {
        let default = path.iter().fold(&values, |value, name| &value[name]);
        table += &format!("| `{}` | `{default}` | {} |\n", path.join("."), meaning.replace('|', "\\|"));
    }
    with_part(&chart().join("README.md"), "<!-- values -->\n", "<!-- /values -->\n", &table)
}

/// The page of settings with the table of all.
fn settings() -> String {
    let rows = SETTINGS.iter().map(|setting| {
        let default = if setting.default.is_empty() { String::new() } else { format!("`{}`", setting.default) };
        format!("| `{}` | {default} | {} |\n", setting.env_name(), setting.help)
    });
    let begin = "| variable | default | meaning |\n| --- | --- | --- |\n";
    with_part(&root().join("docs/settings.md"), begin, "\n", &rows.collect::<String>())
}

/// The paths of values.yaml that have a description (`# --`), with it.
fn described() -> Vec<(Vec<String>, String)> {
    let (mut found, mut path, mut meaning) = (Vec::new(), Vec::<String>::new(), None::<String>);
    for line in text(&chart().join("values.yaml")).lines() {
        let content = line.trim_start();
        if let Some(begin) = content.strip_prefix("# -- ") {
            meaning = Some(begin.to_owned());
        } else if let (Some(more), Some(begun)) = (content.strip_prefix("# "), &mut meaning) {
            *begun += &format!(" {more}");
        } else if let Some((name, _)) = content.split_once(':').filter(|_| !content.starts_with(['#', '-'])) {
            path.truncate((line.len() - content.len()) / 2);
            path.push(name.to_owned());
            found.extend(meaning.take().map(|meaning| (path.clone(), meaning)));
        } else {
            meaning = None;
        }
    }
    found
}

#[test]
fn every_value_is_described() {
    fn check(path: &[String], value: &Value, described: &BTreeSet<Vec<String>>) {
        if described.contains(path) {
            return;
        }
        let members = value.as_object().filter(|members| !members.is_empty());
        for (name, member) in members.unwrap_or_else(|| panic!("{} has no description in values.yaml", path.join("."))) {
            check(&[path, std::slice::from_ref(name)].concat(), member, described);
        }
    }
    let paths: BTreeSet<Vec<String>> = described().into_iter().map(|(path, _)| path).collect();
    let values: Value = serde_norway::from_str(&text(&chart().join("values.yaml"))).unwrap();
    check(&[], &values, &paths);
}

/// Nobody else may know the keys, and no file may be rendered differently each time.
#[test]
fn manifests_have_no_secret() {
    for name in ["install", "install-namespaced"] {
        let objects = yaml(&text(&root().join(format!("manifests/kubernetes/{name}.yaml"))));
        assert!(of_kind(&objects, "Secret").is_empty() && objects.len() > 6, "{name}");
        let volumes = the(&objects, "StatefulSet")["spec"]["template"]["spec"]["volumes"].to_string();
        assert!(volumes.contains("bloom-runtime-keys"), "{volumes}");
    }
}

#[test]
fn the_chart_is_of_this_version() {
    let head: Value = serde_norway::from_str(&text(&chart().join("Chart.yaml"))).unwrap();
    assert_eq!(head["appVersion"], env!("CARGO_PKG_VERSION"));
}
