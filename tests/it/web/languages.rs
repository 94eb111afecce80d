//! The languages of the pages: which one a browser gets, how a person changes it, and that nothing stays in English.

use reqwest::Method;

use super::browser::{Browser, Page};
use super::membridge::{HOUSE, house};
use crate::keys::{ADMIN, keyed};
use crate::on_both;
use crate::support::stub::{Reply, Stub};
use crate::support::*;

const QUESTION: &str = "0190a0a0-0000-7000-8000-00000000000b";
/// Names and words of the API, which are the same in every language.
const NAMES: &str = "bloom-runtime API OpenAPI Membridge membridge JSON json Claude CLI git git@HOST https ssh file bloom UTC RUNTIME_API_KEY TLS stderr sqlite \
                     postgresql LLM_RESULT CSV Kubernetes admin submit member read join api router reconciler worker server cookie HOST PATH English claude default";

/// A browser of a person who prefers this language.
fn preferring(api: &Api, language: &str) -> Browser {
    Browser::of(&api.with_header("accept-language", language))
}

/// The text of the page that a person reads in Ukrainian: without commands, and without what is marked as English.
fn read_in_ukrainian(page: &str) -> String {
    let (mut text, mut rest, mut left_out) = (String::new(), page, None::<(String, usize)>);
    while let Some((before, after)) = rest.split_once('<') {
        let (tag, after) = after.split_once('>').expect("a tag ends");
        let name = tag.trim_start_matches('/').split([' ', '/']).next().unwrap_or_default().to_owned();
        match &mut left_out {
            None => {
                text += before;
                text += " | ";
                for attribute in ["aria-label", "title", "data-name", "placeholder"] {
                    text.extend(
                        tag.split(&format!(" {attribute}=\""))
                            .skip(1)
                            .filter_map(|value| value.split('"').next())
                            .map(|value| format!("{value} | ")),
                    );
                }
                let is_void = ["input", "meta", "link", "br"].contains(&name.as_str());
                let is_other =
                    tag.contains(" lang=\"en\"") || tag.contains("class=\"what\"") || ["code", "pre", "kbd"].contains(&name.as_str());
                if is_other && !is_void && !tag.starts_with('/') {
                    left_out = Some((name, 1));
                }
            }
            Some((open, depth)) if *open == name => {
                *depth = if tag.starts_with('/') { *depth - 1 } else { *depth + 1 };
                if *depth == 0 {
                    left_out = None;
                }
            }
            Some(_) => {}
        }
        rest = after;
    }
    text
}

/// Latin words in it that are no names and no data of the test.
fn english_words(page: &str, data: &[&str]) -> Vec<String> {
    let text = data.iter().fold(read_in_ukrainian(page), |text, known| text.replace(known, ""));
    let words = text.split(|letter: char| !letter.is_alphanumeric() && !"-_@".contains(letter));
    let is_english = |word: &&str| {
        word.chars().filter(char::is_ascii_alphabetic).count() > 1
            && word.chars().all(|letter| letter.is_ascii_alphabetic() || "-_'".contains(letter))
    };
    words.filter(is_english).filter(|word| !NAMES.split_whitespace().any(|name| name == *word)).map(str::to_owned).collect()
}

#[track_caller]
fn is_ukrainian(name: &str, page: &Page, data: &[&str]) {
    page.has("<html lang=\"uk\">");
    let left = english_words(&page.text, data);
    assert!(left.is_empty(), "{name} has {left:?} in {}", page.text);
    assert!(page.text.len() <= super::lists::MAX_PAGE, "{name} has {} bytes", page.text.len());
}

#[test]
fn the_scan_of_pages_sees_english() {
    let page = "<html lang=\"uk\"><h1>Огляд</h1><p lang=\"en\">in <b>English</b></p><code>ls -l</code><p title=\"Why\">API no</p>";
    assert_eq!(english_words(page, &[]), ["Why", "no"]);
}

