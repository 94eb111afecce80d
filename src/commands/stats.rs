//! `stats` and `top`: counts of tasks, leases and workers, once or again and again.

use std::time::Duration;

use clap::Args;
use serde_json::Value;
use tokio::time::sleep;

use super::columns;
use super::retry::Retry;
use super::server_calls::{Server, read};
use super::show::{self, Form, Shown};
use super::term;
use super::when;
use crate::CommandError;

const PATH: &str = "api/runtime/stats";

#[derive(Args, Debug)]
pub struct StatsArgs {
    /// Show the counts again and again, until Ctrl-C
    #[arg(short, long)]
    watch: bool,
    #[command(flatten)]
    every: Every,
}

#[derive(Args, Debug)]
pub struct Every {
    /// The time between two updates, such as 30s or 5m; a number alone is seconds
    #[arg(long, value_name = "TIME", default_value = "2", value_parser = interval, allow_hyphen_values = true)]
    interval: Duration,
}

/// The server limits the number of calls per minute.
fn interval(text: &str) -> Result<Duration, String> {
    when::duration(text).and_then(|time| if time.is_zero() { Err("expected at least one second".to_owned()) } else { Ok(time) })
}

/// `stats`
///
/// # Errors
/// The server can't be reached, or the output can't be written.
pub(crate) async fn run(args: StatsArgs, server: &Server, shown: Shown) -> Result<(), CommandError> {
    if args.watch {
        return watch(&args.every, server, shown).await;
    }
    let form = form(shown)?;
    print(form, &server.get(PATH).await?)
}

/// # Errors
/// Names are wanted, and counts have none.
fn form(shown: Shown) -> Result<Form, CommandError> {
    match shown.form_or(Form::Table) {
        Form::Name => Err(CommandError::usage(format!("-o name: counts have no names; there are: {}", Form::others(Form::Name)))),
        form => Ok(form),
    }
}

/// `top`: on a terminal, one view that is refreshed; elsewhere and with formats for programs, one output after the other.
///
/// # Errors
/// The server was unreachable for too long, or the output can't be written.
pub(crate) async fn watch(Every { interval }: &Every, server: &Server, shown: Shown) -> Result<(), CommandError> {
    let form = form(shown)?;
    let mut retry = Retry::new(true, false);
    loop {
        match server.client.get::<Value>(PATH).await {
            Err(error) => {
                retry.pause(error).await?;
                continue;
            }
            Ok(stats) if form.is_data() => show::one_of_many(form, &stats)?,
            Ok(stats) => {
                let time = when::time_text(when::now());
                let begin = if term::is_out_terminal() { "\x1b[H\x1b[2J" } else { "" };
                term::print(&format!("{begin}{time}  {}\n\n", server.client.server()))?;
                print(form, &stats)?;
                if !term::is_out_terminal() {
                    term::print("\n")?;
                }
            }
        }
        retry.is_over();
        sleep(*interval).await;
    }
}

fn print(form: Form, stats: &Value) -> Result<(), CommandError> {
    if form.is_data() { show::as_it_came(form, stats) } else { show::table(form, &columns::STATS, &columns::stats_rows(&read(stats)?)) }
}
