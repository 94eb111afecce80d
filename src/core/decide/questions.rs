//! Questions of runs to a person, and the answers.

use super::lease::hard_end;
use crate::audit::{Action, Actor, EntityType};
use crate::ids::{LeaseId, QuestionId, TaskId};
use crate::limits::ASKED_MS;
use crate::operation::{Operation, Weight};
use crate::question::{Answer, Question};
use crate::rejection::Rejection;
use crate::reply::Asked;
use crate::row_keys::RowKeys;
use crate::task::TaskState;
use crate::working_set::{Halt, WorkingSet};

/// How much longer than its question a lease may last. The agent denies a question that nobody has answered, and then the run goes on.
const AFTER_QUESTION_MS: i64 = 60_000;

/// A question of a run.
#[derive(Clone, Debug)]
pub struct NewQuestion {
    /// The tool that the run wants to use, named as in the agent's program.
    pub tool: String,
    /// The input of the tool, as JSON text.
    pub input: String,
    /// The questions in words. If there are none, the run asks whether it may use the tool.
    pub texts: Vec<String>,
    /// How long answers are accepted.
    pub limit_ms: i64,
}

/// Records the question of a lease's run, or that the question is over. The reply has the person's answer, if there is one. Repeating the
/// question changes nothing.
#[derive(Clone, Debug)]
pub struct AskPerson {
    /// The task whose run asks.
    pub task: TaskId,
    /// The lease of the run, which must be the active one.
    pub lease: LeaseId,
    /// The id of the question, chosen by the agent.
    pub id: QuestionId,
    /// `None`: the run no longer asks the question with this id.
    pub question: Option<NewQuestion>,
}

impl Operation for AskPerson {
    type Reply = Asked;

    fn weight(&self) -> Weight {
        Weight { bytes: 256 + self.question.as_ref().map_or(0, |question| question.input.len()), ..Weight::default() }
    }

    fn add_keys(&self, keys: &mut RowKeys) {
        keys.tasks.insert(self.task);
    }

    fn decide(&self, set: &mut WorkingSet) -> Result<Asked, Halt> {
        let task = set.task(self.task)?;
        let worker = task.active_lease(Some(self.lease))?.worker_id.clone();
        let known = task.open_question().filter(|known| known.id == self.id);
        let answer = known.and_then(|known| known.answer.clone());
        let was_over = task.question.as_ref().is_some_and(|last| last.knows_as_over(self.id));
        if was_over || self.question.is_some() && known.is_some() {
            return Ok(Asked { answer, is_over: was_over && self.question.is_some() });
        }
        let is_asked = known.is_some();
        let mut task = task.clone();
        if self.question.is_none() && !is_asked {
            // The call that asks this question may still arrive.
            match &mut task.question {
                Some(other) => other.add_past(self.id),
                None => task.question = Some(Question::over(self.id, self.lease, set.now())),
            }
            set.put_task_quietly(task);
            return Ok(Asked { answer, is_over: false });
        }
        end_question(&mut task, set.now());
        if let Some(new) = &self.question {
            begin_question(set, &mut task, self, new);
            let what = match new.texts.len() {
                0 => format!("whether it may use {}", new.tool),
                1 => "a question in words".into(),
                count => format!("{count} questions in words"),
            };
            set.audit(Action::TaskAsked, EntityType::Task, task.id, &Actor::Worker(worker), what);
        }
        task.updated_at = set.stamp();
        set.put_task(task);
        Ok(Asked { answer, is_over: false })
    }
}

/// Begins a question. The time during which a person is asked does not count as run time, so the lease may last longer by that much.
fn begin_question(set: &WorkingSet, task: &mut TaskState, asked: &AskPerson, new: &NewQuestion) {
    let now = set.now();
    let longest_ms = hard_end(0, task);
    let mut put_off_ms = 0;
    if let Some(lease) = &mut task.lease
        && let Some(end) = lease.hard_end_at
    {
        let latest = lease.started_at + longest_ms + ASKED_MS + AFTER_QUESTION_MS;
        let later = (end + new.limit_ms + AFTER_QUESTION_MS).min(latest).max(end);
        put_off_ms = later - end;
        lease.hard_end_at = Some(later);
    }
    let past = task.question.take().map_or_else(Vec::new, |mut last| {
        last.add_past(last.id);
        last.past
    });
    task.question = Some(Question {
        is_over: false,
        past,
        id: asked.id,
        lease: asked.lease,
        tool: new.tool.clone(),
        input: new.input.clone(),
        texts: new.texts.clone(),
        asked_at: now,
        until: now + new.limit_ms,
        put_off_ms,
        answer: None,
    });
}

/// Ends the question. The lease may last longer only by the time that the question actually took.
fn end_question(task: &mut TaskState, now: i64) {
    let Some(over) = task.question.as_mut().filter(|question| !question.is_over) else { return };
    let unused = (over.asked_at + over.put_off_ms - now).clamp(0, over.put_off_ms);
    over.end();
    let Some(lease) = &mut task.lease else { return };
    lease.hard_end_at = lease.hard_end_at.map(|end| end - unused);
    lease.expires_at = lease.hard_end_at.map_or(lease.expires_at, |end| end.min(lease.expires_at));
    lease.check_at = lease.check_at.min(lease.expires_at);
}

/// Answers the question of a task's run. The agent gets the answer with its next [`AskPerson`].
#[derive(Clone, Debug)]
pub struct AnswerQuestion {
    /// The task whose run asks.
    pub task: TaskId,
    /// Answers only the question with this id; `None`: whatever is asked now.
    pub question: Option<QuestionId>,
    /// The answer. If it allows, it needs a text for each question in words; if it denies, it must have none.
    pub answer: Answer,
}

impl Operation for AnswerQuestion {
    type Reply = TaskState;

    fn add_keys(&self, keys: &mut RowKeys) {
        keys.tasks.insert(self.task);
    }

    fn decide(&self, set: &mut WorkingSet) -> Result<TaskState, Halt> {
        let Self { task: id, question: named, ref answer } = *self;
        let task = set.task(id)?;
        let refused = |why: &'static str| Halt::from(Rejection::CannotAnswer { status: task.status, why });
        let question = task.open_question().ok_or_else(|| refused("its run asks nothing now"))?;
        if named.is_some_and(|named| named != question.id) {
            return Err(refused("its run asks something else now"));
        }
        if question.answer.is_some() {
            return Err(refused("its question is answered already"));
        }
        if set.now() > question.until {
            return Err(refused("the time limit of its question is over"));
        }
        let (asked, given) = (question.texts.len(), answer.texts.len());
        if given != if answer.allow { asked } else { 0 } {
            return Err(Rejection::WrongAnswers { asked, given, allow: answer.allow }.into());
        }
        let verb = match (answer.allow, asked) {
            (false, _) => "denied",
            (true, 0) => "allowed",
            (true, _) => "answered",
        };
        let detail = match &answer.message {
            Some(message) => format!("{verb} {}: {message}", question.tool),
            None => format!("{verb} {}", question.tool),
        };
        let answered = Question { answer: Some(answer.clone()), ..question.clone() };
        let mut task = TaskState { question: Some(answered), ..task.clone() };
        task.updated_at = set.stamp();
        set.audit(Action::TaskAnswered, EntityType::Task, id, &Actor::Api, detail);
        task.revision = set.put_task(task.clone());
        Ok(task)
    }
}
