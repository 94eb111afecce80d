//! `restore`: what it refuses, what it keeps, and how workers go on afterwards.

use std::os::unix::fs::MetadataExt as _;

use super::*;
use crate::keys::{ADMIN, create, keyed};

/// A server with a task, and a backup of it.
async fn backed_up() -> (Server, String, PathBuf) {
    let server = Server::on(Database::Sqlite).start();
    let task = server.crew().task().create().await.id;
    let file = place().join("x.db");
    does(server.plan(), &["backup", text(&file)]).ok();
    (server, task, file)
}

#[test]
fn a_database_is_replaced_only_by_force_and_never_lost() {
    run(async {
        let (server, task, file) = backed_up().await;
        let later = server.crew().task().create().await.id;
        let (plan, data) = (server.plan().clone(), server.data_dir());
        does(&plan, &["restore", "--force", text(&file)]).refuses(&["already running at http://127.0.0.1:", "stop that process first"]);
        server.get(&format!("llm-tasks/{later}")).await.ok();
        // Recent commits are in the log only.
        server.kill9();
        let before = names(&data);
        assert!(before.contains(&"bloom.db-wal".to_owned()), "{before:?}");
        does(&plan, &["restore", text(&file)]).refuses(&["there is a database already", "--force"]);
        assert_eq!(names(&data), before);

        let told = does(&plan, &["restore", "--force", text(&file)]).ok();
        let kept = told.split_whitespace().map(|word| word.trim_end_matches(':')).find(|word| word.contains(".replaced-")).expect(&told);
        assert_eq!(Path::new(kept).parent(), Some(data.as_path()), "{told}");
        let is_kept = |name: &String| name.starts_with("bloom.db.replaced-");
        assert_eq!(names(&data).into_iter().filter(|name| !is_kept(name)).collect::<Vec<_>>(), ["bloom.db", "bloom.db.lock"]);
        assert_eq!(fs::metadata(data.join("bloom.db")).unwrap().permissions().mode() & 0o777, 0o600);
        server.start_again();
        server.get(&format!("llm-tasks/{task}")).await.ok();
        server.get(&format!("llm-tasks/{later}")).await.expect(404);
        server.crew().task().create().await;
        // The database that was there has everything, also what was in its log.
        let old = Server::on_url(&format!("sqlite:{kept}")).start();
        for id in [&task, &later] {
            old.get(&format!("llm-tasks/{id}")).await.ok();
        }
    });
}

#[test]
fn what_an_interrupted_restore_left_is_removed_and_a_lone_log_is_kept() {
    run(async {
        let (server, task, file) = backed_up().await;
        let (plan, data) = (server.plan().clone(), server.data_dir());
        server.stop();
        fs::remove_file(data.join("bloom.db")).unwrap();
        for name in ["bloom.db-wal", "bloom.db.partial", "bloom.db.partial-journal"] {
            fs::write(data.join(name), "left").unwrap();
        }
        let told = does(&plan, &["restore", "--force", text(&file)]).ok();
        let kept = names(&data).into_iter().find(|name| name.contains(".replaced-")).unwrap();
        assert!(kept.ends_with("-wal") && told.contains(&format!("{kept}: remove it")), "{kept}: {told}");
        fs::write(data.join("bloom.db.partial"), "left").unwrap();
        server.start_again();
        server.get(&format!("llm-tasks/{task}")).await.ok();
        assert!(!names(&data).iter().any(|name| name.contains("partial")), "{:?}", names(&data));
    });
}

/// Also by restores that follow each other within a second.
#[test]
fn each_replaced_database_gets_a_name_of_its_own() {
    run(async {
        let (server, _, file) = backed_up().await;
        let later = server.crew().task().create().await.id;
        let (plan, data) = (server.plan().clone(), server.data_dir());
        server.stop();
        let restores = 5;
        let told: Vec<String> = (0..restores).map(|_| does(&plan, &["restore", "--force", text(&file)]).ok()).collect();
        let kept: Vec<String> = names(&data).into_iter().filter(|name| name.contains(".replaced-")).collect();
        assert_eq!(kept.len(), restores, "{kept:?}");
        assert!(kept.iter().all(|name| told.iter().any(|text| text.contains(&format!("{name}: remove it")))), "{kept:?}: {told:?}");
        let first = Server::on_url(&format!("sqlite:{}", data.join(&kept[0]).display())).start();
        first.get(&format!("llm-tasks/{later}")).await.ok();
    });
}

