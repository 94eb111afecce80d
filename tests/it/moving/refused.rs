//! Files and databases that are refused, and stay as they were.

use super::*;

async fn file_of_a_task() -> (Server, String) {
    let server = Server::on(Database::Sqlite).start();
    server.crew().task().prompt("first words").create().await;
    let told = fs::read_to_string(exported(server.plan())).unwrap();
    (server, told)
}

#[test]
fn a_file_that_is_not_as_it_was_written_is_refused() {
    run(async {
        let (_server, sound) = file_of_a_task().await;
        let plan = Server::on(Database::Sqlite);
        let (head, rest) = sound.split_once('\n').unwrap();
        let lines = sound.lines().count();
        let without_end = sound.lines().take(lines - 1).map(|line| format!("{line}\n")).collect::<String>();
        let garbled = sound.replacen("first words", "other words", 1);
        let files: [(&str, String, &[&str]); 9] = [
            ("cut in a line", sound[..sound.len() / 2].to_owned(), &["cut off here"]),
            ("cut at a line", without_end.clone(), &["line", "cut off here"]),
            ("cut at the end", sound.trim_end().to_owned(), &["cut off here"]),
            ("changed", garbled, &["checksum differ"]),
            ("a row lost", format!("{head}\n{}", rest.replacen("[\"\",null,null,0]\n", "", 1)), &["checksum differ"]),
            ("more", format!("{sound}[]\n"), &["more behind the end"]),
            (
                "newer format",
                sound.replacen("\"version\":1", "\"version\":2", 1),
                &["newer program", "format 2", "import it with that version"],
            ),
            ("no export", "{\"a\": 1}\n".into(), &["is no export", "bloom-runtime export"]),
            ("empty", String::new(), &["is no export"]),
        ];
        for (name, content, words) in files {
            let file = place().join(name);
            fs::write(&file, content).unwrap();
            does(&plan, &["import", text(&file)]).refuses(words);
        }
        does(&plan, &["import", "/nowhere/x"]).refuses(&["/nowhere/x can't be read"]);
        let told = does(&plan, &["migrate", "status"]).ok();
        assert!(told.contains("pending  0001_init"), "nothing was created: {told}");
    });
}

#[test]
fn an_export_of_a_newer_schema_is_refused_and_one_of_a_newer_program_names_its_migration() {
    run(async {
        let server = Server::on(Database::Sqlite).start();
        server.stop();
        let migration =
            "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time) VALUES (9001, 'new', 1, x'00', 1)";
        direct::execute(&server.database_url(), migration).await;
        let file = exported(server.plan());
        does(&Server::on(Database::Sqlite), &["import", text(&file)]).refuses(&[
            "newer program",
            "migration 9001",
            "import it with that version",
        ]);
    });
}

#[test]
fn a_database_with_other_data_is_replaced_only_on_request() {
    run(async {
        let (_server, told) = file_of_a_task().await;
        let file = place().join("x");
        fs::write(&file, told).unwrap();
        for database in KINDS {
            let server = Server::on(database).start();
            let task = server.crew().task().create().await.id;
            does(server.plan(), &["import", text(&file)]).refuses(&["stop"]);
            does(server.plan(), &["import", "--replace", text(&file)]).refuses(&["stop"]);
            server.get(&format!("llm-tasks/{task}")).await.ok();
            server.stop();
            does(server.plan(), &["import", text(&file)]).refuses(&["has data already", "--replace", "backup"]);
            does(server.plan(), &["import", "--replace", text(&file)]).ok();
            server.start_again();
            server.get(&format!("llm-tasks/{task}")).await.expect(404);
            assert_eq!(server.get("stats").await.ok()["tasks"]["total"], 1);
        }
    });
}

#[test]
fn an_export_needs_a_database_and_a_free_name() {
    run(async {
        let plan = Server::on(Database::Sqlite);
        let file = place().join("x");
        does(&plan, &["export", text(&file)]).refuses(&["there is no database"]);
        let server = plan.start();
        fs::write(&file, "something else").unwrap();
        does(server.plan(), &["export", text(&file)]).refuses(&["exists", "--force"]);
        assert_eq!(fs::read(&file).unwrap(), b"something else");
        does(server.plan(), &["export", "--force", text(&file)]).ok();
        assert!(fs::read_to_string(&file).unwrap().starts_with("{\"format\":\"bloom-runtime export\""));
        does(&Server::on(Database::Postgres), &["export", text(&place().join("x"))]).refuses(&["there is no database"]);
    });
}
