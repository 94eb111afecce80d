//! What the form for a new task offers, and its files.

use super::browser::Browser;
use crate::keys::{ADMIN, create, keyed};
use crate::on_both;
use crate::support::*;

const FORM: &str = "/tasks/new";

/// What a browser sends of the form as it stands there, but for its token and files.
fn fields_of(page: &str) -> Vec<(String, String)> {
    let form = page.split("enctype=\"multipart/form-data\"").nth(1).expect("the form").split("</form>").next().unwrap();
    let attribute = |tag: &str, name: &str| Some(tag.split_once(&format!(" {name}=\""))?.1.split_once('"')?.0.to_owned());
    let field = |element: &str| {
        let (tag, content) = element.split_once('>')?;
        let value = match tag.split(' ').next()? {
            "<textarea" => content.split_once('\n')?.1.split_once("</textarea>")?.0.to_owned(),
            "<select" => attribute(content.split_once(" selected>")?.0.rsplit_once("<option")?.1, "value")?,
            _ if tag.contains("type=\"checkbox\"") && !tag.contains(" checked") => return None,
            _ => attribute(tag, "value")?,
        };
        Some((attribute(tag, "name")?, value))
    };
    let elements = ["<textarea ", "<select ", "<input "].into_iter().flat_map(|tag| form.match_indices(tag));
    elements.filter_map(|(at, _)| field(&form[at..])).filter(|(name, _)| name != "form_token").collect()
}

