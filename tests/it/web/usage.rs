//! The page of usage, and its file.

use super::browser::Browser;
use crate::keys::{ADMIN, create, keyed};
use crate::on_both;
use crate::support::checker::Link;
use crate::support::*;

/// Runs a task with this label, which costs this much.
async fn run(crew: &Crew<'_>, team: &str, cost: f64) {
    let worker = crew.worker().register().await;
    let task = crew.task().with("labels", json!({ "team": team })).create().await;
    let usage = json!({ "input_tokens": 1_000, "output_tokens": 10, "cost_usd": cost });
    task.lease_to(&worker).await.complete("success", json!({ "usage": usage, "model": "m-1" })).await.ok();
}

on_both! {
    async fn usage_is_shown_by_what_is_asked_for_with_totals(server) {
        let (crew, browser) = (server.crew(), Browser::of(server));
        for (team, cost) in [("docs", 0.25), ("docs", 0.25), ("web", 1.5)] {
            run(&crew, team, cost).await;
        }
        let page = |query: &str| format!("/usage?agent_slug={}&{query}", crew.slug);
        let shown = browser.ok(&page("by=label:team&by=model&since=1d")).await;
        for text in [
            "<th>Label team</th><th>Model</th>",
            "<td class=\"num\" data-name=\"Runs\">3</td>",
            "<td class=\"num\" data-name=\"Tokens read\">3000</td>",
            "<strong>$2.00</strong>",
            "<td class=\"wide\"><a href=\"/tasks?label=team%3Ddocs\">docs</a></td><td class=\"wide\">m-1</td><td class=\"num\" data-name=\"Runs\">2</td><td class=\"num\" data-name=\"Tokens read\">2000</td><td class=\"num\" data-name=\"Tokens written\">20</td><td class=\"num\" data-name=\"Cost\">$0.5000",
            "<rect width=\"33.3\"", "<rect width=\"100.0\"",
            "<option value=\"label:team\" selected>", "<option value=\"model\" selected>", "<option value=\"cost\" selected>", "This week by person", "&#38;by=team\">This month by team</a>",
        ] {
            shown.has(text);
        }
        // What is filtered by seldom is folded, after the button.
        let places = ["id=\"label\"", ">Show</button>", "<details><summary>Filters", "<details open><summary>Filters"].map(|part| shown.text.find(part));
        assert!(places[0] < places[1] && places[1] < places[3] && places[2].is_none(), "{places:?} in {}", shown.text);
        browser.ok("/usage?by=day").await.has("<details><summary>Filters");
        // The most expensive first, unless names are asked for.
        let is_before = |text: &str, first: &str, second: &str| text.find(first).unwrap() < text.find(second).unwrap();
        let (docs, web) = ("label=team%3Ddocs\">", "label=team%3Dweb\">");
        assert!(is_before(&shown.text, web, docs), "{}", shown.text);
        assert!(is_before(&browser.ok(&page("by=label:team&order=name")).await.text, docs, web));
        browser.get(&page("order=size")).await.expect(400).has("Known: cost, name");
        // The words of the command line, also with a comma.
        browser.ok(&page("by=label:team,creator")).await.has("<th>Label team</th><th>Person or key</th>");
        browser.ok(&page("by=agent")).await.has(&format!("<td class=\"wide\"><a href=\"/tasks?agent_slug={0}\">{0}</a></td>", crew.slug));
        browser.ok(&page("until=2d")).await.has("No run ended in this time.");
        browser.ok(&page("label=team%3Dweb")).await.has("<strong>$1.50</strong>");

        let file = shown.text.split("href=\"/usage.csv").nth(1).expect("a link to the file").split('"').next().unwrap().replace("&#38;", "&");
        let csv = browser.ok(&format!("/usage.csv{file}")).await;
        assert_eq!((csv.header("content-type"), csv.header("content-disposition")), ("text/csv; charset=utf-8", "attachment; filename=\"usage.csv\""));
        let lines: Vec<&str> = csv.text.lines().collect();
        assert_eq!(lines, ["key,keys.label:team,keys.model,runs,input_tokens,output_tokens,cost_usd,cost_estimated", "docs,docs,m-1,2,2000,20,0.5,false", "web,web,m-1,1,1000,10,1.5,false"]);

        for (wrong, field, told) in [
            ("since=soon", "since", "expected how long ago, like 2h"),
            ("until=5", "until", "5s is 5 seconds ago"),
            ("by=moon", "by", "expected day, week, agent, model"),
            ("by=day&by=day", "by", "is there twice"),
            ("by=day,model,project", "by", "At most 2"),
            ("label=team", "label", ""),
        ] {
            let refused = browser.get(&page(wrong)).await.expect(400);
            refused.has(&format!("id=\"{field}-wrong\" lang=\"en\"><code>{field}</code>: "));
            refused.has(told);
            browser.get(&format!("/usage.csv?{wrong}")).await.expect(400);
        }
        browser.get("/usage?sicne=1d").await.expect(400).has("Known: since, until, by");
    }

    async fn a_long_list_of_usage_has_pages_and_whole_totals(server) {
        let (crew, browser) = (server.crew(), Browser::of(server));
        for number in 0..62 {
            run(&crew, &format!("t{number:02}"), 0.5).await;
        }
        let first = browser.ok(&format!("/usage?by=label:team&agent_slug={}", crew.slug)).await;
        first.has("<strong>$31.00</strong>");
        first.has_not(">t60<");
        let next = first.text.split("rel=\"next\" href=\"").nth(1).expect("a next page").split('"').next().unwrap().replace("&#38;", "&");
        let second = browser.ok(&next).await;
        for text in ["<strong>$31.00</strong>", ">t60<", ">t61<"] {
            second.has(text);
        }
        second.has_not("rel=\"next\"");
        second.has_not(">t59<");
    }
}

