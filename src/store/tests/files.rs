//! Tests of the SQLite file: it belongs to another program, or is replaced while the store has it open.

use bloom_core::op;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use super::*;

/// Whether this process has the file open, under any name.
fn is_open(file: &fs::Metadata) -> bool {
    let open = fs::read_dir("/proc/self/fd").unwrap().flatten().filter_map(|entry| fs::metadata(entry.path()).ok());
    open.into_iter().any(|open| (open.dev(), open.ino()) == (file.dev(), file.ino()))
}

#[test]
fn a_file_that_takes_the_place_is_neither_written_nor_read() {
    crate::support::run(async {
        let bench = Bench::new(Database::Sqlite).await;
        let mut writer = bench.writer().await;
        let id = create(&mut writer, vec![spec("c")]).await[0];
        bench.state(id).await;
        let path = PathBuf::from(bench.url.trim_start_matches("sqlite:"));
        assert!(is_open(&fs::metadata(&path).unwrap()));
        let copy = path.with_extension("copy");
        fs::copy(&path, &copy).unwrap();
        fs::rename(&copy, &path).unwrap();

        let refused = try_commit(&mut writer, &[Op::Create(op::Create { tasks: vec![spec("c")] })]).await.unwrap_err();
        assert!(refused.is_lasting() && refused.to_string().contains("replaced"), "{refused}");
        assert!(writer.rollback().await.unwrap_err().is_lasting(), "waiting does not help");
        assert!(bench.port().writer().await.is_err_and(|error| error.is_lasting()));
        // There are more readers than connections, so they share those that are open.
        let reads: Vec<_> = (0..16)
            .map(|_| {
                let store = bench.store.clone();
                crate::support::beside(async move { store.task(id).await })
            })
            .collect();
        for read in reads {
            assert!(read.await.unwrap().unwrap().is_some());
        }
        // The open control connection continues to read. Together, these reads need another connection, which is not opened.
        let reads: Vec<_> = (0..16)
            .map(|_| {
                let store = bench.store.clone();
                crate::support::beside(async move { bloom_database::Database::task_states(&store, &[id]).await })
            })
            .collect();
        for read in reads {
            assert_eq!(read.await.unwrap().unwrap().len(), 1);
        }
        assert!(!is_open(&fs::metadata(&path).unwrap()));
    });
}

#[test]
fn the_file_of_another_program_stays_as_it_is() {
    crate::support::run(async {
        let url = Database::Sqlite.new_url();
        let path = PathBuf::from(url.trim_start_matches("sqlite:"));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, "").unwrap();
        execute(&url, "CREATE TABLE photos (id INTEGER PRIMARY KEY)").await;
        let before = fs::read(&path).unwrap();
        let refused = Store::open(&StoreOptions { url, max_connections: 2 }).await.map(drop).unwrap_err().to_string();
        assert!(refused.contains("another program") && refused.contains("DATABASE_URL"), "{refused}");
        assert_eq!(fs::read(&path).unwrap(), before);
    });
}
