//! SQLite's file is removed, replaced or damaged while the server runs, or its disk is full.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use crate::support::*;

/// Runs the server on a disk of 8 MiB, mounted for this process only. Without root rights, it maps its user to root for that.
const SMALL_DISK: &str = r#"
    [ "$(id -u)" = 0 ] || own=--map-root-user
    mkdir -p "$DATA_DIR" && exec unshare --mount $own sh -c 'mount -t tmpfs -o size=8m tmpfs "$DATA_DIR" && exec "$0" "$@"' "$0" "$@""#;

fn file(server: &Server) -> PathBuf {
    server.database_url().trim_start_matches("sqlite:").into()
}

async fn is_ready(server: &Server) -> bool {
    server.get("/readyz").await.status == 200
}

/// Waits until the server is not ready; returns the reason that it gives.
async fn refuses(server: &Server) -> String {
    let answer = eventually("the server is not ready", || async {
        let answer = server.get("/readyz").await;
        (answer.status == 503).then_some(answer)
    })
    .await;
    assert!(answer.number("retry-after") >= 1);
    answer.error(503)
}

/// Checks that no write is acknowledged any more, and that every request gets the reason.
async fn is_out_of_service(server: &Server, why: &str) {
    let said = refuses(server).await;
    assert!(said.contains(why) && said.contains("start the server again"), "{said}");
    for _ in 0..3 {
        let answer = server.crew().task().answer().await.error(503);
        assert_eq!(answer, said);
    }
    server.get("/healthz").await.expect(200);
    assert!(!is_ready(server).await);
    assert_eq!(server.log().matches("ALL WRITES ARE REFUSED FROM NOW ON").count(), 1, "{}", server.log());
}

#[test]
fn what_goes_into_a_removed_file_is_not_acknowledged() {
    run(async {
        let server = Server::on(Database::Sqlite).start();
        server.crew().task().create().await;
        fs::remove_dir_all(server.data_dir()).unwrap();
        server.crew().task().answer().await.error(503);
        is_out_of_service(&server, "removed").await;
        assert!(!server.data_dir().exists(), "no new file takes its place");
    });
}

#[test]
fn what_goes_into_a_replaced_file_is_not_acknowledged() {
    run(async {
        let server = Server::on(Database::Sqlite).start();
        let task = server.crew().task().create().await;
        let copy = server.data_dir().join("copy");
        fs::copy(file(&server), &copy).unwrap();
        let before = fs::read(&copy).unwrap();
        fs::rename(&copy, file(&server)).unwrap();
        server.crew().task().answer().await.error(503);
        is_out_of_service(&server, "replaced").await;
        assert_eq!(server.get(&task.path("")).await.status, 200, "the open file can still be read");
        assert!(fs::read(file(&server)).unwrap() == before, "nothing is written to the other file");
    });
}

#[test]
fn a_log_that_is_removed_is_noticed_without_any_traffic() {
    run(async {
        let server = Server::on(Database::Sqlite).start();
        let mut log = file(&server).into_os_string();
        log.push("-wal");
        fs::remove_file(log).unwrap();
        eventually("the log says so", || async { server.log().contains("bloom.db-wal was removed").then_some(()) }).await;
        is_out_of_service(&server, "removed").await;
    });
}

#[test]
fn a_file_that_is_no_database_any_more_is_noticed_by_the_probe() {
    run(async {
        let server = Server::on(Database::Sqlite).start();
        server.crew().task().create().await;
        let database = fs::OpenOptions::new().write(true).open(file(&server)).unwrap();
        // Repeated, because the next checkpoint may write the first page again.
        eventually("the probe notices", || async {
            database.write_all_at(&[0x55; 100], 0).unwrap();
            (!is_ready(&server).await).then_some(())
        })
        .await;
        is_out_of_service(&server, "damaged").await;
    });
}

#[test]
fn damage_in_the_middle_ends_service_when_it_is_met() {
    run(async {
        let server = Server::on(Database::Sqlite).start();
        let (path, long) = (file(&server), "p".repeat(500_000));
        let mut tasks = Vec::new();
        for _ in 0..40 {
            tasks.push(server.crew().task().prompt(&long).create().await);
        }
        eventually("the log was checkpointed", || async { (fs::metadata(&path).unwrap().len() > 15_000_000).then_some(()) }).await;
        let database = fs::OpenOptions::new().write(true).open(&path).unwrap();
        let size = fs::metadata(&path).unwrap().len();
        for page in 1..size / 4096 {
            database.write_all_at(&[0x55; 4096], page * 4096).unwrap();
        }
        eventually("a request reads a damaged page", || async {
            for task in &tasks {
                server.get(&task.path("")).await;
            }
            (!is_ready(&server).await).then_some(())
        })
        .await;
        is_out_of_service(&server, "damaged").await;
    });
}

#[test]
fn a_full_disk_ends_service_until_there_is_room() {
    run(async {
        let server = Server::on(Database::Sqlite).through(SMALL_DISK).start();
        // The disk is visible to the server and its descendants only, so the test goes through the server's root directory.
        let inside = PathBuf::from(format!("/proc/{}/root{}", server.pid(), server.data_dir().display()));
        let filler = inside.join("filler");
        assert!(inside.join("bloom.db").exists() && !file_is_here(&server), "the disk is visible to the server only");
        let fill = || {
            let more = fs::OpenOptions::new().append(true).create(true).open(&filler).unwrap();
            while std::io::Write::write(&mut &more, &[0; 4096]).is_ok() {}
        };
        let long = "p".repeat(100_000);
        let kept = std::cell::RefCell::new(vec![server.crew().task().create().await.id]);
        eventually("a write fails", || async {
            fill();
            let answer = server.crew().task().prompt(&long).answer().await;
            match answer.status {
                201 => kept.borrow_mut().push(answer.json()["id"].as_str().unwrap().to_owned()),
                status => assert_eq!(status, 503, "{answer:?}"),
            }
            (answer.status == 503).then_some(())
        })
        .await;
        let said = refuses(&server).await;
        assert!(said.contains("full") && said.contains("make room"), "{said}");
        server.get("/healthz").await.expect(200);
        server.get("stats").await.expect(200);
        assert!(!server.log().contains("can be written to again"), "{}", server.log());
        fs::remove_file(&filler).unwrap();
        eventually("the server becomes ready again by itself", || async { is_ready(&server).await.then_some(()) }).await;
        eventually("a write succeeds again", || async { (server.crew().task().answer().await.status == 201).then_some(()) }).await;
        for id in kept.into_inner() {
            assert_eq!(server.get(&format!("llm-tasks/{id}")).await.ok()["status"], "queued");
        }
    });
}

fn file_is_here(server: &Server) -> bool {
    server.data_dir().join("bloom.db").exists()
}
