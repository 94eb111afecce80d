//! The lines that a page shows for a new worker, as a person copies them.

use super::browser::{Browser, Page};
use crate::cli::user::User;
use crate::keys::ADMIN;
use crate::on_both;
use crate::support::*;

const READER: &str = "reader-key-0123456789";

fn lines(page: &Page) -> Vec<String> {
    let shown = page.text.split("<pre tabindex=\"0\" id=\"line-").skip(1).filter_map(|text| text.split('>').nth(1)?.split('<').next());
    shown.filter(|line| line.contains(" agent ") || line.contains(" key ")).map(str::to_owned).collect()
}

/// The words behind the name of the program.
fn words(line: &str) -> Vec<&str> {
    line.strip_prefix("bloom-runtime ").expect("the program first").split(' ').collect()
}

on_both! { alone:
    async fn the_lines_for_a_new_worker_work_as_they_are(database) {
        let server = Server::on(database).env("RUNTIME_API_KEY", ADMIN).env("RUNTIME_READ_KEY", READER).start();
        let shown = Browser::signed_in(&server, ADMIN).await.ok("/workers").await;
        let [token, agent] = &lines(&shown)[..] else { panic!("{}", shown.text) };
        assert_eq!(lines(&Browser::signed_in(&server, ADMIN).await.ok("/").await), [token.as_str(), agent]);
        let read = Browser::signed_in(&server, READER).await.ok("/workers").await;
        assert_eq!(lines(&read), [agent.as_str()]);
        read.has("Ask a person who has an admin key");
        for id in ["line-token", "line-agent"] {
            shown.has(&format!("data-copy=\"{id}\""));
        }
        shown.has("<code>--max-concurrency 4</code>");
        // The token can be made by a click, too.
        shown.has("href=\"/keys?scope=join\"");
        read.has_not("/keys?scope");
        Browser::signed_in(&server, ADMIN).await.ok("/keys?scope=join").await.has("<option value=\"join\" selected>");

        let admin = User::new().with("BLOOM_KEY", ADMIN);
        admin.does(&words(token)).ok();
        let machine = User::new().with("BLOOM_RUNNER", "echo");
        std::fs::copy(admin.home().join("worker-1.token"), machine.home().join("worker-1.token")).unwrap();
        let running = machine.starts(&words(agent));
        let api = server.with_key(ADMIN);
        eventually("the worker is online", || async {
            let worker = api.get("workers/worker-1").await;
            (worker.status == 200 && worker.json()["status"] == "online").then_some(())
        })
        .await;
        // Whoever copies the lines again does not take over its name.
        let shown = Browser::signed_in(&server, ADMIN).await.ok("/workers").await;
        shown.has("key create join-worker-2 --scope join --worker worker-2 --out worker-2.token");
        shown.has("--name worker-2 --join-token-file worker-2.token");
        api.crew().task().create().await.reaches("completed").await;
        running.interrupt();
        running.done();
    }
}
