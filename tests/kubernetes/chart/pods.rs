//! What pods are given is what the program takes.

use std::fs;
use std::process::Command;

use serde_json::Value;

use super::{rendered, the};
use crate::support::server::BINARY;
use crate::support::{Database, Server, janitor};

/// The variables of a container that have a value.
fn environment(container: &Value) -> Vec<(String, String)> {
    let all = container["env"].as_array().unwrap().iter();
    all.filter_map(|variable| Some((variable["name"].as_str()?.to_owned(), variable["value"].as_str()?.to_owned()))).collect()
}

fn workload(objects: &[Value]) -> &Value {
    let kind = if objects.iter().any(|object| object["kind"] == "Deployment") { "Deployment" } else { "StatefulSet" };
    &the(objects, kind)["spec"]["template"]["spec"]
}

/// Each secret of the pod's volumes, as a file below this directory. Returns the directory's path, which replaces `/etc/bloom-runtime`.
fn secrets(pod: &Value) -> String {
    let dir = janitor::new_path("secrets");
    let volumes = pod["volumes"].as_array().unwrap();
    for mount in pod["containers"][0]["volumeMounts"].as_array().unwrap() {
        let volume = volumes.iter().find(|volume| volume["name"] == mount["name"]).expect("the volume of a mount");
        for item in volume["secret"]["items"].as_array().into_iter().flatten() {
            let path = mount["mountPath"].as_str().unwrap().replace("/etc/bloom-runtime", dir.to_str().unwrap());
            fs::create_dir_all(&path).unwrap();
            let name = item["path"].as_str().unwrap();
            let value = if name == "url" { "postgres://bloom:secret@db/bloom".to_owned() } else { format!("{name}-0123456789abcdef") };
            fs::write(format!("{path}/{name}"), value + "\n").unwrap();
        }
    }
    dir.display().to_string()
}

#[test]
fn the_program_takes_its_settings() {
    for set in ["default", "postgresql", "namespaced", "plain", "everything"] {
        let objects = rendered(set, &[]);
        let pod = workload(&objects);
        let secrets = secrets(pod);
        let given: Vec<_> = environment(&pod["containers"][0])
            .into_iter()
            .map(|(name, value)| (name, value.replace("/etc/bloom-runtime", &secrets)))
            .collect();
        let check = Command::new(BINARY).args(["config", "check", "-o", "json"]).env_clear().envs(given.clone()).output().unwrap();
        let said = String::from_utf8(check.stdout).unwrap();
        assert!(check.status.success(), "{set}: {said}{}", String::from_utf8_lossy(&check.stderr));
        for (name, _) in
            given.iter().filter(|(name, _)| !["SSL_CERT_DIR", "OPERATOR_AGENT_IMAGE", "OPERATOR_AGENT_SERVER"].contains(&name.as_str()))
        {
            assert!(
                [format!("environment {name}\""), format!("environment {name} (")].iter().any(|origin| said.contains(origin)),
                "{set}: the program does not know {name}: {said}"
            );
        }
        assert_eq!(pod["containers"][0]["args"][0], "serve");
    }
}

#[test]
fn a_pod_has_time_to_stop() {
    let of = |set: &str, more: &[&str]| workload(&rendered(set, more)).clone();
    assert_eq!(of("default", &[])["terminationGracePeriodSeconds"], 60);
    assert_eq!(of("default", &["--set", "config.requestTimeoutSeconds=300"])["terminationGracePeriodSeconds"], 330);
    let replica = of("postgresql", &[]);
    assert_eq!(
        (&replica["terminationGracePeriodSeconds"], &replica["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"]),
        (&65.into(), &5.into())
    );
    assert!(of("default", &[])["containers"][0]["lifecycle"].is_null(), "a single server has nobody to hand over to");
}

/// `helm test` calls the server with the program's own command line, and tells a wrong key.
#[test]
fn the_test_of_a_release_calls_the_server() {
    let objects = rendered("default", &[]);
    let pod = &the(&objects, "Pod")["spec"];
    let secrets = secrets(pod);
    let key = fs::read_to_string(format!("{secrets}/keys/read")).unwrap();
    let server = Server::on(Database::Sqlite).env("RUNTIME_API_KEY", "api-0123456789abcdef").env("RUNTIME_READ_KEY", key.trim()).start();
    let container = &pod["containers"][0];
    let test = || {
        let arguments = container["args"].as_array().unwrap().iter().map(|word| word.as_str().unwrap());
        let given = environment(container).into_iter().map(|(name, value)| (name, value.replace("/etc/bloom-runtime", &secrets)));
        Command::new(BINARY).args(arguments).env_clear().envs(given).env("BLOOM_SERVER", server.base()).output().unwrap()
    };
    assert!(environment(container).contains(&("BLOOM_SERVER".into(), "http://r-bloom-runtime.here.svc:5000".into())));
    let passed = test();
    assert!(passed.status.success(), "{}", String::from_utf8_lossy(&passed.stderr));
    fs::write(format!("{secrets}/keys/read"), "wrong").unwrap();
    let failed = test();
    assert!(!failed.status.success() && String::from_utf8_lossy(&failed.stderr).contains("the server refuses this key"), "{failed:?}");
}
