//! Disk space that a scan of a run's directories can't see: files that its processes have removed, but that take up space until the
//! processes close them.

use std::collections::BTreeMap;
use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::size_of;
use crate::machine::process::threads;
use crate::sandbox::bubblewrap::SESSIONS;

/// The files that a process has open. A thread may have some that it shares with no other thread.
fn open_files(pid: i32) -> impl Iterator<Item = (PathBuf, Metadata)> {
    let open = threads(pid).flat_map(|thread| fs::read_dir(thread.join("fd")).into_iter().flatten().flatten());
    // The metadata of the open file, not of the link.
    open.filter_map(|entry| Some((entry.path(), fs::metadata(entry.path()).ok()?))).filter(|(_, about)| about.is_file())
}

/// The size of removed files that these processes still have open or mapped into memory. Each file counts once, identified by its device
/// and inode.
pub(crate) fn held_open(processes: &[i32], dirs: &[PathBuf]) -> u64 {
    let mut sizes = BTreeMap::<(u64, u64), u64>::new();
    for pid in processes {
        let removed = open_files(*pid).filter(|(_, about)| about.nlink() == 0);
        sizes.extend(removed.map(|(_, about)| ((about.dev(), about.ino()), size_of(&about))));
        // All threads share their memory, but a thread that has ended shows none.
        let maps = threads(*pid).filter_map(|thread| fs::read_to_string(thread.join("maps")).ok()).find(|maps| !maps.is_empty());
        for Mapped { range, inode, end } in mapped(&maps.unwrap_or_default(), dirs) {
            // Only privileged processes may examine the file itself. For others, its size is estimated from the mapped part.
            match fs::metadata(format!("/proc/{pid}/map_files/{range}")) {
                Ok(about) => _ = sizes.insert((about.dev(), about.ino()), size_of(&about)),
                Err(_) if sizes.keys().any(|(_, known)| *known == inode) => {}
                Err(_) => _ = sizes.entry((0, inode)).and_modify(|size| *size = end.max(*size)).or_insert(end),
            }
        }
    }
    sizes.into_values().fold(0, u64::saturating_add)
}

/// Whether one of these processes has the file open for writing.
pub(crate) fn is_written_by(processes: &[i32], file: &Metadata) -> bool {
    let is_it = |about: &Metadata| (about.dev(), about.ino()) == (file.dev(), file.ino());
    processes.iter().any(|pid| open_files(*pid).any(|(path, about)| is_it(&about) && is_for_writing(&path)))
}

/// The permissions of the link in `/proc` show how the file was opened (see proc_pid_fd(5)).
fn is_for_writing(descriptor: &Path) -> bool {
    fs::symlink_metadata(descriptor).is_ok_and(|link| link.mode() & 0o200 != 0)
}

/// A mapped part of a removed file in the memory of a process.
#[derive(Debug, PartialEq)]
struct Mapped<'a> {
    range: &'a str,
    inode: u64,
    /// The end of the part, as an offset in the file.
    end: u64,
}

/// The mappings in `/proc/PID/maps` of removed files that were in the directories, or in a sandbox's sessions, which have another path in
/// the sandbox. Programs that were replaced by newer ones are not included.
fn mapped<'a>(maps: &'a str, dirs: &[PathBuf]) -> impl Iterator<Item = Mapped<'a>> {
    maps.lines().filter_map(|line| {
        let (about, path) = line.strip_suffix(" (deleted)")?.split_once('/')?;
        let is_within = |dir: &Path| Path::new("/").join(path).starts_with(dir);
        let mut words = about.split_whitespace();
        let (range, offset) = (words.next()?, words.nth(1)?);
        let inode = words.nth(1)?.parse().ok()?;
        let hex = |text: &str| u64::from_str_radix(text, 16).ok();
        let (from, to) = range.split_once('-')?;
        let end = hex(offset)?.saturating_add(hex(to)?.saturating_sub(hex(from)?));
        dirs.iter().map(PathBuf::as_path).chain([Path::new(SESSIONS)]).any(is_within).then_some(Mapped { range, inode, end })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_removed_file_that_is_mapped_counts() {
        let maps = "7f0000001000-7f0000003000 rw-s 00002000 08:01 77                         /ctx/large file (deleted)\n\
                    7f0000005000-7f0000006000 r--p 00000000 08:01 78                         /ctx/kept\n\
                    7f0000007000-7f0000008000 r-xp 00000000 08:01 79                         /usr/bin/node (deleted)\n\
                    7f0000009000-7f000000a000 rw-p 00000000 00:00 0 \n";
        let found: Vec<Mapped<'_>> = mapped(maps, &["/ctx".into()]).collect();
        assert_eq!(found, [Mapped { range: "7f0000001000-7f0000003000", inode: 77, end: 0x4000 }]);
    }
}
