//! `config check`: the settings in force, and where each one comes from.

use super::{Output, complain};
use bloom_commands::{CommandError, term};
use bloom_config::{self as config, Flags};

pub fn run(flags: &Flags, output: Output) -> Result<(), CommandError> {
    let report = config::load(flags);
    match output {
        Output::Json => term::print(&format!("{:#}\n", report.json()))?,
        Output::Text => {
            // The table would hide the mistakes, which say themselves where their values come from.
            if report.mistakes.is_empty() {
                term::print(&report.table())?;
            }
            report.warnings.iter().for_each(|warning| complain(&format!("warning: {warning}")));
        }
    }
    if report.mistakes.is_empty() {
        return Ok(());
    }
    let lines: Vec<String> = report.mistakes.iter().map(|mistake| format!("  {mistake}")).collect();
    Err(format!("the server would not start with these settings:\n{}", lines.join("\n")).into())
}
