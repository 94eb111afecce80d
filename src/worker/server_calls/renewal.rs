//! Watches the files of the agent's key, its join token and its TLS configuration, which may be replaced while it runs.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use secrecy::{ExposeSecret, SecretString};
use tokio::task::spawn_blocking;
use tokio::time::{Interval, MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use crate::server_calls::enrollment;
use crate::{Agent, Settings};
use bloom_client::{Client, read_key};

/// The interval at which the files are read. Their contents are compared, so that changed symbolic links are noticed as well.
const EVERY: Duration = Duration::from_secs(5);

/// The files of keys that may be replaced.
#[derive(Clone, Debug, Default)]
pub struct RenewableFiles {
    /// The file with the server's key; `None` if the key is from elsewhere.
    pub key: Option<PathBuf>,
    /// The file with the join token; `None` if the token is from elsewhere.
    pub join_token: Option<PathBuf>,
}

/// The client of the server.
pub(crate) fn client(settings: &Settings) -> Result<Client, String> {
    let client = Client::new(&settings.server, settings.key.as_ref(), &settings.tls).map_err(|error| error.to_string())?;
    Ok(client.with_key_file(settings.renewable.key.clone()))
}

fn ticks() -> Interval {
    let mut ticks = interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

/// What is wrong with a changed file.
#[derive(Default)]
struct Trouble {
    failed: Option<String>,
    is_logged: bool,
}

impl Trouble {
    /// Logs the trouble when it is seen for the second time: at the first time, somebody may be in the middle of replacing the files one by
    /// one.
    fn tell(&mut self, what: &str, failed: Option<String>) {
        self.is_logged &= self.failed == failed;
        if let Some(error) = &failed
            && self.failed == failed
            && !self.is_logged
        {
            tracing::error!(error, "{what} can't be used; the agent goes on as before");
            self.is_logged = true;
        }
        self.failed = failed;
    }
}

impl Agent {
    pub(crate) async fn follow_files(self: Arc<Self>, stopped: CancellationToken) {
        tokio::select! {
            ((), ()) = async { tokio::join!(self.follow_tls_and_key(), self.follow_join_token()) } => {}
            () = stopped.cancelled() => {}
        }
    }

    /// Makes calls use the current contents of the files. The key file is also read when the server refuses the key.
    async fn follow_tls_and_key(self: &Arc<Self>) {
        let mut tls = self.settings.tls.clone();
        if !tls.has_files() && self.settings.renewable.key.is_none() {
            return;
        }
        let (mut ticks, mut tls_trouble, mut key_trouble) = (ticks(), Trouble::default(), Trouble::default());
        loop {
            ticks.tick().await;
            let (agent, before) = (self.clone(), tls.clone());
            let Ok((read, key)) = spawn_blocking(move || (before.renewed(), agent.client.renew_key())).await else { return };
            key_trouble.tell("the key file", key.err().map(|error| error.to_string()));
            let used = read.map_err(|error| error.to_string()).and_then(|new| {
                let Some(new) = new else { return Ok(()) };
                self.client.use_tls(&new).map_err(|error| error.to_string())?;
                self.membridge.as_ref().map_or(Ok(()), |membridge| membridge.use_tls(&new))?;
                tracing::info!("the TLS files have changed; new connections to the server use them");
                tls = new;
                Ok(())
            });
            tls_trouble.tell("the TLS files have changed and", used.err());
        }
    }

    /// Exchanges each new join token for a new key of this worker. A missing file is ignored: its token is used up.
    async fn follow_join_token(self: &Arc<Self>) {
        let Some(file) = self.settings.renewable.join_token.clone() else { return };
        let mut known = self.settings.join_token.clone();
        let (mut ticks, mut trouble) = (ticks(), Trouble::default());
        loop {
            ticks.tick().await;
            let path = file.clone();
            let Ok(read) = spawn_blocking(move || path.is_file().then(|| read_key(&path)).transpose()).await else { return };
            let text = |token: &Option<SecretString>| token.as_ref().map(|token| token.expose_secret().to_owned());
            let failed = match read {
                Err(why) => Some(format!("{}: {why}", file.display())),
                Ok(None) => None,
                Ok(token) if text(&token) == text(&known) => continue,
                Ok(token) => {
                    known = token;
                    let key = enrollment::key(&self.home, &self.client, &self.name, known.as_ref()).await;
                    let used = key.and_then(|key| key.map_or(Ok(()), |key| self.client.use_key(&key)).map_err(|error| error.to_string()));
                    if let Err(error) = used {
                        tracing::error!(error, "the new join token can't be used; the agent goes on with the key from before");
                    }
                    None
                }
            };
            trouble.tell("the file of the join token", failed);
        }
    }
}
