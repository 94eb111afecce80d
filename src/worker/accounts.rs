//! Pauses: what runs teach about accounts and profiles, how their pauses end, and what the server and people are told.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio_util::sync::CancellationToken;

use super::Agent;
use super::pause::{Pause, Paused};
use super::probe::{cause_of, login_changed_at, probe};
use super::profile::{Profile, Runner};
use super::task::Task;
use super::verdict::Verdict;
use bloom_api::complete::Completion;
use bloom_api::values::{Int, List};
use bloom_api::workers::NewPause;
use bloom_client::now_ms;
use bloom_core::pause::{PauseCause, PauseKind};
use bloom_core::task::{Outcome, Reason};
use bloom_core::{Ms, limits};

/// The interval at which the agent looks for probes that are due and for new logins.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// When a task may run again that did not run because of a pause.
const ELSEWHERE_MS: Ms = 5 * 1000;
/// How long no task is taken after one could not be stored.
const DISK_PAUSE_MS: Ms = 60_000;
/// How long the verdict of a run waits until the server knows that the account is closed, so that this worker does not get the task again.
const TELL_LIMIT: Duration = Duration::from_secs(5);

/// What is paused together with a profile.
fn of(name: &str, profile: &Profile) -> [Paused; 2] {
    [(PauseKind::Account, profile.account.clone()), (PauseKind::Profile, name.to_owned())]
}

impl Agent {
    /// The profile that runs tasks of the slug now: the first that is not paused, or the first of all.
    pub(super) fn profile_now(&self, agent_slug: &str) -> Option<(String, Profile)> {
        let mut chain = self.settings.profiles.chain(agent_slug).peekable();
        let first = chain.peek().copied();
        let open = chain.find(|(name, profile)| !self.is_paused(name, profile));
        open.or(first).map(|(name, profile)| (name.to_owned(), profile.clone()))
    }

    fn is_paused(&self, name: &str, profile: &Profile) -> bool {
        let now = now_ms();
        of(name, profile).iter().any(|paused| self.pauses.is_paused(paused, now))
    }

    pub(super) fn is_closed_for(&self, agent_slug: &str) -> bool {
        self.is_disk_paused() || self.settings.profiles.chain(agent_slug).all(|(name, profile)| self.is_paused(name, profile))
    }

    /// The pauses that are on, without those of accounts that no profile uses, each with the slugs that it closes: those whose fallbacks
    /// are paused, too. `None` closes the worker.
    pub(super) fn pauses_now(&self) -> Vec<(Paused, Pause, Option<Vec<String>>)> {
        let profiles = &self.settings.profiles;
        let (served, closed): (_, Vec<&str>) =
            (profiles.slugs(), profiles.all().map(|(slug, _)| slug).filter(|slug| self.is_closed_for(slug)).collect());
        let concerns = |paused: &Paused, slug: &str| {
            paused.0 == PauseKind::Worker || profiles.chain(slug).any(|(name, profile)| of(name, profile).contains(paused))
        };
        let of_each = self.pauses.on(now_ms()).into_iter().filter(|(paused, _)| profiles.all().any(|(slug, _)| concerns(paused, slug)));
        of_each
            .map(|(paused, pause)| {
                let slugs: Vec<String> = closed.iter().filter(|slug| concerns(&paused, slug)).map(|slug| (*slug).to_owned()).collect();
                // A worker that serves all slugs can't offer some of them only.
                let closes_all = served.is_none() && !slugs.is_empty();
                (paused, pause, (!closes_all).then_some(slugs))
            })
            .collect()
    }

    /// The same for the server.
    pub(super) fn told_pauses(&self) -> List<NewPause, 0, { limits::WORKER_PAUSES }> {
        let pauses = self.pauses_now().into_iter().take(limits::WORKER_PAUSES).map(|(paused, pause, closes)| NewPause {
            kind: paused.0,
            name: paused.1.as_str().into(),
            cause: pause.cause,
            since: Int(pause.since),
            until: Int(pause.until),
            message: cut_chars(told(&paused, &pause)).into(),
            agents: closes.map(List::from_iter),
        });
        List(pauses.collect())
    }

    /// Takes no tasks for a while, because the agent could not store one.
    pub(super) fn pause_for_disk(&self, message: &str) {
        let now = now_ms();
        self.pauses.until(&self.itself(), PauseCause::Disk, now + DISK_PAUSE_MS, message, now);
        self.state_changed.notify_waiters();
    }

    pub(super) fn is_disk_paused(&self) -> bool {
        self.pauses.is_paused(&self.itself(), now_ms())
    }

    fn itself(&self) -> Paused {
        (PauseKind::Worker, self.name.clone())
    }

