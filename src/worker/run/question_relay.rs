//! Passes the questions of a run on to the server, and the answers back to the run.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use reqwest::Method;
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use uuid::Uuid;

use crate::Agent;
use crate::claude::stream::Found;
use crate::machine::boot_clock::{Stamp, millis, now};
use crate::profile::Profile;
use crate::run::question_files::{Past, Question, QuestionDir, Reply};
use crate::run::run_dir::Record;
use crate::run::run_limits::Limits;
use crate::server_calls::report::{Backoff, may_pass};
use crate::supervisor::handle::Watched;
use bloom_api::json::Json;
use bloom_api::questions::{Answer, Ask, Asked, AskedQuestion};
use bloom_api::values::{Id, Int, List};
use bloom_client::{CALL_LIMIT, Error};
use bloom_core::event::EventKind;
use bloom_core::limits::ASKED_MS;

/// The interval at which the agent checks for questions.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// The interval at which it checks whether its events are stored.
const TAKEN_EVERY: Duration = Duration::from_millis(20);
/// The time limit of the last call, which fetches an answer that was given at the last moment.
const LAST_CALL: Duration = Duration::from_secs(10);
/// The interval at which it asks the server for the answer without a notification.
const ASK_EVERY: Duration = Duration::from_secs(30);
/// The maximum number of questions of one run.
const MAX_QUESTIONS: u32 = 500;

/// Follows the questions of one run until it is dropped.
pub(crate) struct Asking {
    shared: Arc<Mutex<Shared>>,
    /// How long people were asked before, during earlier agent processes.
    pub asked_before: Duration,
    task: JoinHandle<()>,
}

#[derive(Default)]
struct Shared {
    news: Vec<Found>,
    /// Until when a person is asked at most, on the boot clock; 0: nobody is asked.
    until: u64,
}

impl Drop for Asking {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Asking {
    /// Starts to follow the questions of a run. `None`: runs of the profile ask nobody.
    pub(crate) fn start(agent: &Arc<Agent>, dir: QuestionDir, record: &Record, profile: &Profile) -> Option<Self> {
        if !profile.ask_human {
            return None;
        }
        let limit = Duration::from_secs(profile.ask_human_seconds);
        let shared = Arc::<Mutex<Shared>>::default();
        let past = dir.past();
        let open = past.current.as_ref().map_or(Duration::ZERO, |(_, since)| since.age());
        let asked_before = Duration::from_millis(past.asked_ms) + open;
        let answered = agent.lock().get(&record.lease.id).map(|held| held.answered.clone()).unwrap_or_default();
        let (task, lease) = (record.task.id, record.lease.id);
        let asker = Asker { agent: agent.clone(), dir, task, lease, limit, answered, shared: shared.clone(), past };
        Some(Self { shared, asked_before, task: tokio::spawn(asker.follow()) })
    }

    /// Adds the new events, and tells the supervisor and the agent's own limits until when the run waits.
    pub(crate) fn tell(&self, found: &mut Vec<Found>, watched: &mut Watched, limits: &mut Limits) {
        let mut shared = self.shared.lock();
        found.append(&mut shared.news);
        watched.wait_until(shared.until);
        limits.wait_until(shared.until);
    }
}

struct Asker {
    agent: Arc<Agent>,
    dir: QuestionDir,
    task: Uuid,
    lease: Uuid,
    /// The time limit for one question.
    limit: Duration,
    /// Notified when the server says that there is an answer.
    answered: Arc<Notify>,
    shared: Arc<Mutex<Shared>>,
    past: Past,
}

impl Asker {
    async fn follow(mut self) {
        loop {
            let dir = self.dir.clone();
            // The run may have put any file there, and reading it must not delay other runs.
            let asked = tokio::task::spawn_blocking(move || dir.open_question()).await;
            if let Ok(Some(question)) = asked {
                self.pass_on(question).await;
            }
            sleep(LOOK_EVERY).await;
        }
    }

