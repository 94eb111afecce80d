//! Follows the files of TLS while the agent runs, so that renewed certificates need no restart.

use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use bloom_client::{Client, Tls};

/// The interval at which the files are read. Their contents are compared, so links that lead elsewhere are seen as well.
const EVERY: Duration = Duration::from_secs(5);

/// Gives the client what the files contain, until `stopped`.
pub async fn follow(mut tls: Tls, client: Client, stopped: CancellationToken) {
    if !tls.has_files() {
        return;
    }
    let mut ticks = interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut failed, mut is_logged) = (None, false);
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = stopped.cancelled() => return,
        }
        let before = tls.clone();
        let Ok(read) = tokio::task::spawn_blocking(move || before.renewed()).await else { return };
        match read.and_then(|new| new.map(|new| client.use_tls(&new).map(|()| new)).transpose()) {
            Ok(new) => {
                (failed, is_logged) = (None, false);
                if let Some(new) = new {
                    tracing::info!("the TLS files have changed; new connections to the server use them");
                    tls = new;
                }
            }
            // Logged at the second time: at the first one, somebody may be just replacing one file after the other.
            Err(error) => {
                let error = error.to_string();
                if failed.as_ref() != Some(&error) {
                    is_logged = false;
                } else if !is_logged {
                    tracing::error!(error, "the TLS files have changed and can't be used; the agent goes on with those from before");
                    is_logged = true;
                }
                failed = Some(error);
            }
        }
    }
}
