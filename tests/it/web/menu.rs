//! The menu: the pages of every day in a row, the others below "More".

use super::browser::{Browser, Page};
use crate::keys::{ADMIN, create};
use crate::on_both;
use crate::support::*;

/// The names in the row, and those below "More".
fn menu(page: &Page) -> [Vec<String>; 2] {
    let nav = page.text.split("<nav aria-label=\"Pages\">").nth(1).and_then(|rest| rest.split("</nav>").next()).expect("a menu");
    let (row, more) = nav.split_once("<details").unwrap_or((nav, ""));
    [row, more].map(|part| {
        let links = part.split("<a href=").skip(1).filter_map(|link| link.split('>').nth(1)?.split('<').next());
        links.map(str::to_owned).collect()
    })
}

on_both! { alone:
    async fn the_pages_of_every_day_are_in_a_row_and_the_others_below_more(database) {
        let server = Server::on(database).env("RUNTIME_API_KEY", ADMIN).start();
        let browser = Browser::signed_in(&server, ADMIN).await;
        let overview = browser.ok("/").await;
        let daily = ["Overview", "Tasks", "New task", "Contexts", "Workers", "Projects", "Queues", "Usage"].map(str::to_owned).to_vec();
        let others = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        assert_eq!(menu(&overview), [daily.clone(), others(&["Leases", "Artifacts", "Audit", "Reconcilers", "API keys"])]);
        overview.has("<a href=\"/\" aria-current=\"page\">Overview</a>");
        overview.has("<summary>More</summary>");
        // What is closed tells that the page is in it.
        let audit = browser.ok("/audit").await;
        audit.has("<summary aria-current=\"true\">More</summary>");
        audit.has("<a href=\"/audit\" aria-current=\"page\">Audit</a>");
        // Membridge is an entry where it is used; the overview leads to where that begins.
        overview.has("<a href=\"/membridge\">control plane: ");
        browser.ok("/membridge").await.has("<a href=\"/membridge\" aria-current=\"page\">Membridge</a>");
        let form = [("membridge_server_url", "http://127.0.0.1:9"), ("admin_key", "a-key-of-the-control-plane")];
        browser.send_form("/membridge", "/membridge", &form).await.leads_to("/membridge?done=1");
        assert_eq!(menu(&browser.ok("/").await), [daily, others(&["Leases", "Artifacts", "Audit", "Reconcilers", "Membridge", "API keys"])]);
        let key = create(&server.with_key(ADMIN), "team", "submit", json!({})).await;
        let own = menu(&Browser::signed_in(&server, &key).await.ok("/").await);
        assert_eq!(own, [others(&["Overview", "Tasks", "New task", "Contexts", "Usage"]), others(&["Artifacts"])]);
        let key = create(&server.with_key(ADMIN), "ann", "member", json!({ "team": "docs" })).await;
        let member = Browser::signed_in(&server, &key).await;
        assert_eq!(menu(&member.ok("/").await), [others(&["Overview", "Tasks", "New task", "Contexts", "Workers", "Projects", "Queues", "Usage"]), others(&["Artifacts"])]);
        for page in ["/workers", "/projects"] {
            member.ok(page).await;
        }
        // What went wrong has the menu, too, for who is signed in.
        assert_eq!(menu(&member.get("/nothing").await.expect(404))[0].len(), 8);
        Browser::of(&server).get("/nothing").await.expect(404).has_not("<nav");
    }
}