    async fn pass_on(&mut self, question: Question) {
        let id = question.id;
        let known = self.past.current.take().filter(|(known, _)| *known == id);
        let is_new = known.is_none();
        let since = known.map_or_else(Stamp::now, |(_, since)| since);
        if is_new {
            self.past.count = self.past.count.saturating_add(1);
        }
        let left = Duration::from_millis(ASKED_MS.unsigned_abs()).saturating_sub(Duration::from_millis(self.past.asked_ms));
        let limit = self.limit.min(left).saturating_sub(since.age());
        let may_ask = self.past.count <= MAX_QUESTIONS && !left.is_zero();
        if may_ask {
            // Set together with the event, so that the run's time limits stand still before anybody learns of the question.
            self.shared.lock().until = now().saturating_add(millis(limit + LAST_CALL));
        }
        if is_new {
            let texts = question.texts();
            let text = (!texts.is_empty()).then(|| texts.join("; "));
            let data = json!({"id": id, "name": question.shown_tool(), "input": question.shown_input(), "text": text});
            self.record(EventKind::Question, data).await;
        }
        self.past.current = Some((id, since.clone()));
        self.keep();
        let reply = if let Some(bytes) = question.too_long_command() {
            let least = "write it into a file, in parts that people can read, and execute that";
            denied(question, format!("The command has {bytes} bytes, so a person can't be shown all of it: {least}"))
        } else if may_ask {
            match timeout(limit, self.answer(&question, limit)).await {
                Ok(reply) => reply,
                Err(_) => self.last_answer(question).await,
            }
        } else {
            denied(question, "This run has asked people too often or for too long".into())
        };
        self.past.asked_ms = self.past.asked_ms.saturating_add(millis(since.age()));
        self.past.current = None;
        self.keep();
        self.record(EventKind::Answer, json!({"id": id, "allow": reply.allow, "text": reply.told()})).await;
        while let Err(error) = self.dir.reply(&reply) {
            tracing::warn!(task = %self.task, %error, "an answer could not be stored for the run; trying again");
            sleep(LOOK_EVERY * 10).await;
        }
        self.shared.lock().until = 0;
        self.tell_over(id).await;
    }

    /// Asks the server until there is an answer, or until the server refuses the question.
    async fn answer(&self, question: &Question, limit: Duration) -> Reply {
        let started = tokio::time::Instant::now();
        let mut backoff = Backoff::default();
        loop {
            let told = self.answered.notified();
            let left = millis(limit.saturating_sub(started.elapsed())).div_ceil(1000).max(1);
            let asked = AskedQuestion {
                tool: question.shown_tool().into(),
                input: Json(question.shown_input().to_string()),
                questions: question.texts().into_iter().collect::<List<_, 0, _>>(),
                limit_sec: Int::nearest(i64::try_from(left).unwrap_or(i64::MAX)),
            };
            match self.tell(question.id, Some(asked)).await {
                Ok(Asked { answer: Some(answer), .. }) => return reply(question.clone(), answer),
                Ok(Asked { over: true, .. }) => return denied(question.clone(), "The question is over".into()),
                Ok(Asked { .. }) => {
                    backoff = Backoff::default();
                    let _ = timeout(ASK_EVERY, told).await;
                }
                Err(error) if may_pass(&error) => {
                    tracing::warn!(task = %self.task, %error, "the server does not take a question of a run; trying again");
                    sleep(backoff.wait(&error)).await;
                }
                // The lease is over, and the run is about to be ended.
                Err(error) => {
                    tracing::warn!(task = %self.task, %error, "the server refused a question of a run; it is denied");
                    return denied(question.clone(), "No person can be asked now".into());
                }
            }
        }
    }

    /// Handles the end of the time limit: ends the question, so that it can't be answered any more, and takes an answer that was given
    /// meanwhile.
    async fn last_answer(&self, question: Question) -> Reply {
        match timeout(LAST_CALL, self.tell(question.id, None)).await {
            Ok(Ok(Asked { answer: Some(answer), .. })) => reply(question, answer),
            _ => denied(question, format!("Nobody has answered within {} s", self.limit.as_secs())),
        }
    }

    /// Tells the server that the question is over, so that nobody answers it any more. The end of the lease also ends the question.
    async fn tell_over(&self, id: Uuid) {
        let mut backoff = Backoff::default();
        while let Err(error) = self.tell(id, None).await {
            if !may_pass(&error) {
                return;
            }
            sleep(backoff.wait(&error)).await;
        }
    }

    async fn tell(&self, id: Uuid, question: Option<AskedQuestion>) -> Result<Asked<'static>, Error> {
        let path = format!("api/runtime/llm-tasks/{}/question", self.task);
        let body = Ask { lease_id: Id(self.lease), id: Id(id), question };
        self.agent.client.send(Method::POST, &path, Some(&body), CALL_LIMIT).await?.json()
    }

    /// Hands an event over to the run's log, which stores it before anybody else sees it: this process may end at any time.
    async fn record(&self, kind: EventKind, data: Value) {
        self.shared.lock().news.push((kind, data));
        while !self.shared.lock().news.is_empty() {
            sleep(TAKEN_EVERY).await;
        }
    }

    fn keep(&self) {
        if let Err(error) = self.dir.keep_past(&self.past) {
            tracing::warn!(task = %self.task, %error, "how long a person was asked could not be stored");
        }
    }
}

fn reply(question: Question, answer: Answer<'_>) -> Reply {
    let message = answer.message.map(Cow::into_owned);
    Reply { question, allow: answer.allow, message, answers: answer.answers.into_owned() }
}

fn denied(question: Question, message: String) -> Reply {
    Reply { question, allow: false, message: Some(message), answers: Vec::new() }
}
