//! The settings as command-line flags, generated from the list of settings.

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::builder::ValueRange;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};

use super::setting::Setting;
use super::settings::SETTINGS;

/// The settings that were given as flags, and the file named by `--config`.
#[derive(Clone, Debug, Default)]
pub struct Flags {
    pub(super) values: BTreeMap<String, String>,
    pub(super) config: Option<PathBuf>,
}

impl Args for Flags {
    fn augment_args(command: Command) -> Command {
        let config = Arg::new("config")
            .long("config")
            .value_name("FILE")
            .value_parser(clap::value_parser!(PathBuf))
            .help("TOML file with settings, named as the flags with _ instead of - [env: BLOOM_CONFIG]");
        SETTINGS.iter().fold(command.arg(config), |command, setting| {
            let command = command.arg(flag(setting.key.to_owned(), setting.help.to_owned(), setting));
            if !setting.secret {
                return command;
            }
            // Hidden in the short help, which would otherwise list every secret twice; the help of `serve` explains these flags once.
            let twin = flag(setting.file_key(), format!("File with the value of --{}", setting.flag_name()), setting);
            command.arg(twin.value_name("FILE").hide_short_help(true))
        })
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

fn flag(key: String, help: String, setting: &Setting) -> Arg {
    let mut help = format!("{help} [env: {}]", key.to_uppercase());
    if !setting.default.is_empty() {
        help.push_str(&format!(" [default: {}]", setting.default));
    }
    Arg::new(key.clone())
        .long(key.replace('_', "-"))
        .value_name(setting.value_name)
        .help(help)
        .help_heading(setting.group)
        .action(ArgAction::Set)
        // A truth is true if only its flag is given.
        .num_args(if setting.value_name == "BOOL" { ValueRange::from(0..=1) } else { ValueRange::SINGLE })
        .default_missing_value("true")
}

impl FromArgMatches for Flags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut flags = Self::default();
        flags.update_from_arg_matches(matches)?;
        Ok(flags)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        self.config = matches.get_one::<PathBuf>("config").cloned();
        for setting in SETTINGS {
            let twin = setting.secret.then(|| setting.file_key());
            for key in [Some(setting.key.to_owned()), twin].into_iter().flatten() {
                if let Some(value) = matches.get_one::<String>(&key) {
                    self.values.insert(key, value.clone());
                }
            }
        }
        Ok(())
    }
}
