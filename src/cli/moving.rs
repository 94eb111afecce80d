//! `export` and `import`.

use std::path::PathBuf;

use bloom_commands::{CommandError, Progress, term, with_commas};
use bloom_config::Serve;
use bloom_store::{Imported, Moved, Store, Target};
use clap::Args;

use super::{ServerArgs, database, signals};

#[derive(Args, Debug)]
pub struct ExportArgs {
    /// The file; it is readable for its owner only, because it contains prompts, outputs, digests of keys and the stored settings
    file: PathBuf,
    /// Replace the file if it exists
    #[arg(long)]
    force: bool,
    /// Read the PostgreSQL database of the earlier runtime at this URL. The password can be in PGPASSWORD instead
    #[arg(long, value_name = "URL")]
    from: Option<String>,
    /// With --from: skip the rows that can't be exported, and list them
    #[arg(long, requires = "from")]
    skip_invalid: bool,
    #[command(flatten)]
    pub server: ServerArgs,
}

#[derive(Args, Debug)]
pub struct ImportArgs {
    /// The file that `export` has written
    file: PathBuf,
    /// First remove everything that the database has
    #[arg(long)]
    replace: bool,
    #[command(flatten)]
    pub server: ServerArgs,
}

const INTERRUPTED_EXPORT: &str = "interrupted; no file was written";

/// `export FILE`
pub async fn export(ExportArgs { file, force, from, skip_invalid, .. }: ExportArgs, settings: Serve) -> Result<(), CommandError> {
    let mut progress = Progress::of(" rows");
    let tell = |Moved { rows, of }: Moved| progress.set(rows, of);
    let options = database::options(&settings);
    let Some(url) = from else {
        let rows = Store::export(&options, &file, force, tell);
        let rows = signals::until(rows, INTERRUPTED_EXPORT).await?;
        drop(progress);
        return term::print(&format!("{} exported to {}, {} rows\n", settings.shown_database_url(), file.display(), with_commas(rows)));
    };
    let done = signals::until(Store::export_earlier(&options, &url, &file, force, skip_invalid, tell), INTERRUPTED_EXPORT).await?;
    drop(progress);
    if done.left_out > 0 {
        term::info(&done.told());
    }
    let queued = match done.queued_again {
        0 => String::new(),
        1 => "1 task that a worker had will be queued again.\n".to_owned(),
        n => format!("{} tasks that workers had will be queued again.\n", with_commas(n)),
    };
    term::print(&format!("the earlier runtime exported to {}, {} rows\n{queued}", file.display(), with_commas(done.rows)))
}

/// `import FILE`
pub async fn import(ImportArgs { file, replace, .. }: ImportArgs, settings: Serve) -> Result<(), CommandError> {
    let mut progress = Progress::of(" rows");
    let target = if replace { Target::Replaced } else { Target::Empty };
    let options = database::options(&settings);
    let done = Store::import(&options, &file, target, |Moved { rows, of }| progress.set(rows, of));
    let done = signals::until(done, "interrupted; repeat the command to go on").await?;
    drop(progress);
    let database = settings.shown_database_url();
    term::print(&match done {
        Imported::Rows(rows) => format!("{} imported into {database}, {} rows\nStart the server.\n", file.display(), with_commas(rows)),
        Imported::Already => format!("{} was imported into {database} before; nothing was changed\n", file.display()),
    })
}
