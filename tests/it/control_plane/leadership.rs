//! Who leads a project: one node at a time, for a time, with a term that rises.

use super::*;
use crate::on_both;

on_both! { alone:
    async fn a_leader_leads_until_its_lease_expires(database) {
        let plane = shared_plane(database);
        let project = unique("project");
        beat(&plane, "one", &project, json!({})).await;
        beat(&plane, "two", &project, json!({})).await;
        let before = leadership(&plane, &project).await;
        assert_eq!((&before["preferred_primary"], &before["term"], &before["node_count"]), (&json!(null), &json!(0), &json!(2)));
        let selected = select(&plane, &project, json!({ "primary_node_id": "one" })).await.ok();
        assert_eq!((&selected["ok"], &selected["primary_node_id"], &selected["lease_seconds"]), (&json!(true), &json!("one"), &json!(3600)));
        assert_eq!((&selected["canonical_id"], &selected["term"]), (&json!(canonical_id(&project)), &json!(1)));
        let roles = |shown: Value| {
            let nodes = shown["nodes"].as_array().unwrap().clone();
            nodes.iter().map(|node| node["role"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(roles(leadership(&plane, &project).await), ["primary", "secondary"]);
        assert_eq!(beat(&plane, "one", &project, json!({})).await["role"], "primary");
        assert_eq!(beat(&plane, "two", &project, json!({})).await["role"], "secondary");

        // The same node again keeps its term; another one gets a new term, and the first leads no more.
        assert_eq!(select(&plane, &project, json!({ "primary_node_id": "one", "lease_seconds": 60 })).await.ok()["term"], 1);
        let shorter = select(&plane, &project, json!({ "primary_node_id": "two", "lease_seconds": 1 })).await.ok();
        assert_eq!(shorter["term"], 2);
        let expired = eventually("the lease expires", || async {
            let shown = leadership(&plane, &project).await;
            shown["preferred_primary"].is_null().then_some(shown)
        })
        .await;
        assert_eq!((&expired["term"], &expired["lease_expires_at"]), (&json!(2), &json!(null)));
        assert_eq!(roles(expired), ["unknown", "unknown"]);
        assert_eq!(beat(&plane, "two", &project, json!({})).await["role"], "unknown", "a heartbeat does not bring a lease back");
        assert_eq!(select(&plane, &project, json!({ "primary_node_id": "two" })).await.ok()["term"], 3, "the term after an expiry is new");
    }

    async fn the_heartbeats_of_the_leader_renew_its_lease(database) {
        let plane = shared_plane(database);
        let project = unique("project");
        beat(&plane, "one", &project, json!({})).await;
        beat(&plane, "two", &project, json!({})).await;
        select(&plane, &project, json!({ "primary_node_id": "one", "lease_seconds": 600 })).await.ok();
        let until = |shown: Value| shown["lease_expires_at"].as_f64().unwrap();
        let first = until(leadership(&plane, &project).await);
        eventually("the lease is longer", || async {
            beat(&plane, "one", &project, json!({})).await;
            (until(leadership(&plane, &project).await) > first).then_some(())
        })
        .await;
        let second = until(leadership(&plane, &project).await);
        beat(&plane, "two", &project, json!({})).await;
        assert_eq!(until(leadership(&plane, &project).await), second, "others renew nothing");
    }

    async fn only_known_nodes_of_known_projects_lead(database) {
        let plane = shared_plane(database);
        let (project, agent) = (unique("project"), unique("agent"));
        select(&plane, &project, json!({ "primary_node_id": "one" })).await.expect(404);
        plane.post("/projects", json!({ "name": project })).await.expect(201);
        select(&plane, &project, json!({ "primary_node_id": agent })).await.expect(404);
        plane.post("/agents", json!({ "name": agent })).await.expect(201);
        select(&plane, &project, json!({ "primary_node_id": agent })).await.expect(200);
        let stale = select(&plane, &project, json!({ "primary_node_id": agent, "term": 0 })).await.expect(409).json();
        assert!(stale["detail"].as_str().unwrap().contains("term is 1, not 0"), "{stale}");
        select(&plane, &project, json!({ "primary_node_id": agent, "term": 1 })).await.expect(200);
    }

    async fn a_selection_by_term_begins_a_new_term(database) {
        let plane = shared_plane(database);
        let project = unique("project");
        for node in ["one", "two"] {
            beat(&plane, node, &project, json!({})).await;
        }
        let by_term = async |node: &str, term: i64| select(&plane, &project, json!({ "primary_node_id": node, "term": term })).await;
        assert_eq!(by_term("one", 0).await.ok()["term"], 1);
        assert_eq!(by_term("one", 1).await.ok()["term"], 2, "the leader itself, too: who has seen term 1 must not win besides");
        by_term("two", 1).await.expect(409);
    }

    async fn of_two_who_saw_the_same_term_one_wins(database) {
        // On PostgreSQL by two replicas.
        let first = plan(database).start();
        let second = match database {
            Database::Sqlite => None,
            Database::Postgres => Some(first.plan().clone().start()),
        };
        let planes = [admin(first.base()), admin(second.as_ref().unwrap_or(&first).base())];
        for round in 0..20 {
            let nodes = [format!("{round} one"), format!("{round} two")];
            for node in &nodes {
                beat(&planes[0], node, "house", json!({})).await;
            }
            let body = |node: &str| json!({ "primary_node_id": node, "lease_seconds": 600, "term": round });
            let (a, b) = tokio::join!(select(&planes[0], "house", body(&nodes[0])), select(&planes[1], "house", body(&nodes[1])));
            let (won, lost): (Vec<_>, Vec<_>) = [a, b].into_iter().partition(|answer| answer.status == 200);
            assert_eq!((won.len(), lost.len()), (1, 1));
            assert_eq!(lost[0].status, 409, "{}", lost[0].text);
            for plane in &planes {
                let shown = leadership(plane, "house").await;
                assert_eq!(shown["preferred_primary"], won[0].json()["primary_node_id"]);
                assert_eq!(shown["term"], round + 1);
                let primaries = shown["nodes"].as_array().unwrap().iter().filter(|node| node["role"] == "primary").count();
                assert_eq!(primaries, 1);
            }
        }
    }
}
