//! The backups that a server makes by itself.

use super::*;

/// A server that makes backups into this directory, every so many seconds.
fn keeps(directory: &Path, every: u32, keep: u32) -> Plan {
    Server::on(Database::Sqlite).env("BACKUP_DIR", text(directory)).env("BACKUP_EVERY_SECONDS", every).env("BACKUP_KEEP", keep)
}

/// The value of a metric without labels.
async fn metric(server: &Server, name: &str) -> f64 {
    let text = server.get("/metrics").await.expect(200).text;
    let line = text.lines().find_map(|line| line.strip_prefix(&format!("{name} "))).unwrap_or_else(|| panic!("no {name}"));
    line.parse().unwrap()
}

fn scheduled(directory: &Path) -> Vec<String> {
    let is_one = |name: &String| name.starts_with("bloom-2") && name.ends_with("Z.db");
    if directory.exists() { names(directory).into_iter().filter(is_one).collect() } else { Vec::new() }
}

#[test]
fn the_newest_are_kept_and_each_can_be_restored() {
    run(async {
        let directory = place().join("made by the server");
        let server = keeps(&directory, 1, 2).start();
        let task = server.crew().task().create().await.id;
        eventually("a first backup", || async { (!scheduled(&directory).is_empty()).then_some(()) }).await;
        let others = ["notes.txt", "bloom-by-hand.db", "bloom-20200101T000000Z.db.gz"];
        others.iter().for_each(|name| fs::write(directory.join(name), "").unwrap());
        fs::write(directory.join("bloom-20200101T000000Z.db"), "an old one").unwrap();
        let first = scheduled(&directory);
        let last = eventually("several more", || async {
            let now = scheduled(&directory);
            (now.len() == 2 && now.iter().all(|name| name > first.last().unwrap())).then_some(now)
        })
        .await;
        assert!(others.iter().all(|name| directory.join(name).exists()), "only its own files are removed: {:?}", names(&directory));
        assert_eq!(fs::metadata(&directory).unwrap().permissions().mode() & 0o777, 0o700);
        assert!(metric(&server, "bloom_backup_last_bytes").await > 100_000.0);
        assert!(metric(&server, "bloom_backup_last_seconds").await > 0.0);
        assert_eq!(metric(&server, "bloom_backup_interval_seconds").await, 1.0);
        assert_eq!(metric(&server, "bloom_backup_failures_total").await, 0.0);
        assert!(metric(&server, "bloom_backup_last_success_timestamp_seconds").await > now_ms() as f64 / 1000.0 - 600.0);
        server.stop();
        let newest = scheduled(&directory).pop().unwrap();
        assert!(newest >= last[1]);
        does(server.plan(), &["restore", "--force", text(&directory.join(newest))]).ok();
        server.start_again();
        server.get(&format!("llm-tasks/{task}")).await.ok();
    });
}

#[test]
fn a_restarted_server_goes_on_with_the_schedule() {
    run(async {
        let directory = place();
        let server = keeps(&directory, 86_400, 7).start();
        let made = eventually("a backup at the first start", || async { Some(scheduled(&directory)).filter(|made| made.len() == 1) }).await;
        server.stop();
        server.start_again();
        let newest = || async { metric(&server, "bloom_backup_last_success_timestamp_seconds").await };
        eventually("it knows the newest", || async { (newest().await > 0.0).then_some(()) }).await;
        assert_eq!((metric(&server, "bloom_backup_last_bytes").await, scheduled(&directory)), (0.0, made.clone()), "none was due");
        server.stop();

        // The newest one is older than the interval, and there is one of a clock that was wrong.
        fs::rename(directory.join(&made[0]), directory.join("bloom-20200101T000000Z.db")).unwrap();
        fs::write(directory.join("bloom-20990101T000000Z.db"), "").unwrap();
        // An unfinished file of a server that was killed.
        fs::write(directory.join("bloom.partial"), "unfinished").unwrap();
        server.start_again();
        eventually("the backup that is due", || async { (scheduled(&directory).len() == 3).then_some(()) }).await;
        assert!(!directory.join("bloom.partial").exists());
    });
}

#[test]
fn a_backup_that_is_under_way_does_not_delay_the_stop_and_is_gone() {
    run(async {
        let directory = place();
        let server = Server::on(Database::Sqlite).start();
        let (plan, url) = (server.plan().clone(), server.database_url());
        server.stop();
        grow(&url, 150).await;
        let server = plan.env("BACKUP_DIR", text(&directory)).start();
        let partial = directory.join("bloom.partial");
        eventually("the copy has begun", || async { fs::metadata(&partial).is_ok_and(|file| file.len() > 0).then_some(()) }).await;
        server.crew().task().create().await;
        assert!(server.stop().success());
        assert_eq!(names(&directory), [""; 0]);
    });
}

#[test]
fn a_failure_is_told_and_counted_and_tried_again() {
    run(async {
        let directory = place().join("backups");
        fs::write(&directory, "a file in its place").unwrap();
        let server = keeps(&directory, 1, 7).start();
        eventually("failures are counted", || async { (metric(&server, "bloom_backup_failures_total").await >= 2.0).then_some(()) }).await;
        assert!(server.log().contains("a scheduled backup failed") && server.log().contains("check BACKUP_DIR"), "{}", server.log());
        server.crew().task().create().await;
        server.get("/readyz").await.expect(200);
        fs::remove_file(&directory).unwrap();
        eventually("a backup", || async { (!scheduled(&directory).is_empty()).then_some(()) }).await;
    });
}

#[test]
fn doctor_tells_how_old_the_newest_is() {
    let directory = place();
    let plan = keeps(&directory, 3_600, 7).env("PORT", janitor::free_port());
    let tells = |plan: &Plan, state: &str, words: &str| {
        let text = does(plan, &["doctor"]).text;
        let line = text.lines().find(|line| line.split_whitespace().nth(1) == Some("backups")).unwrap_or_else(|| panic!("{text}"));
        assert!(line.starts_with(state) && line.contains(words), "{state} {words}: {line}");
    };
    tells(&plan, "warning", "there is none in");
    fs::write(directory.join("bloom-20200101T000000Z.db"), "").unwrap();
    tells(&plan, "warning", "more than two intervals");
    let server = plan.start();
    server.stop();
    // It may have made one itself, which is not newer.
    let now = Command::new("date").args(["-u", "+bloom-%Y%m%dT%H%M%SZ.db"]).output().unwrap();
    let newest = directory.join(String::from_utf8(now.stdout).unwrap().trim());
    let (plan, url) = (server.plan(), server.database_url());
    fs::remove_file(&newest).ok();
    does(plan, &["backup", text(&newest)]).ok();
    tells(plan, "fine", "min old");
    run(async { direct::execute(&url, "CREATE VIEW mine AS SELECT * FROM tasks").await });
    does(plan, &["backup", "--force", text(&newest)]).ok();
    tells(plan, "warning", "can't be restored as it is: the database has what its schema does not have, or has otherwise (view mine)");
    tells(&plan.clone().env("BACKUP_DIR", ""), "fine", "none are scheduled");
}

#[test]
fn postgresql_is_refused_at_the_start() {
    let url = format!("postgres://bloom:secret@127.0.0.1:{}/bloom", janitor::free_port());
    let refused = said(Server::on_url(&url).env("BACKUP_DIR", "/backups").start_in_vain());
    assert!(refused.code == 2 && !refused.text.contains("secret"), "{}", refused.text);
    refused.refuses(&["backup_dir", "SQLite only", "pg_dump"]);
}
