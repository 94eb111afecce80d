//! Whether a run failed because of its task, or of its profile or the account, which then takes no more tasks: probes tell.

use crate::Agent;
use crate::accounts::pause::{Failed, of};
use crate::accounts::probe::cause_of;
use crate::profile::{Profile, Runner};
use crate::run::task::Task;
use bloom_core::Ms;
use bloom_core::pause::PauseCause;
use bloom_core::task::Reason;

/// What a task says whose run was refused for want of quota, while its profile is not.
const ONLY_TASK: &str = "; the account works without what this task asks for, so only this task waits";

impl Agent {
    /// Finds out by probes what made a run fail, and pauses the profile or its account. What a task brings (its model, its prompt, the files
    /// of its context) must not pause anything for others.
    ///
    /// # Errors
    /// Neither is to blame.
    pub(crate) async fn blame(&self, name: &str, profile: &Profile, task: &Task, (reason, message): (Reason, String)) -> Result<(), Blame> {
        // One after the other: the next run that was refused alike needs no probe.
        let _turn = self.probing.lock().await;
        if self.is_paused(name, profile) {
            return Ok(());
        }
        let [account, of_profile] = of(name, profile);
        let Some(cause) = cause_of(reason) else {
            return match self.probe(profile).await {
                Err((Some(PauseCause::Start), why)) => {
                    self.pause(&of_profile, self.failed(&of_profile, PauseCause::Start, if why.is_empty() { &message } else { &why }));
                    Ok(())
                }
                Err((Some(cause), why)) => {
                    self.pause(&account, self.failed(&account, cause, &why));
                    Ok(())
                }
                Err((None, _)) => Err(Blame::Unknown),
                Ok(()) => Err(Blame::Task),
            };
        };
        if profile.runner == Runner::Claude && self.probe(profile).await.is_ok() {
            let Some(model) = task.model.as_deref() else { return Err(Blame::Task) };
            return Err(if self.probe_with(profile, Some(model)).await.is_ok() { Blame::Task } else { Blame::Model });
        }
        match self.probe_account(&profile.account).await {
            // It may have been mended since the profile was probed: then this failure is over, and says nothing about the model.
            Ok(()) if profile.runner == Runner::Claude && self.probe(profile).await.is_ok() => return Err(Blame::Unknown),
            Ok(()) => self.pause(&of_profile, self.failed(&of_profile, PauseCause::Model, &message)),
            Err(_) => self.pause(&account, self.failed(&account, cause, &message)),
        }
        Ok(())
    }

    /// Finds out by a probe whether the account is out of quota, and pauses it then. A quota may be that of the model which the task names, or
    /// of a request as long as its prompt, and a run can print what it likes: that closes the account for nobody else.
    ///
    /// # Errors
    /// The account is not paused, with what the task should say about that, if it is known.
    pub(crate) async fn check_quota(
        &self,
        name: &str,
        profile: &Profile,
        message: &str,
        resets_at: Option<Ms>,
    ) -> Result<(), Option<&'static str>> {
        let _turn = self.probing.lock().await;
        if self.is_paused(name, profile) {
            return Ok(());
        }
        let [account, _] = of(name, profile);
        let is_probed = self.can_probe(&account);
        let found = match profile.runner {
            Runner::Claude => self.probe(profile).await,
            _ if is_probed => self.probe_account(&profile.account).await,
            // Nothing can tell but the next run.
            _ => Err((Some(PauseCause::Quota), String::new())),
        };
        match found {
            Ok(()) => Err(Some(ONLY_TASK)),
            Err((Some(PauseCause::Quota), _)) => {
                let profile = Some(name.to_owned());
                self.pause(&account, Failed { cause: PauseCause::Quota, message, is_probed, resets_at, profile });
                Ok(())
            }
            Err(_) => Err(None),
        }
    }
}

/// Whether the profile or its account may be the cause of a failure. A run can print what bubblewrap does when it can't make the sandbox.
pub(crate) fn is_of_setup(reason: Reason, profile: &Profile, message: &str) -> bool {
    match reason {
        Reason::Auth | Reason::Billing | Reason::SpawnFailed => true,
        Reason::AgentError => profile.sandbox.is_some() && message.contains("bwrap: "),
        _ => false,
    }
}

/// Why a run failed, if neither its profile nor its account is the cause.
pub(crate) enum Blame {
    /// The model that the task names.
    Model,
    /// Something else of the task or its context.
    Task,
    /// The probe did not end.
    Unknown,
}
