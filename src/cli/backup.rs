//! `backup` and `restore`, and the loop of a server that makes scheduled backups. They are for SQLite only.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use bloom_commands::{CommandError, Progress, term};
use bloom_config::Serve;
use bloom_engine::Engine;
use bloom_store::{BackedUp, BackupDirectory, Copied, Store, wall_clock};
use clap::Args;

use super::{ServerArgs, database, signals};

const MIB: u64 = 1 << 20;

#[derive(Args, Debug)]
pub struct BackupArgs {
    /// The file of the backup; it is readable for its owner only
    file: PathBuf,
    /// Replace the file if it exists
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    pub server: ServerArgs,
}

#[derive(Args, Debug)]
pub struct RestoreArgs {
    /// The backup
    file: PathBuf,
    /// Replace a database that exists. The old one is kept beside the new one, under a name that the command prints
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    pub server: ServerArgs,
}

/// `backup FILE`
pub async fn make(BackupArgs { file, force, .. }: BackupArgs, settings: Serve) -> Result<(), CommandError> {
    if let Some(url) = settings.postgres_url_without_password() {
        return Err(CommandError::usage(format!(
            "this command is for SQLite. Back up PostgreSQL while servers run with:\n  \
             pg_dump --format=custom --file={} {}\n\
             It takes the password from PGPASSWORD or ~/.pgpass",
            quoted(&file.display().to_string()),
            quoted(&url)
        )));
    }
    let mut progress = Progress::of(" MiB");
    let options = database::options(&settings);
    let copied = Store::back_up_beside(&options, &file, force, |Copied { bytes, of }| progress.set(bytes / MIB, of / MIB));
    let BackedUp { bytes, not_restorable } = signals::until(copied, "interrupted; no backup was made").await?;
    drop(progress);
    term::print(&format!("{} backed up to {}, {}\n", settings.shown_database_url(), file.display(), mib(bytes)))?;
    if let Some(why) = not_restorable {
        term::info(&term::line(&format!("warning: it can't be restored as it is: {why}")));
    }
    Ok(())
}

/// `restore FILE`
pub async fn restore(RestoreArgs { file, force, .. }: RestoreArgs, settings: Serve) -> Result<(), CommandError> {
    if let Some(url) = settings.postgres_url_without_password() {
        return Err(CommandError::usage(format!(
            "this command is for SQLite. Stop all servers, and restore PostgreSQL into an empty database with:\n  \
             pg_restore --no-owner --dbname={} {}\n\
             It takes the password from PGPASSWORD or ~/.pgpass",
            quoted(&url),
            quoted(&file.display().to_string())
        )));
    }
    let mut progress = Progress::of(" MiB");
    let options = database::options(&settings);
    let restored = Store::restore(&options, &file, force, |Copied { bytes, of }| progress.set(bytes / MIB, of / MIB));
    let restored = signals::until(restored, "interrupted; the database was not changed").await?;
    drop(progress);
    let kept = restored
        .replaced
        .map(|path| format!("The database that was there is now {}: remove it when you do not need it any more.\n", path.display()));
    term::print(&format!(
        "{} restored to {}, {}\n{}Start the server. Named keys that were revoked after the backup are valid again: look at them with \
         bloom-runtime key list.\n",
        file.display(),
        restored.database.display(),
        mib(restored.bytes),
        kept.unwrap_or_default()
    ))
}

/// For a shell.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

fn mib(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / MIB as f64)
}

/// Scheduled backups of a server.
pub struct Schedule {
    directory: BackupDirectory,
    every: Duration,
    keep: usize,
}

impl Schedule {
    /// `None`: the settings want none.
    pub fn of(settings: &Serve) -> Option<Self> {
        let directory = BackupDirectory::new(settings.data.backup_dir.clone()?);
        Some(Self { directory, every: settings.data.backup_every, keep: settings.data.backup_keep })
    }
}

/// After a failure, the next try is made this soon, or after the interval if that is shorter.
const RETRY: Duration = Duration::from_secs(60);
/// The clock is looked at this often, because it may be set, and the machine may sleep.
const LOOK_EVERY: Duration = Duration::from_secs(60);

/// Makes backups until the engine stops. It is not a loop of the leader: an SQLite file has one server.
pub async fn keep_making(engine: Engine, store: Store, Schedule { directory, every, keep }: Schedule) {
    let shown = directory.path().display();
    tracing::info!(directory = %shown, every_seconds = every.as_secs(), keep, "backups are made");
    // The metric is set even if the directory can't be read. Otherwise nobody would be alerted that there are no backups.
    engine.metrics.backups_every(every.as_secs_f64());
    loop {
        let wait = match directory.newest(wall_clock()) {
            Ok(newest) => {
                engine.metrics.newest_backup(newest);
                newest.map_or(Duration::ZERO, |newest| every.saturating_sub(age(newest)))
            }
            // The backup then fails for the same reason, and reports it.
            Err(_) => Duration::ZERO,
        };
        let pause = if wait.is_zero() {
            let started = Instant::now();
            let made = tokio::select! {
                biased;
                () = engine.background.stopped() => return,
                made = store.back_up_into(&directory, keep) => made,
            };
            match made {
                Ok(BackedUp { bytes, not_restorable }) => {
                    let took = started.elapsed();
                    engine.metrics.backed_up(took.as_secs_f64(), bytes);
                    tracing::info!(directory = %shown, bytes, milliseconds = took.as_millis(), "a backup was made");
                    if let Some(why) = not_restorable {
                        tracing::warn!(directory = %shown, why, "the backup can't be restored as it is");
                    }
                    Duration::ZERO
                }
                Err(error) => {
                    engine.metrics.backup_failed();
                    let again = RETRY.min(every);
                    tracing::error!(directory = %shown, %error, again_in_seconds = again.as_secs(), "a scheduled backup failed");
                    again
                }
            }
        } else {
            wait.min(LOOK_EVERY)
        };
        tokio::select! {
            biased;
            () = engine.background.stopped() => return,
            () = tokio::time::sleep(pause) => {}
        }
    }
}

fn age(at: i64) -> Duration {
    Duration::from_millis(u64::try_from(wall_clock() - at).unwrap_or(0))
}