on_both! { alone:
    async fn days_have_a_chart(database) {
        let server = Server::on(database).start();
        let (crew, browser) = (server.crew(), Browser::of(&server));
        for cost in [1.0, 2.0, 4.0] {
            run(&crew, "docs", cost).await;
        }
        // Few bars tell nothing.
        browser.ok("/usage").await.has_not("<figure>");
        let mut link = Link::open(&server.database_url()).await;
        for (cost, days) in [(2, 1), (4, 2)] {
            link.rows(&format!("UPDATE leases SET ended_at = ended_at - {days} * 86400000 WHERE cost_usd = {cost}")).await;
        }
        let shown = browser.ok("/usage?since=5d&by=day").await;
        for caption in ["<figcaption>Cost per day: $7.00 in 6 days</figcaption>", "<figcaption>Runs per day: 3 in 6 days</figcaption>", ": $4.00</title>"] {
            shown.has(caption);
        }
        browser.ok("/usage?since=5d&by=agent").await.has_not("<figure>");
    }

    async fn a_key_sees_the_usage_that_it_may_see(database) {
        let server = keyed(database);
        let admin = server.with_key(ADMIN);
        run(&admin.crew(), "of-others", 4.0).await;
        let browser = Browser::signed_in(&server, ADMIN).await;
        browser.ok("/usage?by=creator").await.has("<td class=\"wide\">admin key</td>");
        let named = server.with_key(&create(&admin, "ann", "admin", json!({})).await);
        run(&named.crew(), "of-ann", 0.0).await;
        // It owns no tasks, as a submit key does.
        browser.ok("/usage?by=creator").await.has("<td class=\"wide\">ann (key)</td>");
        let owner = server.with_key(&create(&admin, "ben", "submit", json!({})).await);
        let task = owner.crew().task().create().await;
        let worker = admin.worker().register().await;
        admin.task(&task.id).lease_to(&worker).await.complete("success", json!({ "usage": { "input_tokens": 1, "output_tokens": 1, "cost_usd": 0.0 } })).await.ok();
        browser.ok("/usage?by=creator").await.has("<td class=\"wide\"><a href=\"/tasks?owner=ben\">ben (key)</a></td>");
        for (scope, more) in [("read", json!({})), ("member", json!({ "team": "docs" })), ("submit", json!({}))] {
            let browser = Browser::signed_in(&server, &create(&admin, scope, scope, more).await).await;
            browser.ok("/").await.has("href=\"/usage\"");
            // A member sees what the tasks of its team used, a submit key what its own did: nothing yet.
            let told = if scope == "read" { "<strong>$4.00</strong>" } else { "No run ended in this time." };
            browser.ok("/usage").await.has(told);
            assert_eq!(browser.ok("/usage.csv?by=label:team").await.text.contains("of-others"), scope == "read");
        }
    }
}
