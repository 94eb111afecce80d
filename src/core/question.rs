//! Questions of runs to a person: whether the run may use a tool, or questions in words.

use serde::{Deserialize, Serialize};

use super::Ms;
use super::ids::{LeaseId, QuestionId};

/// A question of a run that is in progress. It ends with its lease.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Question {
    /// The id, which the agent chooses. Each question has a different one.
    pub id: QuestionId,
    /// The lease of the run that asks.
    pub lease: LeaseId,
    /// The tool that the run wants to use, named as in the agent's program.
    pub tool: String,
    /// The input of the tool, as JSON text.
    pub input: String,
    /// The questions in words, if the tool asks some. If there are none, a person decides whether the tool may be used.
    pub texts: Vec<String>,
    /// When it was asked.
    pub asked_at: Ms,
    /// No answer is accepted after this time.
    pub until: Ms,
    /// By how much the end of the lease was postponed, in ms.
    pub put_off_ms: i64,
    /// The answer of a person; `None` if there is none yet. A question that ended without an answer has a denial here.
    pub answer: Option<Answer>,
    /// Whether it is over. A late call about it must not ask it again.
    #[serde(default)]
    pub is_over: bool,
    /// The earlier questions of the lease that are still remembered, the newest last.
    #[serde(default)]
    pub past: Vec<QuestionId>,
}

/// How many ended questions of a lease are remembered. No call is so late that more questions than this came after it.
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

    /// Ends the question. Nobody is asked any more, and its content is discarded.
    pub fn end(&mut self) {
        // Older programs that do not know `is_over` treat it as answered, so that they ask nobody.
        self.answer.get_or_insert(Answer { allow: false, message: None, texts: Vec::new() });
        (self.is_over, self.put_off_ms) = (true, 0);
        "null".clone_into(&mut self.input);
        self.texts.clear();
    }

    /// Whether the question with this id is over.
    pub fn knows_as_over(&self, id: QuestionId) -> bool {
        self.is_over && self.id == id || self.past.contains(&id)
    }

    /// Remembers an ended question, and discards the oldest one if there are too many.
    pub fn add_past(&mut self, id: QuestionId) {
        if self.past.len() >= PAST {
            self.past.remove(0);
        }
        self.past.push(id);
    }
}

/// The answer of a person.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Answer {
    /// Whether the run may use the tool, or whether the questions in words are answered; `false`: denied.
    pub allow: bool,
    /// The reason for a denial, for the run.
    pub message: Option<String>,
    /// One text for each of the question's texts.
    pub texts: Vec<String>,
}
