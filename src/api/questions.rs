//! What runs ask a person: the bodies of the calls by which workers ask and people answer.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;
use uuid::Uuid;

use super::json::{Json, readable};
use super::values::{Id, Int, List, ShortName, Text};
use super::wire::body;
use bloom_core::Ms;
use bloom_core::ids::TaskId;
use bloom_core::limits::{ASKED_MS, QUESTION_INPUT_BYTES, QUESTION_TEXT_CHARS, QUESTION_TEXTS};
use bloom_core::op::{AnswerQuestion, AskPerson, NewQuestion};
use bloom_core::question;

/// The most characters of an answer, and of the reason of a denial.
const ANSWER_CHARS: usize = 4_000;

body! {
    /// What a run asks a person.
    pub struct AskedQuestion {
        /// The tool that the run wants to use.
        tool: ShortName,
        /// The input of the tool: any JSON, at most 16 KiB, nested at most 64 levels deep.
        input: Json<QUESTION_INPUT_BYTES> = Json("null".into()),
        /// Questions that a person answers with a text each: at most 8. Without any, the person only allows or denies the tool.
        questions: List<Text<1, QUESTION_TEXT_CHARS>, 0, QUESTION_TEXTS> = List::default(),
        /// Seconds for which the question can be answered.
        limit_sec: Int<1, { ASKED_MS / 1000 }>,
    }

    /// A question for a person, or the end of a question.
    pub struct Ask {
        /// The lease under which the task runs.
        lease_id: Id,
        /// The id of the question: any UUID, a new one for each question.
        id: Id,
        /// The question. If it is absent, the call ends the question with this id.
        question: Option<AskedQuestion>,
    }

    /// Answers the question that the run of a task asks.
    pub struct NewAnswer {
        /// The id of the question that is answered; if the run now asks another one, the call is refused. Default: the question that the
        /// run asks now.
        question_id: Option<Id>,
        /// Whether the run may use the tool. If the question has `questions`, `true` needs `answers`.
        allow: bool,
        /// The reason for a denial, which the run gets. Default: a text that says that a person has denied the tool.
        message: Option<Text<0, ANSWER_CHARS>>,
        /// One answer for each of the question's `questions`, in their order.
        answers: List<Text<1, ANSWER_CHARS>, 0, QUESTION_TEXTS> = List::default(),
    }
}

impl Ask {
    /// The operation with which the run of this task asks, or takes its question back.
    pub fn into_op(self, task: TaskId) -> AskPerson {
        let question = self.question.map(|asked| NewQuestion {
            tool: asked.tool.0,
            input: asked.input.0,
            texts: asked.questions.texts(),
            limit_ms: asked.limit_sec.0 * 1000,
        });
        AskPerson { task, lease: self.lease_id.0, id: self.id.0, question }
    }
}

impl NewAnswer {
    /// The operation that answers the question of this task.
    pub fn into_op(self, task: TaskId) -> AnswerQuestion {
        let answer = question::Answer { allow: self.allow, message: self.message.map(|text| text.0), texts: self.answers.texts() };
        AnswerQuestion { task, question: self.question_id.map(|id| id.0), answer }
    }
}

/// What the run of a task asks a person.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct Question<'a> {
    /// The id of the question.
    pub id: Uuid,
    /// The task.
    pub task_id: Uuid,
    /// The tool that the run wants to use.
    pub tool: Cow<'a, str>,
    /// The input of the tool: any JSON. A text that ends with `…` is the beginning of a longer one.
    #[schema(value_type = serde_json::Value)]
    pub input: Cow<'a, RawValue>,
    /// The questions that need a text as an answer; empty: a person only allows or denies the tool.
    pub questions: Cow<'a, [String]>,
    /// When it was asked.
    pub asked_at: Ms,
    /// Until when it can be answered. Without an answer by then, the tool is denied.
    pub until: Ms,
    /// The answer, which the worker has not fetched yet; null: nobody has answered.
    pub answer: Option<Answer<'a>>,
}

/// The answer of a person.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct Answer<'a> {
    /// Whether the run may use the tool.
    pub allow: bool,
    /// The reason for a denial, which the run gets; null: none was sent.
    pub message: Option<Cow<'a, str>>,
    /// One answer for each of `questions`, in their order.
    pub answers: Cow<'a, [String]>,
}

/// The answer to a question; null while there is none.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct Asked<'a> {
    /// The answer of a person; null: nobody has answered yet.
    pub answer: Option<Answer<'a>>,
    /// True if the question was over before this call, so that nobody is asked; absent otherwise.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub over: bool,
}

impl<'a> Question<'a> {
    /// # Errors
    /// The stored input is not JSON.
    pub fn new(task_id: Uuid, asked: &'a question::Question) -> Result<Self, serde_json::Error> {
        Ok(Self {
            id: asked.id,
            task_id,
            tool: (&asked.tool).into(),
            input: readable(&asked.input)?,
            questions: (&asked.texts).into(),
            asked_at: asked.asked_at,
            until: asked.until,
            answer: asked.answer.as_ref().map(Answer::from),
        })
    }
}

impl<'a> From<&'a question::Answer> for Answer<'a> {
    fn from(answer: &'a question::Answer) -> Self {
        Self { allow: answer.allow, message: answer.message.as_deref().map(Cow::from), answers: (&answer.texts).into() }
    }
}
