//! Rules and the dashboard, as the chart installs them: of metrics that exist, with a runbook for each alert, and each alert fires when it should
//! and not before, by given series. `monitoring` beside the chart's tests makes them fire by real causes.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use super::{chart, rendered, root, text, the, yaml};
use crate::support::janitor;

/// All rules of the chart.
fn rule() -> Value {
    let objects = rendered("everything", &["--set-json", "prometheusRule.disabled=[]"]);
    the(&objects, "PrometheusRule").clone()
}

fn alerts(rule: &Value) -> Vec<Value> {
    let all = rule["spec"]["groups"][0]["rules"].as_array().unwrap();
    all.iter().filter(|rule| rule["alert"].is_string()).cloned().collect()
}

fn names(rule: &Value) -> BTreeSet<String> {
    alerts(rule).iter().map(|alert| alert["alert"].as_str().unwrap().to_owned()).collect()
}

/// The names of the program's metrics in a text, without what Prometheus adds to those of histograms. Names with colons are of recorded series.
fn metrics(text: &str) -> BTreeSet<String> {
    let words =
        text.split(|c: char| !(c.is_ascii_lowercase() || c == '_' || c == ':')).filter(|word| word.starts_with("bloom_") && word.len() > 6);
    words.map(|word| ["_bucket", "_count", "_sum"].iter().find_map(|end| word.strip_suffix(end)).unwrap_or(word).to_owned()).collect()
}

fn documented() -> BTreeSet<String> {
    let page = text(&root().join("docs/metrics.md"));
    let table = page.split("\n| metric |").nth(1).unwrap().split("\n\n").next().unwrap();
    table.split('`').filter(|word| word.starts_with("bloom_")).map(str::to_owned).collect()
}

#[test]
fn alerts_and_dashboard_are_of_metrics_that_exist() {
    let known = documented();
    for (file, least) in [("rules.yaml", 20), ("dashboard.json", 25)] {
        let used = metrics(&text(&chart().join("files").join(file)));
        assert!(used.len() >= least, "{file}: {used:?}");
        let unknown: Vec<_> = used.difference(&known).collect();
        assert!(unknown.is_empty(), "{file} has metrics that docs/metrics.md does not have: {unknown:?}");
    }
}

/// The sections of a runbook.
const SECTIONS: [&str; 4] = ["Meaning", "What users see", "How to look", "What to do"];

#[test]
fn every_alert_has_a_runbook() {
    let dir = root().join("docs/runbooks");
    let files = fs::read_dir(&dir).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap());
    let pages: BTreeSet<String> =
        files.filter_map(|file| file.strip_suffix(".md").map(str::to_owned)).filter(|page| page != "README").collect();
    let rule = rule();
    assert_eq!(names(&rule), pages, "the pages of docs/runbooks");
    let index = text(&dir.join("README.md"));
    for alert in alerts(&rule) {
        let (name, told) = (alert["alert"].as_str().unwrap(), &alert["annotations"]);
        assert_eq!(told["runbook_url"], format!("https://wiki.example.com/bloom/runbooks/{name}.md"));
        assert!(told["summary"].is_string() && told["description"].is_string(), "{name}");
        let severity = alert["labels"]["severity"].as_str().unwrap();
        assert!(["critical", "warning"].contains(&severity), "{name}");
        assert!(index.contains(&format!("| [{name}]({name}.md) | {severity} |")), "{name}, {severity}, is in the index");
        let page = text(&dir.join(format!("{name}.md")));
        let sections: Vec<&str> = page.lines().filter_map(|line| line.strip_prefix("## ")).collect();
        assert!(page.starts_with(&format!("# {name}\n")) && sections == SECTIONS, "{name}: {sections:?}");
    }
    let shipped = yaml(&text(&root().join("manifests/prometheus/rules.yaml"))).remove(0);
    for rule in shipped["groups"][0]["rules"].as_array().unwrap().iter().filter(|rule| rule["alert"].is_string()) {
        assert_eq!(rule["annotations"]["runbook_url"], format!("docs/runbooks/{}.md", rule["alert"].as_str().unwrap()));
    }
}

