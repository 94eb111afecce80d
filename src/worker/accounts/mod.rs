//! Pauses: what the agent learns from runs about accounts and profiles, how pauses end, and what the server and people see of them.

pub(crate) mod blame;
pub(crate) mod pause;
pub(crate) mod pause_text;
pub(crate) mod probe;
pub(crate) mod reported;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::Agent;
use crate::accounts::blame::{Blame, is_of_setup};
use crate::accounts::pause::{Failed, Pause, Paused, of};
use crate::accounts::pause_text::{cut_chars, told};
use crate::accounts::probe::{ProbeFailure, login_changed_at};
use crate::machine::program::find_program;
use crate::profile::{DEFAULT, Profile, Runner};
use crate::run::task::Task;
use crate::run::verdict::{Stop, Verdict};
use crate::sandbox::check;
use bloom_api::directives::Directives;
use bloom_api::values::{Int, List};
use bloom_api::workers::NewPause;
use bloom_client::now_ms;
use bloom_core::pause::{PauseCause, PauseKind};
use bloom_core::task::{Outcome, Reason};
use bloom_core::{Ms, limits};

/// The interval at which the agent checks for due probes and for new logins.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// The maximum number of concurrent probes. Each is a process.
const MAX_PROBES: usize = 4;
/// After how long a task that did not run because of a pause may run again.
const ELSEWHERE_MS: Ms = 5 * 1000;
/// How long the agent takes no tasks after it could not store one.
const DISK_PAUSE_MS: Ms = 60_000;
/// How long handing back a task waits for the server to learn that the task's account is closed.
const TELL_LIMIT: Duration = Duration::from_secs(5);
/// Added to the error of a task whose run the API refused while a probe shows that the account works.
const ONLY_RUN: &str = "; the account works without this task, so the attempt counts";

impl Agent {
    /// The profile that runs tasks of the slug now: the first in the chain that is not paused, or the first of all.
    pub(crate) fn profile_now(&self, agent_slug: &str) -> Option<(String, Profile)> {
        let mut chain = self.settings.profiles.chain(agent_slug).peekable();
        let first = chain.peek().copied();
        let open = chain.find(|(name, profile)| !self.is_paused(name, profile));
        open.or(first).map(|(name, profile)| (name.to_owned(), profile.clone()))
    }

    pub(crate) fn is_paused(&self, name: &str, profile: &Profile) -> bool {
        let now = now_ms();
        of(name, profile).iter().any(|paused| self.pauses.is_paused(paused, now))
    }

    pub(crate) fn is_closed_for(&self, agent_slug: &str) -> bool {
        self.is_disk_paused() || self.settings.profiles.chain(agent_slug).all(|(name, profile)| self.is_paused(name, profile))
    }

