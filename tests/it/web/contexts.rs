//! The pages of contexts, and the button that resets one.

use super::browser::Browser;
use crate::keys::{ADMIN, create};
use crate::on_both;
use crate::support::*;

on_both! {
    async fn a_context_is_found_from_its_task_and_reset(server) {
        let (crew, browser) = (server.crew(), Browser::of(server));
        let context = unique("a/talk");
        let page = format!("/contexts/{}", context.replace('/', "%2F"));
        let task = crew.task().context(&context).prompt("what was said").create().await;
        browser.ok(&format!("/tasks/{}", task.id)).await.has(&format!("href=\"{page}\""));
        let shown = browser.ok(&page).await;
        shown.has("what was said");
        shown.has(">never<");
        let asked = browser.ok(&format!("{page}/confirm-reset")).await;
        asked.has(&format!("Reset the context {context}?"));
        asked.has("The files of the context stay");
        browser.send_form(&format!("{page}/confirm-reset"), &format!("{page}/reset"), &[]).await.leads_to(&format!("{page}?done=1"));
        let reset = browser.ok(&format!("{page}?done=1")).await;
        reset.has("its next run begins a new session");
        reset.has_not(">never<");
        assert!(server.get(&format!("contexts/{}", context.replace('/', "%2F"))).await.ok()["reset_at"].is_i64());
        browser.get("/contexts/nobody-talks").await.expect(404);
        browser.post(&format!("{page}/reset"), &[], &[]).await.expect(403);
    }

    async fn a_context_shows_its_conversation_and_takes_a_reply(server) {
        let (crew, browser) = (server.crew(), Browser::of(server));
        let context = unique("talk");
        let page = format!("/contexts/{context}");
        let worker = crew.worker().register().await;
        let task = crew.task().context(&context).prompt("what is <it>?").with("session", json!("context")).create().await;
        task.lease_to(&worker).await.complete("success", json!({ "output": "it is a <queue>" })).await.ok();
        let sent = browser.send_form(&page, &format!("/tasks/{}/reply", task.id), &[("prompt", "and then?")]).await.expect(303);
        let reply = sent.header("location").strip_suffix("?done=created").expect("its page").to_owned();
        let shown = browser.ok(&page).await;
        // It is called by what was asked last.
        shown.has("<h1>and then?</h1>");
        shown.has(&format!("Context {context}</p>"));
        let talk = shown.text.split_once("class=\"turns\"").expect("a conversation").1;
        let places = ["what is &#60;it&#62;?", "it is a &#60;queue&#62;", "and then?"].map(|part| talk.find(part).unwrap_or_else(|| panic!("no {part} in {}", shown.text)));
        assert!(places.is_sorted(), "{places:?}");
        shown.has("<dd>1 queued · 1 finished</dd>");
        // The next reply is one to the newest task.
        shown.has(&format!("action=\"{reply}/reply\""));
        // Nothing was paid.
        shown.has("<dt>Cost</dt><dd>$0</dd>");
    }

    async fn an_answer_is_laid_out_and_ends_with_a_whole_line(server) {
        let (crew, browser) = (server.crew(), Browser::of(server));
        let (short, long) = (unique("short"), unique("long"));
        let worker = crew.worker().slots(2).register().await;
        for (context, answer) in [(&short, "It is **done**:\n\n- one\n- two".to_owned()), (&long, "- a line of *many*\n".repeat(90))] {
            let task = crew.task().context(context).create().await;
            task.lease_to(&worker).await.complete("success", json!({ "output": answer })).await.ok();
        }
        let shown = browser.ok(&format!("/contexts/{short}")).await;
        shown.has("<div class=\"answer\"><p>It is <strong>done</strong>:</p>\n<ul>\n<li>one</li>");
        shown.has_not("The whole answer");
        let cut = browser.ok(&format!("/contexts/{long}")).await;
        cut.has("<li>a line of <em>many</em></li>\n</ul>\n</div><p><a href=\"/tasks/");
        cut.has(">The whole answer</a>");
    }

    async fn a_context_tells_that_its_run_asks(server) {
        let (crew, browser) = (server.crew(), Browser::of(server));
        let (context, project) = (unique("asking"), unique("project"));
        server.post("projects", json!({ "name": project, "repo_url": "https://git.example.com/a.git" })).await.created();
        let worker = crew.worker().able("git", json!(true)).register().await;
        let task = crew.task().context(&context).with("project", json!(project)).create().await;
        let lease = task.lease_to(&worker).await;
        let question = json!({ "tool": "Bash", "input": {}, "questions": [], "limit_sec": 600 });
        let asked = json!({ "lease_id": lease.id, "id": "0190a0a0-0000-7000-8000-0000000000c7", "question": question });
        server.post(&task.path("/question"), asked).await.ok();
        let badge = "<span class=\"badge s-asks\">asks you</span>";
        let list = browser.ok(&format!("/contexts?project={project}")).await;
        list.has(&format!("<a href=\"/tasks/{}\">{badge}</a></td>", task.id));
        // It runs there, although no run has ended yet.
        list.has(&format!("<td data-name=\"Worker\">{}</td>", worker.name));
        let page = browser.ok(&format!("/contexts/{context}")).await;
        page.has(badge);
        page.has(&format!("<a href=\"/tasks/{}\">Answer it</a>", task.id));
    }

    async fn pages_of_contexts_follow_each_other(server) {
        let (crew, browser) = (server.crew(), Browser::of(server));
        let base = unique("many");
        for number in 0..61 {
            crew.task().context(&format!("{base}-{number:02}")).create().await;
        }
        let newest = browser.ok("/contexts").await;
        newest.has(&format!("/contexts/{base}-60\""));
        newest.has_not(&format!("/contexts/{base}-00\""));
        newest.has("href=\"/contexts?order=name\"");
        let (mut path, mut found) = ("/contexts?order=name".to_owned(), 0);
        loop {
            let shown = browser.ok(&path).await;
            found += shown.text.matches(&format!("href=\"/contexts/{base}-")).count();
            let Some(next) = shown.text.split("rel=\"next\" href=\"").nth(1) else { break };
            path = next.split('"').next().unwrap().replace("&#38;", "&");
        }
        assert_eq!(found, 61);
        browser.ok("/contexts?project=none-has-it").await.has("No context has tasks in this project.");
    }
}

