//! The limit of open files of this process, and how many of them client connections may use.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use bloom_config::Serve;
use bloom_http::server::MAX_CONNECTIONS;

/// More files than this server ever opens. A higher limit would slow down child processes: they inherit it, and some of them try all file
/// descriptors up to it.
const ENOUGH: u64 = 65_536;
/// Files for the listener, logs, the runtime, and calls to agents and the control plane, if the limit is high enough.
const OTHERS: usize = 1_536;
/// Files of one connection to an SQLite database: the database, its WAL and the WAL's index.
const OF_A_DATABASE_CONNECTION: usize = 3;
/// The minimum of these files if the limit is low. With fewer, the database can't be opened.
const LEAST_OTHERS: usize = 48;
/// With fewer connections than this, the server logs a warning: an agent uses about two.
const FEW: usize = MAX_CONNECTIONS / 4;

/// Raises the limit of open files as far as this user may, and returns how many client connections it allows.
pub fn connections(settings: &Serve) -> usize {
    let files = usize::try_from(raise()).unwrap_or(usize::MAX);
    let connections = client_connections(files, settings.data.max_connections as usize);
    if connections < FEW {
        tracing::warn!(
            files,
            connections,
            "the limit of open files is low, so few connections can be served at a time (an agent uses about two): raise the limit with \
             `ulimit -n`, LimitNOFILE= in a systemd unit or --ulimit nofile= of a container, and start the server again"
        );
    }
    connections
}

fn raise() -> u64 {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let (current, wanted) = (current.unwrap_or(u64::MAX), maximum.unwrap_or(u64::MAX).min(ENOUGH));
    if current >= wanted {
        return current;
    }
    match setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum }) {
        Ok(()) => wanted,
        Err(error) => {
            tracing::warn!(%error, current, wanted, "the limit of open files could not be raised");
            current
        }
    }
}

fn client_connections(files: usize, database_connections: usize) -> usize {
    let others = OTHERS + OF_A_DATABASE_CONNECTION * database_connections;
    let others = others.min(files / 4).max(LEAST_OTHERS);
    files.saturating_sub(others).min(MAX_CONNECTIONS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_left_for_the_database_and_outbound_calls() {
        assert_eq!(client_connections(65_536, 10), MAX_CONNECTIONS);
        assert_eq!(client_connections(usize::MAX, 100_000), MAX_CONNECTIONS);
        assert_eq!(client_connections(8_192, 10), 8_192 - OTHERS - 30);
        assert_eq!(client_connections(1_024, 10), 768);
        assert_eq!(client_connections(64, 10), 16);
        assert_eq!(client_connections(10, 10), 0);
    }
}
