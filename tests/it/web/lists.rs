//! Lists, their filters and pages, and what the pages cost.

use super::browser::{Browser, Page};
use crate::on_both;
use crate::support::checker::Link;
use crate::support::*;

/// The longest page, as it is sent.
pub const MAX_PAGE: usize = 60_000;

on_both! {
    async fn filters_are_in_the_address_and_pages_follow_each_other(server) {
        let (crew, browser) = (server.crew(), Browser::of(server));
        let context = unique("listed");
        for number in 0..45 {
            crew.task().context(&context).prompt(&format!("number {number} of the list")).create().await;
        }
        let first = browser.ok(&format!("/tasks?context_id={context}")).await;
        first.has("number 44 of the list");
        first.has_not("number 4 of the list");
        assert_eq!(first.text.matches("<tr><td").count(), 25);
        let next = first.text.split("rel=\"next\" href=\"").nth(1).expect("a next page").split('"').next().unwrap().replace("&#38;", "&").replace("&amp;", "&");
        assert!(next.contains(&format!("context_id={context}")) && next.contains("cursor="), "{next}");
        let second = browser.ok(&next).await;
        second.has("number 4 of the list");
        second.has_not("number 44 of the list");
        second.has("Newest tasks");
        second.has_not("rel=\"next\"");
        browser.ok(&format!("/tasks?context_id={context}&status=dead")).await.has("No task matches the filter");
        browser.ok(&format!("/tasks?context_id={context}&since=1h")).await.has("number 44 of the list");
        for (field, wrong) in [("label", "nonsense"), ("id", "nonsense"), ("text", "a")] {
            let told = browser.ok(&format!("/tasks?{field}={wrong}")).await;
            told.has(&format!("name=\"{field}\" value=\"{wrong}\" aria-invalid=\"true\" aria-describedby=\"{field}-wrong\""));
            told.has(&format!("role=\"alert\" id=\"{field}-wrong\" lang=\"en\">"));
            told.has("<button>Apply</button></div></details>");
        }
        browser.ok("/tasks?cursor=nonsense").await.has("Invalid cursor");
        let task = crew.task().prompt("found by its id").create().await;
        browser.ok(&format!("/tasks?id={}", &task.id[24..])).await.has("found by its id");
    }

    async fn what_is_not_there_is_told_on_a_page(server) {
        let browser = Browser::of(server);
        for path in ["/nothing", "/tasks/nonsense", &format!("/tasks/{NO_ID}"), "/workers/nobody", "/tasks/..%2F..%2Fkeys"] {
            let page = browser.get(path).await.expect(404);
            assert!(page.header("content-type").starts_with("text/html"), "{path}");
            page.has("There is no such page");
            assert_eq!(page.text.contains("name=\"text\""), path.starts_with("/tasks/"), "{path}: {}", page.text);
        }
        // Programs get what they know.
        server.get("/nothing").await.error(404);
        let api = browser.get("/api/runtime/llm-tasks/nonsense").await;
        assert!(api.header("content-type").starts_with("application/json"));
        browser.post("/tasks", &[], &[]).await.expect(405);
    }

    async fn pages_of_two_statuses_follow_each_other(server) {
        let (crew, browser) = (server.crew(), Browser::of(server));
        let workers = [crew.worker().slots(32).register().await, crew.worker().slots(32).register().await];
        let mut made = Vec::new();
        for number in 0..35 {
            let task = crew.task().create().await;
            let lease = task.lease_to(&workers[number % 2]).await;
            // Of the oldest, all are running.
            if number < 20 || number % 5 == 0 {
                lease.heartbeat().await.ok();
            }
            made.push(task.id.clone());
        }
        let shown = |page: &Page| -> Vec<String> {
            page.text.split("name=\"ids\" value=\"").skip(1).map(|rest| rest.split('"').next().unwrap().to_owned()).collect()
        };
        let first = browser.ok(&format!("/tasks?agent_slug={}&status=running", crew.slug)).await;
        let next = first.text.split("rel=\"next\" href=\"").nth(1).expect("a next page").split('"').next().unwrap().replace("&#38;", "&");
        let second = browser.ok(&next).await;
        second.has_not("rel=\"next\"");
        made.reverse();
        assert_eq!([shown(&first), shown(&second)], [&made[..25], &made[25..]]);
    }

    async fn a_page_is_sorted_by_what_is_chosen(server) {
        let (crew, browser) = (server.crew(), Browser::of(server));
        let worker = crew.worker().slots(2).register().await;
        let (long, short) = (crew.task().with("priority", json!(2)).create().await, crew.task().with("priority", json!(7)).create().await);
        let (of_long, of_short) = (long.lease_to(&worker).await, short.lease_to(&worker).await);
        let begun = now_ms();
        of_short.complete("success", json!({ "usage": { "input_tokens": 1, "output_tokens": 1, "cost_usd": 0.5 } })).await.ok();
        eventually("the clock goes on", || async { (now_ms() > begun + 5).then_some(()) }).await;
        of_long.complete("success", json!({ "usage": { "input_tokens": 1, "output_tokens": 1, "cost_usd": 0.25 } })).await.ok();
        let waiting = crew.task().with("priority", json!(4)).create().await;
        let list = format!("/tasks?agent_slug={}", crew.slug);
        for (sort, order) in [
            ("", [&waiting, &short, &long]),
            ("longest", [&long, &short, &waiting]),
            ("cost", [&short, &long, &waiting]),
            ("priority", [&short, &waiting, &long]),
            ("ended", [&long, &short, &waiting]),
        ] {
            let page = browser.ok(&format!("{list}&sort={sort}")).await;
            let ids = page.text.split("name=\"ids\" value=\"").skip(1).map(|rest| rest.split('"').next().unwrap());
            assert!(ids.eq(order.iter().map(|task| task.id.as_str())), "{sort}: {}", page.text);
            if !sort.is_empty() {
                page.has(&format!("<option value=\"{sort}\" selected>"));
                // Another status has the same order.
                page.has(&format!("/tasks?status=completed&agent_slug={}&sort={sort}\"", crew.slug).replace('&', "&#38;"));
            }
        }
        browser.get("/tasks?sort=size").await.expect(400).has("sort: &#39;size&#39; is unknown, so nothing was done. Known: ended, longest, cost, priority");
    }

    async fn a_sorted_page_says_that_there_are_more(server) {
        let (crew, browser) = (server.crew(), Browser::of(server));
        let task = json!({ "context_id": "c", "agent_slug": crew.slug, "prompt": "p", "session": "none" });
        server.post("llm-tasks:batch", json!({ "tasks": vec![&task; 101] })).await.created();
        let list = format!("/tasks?agent_slug={}&sort=cost", crew.slug);
        let page = browser.ok(&list).await;
        assert_eq!(page.text.matches("name=\"ids\"").count(), 100);
        page.has("Sorted are the newest tasks");
        page.has(&format!("{list}&cursor=").replace('&', "&#38;"));
    }

    async fn a_row_tells_what_is_not_as_usual_and_leads_to_tasks_like_it(server) {
        let (crew, browser) = (server.crew(), Browser::of(server));
        let (context, generated) = (unique("a-context-with-a-long-name-of-its-own"), "0190a0a0-0000-7000-8000-0000b4ccefc3");
        crew.task().context(generated).create().await;
        crew.task().context(&context).with("priority", json!(9)).with("labels", json!({ "team": "docs" })).create().await;
        let list = browser.ok(&format!("/tasks?agent_slug={}", crew.slug)).await;
        list.has(&format!("<a href=\"/tasks?agent_slug={slug}\">{slug}</a>", slug = crew.slug));
        list.has(&format!("<a href=\"/tasks?context_id={context}\""));
        list.has_not(generated);
        list.has("<a href=\"/tasks?label=team%3Ddocs\">team=docs</a> · priority 9<");
        list.has("<details open>");
        let usual = crew.task().create().await;
        let page = browser.ok(&format!("/tasks?id={}", usual.id)).await;
        page.has_not("priority 5");
        page.has_not("attempt ");
        browser.ok("/tasks?status=queued").await.has("<details><summary>Filters");
    }

    async fn tasks_of_a_project_are_a_list(server) {
        let browser = Browser::of(server);
        let project = unique("project");
        server.post("projects", json!({ "name": project, "repo_url": "https://git.example.com/a.git" })).await.created();
        let (inside, outside) = (server.crew().task().with("project", json!(project)).create().await, server.crew().task().create().await);
        let page = browser.ok(&format!("/tasks?project={project}")).await;
        page.has(&inside.id);
        page.has_not(&outside.id);
        page.has(&format!("name=\"project\" value=\"{project}\""));
        browser.ok(&format!("/tasks/{}", inside.id)).await.has(&format!("href=\"/tasks?project={project}\""));
        browser.ok(&format!("/tasks?owner=nobody&project={project}")).await.has_not(&inside.id);
    }

    async fn what_an_address_names_wrongly_is_an_error(server) {
        let browser = Browser::of(server);
        for (page, told) in [
            ("/tasks?statsu=failed", "name: &#39;statsu&#39; is unknown, so nothing was done. Known: status, asks, agent_slug, "),
            ("/tasks?status=faild", "status: &#39;faild&#39; is unknown, so nothing was done. Known: queued, leased, "),
            ("/tasks?since=1d", "since: &#39;1d&#39; is unknown, so nothing was done. Known: 1h, 24h, 7d, 30d"),
            ("/leases?status=actve", "status: &#39;actve&#39; is unknown, so nothing was done. Known: active, "),
            ("/leases?wroker_id=a", "Known: status, outcome, reason, worker_id, since, task_id, cursor"),
            ("/audit?action=task_dead,nonsense", "action: &#39;nonsense&#39; is unknown"),
            ("/audit?actoin=task_dead", "Known: action, actor, "),
            ("/artifacts?task=1", "Known: task_id, kind, cursor"),
            ("/contexts?porject=a", "Known: cursor, project, order"),
            ("/workers?status=online", "Known: cursor"),
            ("/queues?agent=a", "Known: cursor, done"),
            ("/keys?name=a", "Known: cursor, done, scope"),
            ("/projects?name=a", "Known: cursor, done"),
        ] {
            browser.get(page).await.expect(400).has(told);
        }
    }

    async fn a_filter_that_names_nothing_is_told_at_its_field(server) {
        let browser = Browser::of(server);
        let crew = server.crew();
        let worker = crew.worker().register().await;
        let idle = crew.task().create().await;
        let near = format!("{}x", worker.name);
        for list in ["/leases", "/artifacts", "/audit"] {
            for part in ["nonsense", "0000000000"] {
                let refused = browser.get(&format!("{list}?task_id={part}")).await.expect(400);
                refused.has(&format!("name=\"task_id\" value=\"{part}\" aria-invalid=\"true\" aria-describedby=\"task_id-wrong\""));
                refused.has(&format!("No task, or more than one, has the id &#39;{part}&#39;: give the whole id"));
            }
            let unknown = browser.ok(&format!("{list}?task_id={NO_ID}")).await;
            unknown.has("aria-describedby=\"task_id-wrong\"");
            unknown.has("There is no task with this id");
        }
        browser.get(&format!("/audit?since=1h&task_id={}", &idle.id[20..])).await.leads_to(&format!("/audit?since=1h&task_id={}", idle.id));
        for list in ["/leases", "/audit", "/tasks", "/usage"] {
            let unknown = browser.ok(&format!("{list}?worker_id={near}")).await;
            unknown.has(&format!("name=\"worker_id\" value=\"{near}\" aria-invalid=\"true\" aria-describedby=\"worker_id-wrong\""));
            unknown.has(&format!("No worker has the name &#39;{near}&#39;. Did you mean "));
            browser.ok(&format!("{list}?worker_id=nobody-at-all")).await.has("the page Workers lists those that there are");
        }
        for list in ["/tasks", "/usage", "/contexts"] {
            let unknown = browser.ok(&format!("{list}?project=none-has-it")).await;
            unknown.has("aria-describedby=\"project-wrong\"");
            unknown.has("No project has the name or id &#39;none-has-it&#39;");
        }
        // What exists is no error, even if it has nothing in the list.
        for list in [format!("/leases?task_id={}", idle.id), format!("/artifacts?task_id={}", idle.id), format!("/leases?worker_id={}", worker.name)] {
            browser.ok(&list).await.has_not("aria-invalid");
        }
    }

    async fn a_failure_is_told_with_what_to_do(server) {
        let crew = server.crew();
        let worker = crew.worker().register().await;
        let task = crew.task().create().await;
        let lease = task.lease_to(&worker).await;
        let more = json!({ "error_message": "401 from the provider", "reason": "auth" });
        lease.complete("error", more).await.ok();
        let page = Browser::of(server).ok(&format!("/tasks/{}", task.id)).await;
        page.has("refused the worker&#39;s Claude account");
        page.has("401 from the provider");
        page.has("Requeue");
        let slow = crew.task().create().await;
        slow.lease_to(&worker).await.complete("error", json!({ "error_message": "no", "reason": "timeout" })).await.ok();
        Browser::of(server).ok(&format!("/tasks/{}", slow.id)).await.has("Requeue it with a larger time limit");
    }

    async fn pages_are_small_also_with_the_longest_texts(server) {
        let browser = Browser::of(server);
        let context = unique("long");
        let long = "<\"ї ".repeat(50_000);
        let name = "<".repeat(120);
        let tasks: Vec<Value> = (0..45)
            .map(|number| json!({ "context_id": context, "agent_slug": name, "prompt": format!("{number} {long}"), "session": "none" }))
            .collect();
        let created = server.post("llm-tasks:batch", json!({ "tasks": &tasks[..2] })).await.created();
        for task in &tasks[2..] {
            server.post("llm-tasks", task.clone()).await.created();
        }
        let id = created["tasks"][0]["id"].as_str().unwrap();
        for page in [format!("/tasks?context_id={context}"), format!("/tasks/{id}"), "/".into(), "/contexts".into(), format!("/contexts/{context}"), "/workers".into(), "/leases".into(), "/artifacts".into(), "/audit".into(), "/reconcilers".into()] {
            for language in ["en", "uk"] {
                let shown = browser.send(reqwest::Method::GET, &page, None, &[("accept-language", language)]).await.expect(200);
                assert!(shown.text.len() <= MAX_PAGE, "{page} in {language} has {} bytes", shown.text.len());
            }
        }
    }

    async fn a_text_is_searched_in_the_tasks_that_match_the_other_filters(server) {
        let browser = Browser::of(server);
        let crew = server.crew();
        let list = format!("/tasks?agent_slug={}", crew.slug);
        let needle = crew.task().prompt("find the NEEDLE <here>").create().await;
        for n in 0..33 {
            crew.task().prompt(&format!("hay {n}")).create().await;
        }
        let first = browser.ok(&list).await;
        first.has_not(&needle.id);
        let found = browser.ok(&format!("{list}&text=needle+%3CHERE")).await;
        found.has(&needle.id);
        found.has_not("hay ");
        found.has_not("all that match the filter");
        // The list shows where: in the beginning of the prompt, or around the place further on.
        found.has("find the <mark>NEEDLE &#60;here</mark>&#62;");
        crew.task().prompt(&format!("{} some STRAWBERRIES after it", "much of it ".repeat(20))).create().await;
        browser.ok(&format!("{list}&text=strawberries")).await.has(" some <mark>STRAWBERRIES</mark> after it</span>");
        browser.ok(&list).await.has_not("<mark>");
        browser.ok(&format!("{list}&text=barley")).await.has("No task matches the filter.");
        let many = browser.ok(&format!("{list}&text=hay")).await;
        assert_eq!(many.text.matches("name=\"ids\"").count(), 25);
        let next = many.text.split("rel=\"next\" href=\"").nth(1).expect("a next page").split('"').next().unwrap().replace("&#38;", "&");
        let rest = browser.ok(&next).await;
        assert_eq!(rest.text.matches("name=\"ids\"").count(), 8, "{next}");
    }

    async fn assets_have_their_digest_in_the_name_and_stay(server) {
        let browser = Browser::of(server);
        let page = browser.ok("/").await;
        for part in page.text.split("\"/assets/").skip(1) {
            let path = format!("/assets/{}", part.split('"').next().unwrap());
            let asset = browser.ok(&path).await;
            assert_eq!(asset.header("cache-control"), "public, max-age=31536000, immutable", "{path}");
            assert!(asset.header("etag").is_empty() && asset.text.len() < 20_000, "{path}");
        }
        let other = browser.get("/assets/style.0000.css").await.expect(404);
        assert_eq!(other.header("cache-control"), "no-store");
    }

    async fn an_open_page_hears_of_changes(server) {
        let browser = Browser::of(server);
        browser.ok("/").await;
        let mut stream = server.request(reqwest::Method::GET, "/live").send().await.unwrap();
        assert_eq!(stream.headers()["content-type"], "text/event-stream");
        server.crew().task().create().await;
        let told = async {
            loop {
                let piece = stream.chunk().await.unwrap().expect("the stream goes on");
                if piece.starts_with(b"event: change\n") {
                    return piece;
                }
            }
        };
        // The stream names no task: pages load what they may see.
        assert_eq!(&told.await[..], b"event: change\ndata: 1\n\n");
    }
}

