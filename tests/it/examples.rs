//! The files of `examples/`, as they are.

use std::path::{Path, PathBuf};

use crate::cli::User;
use crate::support::repository::Repository;
use crate::support::server::BINARY;
use crate::support::*;

fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples").join(name)
}

fn user() -> User {
    User::new().with("BLOOM_RUNTIME", BINARY)
}

#[test]
fn a_fleet_answers_questions_and_clients_and_ends_as_a_whole() {
    run(async {
        // The keys of workers are for the address at which they have joined.
        let owner = user().with("PORT", &janitor::free_port().to_string());
        let dir = owner.home().join("fleet").display().to_string();
        // The second time with the directory of the first: its workers have keys of their own, and their tokens are used up.
        for round in ["first", "second"] {
            let fleet = owner.runs(&example("fleet.sh"), &[&dir, "echo"]);
            fleet.prints("Ctrl-C ends the fleet").await;
            let out = fleet.out();
            let url = out.split("BLOOM_SERVER=").nth(1).and_then(|rest| rest.split(' ').next()).expect("an address").to_owned();
            let key = format!("{dir}/me.key");
            let person = user().with("BLOOM_SERVER", &url).with("BLOOM_KEY_FILE", &key);
            let workers = person.does(&["worker", "list", "-o", "name"]).ok();
            assert_eq!(workers.lines().count(), 3, "{round}: {workers}");

            let report = person.home().join("report.md").display().to_string();
            let questions = example("questions.jsonl").display().to_string();
            for _ in 0..2 {
                let done = person.runs(&example("report.sh"), &[&questions, &report]).done().ends(0);
                assert!(done.err.contains("3 answers are in"), "{}", done.err);
                let text = std::fs::read_to_string(&report).unwrap();
                assert_eq!(text.matches("\n## ").count(), 3, "{text}");
                assert!(text.find("## What is a lease").unwrap() < text.find("## When is a queue starved").unwrap(), "{text}");
                assert_eq!(
                    person.does(&["task", "list", "-l", "job=report", "-o", "name"]).ok().lines().count(),
                    3,
                    "no question is asked twice"
                );
            }

            let program = person.clone().with("BLOOM_KEY", std::fs::read_to_string(&key).unwrap().trim());
            let ask = |words: &[&str]| program.runs(&example("client.py"), words).done();
            let first = ask(&["Say hello", "a-key"]).ends(0);
            assert!(first.out.contains("Say hello"), "{first:?}");
            let again = ask(&["Say hello", "a-key"]).ends(0);
            assert_eq!((&again.out, &again.err), (&first.out, &first.err), "it is the same task");
            assert!(ask(&["", "another"]).ends(1).err.contains("POST llm-tasks: 400"));
            let stranger = program.clone().with("BLOOM_KEY", "none").runs(&example("client.py"), &["Say hello"]).done().ends(1);
            assert!(stranger.err.contains("401"), "{}", stranger.err);

            fleet.interrupt();
            fleet.done().ends(130);
            assert!(std::net::TcpStream::connect(url.strip_prefix("http://").unwrap()).is_err(), "the server has ended");
        }
    });
}

#[test]
fn a_review_is_made_once_a_day() {
    run(async {
        let (server, repository) = (Server::on(Database::Sqlite).keyed().start(), Repository::serve());
        repository.add_to(&server).await;
        let _agent = repository.known_to(server.agent("box")).echo().start();
        let person = user().with("BLOOM_SERVER", server.base()).with("BLOOM_KEY", server.key().expect("a key"));
        let review = |project: &str| person.runs(&example("nightly-review.sh"), &[project]).done();
        let (first, again) = (review("site").ends(0), review("site").ends(0));
        assert!(first.out.contains("git log --since=yesterday"), "{first:?}");
        assert_eq!(first.out, again.out);
        let tasks = server.get("llm-tasks?label=job%3Dnightly-review").await.ok();
        assert_eq!((tasks.as_array().unwrap().len(), &tasks[0]["policy"]["timeout_sec"]), (1, &json!(7200)), "{tasks}");
        let unknown = review("no-such").ends(2);
        assert!(unknown.err.contains("no-such") && unknown.out.is_empty(), "{unknown:?}");
    });
}

#[test]
fn without_arguments_each_says_how_it_is_called() {
    for name in ["fleet.sh", "nightly-review.sh", "report.sh"] {
        let done = user().runs(&example(name), &[]).done().ends(2);
        assert!(done.err.contains(&format!("examples/{name} ")), "{}", done.err);
    }
}
