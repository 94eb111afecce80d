//! Rights: those of manifests/kubernetes/operator-rbac.yaml, no more, and only where the operator serves.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{of_kind, rendered, root, text, the, yaml};

/// The rules of the role of this kind that the operator's tests run with.
fn rules(kind: &str) -> Value {
    the(&yaml(&text(&root().join("manifests/kubernetes/operator-rbac.yaml"))), kind)["rules"].clone()
}

fn operator_role<'a>(objects: &'a [Value], kind: &str) -> &'a Value {
    let is_operators = |role: &&&Value| role["metadata"]["name"].as_str().unwrap().ends_with("-operator");
    let found = of_kind(objects, kind);
    found.iter().find(is_operators).expect("the operator's role")
}

#[test]
fn a_whole_cluster_is_served_by_a_cluster_role() {
    let objects = rendered("default", &[]);
    let role = operator_role(&objects, "ClusterRole");
    assert_eq!(role["rules"], rules("ClusterRole"));
    let binding = the(&objects, "ClusterRoleBinding");
    assert_eq!(binding["roleRef"]["name"], role["metadata"]["name"]);
    let account = json!([{ "kind": "ServiceAccount", "name": the(&objects, "ServiceAccount")["metadata"]["name"], "namespace": "here" }]);
    assert_eq!(binding["subjects"], account);
    assert_eq!(the(&objects, "Role")["rules"], rules("Role"));
    assert_eq!(the(&objects, "RoleBinding")["subjects"], account);
}

#[test]
fn named_namespaces_are_served_without_rights_beyond_them() {
    let objects = rendered("namespaced", &[]);
    let cluster_wide: Vec<_> = objects.iter().filter(|object| object["metadata"]["namespace"].is_null()).collect();
    assert!(cluster_wide.is_empty(), "{cluster_wide:?}");
    let roles = of_kind(&objects, "Role");
    let of_namespace = |name: &str| {
        let role = *roles.iter().find(|role| role["metadata"]["namespace"] == name).expect("a role of the namespace");
        let bound = |binding: &&Value| binding["metadata"]["namespace"] == name && binding["roleRef"]["name"] == role["metadata"]["name"];
        assert_eq!(of_kind(&objects, "RoleBinding").into_iter().filter(bound).count(), 1, "{name}");
        role["rules"].clone()
    };
    assert_eq!((roles.len(), of_namespace("here")), (3, rules("Role")));
    assert_eq!((of_namespace("team-a"), of_namespace("team-b")), (rules("ClusterRole"), rules("ClusterRole")));
    let environment = the(&objects, "StatefulSet")["spec"]["template"]["spec"]["containers"][0]["env"].clone();
    assert!(environment.as_array().unwrap().contains(&json!({ "name": "OPERATOR_NAMESPACES", "value": "team-a,team-b" })));
}

#[test]
fn without_the_operator_there_are_no_rights() {
    let objects = rendered("plain", &[]);
    for kind in ["ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding", "ServiceAccount"] {
        assert!(of_kind(&objects, kind).is_empty(), "{kind}");
    }
    assert_eq!(the(&objects, "StatefulSet")["spec"]["template"]["spec"]["automountServiceAccountToken"], false);
}

/// The ClusterRoles of the cluster that people are given have the rights on all resources, and who may only look changes nothing.
#[test]
fn people_get_rights_by_the_roles_that_they_have() {
    let objects = rendered("default", &[]);
    let role = |name: &str| {
        let label = format!("rbac.authorization.k8s.io/aggregate-to-{name}");
        let found = of_kind(&objects, "ClusterRole");
        let role = *found.iter().find(|role| role["metadata"]["labels"][&label] == "true").expect("an aggregated role");
        let mut rights = BTreeSet::new();
        for rule in role["rules"].as_array().unwrap() {
            let words = |key: &str| rule[key].as_array().unwrap().iter().map(|word| word.as_str().unwrap().to_owned()).collect::<Vec<_>>();
            for resource in words("resources") {
                rights.extend(words("verbs").into_iter().map(|verb| (resource.clone(), verb)));
            }
        }
        rights
    };
    let has = |rights: &BTreeSet<(String, String)>, resource: &str, verb: &str| rights.contains(&(resource.to_owned(), verb.to_owned()));
    let (view, edit, admin) = (role("view"), role("edit"), role("admin"));
    for crd in bloom_operator::crds::all().unwrap() {
        let resource = &crd.spec.names.plural;
        assert!(["get", "list", "watch"].iter().all(|verb| has(&view, resource, verb)), "{resource}");
    }
    assert!(view.iter().all(|(_, verb)| ["get", "list", "watch"].contains(&verb.as_str())), "{view:?}");
    assert!(["create", "update", "patch", "delete"].iter().all(|verb| has(&edit, "llmtasks", verb) && has(&edit, "workerpools", verb)));
    assert!(has(&edit, "taskleases", "delete") && !has(&edit, "taskleases", "create") && !has(&edit, "workers", "patch"), "{edit:?}");
    assert!(has(&admin, "workers", "patch"), "{admin:?}");
}
