//! The TLS of a running server. New connections use the current contents of the files; open connections keep what they began with.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use parking_lot::RwLock;
use tokio::time::{MissedTickBehavior, interval};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use super::certificate::Certificate;
use super::files::{Contents, Fault, Files};

/// The interval at which the files are read. Their contents are compared, so that a changed symbolic link is noticed, too.
const EVERY: Duration = Duration::from_secs(2);

/// Clones share the current state.
#[derive(Clone)]
pub struct Tls(Arc<Inner>);

struct Inner {
    files: Files,
    current: RwLock<Current>,
}

struct Current {
    contents: Contents,
    acceptor: TlsAcceptor,
    certificate: Certificate,
}

impl Current {
    fn new(contents: Contents) -> Result<Self, (Contents, Fault)> {
        match contents.config() {
            Ok((config, certificate)) => Ok(Self { contents, acceptor: TlsAcceptor::from(Arc::new(config)), certificate }),
            Err(fault) => Err((contents, fault)),
        }
    }
}

/// The state of the files when they could not be used.
#[derive(PartialEq)]
enum Refused {
    Unreadable(Fault),
    Unusable(Contents),
}

impl Tls {
    /// # Errors
    /// The first file that can't be used.
    pub fn load(files: Files) -> Result<Self, Fault> {
        let current = Current::new(files.read()?).map_err(|(_, fault)| fault)?;
        Ok(Self(Arc::new(Inner { files, current: RwLock::new(current) })))
    }

    /// The acceptor for one new connection.
    pub fn acceptor(&self) -> TlsAcceptor {
        self.0.current.read().acceptor.clone()
    }

    /// The certificate that new connections get.
    pub fn certificate(&self) -> Certificate {
        self.0.current.read().certificate.clone()
    }

    /// Whether clients may present a certificate, which is then verified.
    pub fn verifies_clients(&self) -> bool {
        self.0.files.client_ca.is_some()
    }

    /// Follows the files until `shutdown`.
    pub async fn follow(self, shutdown: CancellationToken) {
        let mut ticks = interval(EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut refused = Refusal::default();
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                () = shutdown.cancelled() => return,
            }
            let (tls, before) = (self.clone(), refused);
            match tokio::task::spawn_blocking(move || tls.look(before)).await {
                Ok(after) => refused = after,
                // The program is ending.
                Err(_) => return,
            }
        }
    }

    /// Reads the files once, and applies new contents if they can be used.
    fn look(&self, before: Refusal) -> Refusal {
        let read = self.0.files.read();
        if read.as_ref().is_ok_and(|contents| *contents == self.0.current.read().contents) {
            return Refusal::default();
        }
        let (what, fault) = match read.map(Current::new) {
            Ok(Ok(new)) => {
                let Certificate { names, not_after, .. } = &new.certificate;
                tracing::info!(names = names.join(", "), %not_after, "the TLS files have changed; new connections get this certificate");
                if let Some(warning) = new.certificate.warning(Timestamp::now()) {
                    tracing::warn!("{warning}");
                }
                *self.0.current.write() = new;
                return Refusal::default();
            }
            Ok(Err((contents, fault))) => (Refused::Unusable(contents), fault),
            Err(fault) => (Refused::Unreadable(fault.clone()), fault),
        };
        before.again(what, &fault)
    }
}

/// What was refused the last time, and whether that has been logged.
#[derive(Default)]
struct Refusal {
    what: Option<Refused>,
    is_logged: bool,
}

impl Refusal {
    /// Logs a refusal once, the second time it is seen: the first time, somebody may be in the middle of replacing the files one after the
    /// other.
    fn again(self, what: Refused, fault: &Fault) -> Self {
        let is_same = self.what.as_ref() == Some(&what);
        if is_same && !self.is_logged {
            tracing::error!(
                %fault,
                "the TLS files have changed and can't be used; connections still get the certificate from before, until the files are right"
            );
        }
        Self { what: Some(what), is_logged: is_same }
    }
}
