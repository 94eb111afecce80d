//! What a run asks a person: whether it may use a tool, or questions in words.

use serde::{Deserialize, Serialize};

use super::Ms;
use super::ids::{LeaseId, QuestionId};

/// A question of a run that goes on. It ends with its lease.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Question {
    /// Chosen by the agent, another one for each question.
    pub id: QuestionId,
    /// The lease of the run that asks.
    pub lease: LeaseId,
    /// The tool that the run wants to use, by the name that the agent's program has for it.
    pub tool: String,
    /// JSON text: what the tool is to do.
    pub input: String,
    /// The questions in words, if that is what the tool does; empty: a person decides whether the tool may be used.
    pub texts: Vec<String>,
    /// When it was asked.
    pub asked_at: Ms,
    /// No answer is taken after this time.
    pub until: Ms,
    /// By how much the end of the lease was put off, in ms.
    pub put_off_ms: i64,
    /// What a person has answered; `None`: nobody has yet. A question that ended without an answer has a denial here.
    pub answer: Option<Answer>,
    /// It is over, and asks nobody any more: a call about it that comes late must not ask it again.
    #[serde(default)]
    pub is_over: bool,
    /// The questions of the lease before this one, the newest last, as far as they are remembered.
    #[serde(default)]
    pub past: Vec<QuestionId>,
}

/// How many questions of a lease are remembered that are over: a call does not come later than after so many others.
const PAST: usize = 32;

impl Question {
    /// A question that ended before it was asked.
    pub fn over(id: QuestionId, lease: LeaseId, at: Ms) -> Self {
        let (tool, input, texts) = (String::new(), String::new(), Vec::new());
        let mut over =
            Self { id, lease, tool, input, texts, asked_at: at, until: at, put_off_ms: 0, answer: None, is_over: false, past: vec![] };
        over.end();
        over
    }

    /// The question is over: nobody is asked any more, and what was asked is forgotten.
    pub fn end(&mut self) {
        // Programs that do not know `is_over` take it for answered, so that they ask nobody.
        self.answer.get_or_insert(Answer { allow: false, message: None, texts: Vec::new() });
        (self.is_over, self.put_off_ms) = (true, 0);
        "null".clone_into(&mut self.input);
        self.texts.clear();
    }

    /// Whether the question of this id is over.
    pub fn knows_as_over(&self, id: QuestionId) -> bool {
        self.is_over && self.id == id || self.past.contains(&id)
    }

    /// Remembers a question that is over, and forgets the oldest one if there are too many.
    pub fn add_past(&mut self, id: QuestionId) {
        if self.past.len() >= PAST {
            self.past.remove(0);
        }
        self.past.push(id);
    }
}

/// What a person answered.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Answer {
    /// Whether the run may use the tool, or the questions in words are answered; `false`: denied.
    pub allow: bool,
    /// Why not, for the run.
    pub message: Option<String>,
    /// One for each of the question's texts.
    pub texts: Vec<String>,
}
