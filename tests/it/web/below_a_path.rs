//! The server below a path, behind a real nginx with the lines of manifests/nginx/README.md.

use std::collections::BTreeSet;

use reqwest::{Method, Url};

use super::browser::{Browser, Page};
use crate::files::upload;
use crate::on_both;
use crate::support::server::OWN_KEY;
use crate::support::*;

const README: &str = include_str!("../../../manifests/nginx/README.md");
/// More pages than there are here.
const MOST: usize = 600;

/// What a browser loads or offers, and whether it is the address of a form that is sent by POST.
fn addresses(page: &Page) -> Vec<(String, bool)> {
    let attribute = |tag: &str, name: &str| {
        let value = tag.split(&format!(" {name}=\"")).nth(1)?.split('"').next()?;
        Some(value.replace("&#38;", "&").replace("&amp;", "&"))
    };
    let in_tag = |tag: &str| {
        let tag = tag.split('>').next().unwrap_or_default().to_owned();
        let is_post = tag.starts_with("form method=\"post\"");
        ["href", "src", "action", "data-copy-from"].iter().filter_map(|name| Some((attribute(&tag, name)?, is_post))).collect::<Vec<_>>()
    };
    page.text.split('<').flat_map(in_tag).collect()
}

fn nginx_before(server: &Server, port: u16) -> nginx::Nginx {
    let [target, location] =
        [1, 2].map(|n| README.split("```nginx\n").nth(n).and_then(|text| text.split("```").next()).expect("the lines"));
    let upstream = server.base().trim_start_matches("http://");
    let site = format!(
        "upstream bloom_runtime {{ server {upstream}; }} map $http_upgrade $bloom_runtime_connection {{ default upgrade; \"\" \"\"; }}\n{target}\n\
         server {{ listen 127.0.0.1:{port}; {location} }}"
    );
    let dir = janitor::new_path("nginx");
    std::fs::create_dir_all(&dir).unwrap();
    nginx::Nginx::start(&dir, &site, port)
}

/// A server with something on each of its pages.
async fn server_below(database: Database, root: &str) -> Server {
    let plan = Server::on(database).env("PUBLIC_URL", format!("{root}/")).env("TRUSTED_PROXIES", "127.0.0.1").keyed();
    let server = plan.env("RATE_LIMIT_PER_MINUTE", 0).env("WORKER_RATE_LIMIT_PER_MINUTE", 0).start();
    let crew = server.crew();
    let (running, lease) = crew.leased_task().await;
    upload(&server, &format!("task_id={}&lease_id={}&name=a.txt", running.id, lease.id), b"text").await.created();
    crew.leased_task().await.1.complete("success", json!({ "output": "done" })).await.ok();
    crew.task().context("team/docs").create().await;
    for _ in 0..61 {
        crew.task().context("many").create().await;
    }
    server.post("projects", json!({ "name": "docs", "repo_url": "https://git.example.com/docs.git" })).await.created();
    server
}

on_both! { alone:
    async fn every_link_of_every_page_stays_below_the_path(database) {
        let port = janitor::free_port();
        let root = format!("http://127.0.0.1:{port}/bloom");
        let server = server_below(database, &root).await;
        let _nginx = nginx_before(&server, port);
        let browser = Browser::of(&Api::new(&root));

        browser.get("/tasks?status=dead").await.leads_to("/bloom/sign-in?next=%2Ftasks%3Fstatus%3Ddead");
        let signed_in = browser.sign_in(OWN_KEY).await;
        signed_in.leads_to("/bloom/");
        assert!(signed_in.header("set-cookie").contains("; Path=/bloom;"), "{:?}", signed_in.headers);
        browser.get("/language/uk?next=%2Ftasks").await.leads_to("/bloom/tasks");
        browser.get("/language/en?next=%2F").await.leads_to("/bloom/");
        browser.send_form("/tasks/new", "/tasks/new", &[("agent_slug", "default"), ("prompt", "")]).await.expect(400);

        let mut open = vec!["/".to_owned(), "/nothing/at/all".to_owned()];
        let (mut seen, mut forms) = (BTreeSet::new(), BTreeSet::new());
        while let Some(path) = open.pop() {
            if path.starts_with("/language/") || !seen.insert(path.clone()) {
                continue;
            }
            assert!(seen.len() < MOST, "{seen:?}");
            let page = browser.get(&path).await;
            let is_missing = path == "/nothing/at/all";
            assert_eq!(page.status, if is_missing { 404 } else { 200 }, "{path}: {}", page.text);
            if !page.header("content-type").starts_with("text/html") {
                continue;
            }
            let here = Url::parse(&format!("{root}{path}")).unwrap();
            for (address, is_post) in addresses(&page) {
                let mut target = here.join(&address).unwrap();
                target.set_fragment(None);
                let below = target.as_str().strip_prefix(&root).filter(|rest| rest.starts_with('/'));
                let below = below.unwrap_or_else(|| panic!("{address} on {path} is not below {root}")).to_owned();
                if is_post { forms.insert(below) } else { open.push(below); false };
            }
        }
        // Without the token of the page, a form is refused and does nothing.
        for form in &forms {
            browser.post(form, &[], &[]).await.expect(403);
        }
        for page in ["/tasks/new", "/contexts/team%2Fdocs", "/workers", "/audit", "/membridge", "/docs/", "/docs/swagger-ui-bundle.js", "/openapi.json"] {
            assert!(seen.contains(page), "{page}: {seen:?}");
        }
        assert!(forms.iter().any(|form| form.ends_with("/cancel")) && forms.contains("/sign-out"), "{forms:?}");
        assert_eq!(browser.get("/docs").await.header("location"), "/bloom/docs/");
        assert_eq!(server.get("/openapi.json").await.ok()["servers"], json!([{ "url": "./" }]));
        browser.ok("/").await.has("data-root=\"/bloom\" defer");
        let live = Api::new(&root).request(Method::GET, "/live").header("cookie", browser.cookie_header()).send().await.unwrap();
        assert_eq!(live.headers()["content-type"], "text/event-stream");
    }

    async fn agents_and_commands_call_a_server_below_a_path(database) {
        let port = janitor::free_port();
        let root = format!("http://127.0.0.1:{port}/bloom");
        let server = server_below(database, &root).await;
        let _nginx = nginx_before(&server, port);
        let api = Api::new(&root).with_key(OWN_KEY);
        let _agent = agent::AgentPlan::at(&root, "behind").env("BLOOM_KEY", OWN_KEY).echo().start();
        let user = crate::cli::user::User::at(&api);
        user.does(&["task", "submit", "--agent", "default", "--context", "a/b", "--wait", "Say hello"]).ok();
        user.does(&["conversation", "describe", "a/b"]).ok();
    }
}