    /// Learns from the end of a run whether its account and its profile work. Returns the verdict, which may have become another one.
    pub(super) async fn learn(&self, (name, profile): (&str, &Profile), task: &Task, verdict: Verdict) -> Verdict {
        let Verdict::Complete(mut completion) = verdict else { return verdict };
        let [account, of_profile] = of(name, profile);
        let message = completion.error_message.as_deref().unwrap_or_default().to_owned();
        let now = now_ms();
        match (completion.status, completion.reason) {
            (Outcome::Success, _) => {
                if self.pauses.lift(&account) | self.pauses.lift(&of_profile) {
                    self.state_changed.notify_waiters();
                }
                return Verdict::Complete(completion);
            }
            (_, Some(Reason::RateLimited)) => {
                let until = completion.retry_at.map_or(now, |until| until.0);
                tracing::warn!(account = profile.account, until, "the account is out of quota; no new tasks for it until then");
                self.pauses.until(&account, PauseCause::Quota, until, &message, now);
            }
            (_, Some(Reason::SpawnFailed)) => {
                let pause = self.pauses.failed(&of_profile, PauseCause::Start, false, &message, now);
                tracing::error!("{}", told(&of_profile, &pause));
            }
            (_, Some(reason)) => {
                let Some(cause) = cause_of(reason) else { return Verdict::Complete(completion) };
                // The submitter of a task chooses its model, and must not close the account by that.
                if task.model.is_some() && self.works(profile).await {
                    blame_model(&mut completion);
                    return Verdict::Complete(completion);
                }
                self.refused(profile, cause, &message);
            }
            (_, None) => return Verdict::Complete(completion),
        }
        // What is paused here may run at once: by the fallback of the profile, or on another worker.
        completion.retry_at = Some(Int::nearest(now.saturating_add(ELSEWHERE_MS)));
        self.state_changed.notify_waiters();
        let _ = tokio::time::timeout(TELL_LIMIT, self.register_again()).await;
        Verdict::Complete(completion)
    }

    /// Whether the account of this profile answers a probe.
    async fn works(&self, profile: &Profile) -> bool {
        profile.runner == Runner::Claude && probe(profile, &self.settings.profiles.dir, self.home.root()).await.is_ok()
    }

    fn refused(&self, profile: &Profile, cause: PauseCause, message: &str) {
        let account = (PauseKind::Account, profile.account.clone());
        let pause = self.pauses.failed(&account, cause, profile.runner == Runner::Claude, message, now_ms());
        tracing::error!("{}", told(&account, &pause));
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
                    self.pauses.hurry(&(PauseKind::Account, account.to_owned()), now_ms());
                }
            }
            for (_, account) in self.pauses.due(now_ms()) {
                let Some(profile) = self.claude_profiles().remove(account.as_str()) else { continue };
                tokio::select! {
                    () = stopped.cancelled() => return,
                    () = self.probe_account(&account, profile) => {}
                }
            }
        }
    }

    async fn probe_account(&self, account: &str, profile: &Profile) {
        let paused = (PauseKind::Account, account.to_owned());
        match probe(profile, &self.settings.profiles.dir, self.home.root()).await {
            Ok(()) => {
                if self.pauses.lift(&paused) {
                    tracing::info!(account, "the account works again");
                    self.state_changed.notify_waiters();
                }
            }
            Err((cause, message)) => {
                let known = self.pauses.on(now_ms()).get(&paused).map(|pause| pause.cause);
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
fn told((kind, name): &Paused, pause: &Pause) -> String {
    let until = jiff::Timestamp::from_millisecond(pause.until);
    let until = until.map_or_else(|_| pause.until.to_string(), |until| until.strftime("%Y-%m-%d %H:%M:%S UTC").to_string());
    let message = pause.message.trim();
    let message = if message.is_empty() { String::new() } else { format!(" ({message})") };
    let what = format!("the {kind} {name}");
    match pause.cause {
        PauseCause::Quota => format!("{what} is out of quota until {until}{message}; nothing needs to be done"),
        PauseCause::Credentials => format!(
            "{what} was refused{message}: sign in with claude as the user of the agent, then nothing else is needed; with a key of the API, \
             correct it and restart the agent. Tried again at {until}"
        ),
        PauseCause::Billing => format!("{what} has no credit{message}: top it up, then nothing else is needed. Tried again at {until}"),
        PauseCause::Start => {
            format!("runs of {what} end before they begin{message}: correct the profile, and restart the agent. Tried again at {until}")
        }
        PauseCause::Disk => {
            format!("{what} can't write to its directory{message}: check that its disk has room and works. Tried again at {until}")
        }
    }
}

/// The server refuses longer messages.
fn cut_chars(mut message: String) -> String {
    if let Some((at, _)) = message.char_indices().nth(limits::PAUSE_MESSAGE_CHARS) {
        message.truncate(at);
    }
    message.replace('\0', "\u{fffd}")
}
