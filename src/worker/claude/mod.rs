//! Everything that is specific to the Claude CLI: its settings, versions and options, the stream of JSON lines that it prints, its costs,
//! and its permission tool.

pub(crate) mod cli_settings;
pub(crate) mod cli_version;
pub(crate) mod json_line;
pub(crate) mod login;
pub(crate) mod option_check;
pub(crate) mod permission_server;
pub(crate) mod prices;
pub(crate) mod stream;
pub(crate) mod token_count;
