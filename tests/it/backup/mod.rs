//! Backups: `backup`, `restore`, and the backups that a server makes by itself.

mod disk;
mod load;
mod restore;
mod scheduled;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::cli::User;
use crate::support::server::Plan;
use crate::support::*;

/// The outcome of a command: its exit code, and what it said on both streams.
pub struct Said {
    code: i32,
    text: String,
}

impl Said {
    #[track_caller]
    pub fn ok(self) -> String {
        assert_eq!(self.code, 0, "{}", self.text);
        self.text
    }

    pub fn text(self) -> String {
        self.text
    }

    /// Expects a failure whose text has these words, and no panic.
    #[track_caller]
    pub fn refuses(self, words: &[&str]) {
        assert!(self.code == 1 || self.code == 2, "{}: {}", self.code, self.text);
        for word in words {
            assert!(self.text.contains(word), "{word}: {}", self.text);
        }
        assert!(!self.text.contains("panicked"), "{}", self.text);
    }
}

pub fn said(output: Output) -> Said {
    let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    Said { code: output.status.code().expect("an exit code"), text }
}

pub fn does(plan: &Plan, arguments: &[&str]) -> Said {
    said(plan.command(arguments).output().expect("the program"))
}

pub fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

/// The names in a directory, sorted.
fn names(directory: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(directory).expect("a directory").map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// A new, empty directory.
pub fn place() -> PathBuf {
    let directory = janitor::new_path("backups");
    fs::create_dir_all(&directory).unwrap();
    directory
}

/// Adds this many MiB to an SQLite database, which no server may have open.
async fn grow(url: &str, mib: u32) {
    let rows = format!("WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {mib}) SELECT randomblob(1 << 20) FROM n");
    direct::execute(url, &format!("CREATE TABLE filler AS {rows}")).await;
}

#[test]
fn a_backup_is_one_file_for_its_owner_that_is_never_overwritten_by_chance() {
    run(async {
        let server = Server::on(Database::Sqlite).start();
        server.crew().task().create().await;
        let directory = place();
        let file = directory.join("bloom backup.db");
        let told = does(server.plan(), &["backup", text(&file)]).ok();
        assert!(told.contains("backed up to") && told.contains("MiB"), "{told}");
        assert_eq!(names(&directory), ["bloom backup.db"]);
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);

        fs::write(&file, "something else").unwrap();
        does(server.plan(), &["backup", text(&file)]).refuses(&["exists", "--force"]);
        assert_eq!(fs::read(&file).unwrap(), b"something else");
        does(server.plan(), &["backup", "--force", text(&file)]).ok();
        assert!(fs::read(&file).unwrap().starts_with(b"SQLite format 3\0"));
        assert_eq!(names(&directory), ["bloom backup.db"]);

        let unfinished = directory.join("other.db.partial");
        fs::write(&unfinished, "of another run").unwrap();
        does(server.plan(), &["backup", text(&directory.join("other.db"))]).refuses(&["other.db.partial", "interrupted", "remove it"]);
        assert_eq!(fs::read(&unfinished).unwrap(), b"of another run");
        does(server.plan(), &["backup", text(&directory.join("nowhere/x.db"))]).refuses(&["nowhere/x.db.partial", "check the directory"]);
        server.crew().task().create().await;
    });
}

#[test]
fn the_database_and_what_is_no_file_is_never_replaced() {
    run(async {
        let server = Server::on(Database::Sqlite).start();
        let (data, directory) = (server.data_dir(), place());
        server.crew().task().create().await;
        // A path that names the same directory in another way.
        let link = directory.join("data");
        std::os::unix::fs::symlink(&data, &link).unwrap();
        let refused = |target: &Path, why: &str| {
            for how in [&["backup"][..], &["export"], &["export", "--from=postgres://nowhere/x"]] {
                does(server.plan(), &[how, &["--force", text(target)]].concat()).refuses(&[why, "another name"]);
            }
        };
        for name in ["bloom.db", "bloom.db-wal", "bloom.db-shm", "bloom.db-journal", "bloom.db.lock"] {
            for target in [data.join(name), link.join(name)] {
                refused(&target, "belongs to the database");
            }
        }
        let pipe = directory.join("pipe");
        assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        for target in [&pipe, &link] {
            refused(target, "is not a regular file");
        }
        assert_eq!(names(&directory), ["data", "pipe"]);
        server.get("/readyz").await.expect(200);
        server.crew().task().create().await;
        server.stop();
        assert_eq!(names(&data), ["bloom.db", "bloom.db.lock"]);
    });
}