on_both! { alone:
    async fn an_empty_installation_shows_what_to_do(database) {
        let server = Server::on(database).start();
        let browser = Browser::of(&server);
        let first = browser.ok("/").await;
        first.has("First steps");
        first.has(&format!("bloom-runtime agent --server {}", server.base()));
        first.has("href=\"/tasks/new\"");
        browser.ok("/tasks").await.has("There are no tasks yet.");
        browser.ok("/workers").await.has("There is no worker yet");
        server.post("workers", json!({ "name": "w1" })).await.created();
        server.crew().task().create().await;
        browser.ok("/").await.has_not("First steps");
        server.post("workers", json!({ "name": "w1", "status": "offline" })).await.ok();
        browser.ok("/").await.has("<a href=\"/workers/w1\">w1</a>:</strong> <span lang=\"en\">it is offline, last seen <time ");
    }

    async fn a_chart_of_few_bars_is_left_out(database) {
        let server = Server::on(database).start();
        let (browser, crew) = (Browser::of(&server), server.crew());
        crew.task().create().await;
        let page = browser.ok("/").await;
        page.has("All that wait (1)</a>");
        // One bar tells nothing: the hour has just begun.
        page.has("id=\"charts\"");
        page.has_not("Tasks queued: ");
    }

    async fn a_card_counts_the_tasks_of_its_list(database) {
        let server = Server::on(database).start();
        let (crew, browser) = (server.crew(), Browser::of(&server));
        let worker = crew.worker().slots(9).register().await;
        let lease = async |prompt: &str, attempts: u64| {
            crew.task().prompt(prompt).with("max_attempts", json!(attempts)).create().await.lease_to(&worker).await
        };
        lease("it failed", 2).await.complete("error", json!({ "error_message": "no", "reason": "auth" })).await.ok();
        lease("it is dead", 1).await.complete("error", json!({ "error_message": "no", "retryable": true })).await.ok();
        lease("it is running", 1).await.heartbeat().await.ok();
        lease("it is leased", 1).await;
        crew.task().prompt("it is queued").create().await;
        assert_eq!(server.get("llm-tasks?status=dead").await.ok().as_array().unwrap().len(), 1);
        let overview = browser.ok("/").await;
        // Who runs a task, and for how long, stands below its prompt.
        overview.has(&format!("on <a href=\"/tasks?worker_id={0}\">{0}</a> for ", worker.name));
        let lists = [("failed", vec!["it failed", "it is dead"]), ("running", vec!["it is running", "it is leased"]), ("queued", vec!["it is queued"])];
        for (status, prompts) in lists {
            let list = format!("/tasks?status={status}");
            overview.has(&format!("href=\"{list}\"><b>{}</b>", prompts.len()));
            let page = browser.ok(&list).await;
            page.has(&format!("<a href=\"{list}\" aria-current=\"page\">{status} <span class=\"soft\">{}</span></a>", prompts.len()));
            page.has("<a href=\"/tasks?\">all <span class=\"soft\">5</span></a>");
            // With other filters, the tasks that match them are counted; in a search, none are.
            let here = |query: &str, count: &str| format!("<a href=\"{list}&#38;{query}\" aria-current=\"page\">{status}{count}</a>");
            let of_agent = format!("agent_slug={}", crew.slug);
            let filtered = browser.ok(&format!("{list}&{of_agent}")).await;
            filtered.has(&here(&of_agent, &format!(" <span class=\"soft\">{}</span>", prompts.len())));
            filtered.has(&format!("<a href=\"/tasks?{of_agent}\">all <span class=\"soft\">5</span></a>"));
            browser.ok(&format!("{list}&label=a%3Db")).await.has(&here("label=a%3Db", " <span class=\"soft\">0</span>"));
            browser.ok(&format!("{list}&text=it+is")).await.has(&here("text=it+is", ""));
            assert_eq!(page.text.matches("name=\"ids\"").count(), prompts.len(), "{}", page.text);
            prompts.iter().for_each(|prompt| page.has(prompt));
        }
    }

    async fn what_failed_lately_is_counted_by_its_end_and_leads_to_its_list(database) {
        let server = Server::on(database).start();
        let (crew, browser) = (server.crew(), Browser::of(&server));
        let worker = crew.worker().slots(2).register().await;
        let fail = async |lease: Lease<'_>| {
            lease.complete("error", json!({ "error_message": "no", "reason": "auth" })).await.ok();
        };
        let oldest = crew.task().prompt("made long ago").create().await.lease_to(&worker).await;
        for number in 0..41 {
            fail(crew.task().prompt(&format!("number {number} failed long ago")).create().await.lease_to(&worker).await).await;
        }
        Link::open(&server.database_url()).await.rows("UPDATE task_state SET updated_at = 1, finished_at = 1 WHERE finished_at IS NOT NULL").await;
        let list = "/tasks?status=failed&amp;finished_since=24h";
        browser.ok("/").await.has(&format!("<a class=\"card\" href=\"{list}\"><b>0</b>"));
        fail(oldest).await;
        let overview = browser.ok("/").await;
        overview.has(&format!("<a class=\"card bad\" href=\"{list}\"><b>1</b>"));
        overview.has("made long ago");
        overview.has_not("failed long ago");
        let shown = browser.ok(&list.replace("&amp;", "&")).await;
        shown.has("made long ago");
        shown.has_not("failed long ago");
        shown.has("<option value=\"24h\" selected>in the last day</option>");
        // What is shown is what is changed.
        let all = [("which", "all"), ("action", "requeue"), ("status", "failed"), ("finished_since", "24h")];
        browser.send_form("/tasks", "/tasks/bulk", &all).await.expect(200).has("Requeue 1 task?");
    }
}
