//! The directory of scheduled backups. The name of a backup contains the time when it was begun.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use bloom_core::Ms;
use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use sqlx::ConnectOptions as _;

use super::check::{Depth, check};
use super::copy::{BackedUp, copy, not_sqlite};
use super::partial::Partial;
use crate::Store;
use crate::error::Error;
use crate::opening::open::Target;

/// The names sort by time.
const PATTERN: &str = "bloom-%Y%m%dT%H%M%SZ.db";

/// A directory that belongs to the backups of one server.
#[derive(Clone, Debug)]
pub struct BackupDirectory(PathBuf);

impl BackupDirectory {
    /// Refers to the backups in this directory, which need not exist yet.
    pub fn new(path: PathBuf) -> Self {
        Self(path)
    }

    /// The path of the directory.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// When the newest backup was begun. Names with a time later than `now` are ignored, because a wrong clock has made them.
    ///
    /// # Errors
    /// The directory can't be read. A directory that does not exist is no error: it has no backups.
    pub fn newest(&self, now: Ms) -> io::Result<Option<Ms>> {
        match self.names() {
            Ok(names) => Ok(names.iter().filter_map(|name| begun(name)).filter(|begun| *begun <= now).max()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Why `restore` would refuse the backup that was begun at this time. Its pages are not checked.
    pub async fn not_restorable(&self, begun: Ms) -> Option<String> {
        let begun = Timestamp::from_millisecond(begun).ok()?;
        let file = self.0.join(name(begun));
        check(&file, &file, Depth::Schema).await.unwrap_or_else(|error| Some(error.to_string()))
    }

    fn names(&self) -> io::Result<Vec<String>> {
        let names = fs::read_dir(&self.0)?.map(|entry| Ok(entry?.file_name().into_string().unwrap_or_default()));
        Ok(names.collect::<io::Result<Vec<_>>>()?.into_iter().filter(|name| begun(name).is_some()).collect())
    }

    /// Removes the oldest of the backups before the one called `made`, so that `keep` backups are left, including that one.
    fn prune(&self, made: &str, keep: usize, database: &Path) -> io::Result<()> {
        let mut older: Vec<String> = self.names()?.into_iter().filter(|name| name.as_str() < made).collect();
        older.sort_unstable_by(|a, b| b.cmp(a));
        // Somebody may have started the server with a backup as its database, which must not be removed.
        let in_use = fs::metadata(database).ok().map(|file| (file.dev(), file.ino()));
        for name in older.into_iter().skip(keep.saturating_sub(1)) {
            let path = self.0.join(name);
            let found = fs::symlink_metadata(&path)?;
            if found.is_file() && Some((found.dev(), found.ino())) != in_use {
                fs::remove_file(&path)?;
            }
        }
        Ok(())
    }
}

fn name(at: Timestamp) -> String {
    at.strftime(PATTERN).to_string()
}

/// When the backup with this name was begun. `None`: it is not the name of a scheduled backup.
fn begun(of: &str) -> Option<Ms> {
    let time = DateTime::strptime(PATTERN, of).ok()?;
    let at = TimeZone::UTC.to_timestamp(time).ok()?;
    // The parser also accepts times in other notations.
    (name(at) == of).then(|| at.as_millisecond())
}

impl Store {
    /// Makes a scheduled backup and removes the oldest ones, so that `keep` are left.
    ///
    /// # Errors
    /// [`Error::Setup`] with what to do. If only the removal failed, the new backup exists.
    pub async fn back_up_into(&self, directory: &BackupDirectory, keep: usize) -> Result<BackedUp, Error> {
        let at = &directory.0;
        let fail = |error: io::Error| Error::Setup(format!("{}: {error}; check BACKUP_DIR and its permissions", at.display()));
        let Target::Sqlite { options, health, .. } = &self.inner.target else { return Err(not_sqlite()) };
        // A file that has replaced the database must not be backed up.
        health.committed()?;
        let source = options.connect().await?;
        fs::DirBuilder::new().recursive(true).mode(0o700).create(at).map_err(fail)?;
        let made = name(Timestamp::now());
        let partial = Partial::create(at.join("bloom.partial"), true)?;
        let placed = at.join(&made);
        let backup = copy(source, &partial, &placed, |_| {}).await?;
        partial.place(&placed)?;
        directory.prune(&made, keep, options.get_filename()).map_err(fail)?;
        Ok(backup)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_scheduled_backups_have_a_time() {
        assert_eq!(begun("bloom-20260225T120000Z.db"), Some(1_772_020_800_000));
        assert_eq!(name(Timestamp::from_millisecond(1_772_020_800_000).unwrap()), "bloom-20260225T120000Z.db");
        for other in [
            "bloom.db",
            "bloom-2026-02-25.db",
            "bloom-20260225T120000Z.db.partial",
            "bloom-20260231T120000Z.db",
            "bloom-20260225T120060Z.db",
            "bloom- 20260225T120000Z.db",
            "bloom-+20260225T120000Z.db",
            "Bloom-20260225T120000Z.db",
            "before-the-upgrade.db",
            "",
        ] {
            assert_eq!(begun(other), None, "{other}");
        }
    }

    #[test]
    fn the_oldest_are_removed_and_nothing_else() {
        let directory = tempfile::tempdir().unwrap();
        let backups = BackupDirectory::new(directory.path().join("backups"));
        let day = |day: u32| format!("bloom-202602{day:02}T120000Z.db");
        assert_eq!(backups.newest(Ms::MAX).unwrap(), None, "there is no directory yet");
        fs::create_dir(backups.path()).unwrap();
        assert_eq!(backups.newest(Ms::MAX).unwrap(), None);
        let others = ["bloom.db", "bloom-by-hand.db", "bloom-20260101T120000Z.db.gz"];
        (1..=8).map(day).chain(others.map(str::to_owned)).for_each(|name| fs::write(backups.path().join(name), "").unwrap());
        // These are kept: a directory with the name of a backup, the database in use, and a backup with the time of a wrong clock.
        fs::create_dir(backups.path().join("bloom-20250101T120000Z.db")).unwrap();
        fs::write(backups.path().join("bloom-20990101T120000Z.db"), "").unwrap();
        backups.prune(&day(8), 3, &backups.path().join(day(2))).unwrap();
        let mut left: Vec<String> =
            fs::read_dir(backups.path()).unwrap().map(|one| one.unwrap().file_name().into_string().unwrap()).collect();
        left.sort();
        let mut expected: Vec<String> = [2, 6, 7, 8].map(day).into();
        expected.extend(others.map(str::to_owned));
        expected.extend(["bloom-20250101T120000Z.db", "bloom-20990101T120000Z.db"].map(str::to_owned));
        expected.sort();
        assert_eq!(left, expected);
        assert_eq!(backups.newest(begun(&day(9)).unwrap()).unwrap(), begun(&day(8)));
        assert_eq!(backups.newest(begun(&day(7)).unwrap()).unwrap(), begun(&day(7)));
    }
}
