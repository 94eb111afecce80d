//! The scheduled backups of an SQLite database: whether the newest one is as new as it should be.

use std::time::Duration;

use bloom_config::Serve;
use bloom_store::{BackupDirectory, wall_clock};

use super::{Finding, State};

pub async fn look(settings: &Serve) -> Option<Finding> {
    let finding = |state, text: String| Some(Finding::new("backups", state, text));
    let Some(path) = &settings.data.backup_dir else {
        let is_sqlite = settings.postgres_url_without_password().is_none();
        let text = "none are scheduled; with BACKUP_DIR, the server makes one each day";
        return if is_sqlite { finding(State::Fine, text.to_owned()) } else { None };
    };
    let (shown, now) = (path.display(), wall_clock());
    let directory = BackupDirectory::new(path.clone());
    let newest = match directory.newest(now) {
        Ok(newest) => newest,
        Err(error) => return finding(State::Warning, format!("{shown} can't be read: {error}; check BACKUP_DIR and its permissions")),
    };
    let log = "the server makes one when it runs, or its log says why it can't";
    let Some(newest) = newest else { return finding(State::Warning, format!("there is none in {shown}: {log}")) };
    let age = Duration::from_millis(u64::try_from(now - newest).unwrap_or(0));
    let text = format!("the newest one in {shown} is {} min old", age.as_secs() / 60);
    if age > settings.data.backup_every * 2 {
        return finding(State::Warning, format!("{text}, which is more than two intervals: {log}"));
    }
    match directory.not_restorable(newest).await {
        Some(why) => finding(State::Warning, format!("{text}, and can't be restored as it is: {why}")),
        None => finding(State::Fine, text),
    }
}