on_both! { alone:
    async fn a_read_key_has_no_button_and_a_submit_key_its_own(database) {
        let server = Server::on(database).env("RUNTIME_API_KEY", ADMIN).start();
        let admin = server.with_key(ADMIN);
        admin.post("llm-tasks", json!({ "context_id": "c", "agent_slug": "a", "prompt": "p" })).await.created();
        let reader = Browser::signed_in(&server, &create(&admin, "eyes", "read", json!({})).await).await;
        let shown = reader.ok("/contexts/c").await;
        shown.has_not("confirm-reset");
        let token = reader.ok("/tasks").await.text;
        let token = token.split("name=\"form_token\" value=\"").nth(1).map(|rest| rest.split('"').next().unwrap().to_owned());
        reader.post("/contexts/c/reset", &[("form_token", &token.unwrap_or_default())], &[]).await.expect(403);
        let team = create(&admin, "team", "submit", json!({})).await;
        server.with_key(&team).post("llm-tasks", json!({ "context_id": "own", "agent_slug": "a", "prompt": "p" })).await.created();
        let submitter = Browser::signed_in(&server, &team).await;
        let list = submitter.ok("/contexts").await;
        list.has("<a href=\"/contexts/team%2Fown\">p</a><br><span class=\"soft\">team/own</span>");
        list.has_not("href=\"/contexts/c\"");
        submitter.get("/contexts/c").await.expect(404);
        let page = "/contexts/team%2Fown";
        submitter.send_form(page, &format!("{page}/reset"), &[]).await.leads_to(&format!("{page}?done=1"));
        assert!(admin.get("contexts/c").await.ok()["reset_at"].is_null());
    }
}