on_both! {
    async fn a_browser_gets_the_language_that_it_prefers(server) {
        for (language, code, title) in [
            ("uk-UA,uk;q=0.9,en;q=0.8", "uk", "Огляд"), ("en-US,en;q=0.9,uk;q=0.8", "en", "Overview"), ("de", "en", "Overview"), ("", "en", "Overview"),
        ] {
            let page = preferring(server, language).ok("/").await;
            page.has(&format!("<html lang=\"{code}\">"));
            page.has(&format!("<h1>{title}</h1>"));
            assert_eq!(page.header("vary"), "accept, accept-language, cookie");
        }
        let missing = preferring(server, "uk").get("/nothing").await.expect(404);
        missing.has("<html lang=\"uk\">");
        missing.has("Такої сторінки немає");
        missing.has("href=\"/language/en?next=%2Fnothing\"");
        let wrong_host = preferring(server, "uk").send(Method::GET, "/tasks", None, &[("host", "evil.example")]).await.expect(403);
        wrong_host.has("Це не дозволено");
        // The API's own text is marked as English.
        wrong_host.has("role=\"alert\" lang=\"en\"");
    }

    async fn a_person_changes_the_language_by_a_link(server) {
        let browser = Browser::of(server);
        let page = browser.ok("/tasks?status=dead").await;
        page.has("hreflang=\"uk\"");
        let link = page.text.split("href=\"/language/").nth(1).expect("a link").split('"').next().unwrap().replace("&#38;", "&");
        let changed = browser.get(&format!("/language/{link}")).await;
        changed.leads_to("/tasks?status=dead");
        assert_eq!(changed.header("set-cookie"), "bloom_language=uk; Path=/; HttpOnly; SameSite=Strict; Max-Age=31536000");
        let shown = browser.ok("/tasks?status=dead").await;
        shown.has("<h1>Завдання</h1>");
        // The words of the API stay in addresses and filters.
        shown.has("<a href=\"/tasks?status=dead\" aria-current=\"page\">вичерпано");
        // It counts more than what the browser prefers.
        browser.send(Method::GET, "/", None, &[("accept-language", "en")]).await.expect(200).has("<h1>Огляд</h1>");
        browser.get("/language/en?next=/workers").await.leads_to("/workers");
        browser.ok("/workers").await.has("<h1>Workers</h1>");
        for next in ["//evil.example", "https://evil.example", "%2F%5Cevil.example", "javascript:alert(1)", "/%0D%0Aset-cookie:a=b"] {
            browser.get(&format!("/language/uk?next={next}")).await.leads_to("/");
        }
        let unknown = browser.get("/language/xx?next=/tasks").await;
        unknown.leads_to("/tasks");
        assert_eq!(unknown.header("set-cookie"), "");
        // A page that answers a form leads back to a page that can be shown.
        let wrong = browser.send_form("/tasks/new", "/tasks/new", &[("priority", "high")]).await.expect(400);
        wrong.has("/language/en?next=%2Ftasks%2Fnew\"");
        let refused = browser.send_form("/tasks/new", "/tasks/bulk", &[("action", "explode")]).await.expect(400);
        refused.has("/language/en?next=%2Ftasks\"");
    }

    async fn a_list_tells_once_why_a_task_waits(server) {
        let crew = server.crew();
        let task = crew.task().create().await;
        let told = task.now().await["waiting"]["message"].as_str().unwrap().replace('\'', "&#39;");
        let list = format!("/tasks?agent_slug={}", crew.slug);
        preferring(server, "en").ok(&list).await.has(&told);
        let ukrainian = preferring(server, "uk").ok(&list).await;
        ukrainian.has("<span class=\"soft\">Жоден воркер не обслуговує його агента</span>");
        ukrainian.has_not(&told);
    }

    async fn numbers_have_the_forms_of_ukrainian(server) {
        let (crew, browser) = (server.crew(), preferring(server, "uk"));
        let context = unique("plural");
        let list = format!("/tasks?context_id={context}");
        let mut ids = Vec::new();
        for _ in 0..5 {
            ids.push(crew.task().context(&context).create().await.id);
        }
        for (count, told) in [(1, "Скасувати 1 завдання?"), (2, "Скасувати 2 завдання?"), (5, "Скасувати 5 завдань?")] {
            let selected: Vec<(&str, &str)> = ids[..count].iter().map(|id| ("ids", id.as_str())).collect();
            browser.send_form(&list, "/tasks/bulk", &[&selected[..], &[("action", "cancel")]].concat()).await.expect(200).has(told);
        }
        browser.ok("/tasks?done=21").await.has("Змінено 21 завдання.");
        browser.ok("/tasks?done=11").await.has("Змінено 11 завдань.");
    }

    async fn what_a_page_finds_wrong_is_told_in_its_language(server) {
        let browser = preferring(server, "uk");
        let fields = [("prompt", "p"), ("agent_slug", "a"), ("context_id", "c")];
        let by_page = browser.send_form("/tasks/new", "/tasks/new", &[&fields[..], &[("priority", "<b>")]].concat()).await.expect(400);
        by_page.has("id=\"priority-wrong\" lang=\"uk\">Очікується число, отримано «&#60;b&#62;»");
        let by_api = browser.send_form("/tasks/new", "/tasks/new", &[&fields[..], &[("priority", "11")]].concat()).await.expect(400);
        by_api.has("id=\"priority-wrong\" lang=\"en\">Number must be");
        browser.send_form("/tasks/new", "/tasks/bulk", &[("action", "explode")]).await.expect(400).has("Форма не каже, що зробити");
        browser.post("/tasks/bulk", &[("form_token", "x")], &[]).await.expect(403).has("Ця форма не з вашого сеансу");
    }
}

