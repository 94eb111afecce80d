//! Measures the space that files take on the disk.

pub(crate) mod held;

use std::collections::BTreeSet;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use crate::machine::walk::{Next, Seen, walk};
use bloom_core::Ms;

/// The maximum number of files and directories of one context; if there are more, the size counts as unlimited.
const MAX_ENTRIES: usize = 5_000_000;
/// The unit of `st_blocks`, whatever the block size of the file system is.
const BLOCK: u64 = 512;
/// The size of something that a run keeps from being measured, where the run is to blame for it.
pub(crate) const HIDDEN: u64 = u64::MAX;

pub(crate) fn size_of(about: &Metadata) -> u64 {
    about.blocks().saturating_mul(BLOCK)
}

/// The disk space of the files below the directories that have changed since that time; counting stops above `enough`. Links are not
/// followed, and a file with several names counts once. `unreadable` is the size that is assumed for each directory that can't be read.
pub(crate) fn used(dirs: Vec<PathBuf>, since: Ms, enough: u64, unreadable: u64) -> u64 {
    let (mut used, mut linked) = (0_u64, BTreeSet::new());
    for dir in dirs {
        let is_whole = walk(&dir, MAX_ENTRIES, |seen| {
            let Seen::Entry { about, .. } = seen else {
                used = used.saturating_add(unreadable);
                return if used > enough { Next::Stop } else { Next::Past };
            };
            if !about.is_dir() && about.nlink() > 1 && !linked.insert((about.dev(), about.ino())) {
                return Next::Past;
            }
            // `ctime` is in whole seconds.
            if about.ctime().saturating_add(1).saturating_mul(1000) >= since {
                used = used.saturating_add(size_of(about));
            }
            if used > enough { Next::Stop } else { Next::Into }
        });
        if !is_whole {
            return if used > enough { used } else { u64::MAX };
        }
    }
    used
}

/// Whether the files below the directories take more than this limit. Anything that can't be read counts as exceeding it.
pub(crate) fn is_larger(dirs: Vec<PathBuf>, limit: u64) -> bool {
    used(dirs, Ms::MIN, limit, HIDDEN) > limit
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Otherwise a run could hide files there.
    #[test]
    fn what_can_not_be_looked_at_counts_as_any_size() {
        let temp = tempfile::tempdir().unwrap();
        let top = temp.path().join("top");
        std::fs::create_dir(&top).unwrap();
        let deeper = "d".repeat(200);
        let mut below = std::fs::File::open(&top).unwrap();
        for _ in 0..30 {
            rustix::fs::mkdirat(&below, &deeper, rustix::fs::Mode::RWXU).unwrap();
            let flags = rustix::fs::OFlags::DIRECTORY;
            below = rustix::fs::openat(&below, &deeper, flags, rustix::fs::Mode::empty()).unwrap().into();
        }
        assert_eq!(used(vec![top.clone()], Ms::MIN, u64::MAX - 1, HIDDEN), u64::MAX);
        // No files are removed just because they can't be measured.
        assert!(used(vec![top.clone()], Ms::MIN, u64::MAX - 1, 0) < 1 << 20);
        crate::machine::removal::remove_all(&top).unwrap();
        assert_eq!(used(vec![top], Ms::MIN, 0, HIDDEN), 0, "nothing is there");
    }

    #[test]
    fn what_is_on_the_disk_counts_once() {
        let temp = tempfile::tempdir().unwrap();
        let (dir, elsewhere) = (temp.path().join("dir"), temp.path().join("elsewhere"));
        std::fs::create_dir_all(dir.join("sub")).unwrap();
        std::fs::create_dir_all(&elsewhere).unwrap();
        std::fs::write(elsewhere.join("large"), vec![1; 4 << 20]).unwrap();
        std::fs::write(dir.join("sub/one"), vec![1; 1 << 20]).unwrap();
        std::fs::hard_link(dir.join("sub/one"), dir.join("two")).unwrap();
        std::os::unix::fs::symlink(&elsewhere, dir.join("link")).unwrap();
        std::fs::File::create(dir.join("sparse")).unwrap().set_len(1 << 40).unwrap();
        let measured = |since, enough| used(vec![dir.clone(), temp.path().join("none")], since, enough, HIDDEN);
        let all = measured(Ms::MIN, u64::MAX);
        assert!((1 << 20..2 << 20).contains(&all), "{all}");
        assert_eq!(measured(bloom_client::now_ms() + 60_000, u64::MAX), 0);
        assert!(measured(Ms::MIN, 0) > 0);
    }
}
