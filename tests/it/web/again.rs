//! Open pages that load again after a change.

use futures_util::future::join_all;
use reqwest::Method;

use super::browser::{Browser, Page};
use crate::keys::ADMIN;
use crate::on_both;
use crate::support::*;

const READER: &str = "reader-key-0123456789";
/// More would need more connections than the server lets one client have.
const BROWSERS: usize = 24;

fn guarded(database: Database) -> Server {
    Server::on(database).env("RUNTIME_API_KEY", ADMIN).env("RUNTIME_READ_KEY", READER).start()
}

async fn again(browser: &Browser, path: &str) -> Page {
    browser.send(Method::GET, path, None, &[("bloom-again", "1")]).await.expect(200)
}

async fn browsers(server: &Server, key: &str, count: usize) -> Vec<Browser> {
    let mut browsers = Vec::new();
    for _ in 0..count {
        browsers.push(Browser::signed_in(server, key).await);
    }
    browsers
}

async fn loads(server: &Server, source: &str) -> f64 {
    let text = server.with_key(ADMIN).get("/metrics").await.expect(200).text;
    let series = format!("bloom_web_pages_loaded_again_total{{source=\"{source}\"}} ");
    text.lines().find_map(|line| line.strip_prefix(&series)).map_or(0.0, |value| value.parse().unwrap())
}

on_both! { alone:
    async fn one_page_is_made_for_all_who_show_it(database) {
        let server = guarded(database);
        let browsers = browsers(&server, ADMIN, BROWSERS).await;
        let admin = server.with_key(ADMIN);
        let task = admin.crew().task().create().await;
        let page = format!("/tasks/{}", task.id);
        for _ in 0..4 {
            let pages = join_all(browsers.iter().map(|browser| again(browser, &page))).await;
            pages.iter().for_each(|page| page.has(&task.id));
        }
        let (shared, made) = (loads(&server, "shared").await, loads(&server, "made").await);
        assert_eq!(shared + made, 4.0 * BROWSERS as f64);
        assert!(shared > made, "{shared} shared, {made} made");
    }

    async fn each_browser_gets_the_token_of_its_own_session(database) {
        let server = guarded(database);
        let browsers = browsers(&server, ADMIN, 8).await;
        let admin = server.with_key(ADMIN);
        let task = admin.crew().task().create().await;
        let page = format!("/tasks/{}", task.id);
        let own = join_all(browsers.iter().map(async |browser| browser.ok(&page).await.form_token())).await;
        let pages = join_all(browsers.iter().map(|browser| again(browser, &page))).await;
        let shown: Vec<_> = pages.iter().map(Page::form_token).collect();
        assert_eq!(shown, own);
        let cancelled = browsers[0].post(&format!("{page}/cancel"), &[("form_token", &shown[0])], &[]).await;
        cancelled.leads_to(&format!("{page}?done=cancel"));
    }

    async fn a_change_is_in_what_is_loaded_after_it(database) {
        let server = guarded(database);
        let browser = Browser::signed_in(&server, ADMIN).await;
        let admin = server.with_key(ADMIN);
        for _ in 0..20 {
            again(&browser, "/tasks").await;
            let task = admin.crew().task().create().await;
            again(&browser, "/tasks").await.has(&task.id);
        }
    }

    async fn a_page_is_shared_only_by_those_who_may_see_the_same(database) {
        let server = guarded(database);
        let admin = server.with_key(ADMIN);
        let submitter = crate::keys::create(&admin, "submitter", "submit", json!({})).await;
        let task = admin.crew().task().create().await;
        let keys = [ADMIN, READER, submitter.as_str()];
        let browsers = join_all(keys.map(|key| Browser::signed_in(&server, key))).await;
        for _ in 0..4 {
            let pages = join_all(browsers.iter().map(|browser| again(browser, "/tasks"))).await;
            let shown = |page: &Page| (page.text.contains(&task.id), page.text.contains("name=\"form_token\""));
            assert!(shown(&pages[0]).0 && shown(&pages[1]).0 && !shown(&pages[2]).0);
            let page = format!("/tasks/{}", task.id);
            again(&browsers[0], &page).await.has("/cancel");
            again(&browsers[1], &page).await.has_not("/cancel");
            let hidden = browsers[2].send(Method::GET, &page, None, &[("bloom-again", "1")]).await;
            assert_eq!(hidden.status, 404, "{}", hidden.text);
        }
        let stranger = Browser::of(&server);
        let refused = stranger.send(Method::GET, "/tasks", None, &[("bloom-again", "1")]).await;
        assert_eq!(refused.status, 303);
        assert!(!refused.text.contains(&task.id));
    }
}