on_both! { alone:
    async fn an_open_page_is_loaded_again_in_its_language(database) {
        let server = Server::on(database).env("RUNTIME_API_KEY", ADMIN).start();
        let (one, other) = (preferring(&server, "en"), preferring(&server, "uk"));
        for browser in [&one, &other] {
            browser.sign_in(ADMIN).await.leads_to("/");
        }
        for _ in 0..4 {
            let again = async |browser: &Browser| browser.send(Method::GET, "/tasks", None, &[("bloom-again", "1")]).await.expect(200);
            let (english, ukrainian) = tokio::join!(again(&one), again(&other));
            english.has("<h1>Tasks</h1>");
            ukrainian.has("<h1>Завдання</h1>");
        }
    }

    async fn strangers_read_in_their_language(database) {
        let server = Server::on(database).env("RUNTIME_API_KEY", ADMIN).env("RUNTIME_READ_KEY", "reader-key-0123456789").start();
        let browser = preferring(&server, "uk");
        is_ukrainian("/sign-in", &browser.ok("/sign-in?next=/tasks").await, &[]);
        is_ukrainian("a wrong key", &browser.sign_in("wrong").await.expect(401), &[]);
        browser.post("/tasks/bulk", &[], &[]).await.expect(401).has("Ви не ввійшли");
        browser.get("/language/en?next=/sign-in").await.leads_to("/sign-in");
        browser.ok("/sign-in").await.has("<h1>Sign in</h1>");
        let reader = preferring(&server, "uk");
        reader.sign_in("reader-key-0123456789").await.leads_to("/");
        let page = reader.ok("/").await;
        page.has("читання (лише читання)");
        is_ukrainian("/", &page, &[]);
        is_ukrainian("/keys", &reader.ok("/keys").await, &[]);
    }

    async fn the_pages_of_keys_are_in_ukrainian(database) {
        let server = keyed(database);
        let browser = preferring(&server, "uk");
        browser.sign_in(ADMIN).await.leads_to("/");
        let form = [("name", "1"), ("scope", "submit"), ("team", "2"), ("expires_in", "9d"), ("max_open_tasks", "5"), ("max_tasks_per_minute", "5")];
        is_ukrainian("a new key", &browser.send_form("/keys", "/keys", &form).await.expect(201), &[]);
        for page in ["/keys", "/keys?done=1", "/keys/1", "/keys/1?done=1", "/keys/1/confirm-revoke"] {
            is_ukrainian(page, &browser.ok(page).await, &[]);
        }
        for form in [[("name", "/"), ("scope", "read")], [("name", "3"), ("max_open_tasks", "4x")]] {
            is_ukrainian("a wrong key", &browser.send_form("/keys", "/keys", &form).await.expect(400), &[]);
        }
        is_ukrainian("no key", &browser.get("/keys/2").await.expect(404), &[]);
    }

    async fn the_pages_of_the_control_plane_are_in_ukrainian(database) {
        let stub = Stub::start().await;
        let server = Server::on(database).env("MEMBRIDGE_SERVER_URL", &stub.url).env("MEMBRIDGE_ADMIN_KEY", "0123456789012345").start();
        let browser = preferring(&server, "uk");
        house(&stub);
        let (page, data) = (format!("/membridge/projects/{HOUSE}"), [&*stub.url, "house"]);
        is_ukrainian("the list", &browser.send_form("/membridge", "/membridge/test", &[]).await.expect(200), &data);
        is_ukrainian("without a project", &browser.ok(&page).await, &data);
        server.post("projects", json!({ "name": "house", "repo_url": "https://4.5/6.git" })).await.created();
        for word in ["leader", "push", "pull", "asked"] {
            is_ukrainian(word, &browser.ok(&format!("{page}?done={word}")).await, &data);
        }
        is_ukrainian("a pull", &browser.ok(&format!("{page}/confirm-pull?node=n2")).await, &data);
        for (status, body) in [(401, "{}"), (200, "no JSON")] {
            stub.once("/projects", Reply::new(status, body));
            is_ukrainian("no list", &browser.ok("/membridge").await, &data);
            stub.once(&format!("/projects/{HOUSE}/nodes"), Reply::new(status, body));
            is_ukrainian("no project", &browser.get(&page).await.expect(502), &data);
        }
        for detail in ["Agent returned 401: {}", "has no URL", "keeps no memory", "Agent not found", "No memory of this project", "does not lead", "down"] {
            stub.always("/sync/push", Reply::new(502, detail));
            let refused = browser.send_form(&page, &format!("{page}/push"), &[("node", "n1")]).await.expect(502);
            is_ukrainian(detail, &refused, &data);
        }
    }

    async fn no_page_in_ukrainian_has_english_left(database) {
        let server = Server::on(database).start();
        let browser = preferring(&server, "uk");
        for page in ["/", "/tasks", "/tasks/new", "/workers", "/queues", "/usage", "/keys", "/projects", "/leases", "/artifacts", "/audit", "/membridge"] {
            is_ukrainian(page, &browser.ok(page).await, &[]);
        }
        let stub = Stub::start().await;
        let pause = json!({ "kind": "account", "name": "1", "cause": "credentials", "since": 1, "until": 4_000_000_000_000_i64, "message": "it was refused" });
        let worker = |name: &str, more: Value| json_merge(json!({ "name": name, "agent_version": "1", "os_info": "2", "capabilities": { "max_concurrency": 9 } }), more);
        server.post("workers", worker("11", json!({ "url": stub.url }))).await.created();
        server.post("workers", worker("22", json!({ "pauses": [pause] }))).await.created();
        server.post("workers/22/drain", json!({})).await.ok();
        let new_task = async |more: Value| {
            let task = json_merge(json!({ "context_id": "1", "agent_slug": "2", "prompt": "3 4", "session": "none" }), more);
            server.post("llm-tasks", task).await.created()["id"].as_str().unwrap().to_owned()
        };
        let leased = async || {
            let id = new_task(json!({})).await;
            let lease = server.post(&format!("llm-tasks/{id}/lease"), json!({ "worker_id": "11" })).await.created();
            (id, lease["lease"]["id"].clone())
        };
        let (done, lease) = leased().await;
        let event = json!({ "seq": 1, "kind": "tool_use", "at": 1, "data": { "name": "Bash", "input": {} } });
        server.post(&format!("llm-tasks/{done}/events"), json!({ "lease_id": lease, "events": [event] })).await.ok();
        let usage = json!({ "input_tokens": 5, "output_tokens": 6, "cost_usd": 0.25 });
        let success = json!({ "lease_id": lease, "status": "success", "output": "7", "metrics": { "duration_ms": 5 }, "usage": usage, "artifact_type": "1" });
        server.post(&format!("llm-tasks/{done}/complete"), success).await.ok();
        let (failed, lease) = leased().await;
        let error = json!({ "lease_id": lease, "status": "error", "reason": "auth", "error_message": "it was refused", "metrics": { "duration_ms": 5 } });
        server.post(&format!("llm-tasks/{failed}/complete"), error).await.ok();
        let (asking, lease) = leased().await;
        let question = json!({ "tool": "Bash", "input": {}, "questions": ["1"], "limit_sec": 600 });
        server.post(&format!("llm-tasks/{asking}/question"), json!({ "lease_id": lease, "id": QUESTION, "question": question })).await.ok();
        let (running, _) = leased().await;
        let suspended = new_task(json!({ "suspend": true, "labels": { "1": "2" }, "exclusive_key": "3", "depends_on": [running], "model": "4" })).await;
        let waiting = new_task(json!({ "agent_slug": "none-serves-it", "prompt": "5" })).await;
        let project = server.post("projects", json!({ "name": "33", "repo_url": "https://4.5/6.git", "primary_node_id": "11" })).await.created();
        let project = format!("/projects/{}", project["id"].as_str().unwrap());
        browser.send_form(&project, &format!("{project}/propagate"), &[]).await;
        let data = [&stub.url, "none-serves-it", "https://4.5/6.git"];
        let mut pages: Vec<String> = ["/", "/tasks", "/tasks?status=dead", "/tasks?text=x", "/tasks?unselected=1", "/tasks/new", "/workers", "/workers/11", "/workers/22"].map(str::to_owned).into();
        pages.extend(["/workers/22/confirm-remove", "/projects", &project, &format!("{project}/confirm-delete"), "/leases", "/leases?status=expired"].map(str::to_owned));
        pages.extend(["/artifacts", &format!("/artifacts?task_id={waiting}"), "/artifacts?kind=file", "/audit", "/audit?action=key_created", "/membridge"].map(str::to_owned));
        pages.extend([&done, &failed, &asking, &running, &suspended, &waiting].map(|id| format!("/tasks/{id}")));
        pages.extend([format!("/tasks/{done}/events"), format!("/tasks/{done}/confirm-delete"), format!("/tasks/new?like={suspended}")]);
        for word in ["cancel", "requeue", "suspend", "resume", "answer", "created", "created-unknown-agent"] {
            pages.push(format!("/tasks/{done}?done={word}"));
        }
        for word in ["cordon", "uncordon", "drain"] {
            pages.push(format!("/workers/11?done={word}"));
        }
        pages.extend(["clone", "propagate", "nobody", "asked"].map(|word| format!("{project}?done={word}")));
        pages.extend(["/projects?done=1", "/membridge?done=1", "/tasks?done=3", "/tasks?done=1&matched=2&depends=1"].map(str::to_owned));
        pages.extend(["/contexts", "/contexts?project=x", "/contexts/1", "/contexts/1?done=1", "/contexts/1/confirm-reset"].map(str::to_owned));
        pages.extend(["/queues", "/queues?done=pause", "/queues?done=resume", "/queues?done=limit", "/usage", "/usage?by=agent,day&since=1d", "/usage?until=1d", "/reconcilers"].map(str::to_owned));
        for page in &pages {
            is_ukrainian(page, &browser.ok(page).await, &data);
        }
        for page in ["/nothing".to_owned(), format!("/tasks/{NO_ID}"), "/tasks/nonsense".to_owned()] {
            is_ukrainian(&page, &browser.get(&page).await.expect(404), &data);
        }
        for action in ["cancel", "requeue"] {
            let selected = [("ids", done.as_str()), ("action", action)];
            is_ukrainian(action, &browser.send_form("/tasks", "/tasks/bulk", &selected).await.expect(200), &data);
            let all = [("which", "all"), ("status", "queued"), ("action", action)];
            is_ukrainian(action, &browser.send_form("/tasks", "/tasks/bulk", &all).await.expect(200), &data);
        }
        let wrong = [("prompt", "1"), ("agent_slug", "2"), ("context_id", "3"), ("labels", "4"), ("priority", "99")];
        is_ukrainian("a wrong form", &browser.send_form("/tasks/new", "/tasks/new", &wrong).await.expect(400), &data);
        is_ukrainian("a wrong period", &browser.get("/usage?since=1").await.expect(400), &data);
        is_ukrainian("a wrong time", &browser.get("/audit?since=1").await.expect(400), &data);
        is_ukrainian("no queue", &browser.send_form("/queues", "/queues", &[("action", "limit")]).await.expect(400), &data);
        is_ukrainian("a wrong project", &browser.send_form("/projects", "/projects", &[("name", "/")]).await.expect(400), &data);
        is_ukrainian("a wrong connection", &browser.send_form("/membridge", "/membridge", &[]).await.expect(400), &data);
        is_ukrainian("a test", &browser.send_form("/membridge", "/membridge/test", &[]).await.expect(200), &data);
    }
}

fn json_merge(mut one: Value, more: Value) -> Value {
    one.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    one
}
