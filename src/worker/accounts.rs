//! Pauses of accounts and profiles: what runs teach about them, how they end, and what people are told.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio_util::sync::CancellationToken;

use super::Agent;
use super::pause::{Cause, Pause};
use super::probe::{login_changed_at, probe};
use super::profile::{Profile, Runner};
use super::task::Task;
use super::verdict::Verdict;
use bloom_api::complete::Completion;
use bloom_client::now_ms;
use bloom_core::Ms;
use bloom_core::task::{Outcome, Reason};

/// The interval at which the agent looks for probes that are due and for new logins.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// How long the verdict of a run waits until the server knows that the account is closed, so that this worker does not get the task again.
const TELL_LIMIT: Duration = Duration::from_secs(5);

impl Agent {
    pub(super) fn is_closed_for(&self, agent_slug: &str) -> bool {
        let now = now_ms();
        let of_account = |profile: &Profile| self.accounts.is_paused(&profile.account, now);
        let profiles = &self.settings.profiles;
        profiles.of(agent_slug).is_some_and(of_account) || self.paused_profiles.is_paused(profiles.name_of(agent_slug), now)
    }

    /// The pauses that are on, by what they are of, for people.
    pub(super) fn pauses(&self) -> BTreeMap<String, Pause> {
        let now = now_ms();
        let is_used = |account: &String| self.settings.profiles.all().any(|(_, profile)| profile.account == *account);
        let accounts = self.accounts.on(now).into_iter().filter(|(account, _)| is_used(account));
        let accounts = accounts.map(|(account, pause)| (format!("the account {account}"), pause));
        accounts.chain(self.paused_profiles.on(now).into_iter().map(|(name, pause)| (format!("the profile {name}"), pause))).collect()
    }

    /// Learns from the end of a run whether its account and its profile work. Returns the verdict, which may have become another one.
    pub(super) async fn learn(&self, profile: &Profile, task: &Task, verdict: Verdict) -> Verdict {
        let Verdict::Complete(mut completion) = verdict else { return verdict };
        let name = self.settings.profiles.name_of(&task.agent_slug);
        let message = completion.error_message.as_deref().unwrap_or_default().to_owned();
        let now = now_ms();
        match (completion.status, completion.reason) {
            (Outcome::Success, _) => {
                if self.accounts.lift(&profile.account) | self.paused_profiles.lift(name) {
                    self.state_changed.notify_waiters();
                }
                return Verdict::Complete(completion);
            }
            (_, Some(Reason::RateLimited)) => {
                let until = completion.retry_at.map_or(now, |until| until.0);
                tracing::warn!(account = profile.account, until, "the account is out of quota; no new tasks for it until then");
                self.accounts.quota(&profile.account, until, &message, now);
            }
            (_, Some(Reason::SpawnFailed)) => {
                let pause = self.paused_profiles.failed(name, Cause::Start, false, &message, now);
                tracing::error!("{}", told(&format!("the profile {name}"), &pause));
            }
            (_, Some(reason)) => {
                let Some(cause) = Cause::of(reason) else { return Verdict::Complete(completion) };
                // The submitter of a task chooses its model, and must not close the account by that.
                if task.model.is_some() && self.works(profile).await {
                    blame_model(&mut completion);
                    return Verdict::Complete(completion);
                }
                self.refused(profile, cause, &message);
            }
            (_, None) => return Verdict::Complete(completion),
        }
        self.state_changed.notify_waiters();
        let _ = tokio::time::timeout(TELL_LIMIT, self.register_again()).await;
        Verdict::Complete(completion)
    }

    /// Whether the account of this profile answers a probe.
    async fn works(&self, profile: &Profile) -> bool {
        profile.runner == Runner::Claude && probe(profile, &self.settings.profiles.dir, self.home.root()).await.is_ok()
    }

    fn refused(&self, profile: &Profile, cause: Cause, message: &str) {
        let account = &profile.account;
        let pause = self.accounts.failed(account, cause, profile.runner == Runner::Claude, message, now_ms());
        tracing::error!("{}", told(&format!("the account {account}"), &pause));
    }

    /// Probes refused accounts: after pauses that get longer, and at once after a login.
    pub(super) async fn probe_accounts(self: Arc<Self>, stopped: CancellationToken) {
        let mut logins: BTreeMap<String, Option<SystemTime>> = BTreeMap::new();
        loop {
            tokio::select! {
                () = stopped.cancelled() => return,
                () = tokio::time::sleep(LOOK_EVERY) => {}
            }
            for (account, profile) in self.claude_profiles() {
                let login = login_changed_at(profile);
                if logins.insert(account.to_owned(), login).is_some_and(|before| before != login) {
                    self.accounts.hurry(account, now_ms());
                }
            }
            for account in self.accounts.due(now_ms()) {
                let Some(profile) = self.claude_profiles().remove(account.as_str()) else { continue };
                tokio::select! {
                    () = stopped.cancelled() => return,
                    () = self.probe_account(&account, profile) => {}
                }
            }
        }
    }

    async fn probe_account(&self, account: &str, profile: &Profile) {
        match probe(profile, &self.settings.profiles.dir, self.home.root()).await {
            Ok(()) => {
                if self.accounts.lift(account) {
                    tracing::info!(account, "the account works again");
                    self.state_changed.notify_waiters();
                }
            }
            Err((cause, message)) => {
                let known = self.accounts.on(now_ms()).get(account).map(|pause| pause.cause);
                if let Some(cause) = cause.or(known) {
                    self.refused(profile, cause, &message);
                }
            }
        }
    }

    /// By account: a profile that runs the Claude CLI, by which the account can be probed.
    fn claude_profiles(&self) -> BTreeMap<&str, &Profile> {
        let claude = self.settings.profiles.all().filter(|(_, profile)| profile.runner == Runner::Claude);
        claude.map(|(_, profile)| (profile.account.as_str(), profile)).collect()
    }
}

/// The task fails, because no other attempt would have another model.
fn blame_model(completion: &mut Completion) {
    completion.reason = Some(Reason::ModelUnavailable);
    (completion.retryable, completion.keep_attempt, completion.retry_at) = (false, false, None);
}

/// For people: what is paused, why, until when, and what to do.
pub(super) fn told(what: &str, pause: &Pause) -> String {
    let at =
        |ms: Ms| jiff::Timestamp::from_millisecond(ms).map_or_else(|_| ms.to_string(), |at| at.strftime("%Y-%m-%d %H:%M UTC").to_string());
    let (until, message) = (at(pause.until), pause.message.trim());
    let message = if message.is_empty() { String::new() } else { format!(" ({message})") };
    match pause.cause {
        Cause::Quota => format!("{what} is out of quota until {until}{message}; nothing needs to be done"),
        Cause::Credentials => format!(
            "{what} was refused{message}: sign in with claude as the user of the agent, then nothing else is needed; with a key of the API, \
             correct it and restart the agent. Tried again at {until}"
        ),
        Cause::Billing => format!("{what} has no credit{message}: top it up, then nothing else is needed. Tried again at {until}"),
        Cause::Start => {
            format!("runs of {what} end before they begin{message}: correct the profile, and restart the agent. Tried again at {until}")
        }
    }
}
