//! The look-up of tasks by a part of their ids.

use crate::on_both;
use crate::support::*;

on_both! { alone:
    async fn tasks_are_found_by_the_beginning_or_the_end_of_their_ids(database) {
        let server = Server::on(database).start();
        let crew = server.crew();
        let tasks: Vec<_> = (0..20).map(|_| crew.task().json()).collect();
        let made = server.post("llm-tasks:batch", json!({ "tasks": tasks })).await.created();
        let mut ids: Vec<String> = made["tasks"].as_array().unwrap().iter().map(|task| task["id"].as_str().unwrap().to_owned()).collect();
        ids.sort();
        let found = |part: String| {
            let server = &server;
            async move {
                let found = server.get(&format!("llm-tasks?id={part}&limit=5")).await.expect(200);
                let ids: Vec<String> = found.json().as_array().unwrap().iter().map(|task| task["id"].as_str().unwrap().to_owned()).collect();
                (ids, found.next_page())
            }
        };
        for id in &ids {
            for end in [&id[24..], &id[28..], &id[10..]] {
                assert_eq!(found(end.to_owned()).await, (vec![id.clone()], None), "{end}");
            }
            assert_eq!(found(id[..35].to_owned()).await, (vec![id.clone()], None));
            let simple = id.replace('-', "");
            assert_eq!(found(simple[12..].to_uppercase()).await, (vec![id.clone()], None), "across hyphens, in any case");
            assert_eq!(found(simple).await, (vec![id.clone()], None));
        }
        let (mut pages, mut next) = found(ids[0][..8].to_owned()).await;
        assert_eq!(pages.len(), 5);
        while let Some(page) = next {
            let page = server.get(&page).await.expect(200);
            pages.extend(page.json().as_array().unwrap().iter().map(|task| task["id"].as_str().unwrap().to_owned()));
            next = page.next_page();
        }
        pages.reverse();
        assert_eq!(pages, ids, "tasks of one time begin alike");
        server.get("llm-tasks?id=abcd&status=queued").await.refuses(&["id"]);
        assert_eq!(found("ffffffff".into()).await, (vec![], None));
        for wrong in ["abc", "xyzw", "%C3%A9abc", "0123456789abcdef0123456789abcdef0"] {
            server.get(&format!("llm-tasks?id={wrong}")).await.refuses(&["id"]);
        }
    }
}