#[test]
fn rules_are_of_one_release_and_have_its_values() {
    let all = names(&rule());
    let objects = rendered("everything", &[]);
    let rule = the(&objects, "PrometheusRule");
    let missing: Vec<_> = all.difference(&names(rule)).cloned().collect();
    assert_eq!(missing, ["BloomQueueOld"], "an alert that is disabled");
    let text = rule["spec"].to_string();
    for one in rule["spec"]["groups"][0]["rules"].as_array().unwrap().iter().filter(|one| one["record"] != "bloom:queued") {
        assert_eq!((&one["labels"]["namespace"], &one["labels"]["job"]), (&json!("here"), &json!("r-bloom")), "{one}");
        assert!(!one["expr"].as_str().unwrap().contains("bloom-runtime"), "{one}");
    }
    assert!(text.contains(r#""expr":"vector(12.5)""#), "the limit of the cost");
    let default = rendered("default", &["--set", "prometheusRule.enabled=true"]);
    assert_eq!(names(the(&default, "PrometheusRule")), all);
    assert!(the(&default, "PrometheusRule").to_string().contains(r#""expr":"vector(100)""#));
}

fn promtool(dir: &Path, arguments: &[&str]) {
    let output = Command::new("promtool").args(arguments).current_dir(dir).output().expect("promtool (tests/run installs it)");
    let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{said}");
}

/// `alerts.yaml` beside this file has series for each alert that make it fire, and such that do not.
#[test]
fn alerts_fire_when_they_should() {
    let dir = janitor::new_path("alerts");
    fs::create_dir(&dir).unwrap();
    let rule = rule();
    fs::write(dir.join("rules.yaml"), serde_norway::to_string(&rule["spec"]).unwrap()).unwrap();
    promtool(&dir, &["check", "rules", "rules.yaml"]);

    let cases = yaml(&text(&root().join("tests/kubernetes/chart/alerts.yaml"))).remove(0);
    let labels = r#"namespace="here",job="r-bloom""#;
    let mut tested = BTreeSet::new();
    let mut tests = Vec::new();
    for case in cases.as_array().unwrap() {
        let name = case["alert"].as_str().unwrap();
        tested.insert(name.to_owned());
        for (fires, series) in [(true, &case["fires"]), (false, &case["silent"])] {
            let series: Vec<Value> = series
                .as_object()
                .unwrap()
                .iter()
                .map(|(name, values)| {
                    let named = if let Some((name, own)) = name.split_once('{') {
                        format!("{name}{{{labels},{own}")
                    } else {
                        format!("{name}{{{labels}}}")
                    };
                    json!({ "series": named, "values": values })
                })
                .collect();
            // promtool compares whole alerts, so the expectation of a firing one is in the query of its own series.
            let expected = if fires { json!([{ "labels": "{}", "value": 1 }]) } else { json!([]) };
            let query = format!("sum(ALERTS{{alertname=\"{name}\",alertstate=\"firing\"}}) > bool 0");
            tests.push(json!({
                "name": format!("{name} {}", if fires { "fires" } else { "is silent" }),
                "interval": "1m",
                "input_series": series,
                "promql_expr_test": [{ "expr": query, "eval_time": "2h", "exp_samples": expected }],
            }));
        }
    }
    assert_eq!(tested, names(&rule), "tests/kubernetes/chart/alerts.yaml has each alert");
    fs::write(dir.join("tests.json"), json!({ "rule_files": ["rules.yaml"], "evaluation_interval": "1m", "tests": tests }).to_string())
        .unwrap();
    promtool(&dir, &["test", "rules", "tests.json"]);
}

#[test]
fn the_dashboard_is_found_and_shows_one_release() {
    let objects = rendered("postgresql", &[]);
    let config_map = the(&objects, "ConfigMap");
    assert_eq!(config_map["metadata"]["labels"]["grafana_dashboard"], "1");
    let dashboard: Value = serde_json::from_str(config_map["data"]["bloom-runtime.json"].as_str().unwrap()).unwrap();
    let queries = dashboard["panels"].as_array().unwrap().iter().flat_map(|panel| panel["targets"].as_array().into_iter().flatten());
    let mut seen = BTreeSet::new();
    for query in queries.map(|target| target["expr"].as_str().unwrap()) {
        let of_release = query.matches(r#"{namespace="$namespace",job="$job""#).count();
        assert_eq!(query.matches('{').count(), of_release, "{query}");
        seen.insert(query);
    }
    assert!(seen.len() > 25, "{}", seen.len());
    let query = |query: &&str| query.replace("$__rate_interval", "5m");
    let rules: Vec<Value> =
        seen.iter().map(query).enumerate().map(|(n, expr)| json!({ "record": format!("query{n}"), "expr": expr })).collect();
    let dir = janitor::new_path("dashboard");
    fs::create_dir(&dir).unwrap();
    fs::write(dir.join("queries.json"), json!({ "groups": [{ "name": "queries", "rules": rules }] }).to_string()).unwrap();
    promtool(&dir, &["check", "rules", "queries.json"]);

    let ids: BTreeSet<i64> = dashboard["panels"].as_array().unwrap().iter().map(|panel| panel["id"].as_i64().unwrap()).collect();
    assert_eq!(ids.len(), dashboard["panels"].as_array().unwrap().len());
}
