//! The disk of the backup is full, or fails.

use super::*;

/// Runs the program with a limit of the size of the files that it writes, which is an error of the disk for it.
const SMALL_FILES: &str = r#"trap '' XFSZ; ulimit -f 200; exec "$0" "$@""#;

/// Runs the server with a disk of 8 MiB for its backups, mounted for this process only.
const SMALL_DISK: &str = r#"
    [ "$(id -u)" = 0 ] || own=--map-root-user
    exec unshare --mount $own sh -c 'mount -t tmpfs -o size=8m tmpfs "$BACKUP_DIR" && exec "$0" "$@"' "$0" "$@""#;

#[test]
fn a_disk_that_fails_in_the_middle_leaves_nothing() {
    run(async {
        let server = Server::on(Database::Sqlite).start();
        let directory = place();
        let file = directory.join("x.db");
        does(&server.plan().clone().through(SMALL_FILES), &["backup", text(&file)]).refuses(&["x.db", "check that its disk has room"]);
        assert_eq!(names(&directory), [""; 0]);
        server.get("/readyz").await.expect(200);
        server.crew().task().create().await;
        does(server.plan(), &["backup", text(&file)]).ok();
        // The same while a backup is restored: the database stays as it is.
        server.stop();
        let before = fs::read(server.data_dir().join("bloom.db")).unwrap();
        let restore = ["restore", "--force", text(&file)];
        does(&server.plan().clone().through(SMALL_FILES), &restore).refuses(&["check that its disk has room"]);
        assert_eq!(names(&server.data_dir()), ["bloom.db", "bloom.db.lock"]);
        assert!(fs::read(server.data_dir().join("bloom.db")).unwrap() == before);
    });
}

#[test]
fn the_server_goes_on_while_the_disk_of_its_backups_is_full() {
    run(async {
        let directory = place();
        let plan = Server::on(Database::Sqlite).env("BACKUP_DIR", text(&directory)).env("BACKUP_EVERY_SECONDS", 1).env("BACKUP_KEEP", 2);
        let server = plan.through(SMALL_DISK).start();
        // The disk is visible to the server only, so the test goes through the server's root directory.
        let inside = PathBuf::from(format!("/proc/{}/root{}", server.pid(), directory.display()));
        eventually("a first backup", || async { (!names(&inside).is_empty()).then_some(()) }).await;
        let filler = inside.join("filler");
        let failed = || async {
            let more = fs::OpenOptions::new().append(true).create(true).open(&filler).unwrap();
            while std::io::Write::write(&mut &more, &[0; 4096]).is_ok() {}
            // A backup that was under way when the disk became full fails in another way.
            server.log().contains("is too full: the copy needs up to").then_some(())
        };
        eventually("a backup fails", failed).await;
        assert!(!server.get("/metrics").await.expect(200).text.contains("bloom_backup_failures_total 0"));
        server.get("/readyz").await.expect(200);
        server.crew().task().create().await;
        let newest = names(&inside).into_iter().rfind(|name| name.ends_with("Z.db")).expect("the good ones stay");
        fs::remove_file(&filler).unwrap();
        eventually("a newer backup", || async { names(&inside).into_iter().find(|name| name.ends_with("Z.db") && *name > newest) }).await;
    });
}
