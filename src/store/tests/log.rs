//! Tests of SQLite's write-ahead log with long readers.

use std::task::Poll;
use std::time::Duration;

use sqlx::{Connection, Executor, SqliteConnection};

use super::*;

/// More bytes than the size above which the store restarts the log.
const LONG: usize = 18 << 20;

async fn raw(bench: &Bench) -> SqliteConnection {
    SqliteConnection::connect(&bench.url).await.unwrap()
}

async fn lengthen_the_log(writer: &mut Box<dyn Writer>) {
    let mut written = 0;
    while written < LONG {
        let task = TaskSpec { prompt: "p".repeat(1 << 20), ..spec("c") };
        written += task.prompt.len();
        create(writer, vec![task]).await;
    }
}

#[test]
fn a_long_log_beside_a_long_reader_does_not_stop_the_writer() {
    crate::support::run(async {
        let bench = Bench::new(Database::Sqlite).await;
        let mut writer = bench.writer().await;
        lengthen_the_log(&mut writer).await;
        let mut reader = raw(&bench).await;
        reader.execute("BEGIN; SELECT count(*) FROM tasks").await.unwrap();

        // Another connection tries to write all the time, and counts how often it can't.
        let mut other = raw(&bench).await;
        other.execute("PRAGMA busy_timeout = 0").await.unwrap();
        let (mut let_in, mut kept_out) = (0, 0);
        let mut checkpoint = std::pin::pin!(bench.store.checkpoint());
        let done = loop {
            tokio::select! {
                biased;
                done = &mut checkpoint => break done.unwrap(),
                () = tokio::time::sleep(Duration::from_millis(1)) => {}
            }
            match other.execute("BEGIN IMMEDIATE").await {
                Ok(_) => {
                    other.execute("ROLLBACK").await.unwrap();
                    let_in += 1;
                }
                Err(_) => kept_out += 1,
            }
        };
        assert!(done.log_bytes > LONG as i64 && done.is_complete && !done.starts_over, "{done:?}");
        assert!(kept_out <= let_in, "the writer was locked out {kept_out} times and could write {let_in} times");

        reader.execute("ROLLBACK").await.unwrap();
        assert!(bench.store.checkpoint().await.unwrap().starts_over, "no reader blocks the restart");
        create(&mut writer, vec![spec("c")]).await;
        let done = bench.store.checkpoint().await.unwrap();
        assert!(done.log_bytes < 1 << 20, "{done:?}");
    });
}

#[test]
fn the_sign_of_service_and_checkpoints_do_not_wait_for_a_survey() {
    crate::support::run(async {
        let bench = Bench::with_own_time().await;
        let mut writer = bench.writer().await;
        create(&mut writer, vec![spec("c")]).await;
        // The survey stops after its first step, then after its second, and so on.
        for steps in 1.. {
            let mut survey = bench.port().count_errors();
            let mut left = steps;
            let is_over = std::future::poll_fn(|context| match survey.as_mut().poll(context) {
                Poll::Ready(missing) => {
                    assert!(missing.unwrap().is_empty());
                    Poll::Ready(true)
                }
                Poll::Pending => {
                    left -= 1;
                    if left == 0 { Poll::Ready(false) } else { Poll::Pending }
                }
            });
            let is_over = is_over.await;
            let aside = async {
                bench.port().mark_served().await.unwrap();
                bench.store.checkpoint().await.unwrap();
            };
            tokio::time::timeout(Duration::from_secs(30), aside).await.unwrap_or_else(|_| panic!("waits for step {steps} of the survey"));
            if is_over {
                // The number of steps depends on the machine, but the survey always waits at its first one.
                assert!(steps > 1, "the survey was interrupted at least once");
                break;
            }
        }
    });
}

/// SQLite's lock has no order of waiters, so a busy writer would mostly get it before the service mark.
#[test]
fn the_service_mark_is_not_overtaken_by_the_next_batch() {
    support::run(async {
        let bench = Bench::with_own_time().await;
        bench.port().mark_served().await.unwrap();
        let mut writer = bench.writer().await;
        register(&mut writer, "w", 1).await;
        let mut reader = SqliteConnection::connect(&bench.url).await.unwrap();
        let keys = RowKeys { workers: ["w".to_owned()].into(), ..RowKeys::default() };
        for batch in 0..3 {
            support::direct::execute(&bench.url, "UPDATE served SET at = 0").await;
            writer.begin_and_load(&keys, LockWait::Long).await.unwrap();
            let mut mark = std::pin::pin!(bench.port().mark_served());
            assert!(tokio::time::timeout(Duration::ZERO, &mut mark).await.is_err(), "the mark waits for the batch");
            writer.rollback().await.unwrap();
            let (loaded, _) = tokio::join!(writer.begin_and_load(&keys, LockWait::Long), async {
                // Polled together with the load, which must wait until the mark is written.
                let _ = tokio::time::timeout(Duration::from_secs(1), &mut mark).await;
            });
            loaded.unwrap();
            let at: i64 = sqlx::query_scalar("SELECT at FROM served").fetch_one(&mut reader).await.unwrap();
            writer.rollback().await.unwrap();
            assert_ne!(at, 0, "batch {batch} overtook the mark");
        }
    });
}