on_both! {
    async fn a_task_without_a_context_begins_a_conversation(server) {
        let browser = Browser::of(server);
        browser.ok(FORM).await.has_not("name=\"context_id\" value=\"\" required");
        let agent = unique("agent");
        for _ in 0..2 {
            assert_eq!(browser.send_form(FORM, FORM, &[("prompt", "hello"), ("agent_slug", &agent), ("context_id", "")]).await.status, 303);
        }
        let tasks = server.get(&format!("llm-tasks?agent_slug={agent}")).await.ok();
        let contexts: Vec<_> = tasks.as_array().unwrap().iter().map(|task| &task["context_id"]).collect();
        assert!(contexts.len() == 2 && contexts[0] != contexts[1], "{contexts:?}");
    }

    async fn a_task_of_the_form_starts_later_and_has_a_budget(server) {
        let browser = Browser::of(server);
        let form = browser.ok(FORM).await;
        form.has("name=\"budget\" value=\"\"");
        // What most tasks need not say is folded, until something stands in it.
        form.has("<details><summary>More options");
        let groups = [
            "<legend>Project<", "name=\"ref\"", "<legend>Limits<", "name=\"budget\"", "<legend>When<", "name=\"suspend\"", "<legend>Conversation<",
            "name=\"session\"", "<legend>Answer and files<", "name=\"outputs\"", "<legend>Model and labels<", "name=\"labels\"",
        ];
        let places = groups.map(|part| form.text.find(part));
        assert!(places[0].is_some() && places.is_sorted(), "{places:?}");
        let agent = unique("agent");
        let refused = browser.send_form(FORM, FORM, &[("prompt", "p"), ("agent_slug", &agent), ("budget", "0"), ("not_before", "tomorow")]).await.expect(400);
        refused.has("A task with 0 could not run");
        refused.has("<details open><summary>More options");
        refused.has("id=\"not_before-wrong\"");
        assert_eq!(browser.send_form(FORM, FORM, &[("prompt", "p"), ("agent_slug", &agent), ("budget", "0.5"), ("not_before", "+2h")]).await.status, 303);
        let task = &server.get(&format!("llm-tasks?agent_slug={agent}")).await.ok()[0];
        assert_eq!(task["policy"]["budget"], 0.5);
        let in_ms = task["not_before"].as_i64().unwrap() - now_ms();
        assert!((7_000_000..7_300_000).contains(&in_ms), "{in_ms}");
    }

    async fn files_of_the_form_are_inputs_of_the_task(server) {
        let browser = Browser::of(server);
        let agent = unique("agent");
        let files: [(&str, &str, &[u8]); 2] = [("plan <b>.md", "text/markdown", b"# Plan\r\n--not the end"), ("a.bin", "application/octet-stream", &[0, 255, 13, 10, 45])];
        let fields = [("prompt", "read the plan"), ("agent_slug", agent.as_str()), ("priority", "high")];
        let refused = browser.send_files(FORM, "files", &files, &fields).await.expect(400);
        refused.has("id=\"priority-wrong\"");
        refused.has("href=\"#priority\"");
        refused.has("read the plan</textarea>");
        refused.has_not("<b>");
        // They are stored, so they need not be chosen again.
        let stored: Vec<String> = refused.text.split("name=\"input\" value=\"").skip(1).map(|rest| rest.split('"').next().unwrap().replace("&#60;", "<").replace("&#62;", ">")).collect();
        assert_eq!(stored.len(), 2, "{}", refused.text);
        let fields = [("prompt", "read the plan"), ("agent_slug", agent.as_str()), ("input", &stored[0]), ("input", &stored[1])];
        let more: [(&str, &str, &[u8]); 2] = [("", "application/octet-stream", b""), ("c.txt", "text/plain", b"c")];
        let made = browser.send_files(FORM, "files", &more, &fields).await.expect(303);
        let task = &server.get(&format!("llm-tasks?agent_slug={agent}")).await.ok()[0];
        let inputs = task["inputs"].as_array().unwrap();
        let told: Vec<_> = inputs.iter().map(|input| (input["path"].as_str().unwrap(), input["content_type"].as_str().unwrap(), input["bytes"].as_i64().unwrap())).collect();
        assert_eq!(told, [("plan <b>.md", "text/markdown", 21), ("a.bin", "application/octet-stream", 5), ("c.txt", "text/plain", 1)]);
        let content = server.get(&format!("artifacts/{}/content", inputs[0]["artifact_id"].as_str().unwrap())).await;
        assert_eq!(content.text, "# Plan\r\n--not the end");
        let page = made.header("location").to_owned();
        browser.ok(&page).await.has("c.txt");
        // The same task again has the same files.
        let id = task["id"].as_str().unwrap();
        assert_eq!(browser.ok(&format!("/tasks/new?like={id}")).await.text.matches("name=\"input\"").count(), 3);

        let before = server.get(&format!("llm-tasks?agent_slug={agent}")).await.ok();
        let fields = [("prompt", "p"), ("agent_slug", agent.as_str())];
        let names: Vec<String> = (0..101).map(|n| format!("{n}.txt")).collect();
        let many: Vec<(&str, &str, &[u8])> = names.iter().map(|name| (name.as_str(), "text/plain", &b"x"[..])).collect();
        let refused = browser.send_files(FORM, "files", &many, &fields).await.expect(400);
        refused.has("101 files, but at most 100");
        refused.has("id=\"files-wrong\"");
        browser.send_files(FORM, "files", &[("../up", "text/plain", b"x")], &fields).await.expect(400).has("id=\"files-wrong\"");
        let large = vec![b'x'; 2 << 20];
        assert_eq!(browser.send_files(FORM, "files", &[("large", "text/plain", &large)], &fields).await.status, 413);
        assert_eq!(server.get(&format!("llm-tasks?agent_slug={agent}")).await.ok(), before);
    }

    async fn times_have_units(server) {
        let browser = Browser::of(server);
        browser.ok(FORM).await.has("1 MiB");
        let agent = unique("agent");
        let send = async |limit: &str| {
            let fields = [("prompt", "p"), ("agent_slug", agent.as_str()), ("timeout_sec", limit), ("ttl_after_finished_sec", "7d")];
            browser.send_form(FORM, FORM, &fields).await
        };
        for (limit, seconds, again) in [("30m", 1_800, "30m"), ("2h", 7_200, "2h"), ("90", 90, "90s")] {
            assert_eq!(send(limit).await.status, 303);
            let task = &server.get(&format!("llm-tasks?agent_slug={agent}")).await.ok()[0];
            assert_eq!((&task["policy"]["timeout_sec"], &task["ttl_after_finished_sec"]), (&json!(seconds), &json!(604_800)));
            let form = browser.ok(&format!("{FORM}?like={}", task["id"].as_str().unwrap())).await;
            form.has(&format!("name=\"timeout_sec\" value=\"{again}\""));
            form.has("name=\"ttl_after_finished_sec\" value=\"168h\"");
        }
        let refused = send("soon").await.expect(400);
        refused.has("id=\"timeout_sec-wrong\"");
        refused.has("value=\"soon\"");
        // What is refused stands there as it was typed, and so does a time beside another field that is wrong.
        send("48h").await.expect(400).has("name=\"timeout_sec\" value=\"48h\"");
        let beside = [("prompt", "p"), ("agent_slug", agent.as_str()), ("timeout_sec", "90m"), ("priority", "high")];
        browser.send_form(FORM, FORM, &beside).await.expect(400).has("name=\"timeout_sec\" value=\"90m\"");
    }

    async fn all_wrong_fields_are_told_at_once(server) {
        let browser = Browser::of(server);
        let agent = unique("agent");
        let fields = [
            ("prompt", "p"),
            ("agent_slug", agent.as_str()),
            ("labels", "no pair"),
            ("timeout_sec", "soon"),
            ("budget", "-1"),
            ("priority", "99"),
            ("depends_on", "0000dead"),
            ("ref", "a b"),
        ];
        let refused = browser.send_form(FORM, FORM, &fields).await.expect(400);
        for (field, _) in &fields[2..] {
            refused.has(&format!("id=\"{field}-wrong\""));
        }
        // The first one of the form.
        refused.has("<a href=\"#ref\">To the first one</a>");
        for field in ["prompt", "agent_slug", "context_id"] {
            refused.has_not(&format!("id=\"{field}-wrong\""));
        }
        assert_eq!(server.get(&format!("llm-tasks?agent_slug={agent}")).await.ok(), json!([]));
    }

    async fn an_unknown_project_is_told_with_all_that_is_wrong_and_what_may_be_meant(server) {
        let (browser, project) = (Browser::of(server), unique("project"));
        server.post("projects", json!({ "name": project, "repo_url": "https://git.example.com/a.git" })).await.created();
        let misspelt = format!("{project}x");
        let send = async |budget: &str| {
            let fields = [("prompt", "p"), ("agent_slug", "a"), ("project", misspelt.as_str()), ("budget", budget)];
            browser.send_form(FORM, FORM, &fields).await.expect(400)
        };
        let two = send("five").await;
        two.has("Expected US dollars, like 0.50, received &#39;five&#39;");
        for refused in [two, send("").await] {
            refused.has(&format!("No project has the name or id &#39;{misspelt}&#39;"));
            refused.has(&format!("(did you mean {project}?)"));
        }
    }

    async fn the_same_task_again_asks_for_the_same(server) {
        let browser = Browser::of(server);
        let agent = unique("agent");
        let body = json!({
            "context_id": "c", "agent_slug": agent, "prompt": "p", "outputs": ["out/*.md", "log"], "context_hints": ["notes.md"],
            "ttl_after_finished_sec": 3600, "labels": { "team": "docs" }, "priority": 3, "max_attempts": 2, "model": "opus",
            "policy": { "timeout_sec": 60, "budget": 0.5 }, "exclusive_key": "one", "desired_format": "json", "session": "none",
        });
        let task = server.post("llm-tasks", body.clone()).await.created();
        let form = format!("/tasks/new?like={}", task["id"].as_str().unwrap());
        let fields = fields_of(&browser.ok(&form).await.text);
        let fields: Vec<(&str, &str)> = fields.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        assert_eq!(browser.send_form(&form, FORM, &fields).await.status, 303);
        let again = &server.get(&format!("llm-tasks?agent_slug={agent}")).await.ok()[0];
        assert_ne!(again["id"], task["id"]);
        for (name, value) in body.as_object().unwrap().iter().filter(|(name, _)| *name != "policy") {
            assert_eq!(&again[name], value, "{name}");
        }
        assert_eq!(again["policy"], task["policy"]);
    }

    async fn a_form_that_breaks_off_does_nothing(server) {
        let browser = Browser::of(server);
        browser.ok(FORM).await;
        for (kind, body) in [("multipart/form-data; boundary=x", "--x\r\nContent-Disposition: form-data; name=\"prompt\"\r\n\r\nhello"), ("multipart/form-data", "--x--"), ("multipart/form-data; boundary=x", "")] {
            let refused = browser.send_as(FORM, kind, body).await;
            assert!([400, 403].contains(&refused.status), "{kind}: {}", refused.text);
        }
    }
}

