//! The directory of the data: its path, its lock, and what the first start says of the database.

use std::fs;

use crate::backup::{does, place, said, text};
use crate::on_both;
use crate::support::*;

#[test]
fn each_path_is_a_directory_and_never_a_part_of_a_url() {
    run(async {
        let directory = place();
        for name in ["a?b", "a#b", "a%20b", "a b", "дані", "a?mode=memory", "a&b=c"] {
            let data = directory.join(name);
            let server = Server::on(Database::Sqlite).env("DATA_DIR", data.display()).start();
            let task = server.crew().task().create().await.id.clone();
            assert!(fs::read(data.join("bloom.db")).unwrap().starts_with(b"SQLite format 3\0"), "{name}");
            server.stop();
            server.start_again();
            server.get(&format!("llm-tasks/{task}")).await.ok();
        }
        let mut names: Vec<_> = fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names.len(), 7, "nothing else was made: {names:?}");

        // URLs as other programs write them: their parameters are no part of the name.
        for (url, file) in [("u?mode=rwc", "u"), ("v?x", "v?x"), ("w?cache=private&mode=rwc", "w"), ("x%20y", "x%20y")] {
            let url = format!("sqlite:{}/{url}", directory.display());
            assert!(Server::on_url(&url).start().stop().success());
            assert!(directory.join(file).is_file(), "{url}");
        }
        // SQLite would take this for a URL of its own.
        let plan = Server::on_url("sqlite:file:it's.db?vfs=none/x.db");
        let server = plan.start();
        assert!(server.data_dir().parent().unwrap().join("file:it's.db?vfs=none/x.db").is_file());
    });
}

#[test]
fn two_servers_never_have_one_file_whatever_becomes_of_the_lock_file() {
    run(async {
        let server = Server::on(Database::Sqlite).start();
        let database = server.data_dir().join("bloom.db");
        let backup = place().join("x.db");
        does(server.plan(), &["backup", text(&backup)]).ok();
        let again = |words: &[&str]| does(server.plan(), words);
        for _ in 0..2 {
            fs::remove_file(server.data_dir().join("bloom.db.lock")).unwrap();
            let refused = said(server.plan().clone().start_in_vain());
            refused.refuses(&["another process has the database", text(&database), "bloom.db.lock", "fuser"]);
            again(&["restore", "--force", text(&backup)]).refuses(&["another process has the database", text(&database)]);
            again(&["migrate", "up"]).refuses(&["another process has the database"]);
        }
        // It still has the file, with the locks of SQLite itself.
        server.crew().task().create().await;
        does(server.plan(), &["backup", "--force", text(&backup)]).ok();
        server.stop();
        server.start_again();
        server.crew().task().create().await;
        server.stop();
        again(&["restore", "--force", text(&backup)]).ok();
    });
}

on_both! { alone:
    async fn a_start_says_in_one_line_what_it_did_to_the_schema(database) {
        let about = |log: &str| -> Vec<String> {
            log.lines().filter(|line| line.contains("schema version") || line.contains("migrat")).map(ToOwned::to_owned).collect()
        };
        let server = Server::on(database).start();
        let made = about(&server.log());
        assert!(matches!(&*made, [line] if line.contains("database created, schema version ")), "{made:?}");
        server.stop();
        server.start_again();
        assert_eq!(about(&server.log()), made, "there was nothing to do");
    }
}
