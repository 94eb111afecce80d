//! The pages of named keys.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::browser::Browser;
use crate::keys::{ADMIN, create, keyed};
use crate::on_both;
use crate::support::*;

/// The key that the page shows.
fn shown_key(page: &super::browser::Page) -> String {
    page.text.split("id=\"key\">").nth(1).expect("a key").split('<').next().unwrap().to_owned()
}

on_both! { alone:
    async fn a_key_is_created_shown_once_and_revoked(database) {
        let server = keyed(database);
        let (admin, browser) = (server.with_key(ADMIN), Browser::signed_in(&server, ADMIN).await);
        browser.ok("/").await.has("href=\"/keys\"");
        let none = browser.ok("/keys").await;
        none.has("There are no named keys yet.");
        // The style shows them for the scopes that have them.
        none.has("<fieldset class=\"for-owner\">");
        none.has("<fieldset class=\"for-worker\">");
        // Each scope is explained where it is chosen.
        none.has("<select id=\"scope\" name=\"scope\" aria-describedby=\"scope-hint\">");
        none.has("<dt>admin</dt><dd>Everything, keys too.</dd><dt>submit</dt><dd>For a program: creates tasks");
        for scope in ["member", "worker", "read", "join"] {
            none.has(&format!("<dt>{scope}</dt><dd>"));
        }
        let form = [("name", "ci"), ("scope", "submit"), ("team", "docs"), ("expires_in", "90d"), ("max_open_tasks", "5"), ("max_stored_mib", "20")];
        let made = browser.send_form("/keys", "/keys", &form).await.expect(201);
        let key = shown_key(&made);
        assert_eq!((made.header("cache-control"), made.header("location"), made.text.matches(&key).count()), ("no-store", "", 1));
        server.with_key(&key).get("llm-tasks").await.ok();
        for text in ["data-copy=\"key\"", "data-copy=\"invitation\""] {
            made.has(text);
        }
        made.has(&format!("bloom-runtime context set bloom --server {} --key-file bloom.key", server.base()));

        let keys = admin.get("keys").await.ok();
        let about = &keys[0];
        assert_eq!((&about["name"], &about["scope"], &about["team"]), (&json!("ci"), &json!("submit"), &json!("docs")));
        let lasts = about["expires_at"].as_i64().unwrap() - about["created_at"].as_i64().unwrap();
        assert_eq!((lasts, &about["quota"]["max_open_tasks"], &about["quota"]["max_tasks_per_minute"]), (90 * 86_400_000, &json!(5), &json!(null)));
        for page in ["/keys", "/keys/ci"] {
            let shown = browser.ok(page).await;
            for text in ["ci", "team docs", "open tasks: 0 of 5", "of 20 MiB", "For a program: creates tasks"] {
                shown.has(text);
            }
            shown.has_not(&key);
        }

        // The form offers its team.
        let form = browser.ok("/keys").await;
        form.has("name=\"team\" value=\"\" list=\"teams\"");
        form.has("<datalist id=\"teams\"><option value=\"docs\"></option></datalist>");

        assert_eq!(about["quota"]["max_stored_bytes"], json!(20 << 20));
        let shown = browser.ok("/keys/ci").await;
        shown.has("name=\"max_stored_mib\" value=\"20\"");
        assert_eq!(shown.text.matches("<dt>Quota</dt>").count(), 1, "{}", shown.text);
        shown.has("href=\"/usage?since=30d&amp;by=day&amp;created_by=key%3Aci\"");
        shown.has("href=\"/tasks?owner=ci\">Its tasks</a>");

        let quota = async |most: &str| browser.send_form("/keys/ci", "/keys/ci/quota", &[("max_tasks_per_minute", most)]).await;
        quota("7").await.leads_to("/keys/ci?done=1");
        let changed = browser.ok("/keys/ci?done=1").await;
        changed.has("The quota was changed.");
        changed.has("7 tasks a minute");
        changed.has_not("open tasks: ");
        for wrong in ["many", "0"] {
            let refused = quota(wrong).await.expect(400);
            refused.has("id=\"max_tasks_per_minute-wrong\"");
            refused.has(&format!("value=\"{wrong}\""));
        }
        quota("").await.leads_to("/keys/ci?done=1");
        assert_eq!(admin.get("keys").await.ok()[0]["quota"], json!(null));

        // The key was used, and is rotated.
        browser.ok("/keys/ci").await.has_not("<dt>Last used</dt><dd>never");
        let rotated = browser.send_form("/keys/ci", "/keys/ci/rotate", &[("overlap_sec", "3600")]).await.expect(200);
        rotated.has("The key was rotated: ci");
        rotated.has("The former key is valid until");
        let newer = shown_key(&rotated);
        for key in [&key, &newer] {
            server.with_key(key).get("llm-tasks").await.ok();
        }
        browser.ok("/keys/ci").await.has("<dt>Former key valid until</dt>");
        // A session ends with the secret that began it, the former one or the newer one.
        let (by_former, by_newer) = (Browser::signed_in(&server, &key).await, Browser::signed_in(&server, &newer).await);
        for session in [&by_former, &by_newer] {
            session.ok("/tasks").await;
        }
        let last = admin.post("keys/ci/rotate", json!({ "overlap_sec": 1 })).await.ok()["key"].as_str().unwrap().to_owned();
        assert_eq!(by_former.get("/tasks").await.status, 303, "a second rotation has ended the first secret");
        eventually("the session ends with the overlap", || async { (by_newer.get("/tasks").await.status == 303).then_some(()) }).await;
        server.with_key(&last).get("llm-tasks").await.ok();
        browser.send_form("/keys/ci", "/keys/ci/rotate", &[("overlap_sec", "0")]).await.expect(200).has("is refused from now on");
        assert_eq!(server.with_key(&newer).get("llm-tasks").await.status, 401);
        let key = admin.post("keys/ci/rotate", json!({})).await.ok()["key"].as_str().unwrap().to_owned();

        let question = browser.ok("/keys/ci/confirm-revoke").await;
        question.has("Revoke the key ci?");
        question.has("<p>No task that it created waits or runs.</p>");
        server.with_key(&key).get("llm-tasks").await.ok();
        browser.send_form("/keys/ci", "/keys/ci/explode", &[]).await.expect(404);
        browser.send_form("/keys/ci/confirm-revoke", "/keys/ci/revoke", &[]).await.leads_to("/keys?done=1");
        browser.ok("/keys?done=1").await.has("The key was revoked.");
        assert_eq!(server.with_key(&key).get("llm-tasks").await.status, 401);
        browser.get("/keys/ci").await.expect(404);
    }

    async fn whoever_revokes_a_key_is_told_of_its_tasks(database) {
        let server = keyed(database);
        let admin = server.with_key(ADMIN);
        for name in ["ci", "of-others"] {
            let api = server.with_key(&create(&admin, name, "submit", json!({})).await);
            let crew = api.crew();
            let task = crew.task().create().await;
            crew.task().create().await;
            if name == "ci" {
                let worker = admin.worker().able("agents", json!([crew.slug])).register().await;
                admin.task(&task.id).lease_to(&worker).await;
            }
        }
        create(&admin, "lead", "admin", json!({})).await;
        let browser = Browser::signed_in(&server, ADMIN).await;
        let question = browser.ok("/keys/ci/confirm-revoke").await;
        question.has("Of the tasks that it created, 1 wait and 1 run. They stay, and run as before. <a href=\"/tasks?owner=ci\">Its tasks</a>");
        let lead = browser.ok("/keys/lead/confirm-revoke").await;
        lead.has("<a href=\"/audit?actor=key%3Alead&#38;action=task_created\">Which tasks it created</a>");
    }

    async fn whoever_revokes_the_own_key_is_warned(database) {
        let server = keyed(database);
        let admin = server.with_key(ADMIN);
        let own = create(&admin, "lead", "admin", json!({})).await;
        create(&admin, "ci", "read", json!({})).await;
        let browser = Browser::signed_in(&server, &own).await;
        browser.ok("/keys/lead/confirm-revoke").await.has("This is your own key: afterwards you are signed out");
        browser.ok("/keys/ci/confirm-revoke").await.has_not("your own key");
        Browser::signed_in(&server, ADMIN).await.ok("/keys/lead/confirm-revoke").await.has_not("your own key");
    }

    async fn what_is_wrong_with_a_key_is_told_at_its_field(database) {
        let server = keyed(database);
        let (admin, browser) = (server.with_key(ADMIN), Browser::signed_in(&server, ADMIN).await);
        create(&admin, "taken", "read", json!({})).await;
        for (form, field, status) in [
            ([("name", "a/b"), ("scope", "read"), ("team", "")], "name", 400),
            ([("name", "taken"), ("scope", "read"), ("team", "")], "name", 409),
            ([("name", "a"), ("scope", "emperor"), ("team", "")], "scope", 400),
            ([("name", "a"), ("scope", "member"), ("team", "")], "team", 400),
            ([("name", "a"), ("scope", "read"), ("expires_in", "90")], "expires_in", 400),
            ([("name", "a"), ("scope", "read"), ("expires_in", "9000d")], "expires_in", 400),
            ([("name", "a"), ("scope", "read"), ("expires_in", "2020-01-01")], "expires_in", 400),
            ([("name", "a"), ("scope", "submit"), ("max_stored_mib", "much")], "max_stored_mib", 400),
            ([("name", "a"), ("scope", "submit"), ("max_open_tasks", "many")], "max_open_tasks", 400),
            ([("name", "a"), ("scope", "submit"), ("max_stored_mib", "0")], "max_stored_mib", 400),
            ([("name", "a"), ("scope", "read"), ("namespaces", "Not One")], "namespaces", 400),
            ([("name", "a"), ("scope", "worker"), ("push", "on")], "worker", 400),
        ] {
            let refused = browser.send_form("/keys", "/keys", &form).await.expect(status);
            refused.has(&format!("id=\"{field}-wrong\""));
            refused.has(&format!("name=\"name\" value=\"{}\"", form[0].1));
        }
        assert_eq!(admin.get("keys").await.ok().as_array().unwrap().len(), 1);
    }

    async fn a_key_expires_on_a_day_or_after_years(database) {
        let server = keyed(database);
        let (admin, browser) = (server.with_key(ADMIN), Browser::signed_in(&server, ADMIN).await);
        let expiry = async |name: &str, text: &str| {
            browser.send_form("/keys", "/keys", &[("name", name), ("scope", "read"), ("expires_in", text)]).await.expect(201);
            let keys = admin.get("keys").await.ok();
            let key = keys.as_array().unwrap().iter().find(|key| key["name"] == name).unwrap().clone();
            (key["expires_at"].as_i64().unwrap(), key["created_at"].as_i64().unwrap())
        };
        let (expires, created) = expiry("years", "1y").await;
        assert_eq!(expires - created, 365 * 86_400_000);
        // The API counts whole seconds from when it is asked.
        let day = jiff::Timestamp::from_millisecond(now_ms() + 40 * 86_400_000).unwrap().to_zoned(jiff::tz::TimeZone::UTC).date();
        let at = day.to_zoned(jiff::tz::TimeZone::UTC).unwrap().timestamp().as_millisecond();
        let (expires, _) = expiry("day", &day.to_string()).await;
        assert!((expires - at).abs() < 60_000, "{expires} instead of {at}");
    }

    async fn a_key_of_a_worker_comes_with_its_line(database) {
        let server = keyed(database);
        let browser = Browser::signed_in(&server, ADMIN).await;
        let form = [("name", "w-1"), ("scope", "worker"), ("worker", "worker 1")];
        let made = browser.send_form("/keys", "/keys", &form).await.expect(201);
        made.has(&format!("bloom-runtime agent --server {} --name &#39;worker 1&#39; --key-file bloom.key", server.base()));
        made.has_not("context set");
        browser.ok("/keys/w-1").await.has("<code>bloom-runtime key create &#39;worker 1-again&#39; --scope join --worker &#39;worker 1&#39;</code>");
        // A worker has no tasks of its own, but runs.
        let question = browser.ok("/keys/w-1/confirm-revoke").await;
        question.has("Its runs go on, and are lost if it has no other key when their leases expire.");
        question.has_not("Its tasks stay");
        let form = [("name", "join-1"), ("scope", "join"), ("worker", "worker-1")];
        browser.send_form("/keys", "/keys", &form).await.expect(201).has("--name worker-1 --join-token-file bloom.key");
    }

    async fn tasks_and_usage_are_filtered_by_the_team_of_a_key(database) {
        let server = keyed(database);
        let admin = server.with_key(ADMIN);
        let key = create(&admin, "ann", "member", json!({ "team": "docs" })).await;
        let member = server.with_key(&key);
        let (ours, other) = (member.crew().task().create().await, admin.crew().task().create().await);
        let browser = Browser::signed_in(&server, ADMIN).await;
        let list = browser.ok("/tasks?team=docs").await;
        list.has(&ours.id);
        list.has_not(&other.id);
        list.has("name=\"team\" value=\"docs\"");
        browser.ok("/usage?since=30d&by=day&team=docs").await.has("name=\"team\" value=\"docs\"");
        // A key that sees one team needs no such filter.
        let own = Browser::signed_in(&server, &key).await;
        for page in ["/tasks", "/usage"] {
            own.ok(page).await.has_not("name=\"team\"");
        }
    }

    async fn only_an_admin_key_sees_keys(database) {
        let server = keyed(database);
        let admin = server.with_key(ADMIN);
        create(&admin, "precious", "submit", json!({})).await;
        for (scope, more) in [("read", json!({})), ("member", json!({ "team": "docs" })), ("submit", json!({}))] {
            let browser = Browser::signed_in(&server, &create(&admin, scope, scope, more).await).await;
            let home = browser.ok("/").await;
            home.has(&format!("<a href=\"/keys\" title=\"Your key\">{scope}"));
            let own = browser.ok("/keys").await;
            own.has(&format!("<h1>Your key: {scope}</h1>"));
            own.has(&format!("<dt>Scope</dt><dd>{scope} <span class=\"soft\">"));
            for other in ["precious", "action=\"/keys\"", "Revoke"] {
                own.has_not(other);
            }
            for page in ["/keys/precious", "/keys/precious/confirm-revoke"] {
                let refused = browser.get(page).await.expect(403);
                refused.has("API keys are for administrators");
                refused.has("<nav aria-label=\"Pages\">");
                refused.has_not("Revoke");
            }
            let token = home.form_token();
            for (target, name) in [("/keys", "mine"), ("/keys/precious/revoke", ""), ("/keys/precious/quota", "")] {
                let form = [("form_token", token.as_str()), ("name", name), ("scope", "admin"), ("max_open_tasks", "1")];
                browser.post(target, &form, &[]).await.expect(403).has(&format!("scope {scope}"));
            }
        }
        assert_eq!(admin.get("keys").await.ok().as_array().unwrap().len(), 4);
        // A form of another site has no token of a page.
        let browser = Browser::signed_in(&server, ADMIN).await;
        browser.post("/keys/precious/revoke", &[("form_token", "wrong")], &[]).await.expect(403);
        browser.ok("/keys/precious").await;
    }

    async fn whoever_is_signed_in_sees_the_own_key(database) {
        let server = Server::on(database).env("RUNTIME_API_KEY", ADMIN).env("RUNTIME_READ_KEY", "reader-key-0123456789").start();
        let admin = server.with_key(ADMIN);
        let more = json!({ "team": "docs", "expires_in_sec": 864_000, "quota": { "max_open_tasks": 5 } });
        let browser = Browser::signed_in(&server, &create(&admin, "ann", "member", more).await).await;
        let own = browser.ok("/keys").await;
        for text in ["<dt>For</dt><dd>team docs</dd>", "open tasks: 0 of 5", "<dt>Expires</dt><dd><time "] {
            own.has(text);
        }
        let reader = Browser::signed_in(&server, "reader-key-0123456789").await.ok("/keys").await;
        reader.has("It is a key of the server&#39;s settings, and has no name. Its scope: read.");
    }

    async fn the_audit_trail_leads_to_what_each_key_did(database) {
        let server = keyed(database);
        let admin = server.with_key(ADMIN);
        for name in ["ann", "ben", "worker-1", "zoe"] {
            server.with_key(&create(&admin, name, "submit", json!({})).await).crew().task().create().await;
        }
        let browser = Browser::signed_in(&server, ADMIN).await;
        let trail = browser.ok("/audit?since=1d").await;
        for name in ["ann", "ben", "worker-1", "zoe"] {
            trail.has(&format!("<a href=\"/audit?actor=key%3A{name}&#38;since=1d\"><code>key:{name}</code></a>"));
        }
        // Those of workers are the last.
        let places = ["zoe", "worker-1"].map(|name| trail.text.find(&format!("<code>key:{name}</code>")));
        assert!(places.is_sorted(), "{places:?}");
        trail.has("<a href=\"/audit?actor=admin\"><code>admin</code></a>");
        // What people decide is a link, which keeps the other filters.
        trail.has("<a href=\"/audit?since=1d\" aria-current=\"page\">Everything</a>");
        trail.has("<a href=\"/audit?action=people&#38;since=1d\">What people decide</a>");
        let people = browser.ok("/audit?action=people&since=1d").await;
        people.has("<a href=\"/audit?since=1d\">Everything</a>");
        people.has("<a href=\"/audit?action=people&#38;since=1d\" aria-current=\"page\">What people decide</a>");
        let of_ann = browser.ok("/audit?actor=key%3Aann").await;
        of_ann.has("task created");
        of_ann.has_not("<code>key:ben</code>");
    }

    async fn a_form_whose_key_is_revoked_while_it_arrives_does_nothing(database) {
        let server = keyed(database);
        let admin = server.with_key(ADMIN);
        let browser = Browser::signed_in(&server, &create(&admin, "insider", "admin", json!({})).await).await;
        let form = format!("form_token={}&name=evil&scope=admin", browser.ok("/keys").await.form_token());
        let (begun, rest) = form.split_at(20);
        let address = server.base().strip_prefix("http://").unwrap();
        let mut connection = TcpStream::connect(address).await.unwrap();
        let head = format!(
            "POST /keys HTTP/1.1\r\nHost: {address}\r\nOrigin: {}\r\nCookie: {}\r\nConnection: close\r\nExpect: 100-continue\r\n\
             Content-Type: application/x-www-form-urlencoded\r\nContent-Length: {}\r\n\r\n",
            server.base(), browser.cookie_header(), form.len()
        );
        connection.write_all(head.as_bytes()).await.unwrap();
        // The server asks for the body when it has looked at the key.
        let mut asked = [0; 12];
        connection.read_exact(&mut asked).await.unwrap();
        assert_eq!(&asked, b"HTTP/1.1 100");
        connection.write_all(begun.as_bytes()).await.unwrap();
        admin.delete("keys/insider").await.ok();
        connection.write_all(rest.as_bytes()).await.unwrap();
        let mut answer = String::new();
        connection.read_to_string(&mut answer).await.unwrap();
        assert!(answer.contains("HTTP/1.1 401 "), "{answer}");
        assert_eq!(admin.get("keys").await.ok(), json!([]));
    }

    async fn the_list_of_keys_has_pages(database) {
        let server = keyed(database);
        let (admin, browser) = (server.with_key(ADMIN), Browser::signed_in(&server, ADMIN).await);
        for number in 0..61 {
            create(&admin, &format!("k{number:02}"), "read", json!({})).await;
        }
        let first = browser.ok("/keys").await;
        first.has("href=\"/keys/k59\"");
        first.has_not("href=\"/keys/k60\"");
        first.has("rel=\"next\" href=\"/keys?cursor=k59\"");
        let second = browser.ok("/keys?cursor=k59").await;
        second.has("href=\"/keys/k60\"");
        second.has_not("href=\"/keys/k59\"");
    }

    async fn an_open_server_has_no_named_keys(database) {
        let server = Server::on(database).start();
        let page = Browser::of(&server).ok("/keys").await;
        page.has("RUNTIME_API_KEY");
        page.has_not("action=\"/keys\"");
    }
}
