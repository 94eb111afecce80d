//! Finds out by probes whether a run failed because of its task, its profile or its account. A profile or an account that is to blame is
//! paused.

use crate::Agent;
use crate::accounts::pause::{Failed, of};
use crate::accounts::probe::cause_of;
use crate::profile::{Profile, Runner};
use crate::run::task::Task;
use bloom_core::Ms;
use bloom_core::pause::PauseCause;
use bloom_core::task::Reason;

/// Added to the error of a task whose run was refused for lack of quota, while its profile has quota.
const ONLY_TASK: &str = "; the account works without what this task asks for, so only this task waits";

impl Agent {
    /// Finds out by probes why a run failed, and pauses the profile or its account if one of them is the cause. What a task brings along
    /// (its model, its prompt, the files of its context) must not pause anything for other tasks.
    ///
    /// # Errors
    /// Neither the profile nor the account is to blame.
    pub(crate) async fn blame(&self, name: &str, profile: &Profile, task: &Task, (reason, message): (Reason, String)) -> Result<(), Blame> {
        // One probe at a time: the next run that was refused for the same reason needs none.
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
            // The cause may have been repaired since the profile was probed. Then this failure is over, and says nothing about the model.
            Ok(()) if profile.runner == Runner::Claude && self.probe(profile).await.is_ok() => return Err(Blame::Unknown),
            Ok(()) => self.pause(&of_profile, self.failed(&of_profile, PauseCause::Model, &message)),
            Err(_) => self.pause(&account, self.failed(&account, cause, &message)),
        }
        Ok(())
    }

    /// Finds out by a probe whether the account is out of quota, and pauses it if so. The exhausted quota may only concern the model that
    /// the task names, or requests as long as its prompt, and a run can print anything. None of these may close the account for other
    /// tasks.
    ///
    /// # Errors
    /// The account is not paused. The text, if any, is what to add to the task's error.
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
            // Only the next run can tell.
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

/// Whether the profile or its account may be the cause of a failure. A run can print the same text as bubblewrap when it can't make the
/// sandbox.
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
    /// Something else in the task or its context.
    Task,
    /// The probe did not end.
    Unknown,
}