on_both! { alone:
    async fn contexts_that_programs_have_named_are_offered_last(database) {
        let server = Server::on(database).start();
        let task = |context: String| json!({ "context_id": context, "agent_slug": "a", "prompt": "fix it" });
        server.post("llm-tasks", task("issue-1".to_owned())).await.created();
        let batch: Vec<Value> = (0..60).map(|number| task(format!("line-0123456789ab{number:04}"))).collect();
        server.post("llm-tasks:batch", json!({ "tasks": batch })).await.created();
        let form = Browser::of(&server).ok(FORM).await;
        form.has("<option value=\"issue-1\">fix it</option>");
        let places = ["value=\"issue-1\"", "value=\"line-0123456789ab"].map(|text| form.text.find(text));
        assert!(places[1].is_some() && places[0] < places[1], "{places:?}");
    }

    async fn the_form_offers_what_the_key_may_see(database) {
        let server = keyed(database);
        let admin = server.with_key(ADMIN);
        admin.post("workers", json!({ "name": "w", "capabilities": { "profiles": ["served"] } })).await.created();
        admin.post("projects", json!({ "name": "site", "repo_url": "https://git.example.com/a.git" })).await.created();
        admin.post("queues/closed/pause", json!({})).await.ok();
        admin.post("llm-tasks", json!({ "context_id": "talk", "agent_slug": "asked", "prompt": "p", "labels": { "team": "docs" } })).await.created();
        let all = ["<option value=\"served\">", "<option value=\"site\">", "<option value=\"closed\">", "<option value=\"talk\">p</option>", "<code>team=docs</code>"];
        let shown = Browser::signed_in(&server, ADMIN).await.ok(FORM).await;
        all.iter().for_each(|text| shown.has(text));
        // The agent of a task may be misspelt.
        shown.has_not("<option value=\"asked\">");
        let browser = Browser::signed_in(&server, ADMIN).await;
        browser.ok(FORM).await.has("served");
        let created = browser.send_form(FORM, FORM, &[("prompt", "p"), ("agent_slug", "serve")]).await.expect(303);
        let told = browser.ok(created.header("location")).await;
        told.has("No worker knows its agent by that name (did you mean served?): check the spelling");
        told.has("it runs with a worker’s profile default.");
        let key = create(&admin, "mine", "submit", json!({})).await;
        let submit = Browser::signed_in(&server, &key).await;
        let shown = submit.ok(FORM).await;
        all.iter().for_each(|text| shown.has_not(text));
        // It sees no workers, so its own tasks tell which agents there are, and the newest of a context what that is about.
        for prompt in ["first", "second"] {
            server.with_key(&key).post("llm-tasks", json!({ "context_id": "own", "agent_slug": "asked", "prompt": prompt })).await.created();
        }
        let shown = submit.ok(FORM).await;
        shown.has("<option value=\"asked\">");
        shown.has("<option value=\"mine/own\">second</option>");
        let member = Browser::signed_in(&server, &create(&admin, "ours", "member", json!({ "team": "docs" })).await).await.ok(FORM).await;
        member.has(all[0]);
        member.has_not(all[3]);
        member.has_not(all[4]);
    }
}