    /// The active pauses of accounts and profiles in use, each with the slugs that it closes. A slug is closed only if its fallbacks are
    /// paused, too. `None` instead of slugs: the pause closes the whole worker.
    pub(crate) fn pauses_now(&self) -> Vec<(Paused, Pause, Option<Vec<String>>)> {
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
                // An agent with the profile `default` serves every slug, so it can't list the ones that stay open: it counts as closed if
                // `default` is.
                let closes_default = || slugs.iter().any(|slug| slug == DEFAULT);
                let closes_all = served.as_ref().map_or_else(closes_default, |served| served.len() == slugs.len());
                (paused, pause, (!closes_all).then_some(slugs))
            })
            .collect()
    }

    /// The same pauses, in the form for the server.
    pub(crate) fn told_pauses(&self) -> List<NewPause, 0, { limits::WORKER_PAUSES }> {
        // The server refuses longer lists.
        let mut bytes = 0;
        let fits = |(_, _, closes): &(Paused, Pause, Option<Vec<String>>)| {
            bytes += closes.iter().flatten().map(String::len).sum::<usize>();
            bytes <= limits::WORKER_AGENTS_BYTES
        };
        let mut pauses = self.pauses_now();
        // The pauses that other workers learn from this one come first.
        pauses.sort_by_key(|(_, pause, _)| pause.told_by.is_some());
        let pauses = pauses.into_iter().take_while(fits).take(limits::WORKER_PAUSES).map(|(paused, pause, closes)| NewPause {
            kind: paused.0,
            name: paused.1.as_str().into(),
            cause: pause.cause,
            since: Int(pause.since),
            until: Int(pause.until),
            message: cut_chars(told(&paused, &pause)).into(),
            agents: closes.map(List::from_iter),
            told_by: pause.told_by.map(Into::into),
        });
        List(pauses.collect())
    }

    /// Pauses the agent for a while, because it could not store a task.
    pub(crate) fn pause_for_disk(&self, message: &str) {
        let now = now_ms();
        self.pauses.until(&self.itself(), PauseCause::Disk, now + DISK_PAUSE_MS, message, now);
        self.state_changed.notify_waiters();
    }

    /// Pauses the agent while the disk is full, and resumes it when there is room.
    pub(crate) fn check_disk(&self) {
        match self.home.reserve().fill() {
            Err(error) => {
                if !self.is_disk_paused() {
                    tracing::error!(%error, "the disk of the agent is full or can't be written; no tasks are taken until it has room");
                }
                self.pause_for_disk(&error.to_string());
            }
            Ok(()) => {
                if self.pauses.lift(&self.itself(), now_ms()) {
                    tracing::info!("the disk of the agent has room again");
                    self.state_changed.notify_waiters();
                }
            }
        }
    }

    pub(crate) fn is_disk_paused(&self) -> bool {
        self.pauses.is_paused(&self.itself(), now_ms())
    }

    fn itself(&self) -> Paused {
        (PauseKind::Worker, self.name.clone())
    }

    /// Learns from the end of a run whether its account and its profile work. Returns the verdict, which it may have changed. `has_run`: a
    /// process was started.
    pub(crate) async fn learn(
        &self,
        (name, profile): (&str, &Profile),
        task: &Task,
        has_run: bool,
        verdict: Verdict,
        stop: &mut watch::Receiver<Option<Stop>>,
    ) -> Verdict {
        let Verdict::Complete(mut completion) = verdict else { return verdict };
        let [account, of_profile] = of(name, profile);
        let message = completion.error_message.as_deref().unwrap_or_default().to_owned();
        match (completion.status, completion.reason) {
            (Outcome::Success, _) => {
                if self.pauses.lift(&account, now_ms()) | self.pauses.lift(&of_profile, now_ms()) {
                    self.state_changed.notify_waiters();
                }
                return Verdict::Complete(completion);
            }
            (_, Some(Reason::RateLimited)) => {
                let is_paused = tokio::select! {
                    is_paused = self.check_quota(name, profile, &message, completion.retry_at.map(|at| at.0)) => is_paused,
                    _ = stop.wait_for(Option::is_some) => Err(None),
                };
                if let Err(why) = is_paused {
                    // The task itself waits until the reset time that its run reported.
                    completion.error_message = Some([message.as_str(), why.unwrap_or_default()].concat().into());
                    return Verdict::Complete(completion);
                }
            }
            (_, Some(reason)) if is_of_setup(reason, profile, &message) => {
                let blame = tokio::select! {
                    blame = self.blame(name, profile, task, (reason, message.clone())) => blame,
                    _ = stop.wait_for(Option::is_some) => Err(Blame::Unknown),
                };
                if let Err(blame) = blame {
                    match blame {
                        Blame::Model => (completion.reason, completion.retryable) = (Some(Reason::ModelUnavailable), false),
                        // The status refuses only this request, and would refuse it again.
                        Blame::Task if !completion.retryable => completion.reason = Some(Reason::InvalidRequest),
                        Blame::Task if has_run => {
                            completion.reason = Some(Reason::AgentError);
                            if reason == Reason::Auth {
                                completion.error_message = Some([message.as_str(), ONLY_RUN].concat().into());
                            }
                        }
                        Blame::Task => return Verdict::Complete(completion),
                        Blame::Unknown => {
                            completion.retryable = true;
                            return Verdict::Complete(completion);
                        }
                    }
                    (completion.keep_attempt, completion.retry_at) = (false, None);
                    return Verdict::Complete(completion);
                }
                if reason == Reason::AgentError {
                    (completion.reason, completion.retryable, completion.keep_attempt) = (Some(Reason::SpawnFailed), true, true);
                }
            }
            _ => return Verdict::Complete(completion),
        }
        completion.retryable = true;
        // The task may run elsewhere at once: with the profile's fallback, or on another worker.
        completion.retry_at = Some(Int::nearest(now_ms().saturating_add(ELSEWHERE_MS)));
        self.state_changed.notify_waiters();
        self.tell_pauses().await;
        Verdict::Complete(completion)
    }

    /// Pauses the accounts that other workers found out of quota, and resumes those that an administrator has resumed. Returns whether that
    /// changes anything.
    pub(crate) fn heed(&self, directives: &Directives) -> bool {
        let now = now_ms();
        let resumed = directives.resumed_accounts.iter().filter(|resumed| self.pauses.resume(&resumed.account, resumed.since, now));
        let is_resumed =
            resumed.inspect(|resumed| tracing::info!(account = resumed.account, "an administrator has ended the pause")).count() > 0;
        let can_probe = |account: &str| self.can_probe(&(PauseKind::Account, account.to_owned()));
        let is_news = self.pauses.tell(&directives.paused_accounts, can_probe, now) | is_resumed;
        if is_news {
            self.state_changed.notify_waiters();
        }
        is_news
    }

    /// Tells the server what is closed before a task is handed back. Otherwise this worker could get the task again.
    pub(crate) async fn tell_pauses(&self) {
        let _ = tokio::time::timeout(TELL_LIMIT, self.register_again()).await;
    }

    pub(crate) fn failed<'a>(&self, paused: &Paused, cause: PauseCause, message: &'a str) -> Failed<'a> {
        Failed { cause, message, is_probed: self.can_probe(paused), resets_at: None, profile: None }
    }

    pub(crate) fn pause(&self, paused: &Paused, failed: Failed<'_>) {
        let pause = self.pauses.failed(paused, failed, now_ms());
        tracing::error!("{}", told(paused, &pause));
    }

    pub(crate) fn can_probe(&self, paused: &Paused) -> bool {
        self.claude_profiles().any(|(name, profile)| of(name, profile).contains(paused))
    }

    /// Checks whether the profile works. Only the Claude CLI can be probed; for other programs, this only checks that they exist.
    pub(crate) async fn probe(&self, profile: &Profile) -> Result<(), ProbeFailure> {
        self.probe_with(profile, None).await
    }

    /// The same check with a model that a task names.
    pub(crate) async fn probe_with(&self, profile: &Profile, model: Option<&str>) -> Result<(), ProbeFailure> {
        let dir = &self.settings.profiles.dir;
        if let Some(sandbox) = &profile.sandbox {
            let tried = check::try_it(sandbox, &self.hardening, dir, &self.home.contexts_dir()).await;
            tried.map_err(|why| (Some(PauseCause::Start), why))?;
        }
        match profile.runner {
            Runner::Claude => probe::of_profile(profile, model, dir, self.home.root()).await,
            _ if find_program(&profile.program(), dir).is_none() => Err((Some(PauseCause::Start), String::new())),
            _ => Ok(()),
        }
    }

    /// Checks whether the account works with any profile, or with the model that the CLI chooses.
    pub(crate) async fn probe_account(&self, account: &str) -> Result<(), ProbeFailure> {
        let mut failure = (None, String::new());
        for (_, profile) in self.claude_profiles().filter(|(_, profile)| profile.account == account) {
            match probe::of_account(profile, &self.settings.profiles.dir, self.home.root()).await {
                Ok(()) => return Ok(()),
                Err(_) => match self.probe(profile).await {
                    Ok(()) => return Ok(()),
                    Err(why) => failure = why,
                },
            }
        }
        Err(failure)
    }

    /// Probes everything that is paused until it works, at intervals that get longer, and at once after a login. The accounts are probed
    /// concurrently, because a provider that does not answer takes minutes.
    pub(crate) async fn probe_paused(self: Arc<Self>, stopped: CancellationToken) {
        let mut logins: BTreeMap<&str, Option<SystemTime>> =
            self.claude_profiles().map(|(name, profile)| (name, login_changed_at(profile))).collect();
        let (mut probes, mut probed) = (JoinSet::new(), BTreeMap::new());
        loop {
            tokio::select! {
                () = stopped.cancelled() => return,
                () = tokio::time::sleep(LOOK_EVERY) => {}
                Some(done) = probes.join_next_with_id() => {
                    let paused = probed.remove(&done.map_or_else(|error| error.id(), |(id, ())| id));
                    // The probe itself may have rewritten the credentials.
                    let is_probed = |profile: &(&str, &Profile)| paused.as_ref().is_some_and(|paused| of(profile.0, profile.1).contains(paused));
                    logins.extend(self.claude_profiles().filter(is_probed).map(|(name, profile)| (name, login_changed_at(profile))));
                    continue;
                }
            }
            self.check_disk();
            for (name, profile) in self.claude_profiles() {
                let login = login_changed_at(profile);
                let is_new = logins.get(name) != Some(&login);
                if is_new && of(name, profile).iter().all(|paused| self.pauses.hurry(paused, now_ms())) {
                    logins.insert(name, login);
                }
            }
            for paused in self.pauses.due(now_ms()) {
                if probes.len() < MAX_PROBES && !probed.values().any(|probed| *probed == paused) {
                    let (agent, about) = (self.clone(), paused.clone());
                    probed.insert(probes.spawn(async move { agent.probe_again(&about).await }).id(), paused);
                }
            }
        }
    }

    async fn probe_again(&self, paused: &Paused) {
        let (kind, name) = paused;
        let Some(known) = self.pauses.on(now_ms()).remove(paused) else { return };
        let works = match self.claude_profiles().find(|(profile, settings)| of(profile, settings).contains(paused)) {
            // The pause is from before a restart, and no profile uses the account or has the name any more.
            None => Ok(()),
            Some(_) if known.cause == PauseCause::Quota => self.probe_quota(name, known.profile.as_deref()).await,
            Some(_) if *kind == PauseKind::Account => self.probe_account(name).await,
            Some((_, profile)) => self.probe(profile).await,
        };
        match works {
            Ok(()) => {
                if self.pauses.lift(paused, now_ms()) | self.pauses.has_looked(paused, now_ms()) {
                    tracing::info!("the {kind} {name} works again");
                    self.state_changed.notify_waiters();
                }
            }
            // The pause has ended meanwhile, because a person or a run showed that the account works. The result of the probe is older than
            // that.
            Err(_) if self.pauses.on(now_ms()).get(paused).is_none_or(|now| now.since != known.since) => {}
            Err((_, why)) => {
                self.pauses.has_looked(paused, now_ms());
                self.pause(paused, self.failed(paused, known.cause, if why.is_empty() { &known.message } else { &why }));
                self.state_changed.notify_waiters();
            }
        }
    }

    /// Checks whether the account has quota for the profile whose run was refused. If that probe fails for another reason, such as a model
    /// that the account may not use, it says nothing about the quota.
    async fn probe_quota(&self, account: &str, refused: Option<&str>) -> Result<(), ProbeFailure> {
        if let Some((_, profile)) = self.claude_profiles().find(|(name, profile)| Some(*name) == refused && profile.account == account) {
            match self.probe(profile).await {
                Err((Some(PauseCause::Quota), why)) => return Err((Some(PauseCause::Quota), why)),
                Ok(()) => return Ok(()),
                Err(_) => {}
            }
        }
        self.probe_account(account).await
    }

    fn claude_profiles(&self) -> impl Iterator<Item = (&str, &Profile)> {
        self.settings.profiles.all().filter(|(_, profile)| profile.runner == Runner::Claude)
    }
}
