//! The page of a task: its answer, what its run changed, its events and attempts, what it asks, and replies.

use super::browser::{Browser, Page};
use super::lists::MAX_PAGE;
use crate::files::upload;
use crate::on_both;
use crate::support::*;

const DIFF: &str = "diff --git a/src/a.rs b/src/a.rs\nindex 1..2 100644\n--- a/src/a.rs\n+++ b/src/a.rs\n@@ -1,2 +1,2 @@\n same\n-let <old> = 1;\n+let <new> = 2;\n\
    diff --git a/old.txt b/new.txt\nsimilarity index 100%\nrename from old.txt\nrename to new.txt\n\
    diff --git a/logo.png b/logo.png\nnew file mode 100644\nBinary files /dev/null and b/logo.png differ\n";

on_both! {
    async fn an_answer_in_markdown_is_laid_out_and_loads_nothing(server) {
        let browser = Browser::of(server);
        let (task, lease) = server.crew().leased_task().await;
        let output = "# Findings\n\nIt **works**, see [the log](https://x.example/log \"t\").\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n\
            ![chart](https://x.example/c.png) [bad](javascript:alert(1)) <img src=x onerror=alert(1)>";
        lease.complete("success", json!({ "output": output })).await.ok();
        let page = browser.ok(&format!("/tasks/{}", task.id)).await;
        for part in [
            "<h3>Findings</h3>",
            "<strong>works</strong>",
            "<a rel=\"noopener nofollow\" href=\"https://x.example/log\">the log</a>",
            "<td>1</td>",
            "<a rel=\"noopener nofollow\" href=\"https://x.example/c.png\">chart</a>",
            "&#60;img src=x onerror=alert(1)&#62;",
        ] {
            page.has(part);
        }
        page.has_not("<img");
        page.has_not("javascript:");
        // As it is, without scripts, and the way back.
        let raw = browser.ok(&format!("/tasks/{}?answer=raw", task.id)).await;
        raw.has("# Findings\n\nIt **works**");
        raw.has_not("<strong>works</strong>");
        raw.has(&format!("href=\"/tasks/{}\">Formatted</a>", task.id));
        page.has(&format!("data-copy-from=\"/tasks/{}/output\"", task.id));
    }

    async fn an_answer_in_json_can_be_folded(server) {
        let browser = Browser::of(server);
        let crew = server.crew();
        let worker = crew.worker().register().await;
        let task = crew.task().with("desired_format", json!("json")).create().await;
        let lease = task.lease_to(&worker).await;
        lease.complete("success", json!({ "output": r#"{"verdict":"good","risks":[{"line":1}]}"# })).await.ok();
        let page = browser.ok(&format!("/tasks/{}", task.id)).await;
        page.has("<span class=\"name\">verdict</span>: <span class=\"value\">&#34;good&#34;</span>");
        page.has("<details open><summary><span class=\"name\">risks</span>: [ 1 ]</summary>");
        browser.ok(&format!("/tasks/{}?answer=raw", task.id)).await.has("{&#34;verdict&#34;:&#34;good&#34;,");
    }

    async fn an_answer_that_is_too_long_is_shown_as_it_is(server) {
        let browser = Browser::of(server);
        let (task, lease) = server.crew().leased_task().await;
        lease.complete("success", json!({ "output": "**x** ".repeat(10_000) })).await.ok();
        let page = browser.ok(&format!("/tasks/{}", task.id)).await;
        page.has("**x** **x**");
        page.has("This is the beginning; the download has all of it.");
        assert!(page.text.len() < MAX_PAGE, "{}", page.text.len());
    }

    async fn what_a_run_changed_is_shown_by_file(server) {
        let browser = Browser::of(server);
        let (task, lease) = server.crew().leased_task().await;
        let query = format!("task_id={}&lease_id={}&name=x.patch&type=GIT_DIFF", task.id, lease.id);
        let diff = upload(server, &query, DIFF.as_bytes()).await.created();
        lease.complete("success", json!({ "output": "done" })).await.ok();
        let page = browser.ok(&format!("/tasks/{}", task.id)).await;
        for part in [
            "3 files: <b class=\"added\">+1</b> <b class=\"removed\">−1</b>",
            "<code>src/a.rs</code>",
            "<span class=\"line removed\">-let &#60;old&#62; = 1;</span>",
            "<span class=\"line added\">+let &#60;new&#62; = 2;</span>",
            "<code>new.txt</code> <span class=\"badge\">renamed</span> from <code>old.txt</code>",
            "<a href=\"#file-2\">new.txt</a>",
            "<details class=\"file\" id=\"file-2\" open>",
            "<code>logo.png</code> <span class=\"badge\">new</span> <span class=\"badge\">binary</span>",
        ] {
            page.has(part);
        }
        page.has(&format!("href=\"/artifacts/{}/content\"", diff["id"].as_str().unwrap()));
        page.has_not("This is the beginning");
        // The beginning of a long one, and the way to the whole.
        let (task, lease) = server.crew().leased_task().await;
        let long = format!("diff --git a/a b/a\n@@ -0,0 +1,9000 @@\n{}", "+a line that is added\n".repeat(9_000));
        let query = format!("task_id={}&lease_id={}&name=x.patch&type=GIT_DIFF", task.id, lease.id);
        upload(server, &query, long.as_bytes()).await.created();
        let page = browser.ok(&format!("/tasks/{}", task.id)).await;
        page.has("<b class=\"added\">+9000</b>");
        page.has("This is the beginning; the download has all of it.");
        assert!(page.text.len() < MAX_PAGE, "{}", page.text.len());
    }
}

on_both! {
    async fn artifacts_are_listed_by_their_kind(server) {
        let browser = Browser::of(server);
        let (task, lease) = server.crew().leased_task().await;
        let query = format!("task_id={}&lease_id={}&name=report.txt&type=OUTPUT", task.id, lease.id);
        upload(server, &query, b"a").await.created();
        task.succeed("forty-two").await;
        for (kind, name, has, has_not) in [("answer", "answers", ">forty-two</a>", ">report.txt</a>"), ("file", "files", ">report.txt</a>", ">forty-two</a>")] {
            let list = format!("/artifacts?kind={kind}&task_id={}", task.id);
            let shown = browser.ok(&list).await;
            shown.has(has);
            shown.has_not(has_not);
            shown.has(&format!("<a href=\"{}\" aria-current=\"page\">{name}</a>", list.replace('&', "&amp;")));
        }
        browser.get("/artifacts?kind=image").await.expect(400).has("Known: answer, file");
    }

    async fn a_queued_task_whose_attempt_failed_tells_it_in_the_list(server) {
        let (crew, browser) = (server.crew(), Browser::of(server));
        let worker = crew.worker().register().await;
        let lease = crew.task().attempts(2).create().await.lease_to(&worker).await;
        let list = format!("/tasks?agent_slug={}", crew.slug);
        browser.ok(&list).await.has_not("tried again");
        let failed = json!({ "error_message": "it took too long", "reason": "timeout", "retryable": true, "retry_at": now_ms() + 600_000 });
        lease.complete("error", failed).await.ok();
        let shown = browser.ok(&list).await;
        // When, as the page tells times.
        shown.has("<span lang=\"en\">is tried again <time datetime=");
        shown.has("</time>, because: it took too long</span>");
        shown.has(" · tried again: timeout");
    }
}

on_both! {
    async fn long_output_is_folded_and_events_are_grouped_by_attempt(server) {
        let browser = Browser::of(server);
        let crew = server.crew();
        let worker = crew.worker().register().await;
        let task = crew.task().attempts(2).create().await;
        let first = task.lease_to(&worker).await;
        let event = |seq: i64, kind: &str, data: Value| json!({ "seq": seq, "kind": kind, "at": 1, "data": data });
        let lines: String = (1..=400).map(|n| format!("line {n} of the output\n")).collect();
        let events = json!({ "lease_id": first.id, "events": [
            event(1, "tool_use", json!({ "name": "Read", "input": { "paths": ["a".repeat(60), "b".repeat(60)] } })),
            event(2, "tool_result", json!({ "content": "short" })),
            event(3, "tool_result", json!({ "content": lines })),
            event(4, "lifecycle", json!({ "phase": "started", "pid": 28096, "worker": "dev", "resumed": false, "profile": "default" })),
            event(5, "lifecycle", json!({ "phase": "ended", "exit": 143, "duration_ms": 5_000 })),
            event(6, "usage", json!({ "input_tokens": 2_400, "output_tokens": 700, "cost_usd": 0.0236, "turns": 3, "duration_ms": 791 })),
        ] });
        server.post(&task.path("/events"), events).await.ok();
        first.complete("error", json!({ "error_message": "no", "reason": "overloaded", "retryable": true, "retry_at": 1 })).await.ok();
        let second = task.lease_to(&worker).await;
        server.post(&task.path("/events"), json!({ "lease_id": second.id, "events": [event(1, "text", json!({ "text": "again" }))] })).await.ok();
        let whole = format!("/tasks/{}/events/3", task.id);
        for path in [format!("/tasks/{}", task.id), format!("/tasks/{}/events", task.id)] {
            let page = browser.ok(&path).await;
            page.has(&format!("<p class=\"attempt\" id=\"attempt-1\">Attempt 1 on {}: failed</p>", worker.name));
            page.has(&format!("<p class=\"attempt\" id=\"attempt-2\">Attempt 2 on {}: under way</p>", worker.name));
            page.has("<div class=\"what\">short</div>");
            // As `task logs` tells it.
            page.has("<div class=\"what\">the run begins on worker dev, by the profile default</div>");
            page.has("<div class=\"what\">the run ends after 5 s</div>");
            page.has_not("pid: ");
            page.has("<div class=\"what\">$0.0236 for 2400 tokens in, 700 out, in 791 ms</div>");
            page.has("<summary>line 1 of the output\nline 2 of the output\nline 3 of the output\nline 4 of the output</summary>");
            page.has("<span class=\"name\">paths</span>: [ 2 ]");
            page.has_not("line 400 of the output");
            page.has(&format!("href=\"{whole}\""));
        }
        let text = browser.ok(&whole).await;
        assert!(text.header("content-type").starts_with("text/plain") && text.text == lines.trim(), "{}", text.text);
        for missing in ["9", "0", "x", "99999999999999999999"] {
            browser.get(&format!("/tasks/{}/events/{missing}", task.id)).await.expect(404).has("There is no such event");
        }
    }

    async fn an_outage_of_the_provider_is_told_as_what_it_is(server) {
        let (crew, browser) = (server.crew(), Browser::of(server));
        let worker = crew.worker().slots(2).register().await;
        let overloaded = |retry_at: i64| json!({ "error_message": "no", "reason": "overloaded", "retryable": true, "retry_at": retry_at });
        let waits = crew.task().attempts(3).create().await;
        waits.lease_to(&worker).await.complete("error", overloaded(now_ms() + 600_000)).await.ok();
        let page = browser.ok(&format!("/tasks/{}", waits.id)).await;
        page.has("Nothing needs to be done: it is tried again by itself at that time.");
        page.has_not("Mend what the message says");

        let task = crew.task().attempts(3).create().await;
        for more in [overloaded(1), json!({ "error_message": "no", "reason": "timeout" })] {
            let lease = task.lease_to(&worker).await;
            let event = json!({ "seq": 1, "kind": "text", "at": 1, "data": { "text": "I begin" } });
            server.post(&task.path("/events"), json!({ "lease_id": lease.id, "events": [event] })).await.ok();
            lease.complete("error", more).await.ok();
        }
        let page = browser.ok(&format!("/tasks/{}", task.id)).await;
        page.has("Requeue it with a larger time limit");
        page.has("Earlier attempts failed because the provider had no room");
        // The events begin with those of the last attempt, and the advice leads there.
        page.has("<a href=\"#attempt-2\">Events of the last attempt</a>");
        let places = [2, 1].map(|number| page.text.find(&format!("id=\"attempt-{number}\"")));
        assert!(places[0].is_some() && places[0] < places[1], "{places:?}");
    }

    async fn attempts_tell_how_they_ended_and_why(server) {
        let browser = Browser::of(server);
        let crew = server.crew();
        let worker = crew.worker().register().await;
        let task = crew.task().attempts(3).create().await;
        let lease = task.lease_to(&worker).await;
        server.post(&task.path("/release"), json!({ "lease_id": lease.id, "reason": "the agent shuts down" })).await.ok();
        let usage = json!({ "input_tokens": 24_000, "output_tokens": 6, "cost_usd": 0.25 });
        let lease = task.lease_to(&worker).await;
        let more = json!({ "error_message": "no", "reason": "out_of_memory", "retryable": true, "retry_at": 1, "usage": usage });
        lease.complete("error", more).await.ok();
        let lease = task.lease_to(&worker).await;
        let running = browser.ok(&format!("/tasks/{}", task.id)).await;
        running.has_not("<h2>Result</h2>");
        running.has("<span class=\"badge s-active\">under way</span>");
        running.has("<span>$0.2500 so far</span>");
        lease.complete("success", json!({ "output": "done" })).await.ok();
        let page = browser.ok(&format!("/tasks/{}", task.id)).await;
        page.has("1. <span class=\"badge s-\">handed back</span>");
        page.has("<span class=\"soft\" lang=\"en\">the agent shuts down</span>");
        page.has("2. <span class=\"badge s-failed\">failed</span>");
        page.has("<br>out of memory<br>");
        page.has("$0.2500");
        page.has("3. <span class=\"badge s-completed\">completed</span>");
        page.has_not(">released<");
        page.has("<dd>2 of 3 counted, given back 1 of at most 20</dd>");
        page.has("for 24\u{202f}000 tokens in, 6 out");
        page.has(&format!("<span class=\"soft\">to worker {}</span>", worker.name));
        page.has(&format!("<span class=\"soft\">agent {}</span>", crew.slug));
        let ukrainian = browser.send(reqwest::Method::GET, &format!("/tasks/{}", task.id), None, &[("accept-language", "uk")]).await.expect(200);
        ukrainian.has("забракло пам’яті");
        ukrainian.has(&format!("<span class=\"soft\">воркеру {}</span>", worker.name));
        // A run that can't be tried again, and one that is cancelled.
        let (task, lease) = server.crew().leased_task().await;
        lease.complete("error", json!({ "error_message": "no", "reason": "auth" })).await.ok();
        let page = browser.ok(&format!("/tasks/{}", task.id)).await;
        page.has("<span class=\"badge s-failed\">failed</span>");
        page.has("<br>auth");
        page.has("inputmode=\"decimal\" placeholder=\"none\"");
        page.has("<span class=\"soft\">the run failed: auth</span>");
    }

    async fn a_page_begins_with_what_matters_now(server) {
        let browser = Browser::of(server);
        let crew = server.crew();
        let worker = crew.worker().register().await;
        let task = crew.task().with("session", json!("context")).with("labels", json!({ "a/team": "x y" })).create().await;
        let path = format!("/tasks/{}", task.id);
        let in_order = |page: &Page, parts: &[&str]| {
            let places: Vec<_> = parts.iter().map(|part| page.text.find(part).unwrap_or_else(|| panic!("no {part} in {}", page.text))).collect();
            assert!(places.is_sorted(), "{parts:?}: {places:?}");
        };
        const FOLDED_REPLY: &str = "<details class=\"later\" id=\"later\">";
        let lease = task.lease_to(&worker).await;
        let event = json!({ "seq": 1, "kind": "text", "at": 1, "data": { "text": "I begin" } });
        server.post(&task.path("/events"), json!({ "lease_id": lease.id, "events": [event] })).await.ok();
        // A running task: its events, which the page follows, then the prompt, then the reply.
        let page = browser.ok(&path).await;
        in_order(&page, &["<span data-since=", " of at most ", "class=\"events\" data-follow", ">Prompt<", FOLDED_REPLY]);
        page.has("href=\"/tasks?label=a%2Fteam%3Dx%20y\"");
        // While it asks, there is one form to answer in.
        let asked = json!({ "lease_id": lease.id, "id": NO_ID, "question": { "tool": "Bash", "limit_sec": 600 } });
        server.post(&task.path("/question"), asked).await.ok();
        browser.ok(&path).await.has_not("name=\"prompt\"");
        // A failed one: what to do, with the way to the events, and the reply at the end.
        lease.complete("error", json!({ "error_message": "no", "reason": "auth" })).await.ok();
        let page = browser.ok(&path).await;
        in_order(&page, &["<span>took ", "<a href=\"#attempt-1\">Events of the last attempt</a>", ">Prompt<", "id=\"attempt-1\"", FOLDED_REPLY]);
        page.has_not("data-follow");
        // A completed one: its answer and the reply.
        let (task, lease) = crew.leased_task().await;
        lease.complete("success", json!({ "output": "the answer" })).await.ok();
        let page = browser.ok(&format!("/tasks/{}", task.id)).await;
        in_order(&page, &["the answer", "name=\"prompt\"", ">Prompt<", ">Events of the run<"]);
        page.has_not(FOLDED_REPLY);
    }

    async fn invisible_characters_are_shown_on_pages(server) {
        let (crew, browser) = (server.crew(), Browser::of(server));
        let task = crew.task().prompt("a\u{202e}b\u{200b}c שלום").create().await;
        let page = browser.ok(&format!("/tasks/{}", task.id)).await;
        page.has("a\\u202eb\\u200bc שלום");
        page.has_not("\u{202e}");
    }

    async fn questions_in_words_show_their_options_and_an_answer_to_one_of_two_is_refused_at_the_form(server) {
        let browser = Browser::of(server);
        let (task, lease) = server.crew().leased_task().await;
        let path = format!("/tasks/{}", task.id);
        let input = json!({ "questions": [
            { "question": "Which <base>?", "options": [{ "label": "main", "description": "the newest" }, { "label": "2.4" }] },
            { "question": "How many?" },
        ] });
        let questions = json!(["Which <base>? (main / 2.4)", "How many?"]);
        let asked = json!({ "tool": "AskUserQuestion", "input": input, "questions": questions, "limit_sec": 600 });
        server.post(&task.path("/question"), json!({ "lease_id": lease.id, "id": NO_ID, "question": asked })).await.ok();
        let page = browser.ok(&path).await;
        page.has("lang=\"en\">Which &#60;base&#62;?</label>");
        page.has("<li><strong>main</strong> – the newest</li><li><strong>2.4</strong></li>");
        page.has("<input id=\"answer1\" name=\"answers\" value=\"\" required list=\"options1\"");
        page.has("<input id=\"answer2\" name=\"answers\" value=\"\" required autocomplete");
        // The names of the tool and of the members of its input are for programs.
        page.has_not("AskUserQuestion");
        let target = format!("{path}/answer");
        let allow = |answers: [&'static str; 2]| [("question_id", NO_ID), ("decision", "allow"), ("answers", answers[0]), ("answers", answers[1])];
        let refused = browser.send_form(&path, &target, &allow(["", "seven"])).await.expect(400);
        refused.has("Answer each of the questions, or deny them");
        refused.has("The run asks you");
        refused.has("<input id=\"answer2\" name=\"answers\" value=\"seven\"");
        // What the API says stands there, too.
        let none = browser.send_form(&path, &target, &[("question_id", NO_ID), ("decision", "allow")]).await;
        assert!(none.status >= 400, "{}", none.status);
        none.has("give one answer for each");
        none.has("name=\"answers\"");
        browser.send_form(&path, &target, &allow(["main", "seven"])).await.expect(303);
        let answered = server.get(&task.path("/question")).await.ok();
        assert_eq!(answered["answer"]["answers"], json!(["main", "seven"]));
    }

    async fn a_reply_goes_on_with_the_conversation(server) {
        let browser = Browser::of(server);
        let crew = server.crew();
        let task = crew.task().context(&unique("talk")).with("labels", json!({ "team": "docs" })).with("session", json!("context"));
        let task = task.with("policy", json!({ "timeout_sec": 600, "budget": 0.75 })).attempts(1).create().await;
        let page = format!("/tasks/{}", task.id);
        browser.ok(&page).await.has("Send the reply");
        let target = format!("{page}/reply");
        browser.send_form(&page, &target, &[("prompt", " \r\n")]).await.expect(400).has("The reply is empty");
        let sent = browser.send_form(&page, &target, &[("prompt", "and\r\nthen?")]).await.expect(303);
        let id = sent.header("location").strip_prefix("/tasks/").and_then(|rest| rest.strip_suffix("?done=created")).expect("its page");
        let (first, reply) = (task.now().await, server.get(&format!("llm-tasks/{id}")).await.ok());
        assert_eq!(reply["prompt"], json!("and\nthen?"));
        for field in ["context_id", "agent_slug", "project", "labels", "model", "policy", "max_attempts"] {
            assert_eq!(reply[field], first[field], "{field}");
        }
        browser.ok(&format!("/tasks/{id}?done=created")).await.has("The task was created.");
        // A task on its own has nothing to go on with.
        let alone = crew.task().with("session", json!("none")).create().await;
        let page = format!("/tasks/{}", alone.id);
        browser.ok(&page).await.has_not("Send the reply");
        browser.send_form("/tasks", &format!("{page}/reply"), &[("prompt", "x")]).await.expect(409).has("no conversation that could go on");
    }

    async fn what_a_task_depends_on_is_told_by_its_prompt(server) {
        let (crew, browser) = (server.crew(), Browser::of(server));
        let first = crew.task().prompt("build the site").create().await;
        let next = crew.task().with("depends_on", json!([first.id])).create().await;
        let (path, list) = (format!("/tasks/{}", next.id), format!("/tasks?agent_slug={}", crew.slug));
        let page = browser.ok(&path).await;
        page.has(&format!("<a href=\"/tasks/{0}\" title=\"{0}\">build the site</a> <span class=\"badge s-queued\">queued</span>", first.id));
        page.has("It waits for other tasks");
        // The title has said it.
        page.has_not("waits until the tasks that it depends on are completed");
        first.cancel().await.ok();
        next.reaches("cancelled").await;
        browser.ok(&path).await.has("build the site</a> <span class=\"badge s-cancelled\">cancelled</span>");
        browser.ok(&list).await.has(&format!("task …{} did not complete", &first.id[28..]));
    }

    async fn a_refused_account_is_told_as_such_whatever_the_reason(server) {
        let (task, lease) = server.crew().leased_task().await;
        let failed = json!({ "error_message": "authentication_failed; the account works without this task, so the attempt counts", "reason": "agent_error" });
        lease.complete("error", failed).await.ok();
        let page = Browser::of(server).ok(&format!("/tasks/{}", task.id)).await;
        page.has("Sign in again on the worker, or correct the API key");
        page.has_not("Do what the message says");
    }

    async fn how_long_a_run_took_is_told_by_one_clock(server) {
        let (task, lease) = server.crew().leased_task().await;
        lease.complete("success", json!({ "output": "done", "metrics": { "duration_ms": 3_600_000 } })).await.ok();
        let page = Browser::of(server).ok(&format!("/tasks/{}", task.id)).await;
        page.has("<span>took ");
        // The agent counts without what comes before and after its program.
        page.has_not("1 h 0 min");
    }

    async fn a_run_that_asks_is_seen_from_afar_and_its_command_as_one(server) {
        let browser = Browser::of(server);
        let (task, lease) = server.crew().leased_task().await;
        let path = format!("/tasks/{}", task.id);
        let icon = |page: &Page| page.text.split("rel=\"icon\"").nth(1).unwrap().split('>').next().unwrap().to_owned();
        let before = browser.ok(&path).await;
        before.has_not("<title>Asks you");
        let input = json!({ "command": "rm -r \\\n  build", "description": "Removes <build>" });
        let asked = json!({ "lease_id": lease.id, "id": NO_ID, "question": { "tool": "Bash", "input": input, "limit_sec": 600 } });
        server.post(&task.path("/question"), asked).await.ok();
        let page = browser.ok(&path).await;
        page.has("<title>Asks you: ");
        // Its badge is that of the lists.
        page.has("<span class=\"badge s-asks\">asks you</span>");
        assert_ne!(icon(&page), icon(&before));
        page.has("<pre tabindex=\"0\" lang=\"en\" class=\"command\"><code>rm -r \\\n  build</code></pre>");
        page.has("Removes &#60;build&#62;");
        // The time limit stands still meanwhile.
        before.has(" of at most ");
        page.has_not(" of at most ");
        // The reason stands beside the button that sends it.
        let places = ["value=\"allow\"", "name=\"message\"", "value=\"deny\""].map(|part| page.text.find(part));
        assert!(places[0].is_some() && places.is_sorted(), "{places:?}");
        browser.ok(&format!("/leases?task_id={}", task.id)).await.has("<span class=\"badge s-asks\">asks you</span>");
        browser.send_form(&path, &format!("{path}/answer"), &[("decision", "allow"), ("question_id", NO_ID)]).await.expect(303);
        let after = browser.ok(&path).await;
        after.has_not("<title>Asks you");
        after.has_not("s-asks");
        assert_eq!(icon(&after), icon(&before));
    }
}
