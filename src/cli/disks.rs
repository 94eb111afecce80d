//! Measures the disks of the server's directories, for the metrics.

use std::path::{Path, PathBuf};
use std::time::Duration;

use bloom_engine::Engine;

const EVERY: Duration = Duration::from_secs(5);

/// A directory and its word in the metrics.
pub type Named = (&'static str, PathBuf);

/// Measures until the engine stops. A disk that does not answer delays neither the scrapes nor the stop.
pub async fn follow(engine: Engine, directories: Vec<Named>) {
    let measure = async {
        loop {
            for (word, path) in &directories {
                let path = path.clone();
                // This fails only if the runtime ends.
                let found = tokio::task::spawn_blocking(move || free_and_size(&path)).await.ok().flatten();
                engine.metrics.scraped().disk(word, found);
            }
            tokio::time::sleep(EVERY).await;
        }
    };
    tokio::select! {
        () = engine.background.stopped() => {}
        () = measure => {}
    }
}

/// The free space and the size of the disk in bytes. As in `df`, the space that is reserved for root is not counted. `None` if the
/// directory does not exist or can't be read.
fn free_and_size(directory: &Path) -> Option<(u64, u64)> {
    let disk = rustix::fs::statvfs(directory).ok()?;
    let bytes = |blocks: u64| blocks.saturating_mul(disk.f_frsize);
    Some((bytes(disk.f_bavail), bytes(disk.f_blocks.saturating_sub(disk.f_bfree).saturating_add(disk.f_bavail))))
}
