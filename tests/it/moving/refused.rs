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
        let pipe = place().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let _both_ends = fs::File::options().read(true).write(true).open(&pipe).unwrap();
        for no_file in [text(&pipe), "/dev/zero", "/"] {
            does(&plan, &["import", no_file]).refuses(&["is no regular file", "write what it has to a file"]);
        }
        let told = does(&plan, &["migrate", "status"]).ok();
        assert!(told.contains("pending  0001_init"), "nothing was created: {told}");
    });
}

/// The file with this cell of the table's first row replaced, and with the checksum that belongs to it.
fn with_cell(sound: &str, table: &str, column: &str, cell: &str) -> String {
    let mut lines: Vec<String> = sound.lines().map(|line| format!("{line}\n")).collect();
    let section = lines.iter().position(|line| line.contains(&format!("{{\"table\":\"{table}\""))).unwrap();
    let columns: Value = serde_json::from_str(&lines[section]).unwrap();
    let at = columns["columns"].as_array().unwrap().iter().position(|name| name == column).unwrap();
    let cells: Vec<Box<serde_json::value::RawValue>> = serde_json::from_str(&lines[section + 1]).unwrap();
    let mut cells: Vec<&str> = cells.iter().map(|cell| cell.get()).collect();
    cells[at] = cell;
    lines[section + 1] = format!("[{}]\n", cells.join(","));
    signed(lines)
}

/// The lines with the checksum that belongs to them in the last one.
fn signed(mut lines: Vec<String>) -> String {
    let mut end: Value = serde_json::from_str(&lines.pop().unwrap()).unwrap();
    let content = place().join("content");
    fs::write(&content, lines.concat()).unwrap();
    let sum = std::process::Command::new("sha256sum").arg(&content).output().unwrap().stdout;
    end["sha256"] = json!(String::from_utf8(sum).unwrap()[..64]);
    format!("{}{end}\n", lines.concat())
}

#[test]
fn values_of_wrong_types_are_refused_on_both_databases() {
    run(async {
        let (_server, sound) = file_of_a_task().await;
        let whole = "is not a whole number of 64 bits";
        for (column, cell, why) in [
            ("priority", "\"abc\"", whole),
            ("priority", "1.5", whole),
            ("priority", "1e30", whole),
            ("priority", "[1]", whole),
            ("budget", "\"1\"", "is not a number"),
            ("budget", "1e999", "a number is too large"),
            ("id", "\"abcd\"", "is not an id of 32 hexadecimal digits"),
            ("id", "\"0123456789abcdef0123456789abcdeg\"", "is not an id of 32 hexadecimal digits"),
            ("prompt", "\"a\\u0000b\"", "is not a text without NUL characters"),
            ("prompt", "7", "is not a text without NUL characters"),
            ("suspend", "0", "is not true or false"),
        ] {
            let file = place().join("x");
            fs::write(&file, with_cell(&sound, "tasks", column, cell)).unwrap();
            let column = if why.starts_with("a number") { "tasks" } else { column };
            for database in KINDS {
                does(&Server::on(database), &["import", text(&file)]).refuses(&["line ", "table tasks: ", column, why]);
            }
        }
        let (file, twice) = (place().join("x"), sound.replacen("\"key\",\"value\"]", "\"key\",\"key\"]", 1));
        fs::write(&file, signed(twice.lines().map(|line| format!("{line}\n")).collect())).unwrap();
        for database in KINDS {
            does(&Server::on(database), &["import", text(&file)]).refuses(&["column key of table settings is there twice"]);
        }
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