#[test]
fn a_copy_that_can_not_be_restored_as_it_is_is_told_and_can_be_mended() {
    run(async {
        let directory = place();
        let server = Server::on(Database::Sqlite).env("BACKUP_DIR", text(&directory)).env("BACKUP_EVERY_SECONDS", 1).start();
        let (url, mine) = (server.database_url(), directory.join("my copy.db"));
        direct::execute(
            &url,
            "CREATE VIEW mine AS SELECT * FROM tasks; CREATE TABLE \"o'ther\" (x); CREATE INDEX of_other ON \"o'ther\" (x)",
        )
        .await;
        let told = does(server.plan(), &["backup", text(&mine)]).ok();
        assert!(told.contains("can't be restored as it is") && told.contains("view mine"), "{told}");
        let advice = &told[told.find("sqlite3 ").expect(&told)..];
        eventually("the log of the server says so", || async {
            server.log().contains("the backup can't be restored as it is").then_some(())
        })
        .await;
        server.stop();
        does(server.plan(), &["restore", "--force", text(&mine)]).refuses(&["view mine", advice.trim()]);
        // The advice is for a shell and the program sqlite3, which is not needed for it: this reads it as they do.
        let words = Command::new("sh").args(["-c", &advice.replacen("sqlite3", "printf '%s\\n'", 1)]).output().unwrap();
        let words = String::from_utf8(words.stdout).unwrap();
        let (file, sql) = words.trim().split_once('\n').expect(&words);
        assert_eq!(file, text(&mine));
        direct::execute(&format!("sqlite:{file}"), sql).await;
        does(server.plan(), &["restore", "--force", text(&mine)]).ok();
        server.start_again();
        server.get("/readyz").await.expect(200);
    });
}

#[test]
fn a_name_is_a_path_and_never_a_url() {
    run(async {
        let server = Server::on(Database::Sqlite).start();
        let directory = server.data_dir();
        let mut command = server.plan().command(&["backup", "file:it's.db?mode=memory"]);
        said(command.current_dir(directory.parent().unwrap()).output().unwrap()).ok();
        assert!(directory.parent().unwrap().join("file:it's.db?mode=memory").is_file());
    });
}

#[test]
fn what_is_no_sound_database_is_not_backed_up() {
    run(async {
        let server = Server::on(Database::Sqlite).start();
        let (plan, url, directory) = (server.plan().clone(), server.database_url(), place());
        server.stop();
        grow(&url, 4).await;
        let database = url.trim_start_matches("sqlite:");
        let whole = fs::read(database).unwrap();
        let mut broken = whole.clone();
        broken[whole.len() / 2..].fill(0x55);
        fs::write(database, broken).unwrap();
        let file = directory.join("x.db");
        does(&plan, &["backup", text(&file)]).refuses(&["damaged", "restore an earlier backup"]);
        fs::write(database, whole).unwrap();
        does(&plan, &["backup", text(&file)]).ok();
        does(&plan.clone().env("DATABASE_URL", "sqlite:nothing.db"), &["backup", text(&directory.join("y.db"))])
            .refuses(&["no database nothing.db", "DATABASE_URL"]);
        assert_eq!(names(&directory), ["x.db"], "nothing is left of what failed");
    });
}

#[test]
fn an_interrupted_backup_leaves_nothing() {
    run(async {
        let server = Server::on(Database::Sqlite).start();
        let (plan, url, directory) = (server.plan().clone(), server.database_url(), place());
        server.stop();
        grow(&url, 150).await;
        let command = |arguments: &[&str]| {
            let mut command: Command = plan.command(arguments);
            command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::piped());
            command
        };
        let mut child = janitor::spawn(command(&["backup", text(&directory.join("x.db"))])).unwrap();
        let partial = directory.join("x.db.partial");
        eventually("the copy has begun", || {
            assert!(child.try_wait().unwrap().is_none(), "the backup is still made");
            let has_begun = fs::metadata(&partial).is_ok_and(|file| file.len() > 0);
            async move { has_begun.then_some(()) }
        })
        .await;
        janitor::signal(child.id(), "INT");
        let ended = said(child.wait_with_output().unwrap());
        assert_eq!((ended.code, names(&directory)), (130, Vec::new()), "{}", ended.text);
        assert!(ended.text.contains("no backup was made"), "{}", ended.text);
    });
}

#[test]
fn a_terminal_shows_how_far_it_is() {
    run(async {
        let server = Server::on(Database::Sqlite).start();
        let data = server.data_dir();
        let user = User::at(&server).with("TERM", "xterm").with("DATA_DIR", text(&data));
        let file = place().join("x.db");
        let shown = user.types("", &["backup", text(&file)]).ok();
        let bar = shown.find(" MiB\u{1b}").or_else(|| shown.find(" MiB\r")).expect(&shown);
        assert!(shown[..bar].contains("] 0 of "), "{shown:?}");
        assert!(shown[bar..].contains("\u{1b}[2K") && shown.contains("backed up to"), "the bar is cleared: {shown:?}");
        assert!(!user.does(&["backup", "--force", text(&file)]).ok().contains('\u{1b}'));
    });
}
