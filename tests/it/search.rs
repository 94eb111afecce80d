//! Tasks that have a text.

use crate::keys::{ADMIN, keyed, with_new_key};
use crate::on_both;
use crate::support::*;

/// The ids of a list, over all its pages.
async fn found(api: &Api, query: &str) -> Vec<String> {
    let (mut ids, mut next) = (Vec::new(), Some(format!("llm-tasks?{query}")));
    while let Some(page) = next.take() {
        let answer = api.get(&page).await;
        next = answer.next_page();
        ids.extend(answer.ok().as_array().expect("tasks").iter().map(|task| task["id"].as_str().expect("an id").to_owned()));
    }
    ids
}

on_both! {
    async fn tasks_are_found_by_what_they_say(server) {
        let crew = server.crew();
        let worker = crew.worker().slots(4).register().await;
        let word = unique("needle");
        let prompt = crew.task().prompt(&format!("Виправ ПОМИЛКУ 100%_sure {word}")).create().await;
        let labelled = crew.task().with("labels", json!({ "team": word })).create().await;
        let talked = crew.task().context(&format!("about-{word}")).create().await;
        let answered = crew.task().create().await;
        answered.lease_to(&worker).await.complete("success", json!({ "output": format!("The answer is {word}.") })).await.ok();
        let failed = crew.task().attempts(1).create().await;
        failed.lease_to(&worker).await.complete("error", json!({ "error_message": format!("no {word}") })).await.ok();
        crew.task().prompt("hay 100 percent sure").create().await;
        let all = [&failed.id, &answered.id, &talked.id, &labelled.id, &prompt.id].map(String::clone);
        let own = format!("agent_slug={}", crew.slug);
        for text in [word.clone(), word.to_uppercase()] {
            assert_eq!(found(server, &format!("search={text}")).await, all, "{text}");
            assert_eq!(found(server, &format!("search={text}&limit=2&{own}")).await, all, "in pages");
        }
        for (query, expected) in [
            (format!("{own}&search=%D0%BF%D0%BE%D0%BC%D0%B8%D0%BB%D0%BA%D1%83"), &prompt),
            (format!("{own}&search=100%25_SURE"), &prompt),
            (format!("search=team%3D{word}"), &labelled),
            (format!("search={word}&status=completed"), &answered),
            (format!("search=NO+{word}"), &failed),
            (format!("search={word}&context_id=about-{word}"), &talked),
            (format!("search={}", talked.id), &talked),
        ] {
            assert_eq!(found(server, &query).await, std::slice::from_ref(&expected.id), "{query}");
        }
        for nothing in ["100_", "%25sure", "%5C", "stack"] {
            assert_eq!(found(server, &format!("{own}&search={nothing}x")).await, [] as [&str; 0], "{nothing}");
        }
    }

    async fn a_search_goes_on_behind_the_tasks_that_one_call_reads(server) {
        let crew = server.crew();
        let first = crew.task().prompt("the needle").create().await;
        let hay: Vec<Value> = (0..1000).map(|_| crew.task().prompt("hay").json()).collect();
        for _ in 0..2 {
            server.post("llm-tasks:batch", json!({ "tasks": hay })).await.created();
        }
        let query = format!("llm-tasks?search=needle&agent_slug={}", crew.slug);
        let none = server.get(&query).await;
        let next = none.next_page().expect("there are older tasks");
        assert_eq!(none.ok(), json!([]));
        let rest = server.get(&next).await;
        assert_eq!(rest.next_page(), None);
        assert_eq!(rest.ok()[0]["id"], json!(first.id));
    }
}

on_both! { alone:
    async fn a_submit_key_finds_its_own_tasks_and_wrong_texts_are_refused(database) {
        let running = keyed(database);
        let server = &running.with_key(ADMIN);
        let word = unique("secret");
        let crew = server.crew();
        crew.task().prompt(&word).create().await;
        let submitter = with_new_key(server, &running, "team", "submit", json!({})).await;
        let own = submitter.post("llm-tasks", crew.task().prompt(&word).json()).await.created();
        assert_eq!(found(&submitter, &format!("search={word}")).await, [own["id"].as_str().expect("an id")]);
        assert_eq!(found(server, &format!("search={word}")).await.len(), 2);
        for (wrong, field) in
            [("search=a", "search"), ("search=%00%00", "search"), (&*format!("search={}", "a".repeat(201)), "search"), ("search=abc&id=abcd", "id")]
        {
            server.get(&format!("llm-tasks?{wrong}")).await.refuses(&[field]);
        }
    }
}