#[test]
fn only_a_sound_backup_of_this_program_is_restored() {
    run(async {
        let (server, _, file) = backed_up().await;
        let (plan, data) = (server.plan().clone(), server.data_dir());
        server.stop();
        let (before, directory) = (fs::read(data.join("bloom.db")).unwrap(), place());
        let refuses = |name: &str, words: &[&str]| {
            does(&plan, &["restore", "--force", text(&directory.join(name))]).refuses(words);
            assert_eq!(names(&data), ["bloom.db", "bloom.db.lock"], "{name}");
            assert!(fs::read(data.join("bloom.db")).unwrap() == before, "{name}");
        };
        let copy = |name: &str| {
            fs::copy(&file, directory.join(name)).unwrap();
            format!("sqlite:{}", directory.join(name).display())
        };
        refuses("missing.db", &["missing.db", "No such file"]);
        // Opening it would wait for its writer.
        assert!(Command::new("mkfifo").arg(directory.join("pipe.db")).status().unwrap().success());
        for name in ["pipe.db", "."] {
            refuses(name, &["is not a regular file", "name a backup"]);
        }
        fs::write(directory.join("text.db"), "x".repeat(5_000)).unwrap();
        refuses("text.db", &["not a usable database of bloom-runtime", "not a database"]);
        fs::write(directory.join("empty.db"), "").unwrap();
        refuses("empty.db", &["does not have its tables"]);
        direct::execute(&format!("sqlite:{}?mode=rwc", directory.join("photos.db").display()), "CREATE TABLE photos (id INTEGER)").await;
        refuses("photos.db", &["does not have its tables"]);
        direct::execute(&copy("newer.db"), "UPDATE schema_compatibility SET since = 9001").await;
        let migration =
            "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time) VALUES (9001, 'new', 1, x'00', 1)";
        direct::execute(&format!("sqlite:{}", directory.join("newer.db").display()), migration).await;
        refuses("newer.db", &["newer than this program", "migration 9001"]);
        // An index that does not match its table. Each page is sound, so only a thorough check finds it.
        let index = "CREATE INDEX of_agents ON task_state (context_id); PRAGMA writable_schema = ON; \
            UPDATE sqlite_master SET sql = 'CREATE INDEX of_agents ON task_state (agent_slug)' WHERE name = 'of_agents'";
        direct::execute(&copy("index.db"), index).await;
        refuses("index.db", &["damaged", "of_agents"]);
        copy("short.db");
        let short = fs::File::options().write(true).open(directory.join("short.db")).unwrap();
        short.set_len(fs::metadata(&file).unwrap().len() / 2).unwrap();
        refuses("short.db", &["not a usable database"]);
        does(&plan, &["restore", "--force", text(&data.join("bloom.db"))]).refuses(&["is the database itself"]);
        does(&plan, &["restore", "--force", text(&file)]).ok();
    });
}

#[test]
fn a_copy_of_all_files_is_restored_with_its_log() {
    run(async {
        let server = Server::on(Database::Sqlite).start();
        let task = server.crew().task().create().await.id;
        let (directory, data) = (place(), server.data_dir());
        server.kill9();
        for name in ["bloom.db", "bloom.db-wal"] {
            fs::copy(data.join(name), directory.join(name)).unwrap();
        }
        let copied = names(&directory).into_iter().map(|name| fs::read(directory.join(name)).unwrap()).collect::<Vec<_>>();
        does(server.plan(), &["restore", "--force", text(&directory.join("bloom.db"))]).ok();
        server.start_again();
        server.get(&format!("llm-tasks/{task}")).await.ok();
        let now = ["bloom.db", "bloom.db-wal"].map(|name| fs::read(directory.join(name)).unwrap());
        assert!(copied == now, "the copy is as it was");
    });
}

/// An administrator restores, and the server runs as another user.
#[test]
fn the_file_belongs_to_the_owner_of_the_directory() {
    run(async {
        let (server, _, file) = backed_up().await;
        let data = place().join("data");
        fs::create_dir(&data).unwrap();
        // Only root can give the directory to another user; for others, the owner stays.
        let own = fs::metadata(&data).unwrap();
        let owner = if own.uid() == 0 { (65_534, 65_534) } else { (own.uid(), own.gid()) };
        std::os::unix::fs::chown(&data, Some(owner.0), Some(owner.1)).unwrap();
        let plan = server.plan().clone().env("DATA_DIR", text(&data));
        does(&plan, &["restore", text(&file)]).ok();
        for name in ["bloom.db", "bloom.db.lock"] {
            let found = fs::metadata(data.join(name)).unwrap();
            assert_eq!((found.uid(), found.gid(), found.mode() & 0o777), (owner.0, owner.1, 0o600), "{name}");
        }
    });
}

#[test]
fn leases_of_the_lost_time_are_lost_and_those_of_the_backup_go_on() {
    run(async {
        let server = Server::on(Database::Sqlite).start();
        let crew = server.crew();
        let worker = crew.worker().slots(4).register().await;
        let (early, late, queued) = (crew.task().create().await, crew.task().create().await, crew.task().create().await);
        let of_backup = early.lease_to(&worker).await;
        let file = place().join("x.db");
        does(server.plan(), &["backup", text(&file)]).ok();
        let lost = late.lease_to(&worker).await;
        queued.lease_to(&worker).await.complete("success", json!({ "output": "done" })).await.ok();
        let newcomer = crew.worker().register().await;
        server.stop();
        does(server.plan(), &["restore", "--force", text(&file)]).ok();
        server.start_again();

        let held = json!({ "leases": [of_backup.id, lost.id] });
        let answer = server.post(&worker.path("/heartbeat"), held).await.ok();
        assert_eq!((&answer["renewed"], &answer["lost"]), (&json!([of_backup.id]), &json!([lost.id])));
        server.get(&newcomer.path("")).await.expect(404);
        let refused = lost.complete("success", json!({ "output": "too late" })).await;
        assert!(matches!(refused.status, 404 | 409), "{refused:?}");
        of_backup.complete("success", json!({ "output": "kept" })).await.ok();
        // What the backup does not know runs again, once.
        for task in [&late, &queued] {
            assert_eq!(task.status().await, "queued");
            task.lease_to(&worker).await.complete("success", json!({ "output": "again" })).await.ok();
        }
    });
}

#[test]
fn keys_of_the_backup_are_valid_again_and_the_command_says_so() {
    run(async {
        let server = keyed(Database::Sqlite);
        let admin = server.with_key(ADMIN);
        let key = create(&admin, "ci", "read", json!({})).await;
        let file = place().join("x.db");
        does(server.plan(), &["backup", text(&file)]).ok();
        admin.delete("keys/ci").await.ok();
        server.with_key(&key).get("stats").await.expect(401);
        server.stop();
        let told = does(server.plan(), &["restore", "--force", text(&file)]).ok();
        assert!(told.contains("revoked after the backup are valid again"), "{told}");
        server.start_again();
        server.with_key(&key).get("stats").await.ok();
    });
}
