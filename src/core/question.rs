//! What a run asks a person: whether it may use a tool, or questions in words.

use serde::{Deserialize, Serialize};

use super::Ms;
use super::ids::{LeaseId, QuestionId};

/// A question of a run that goes on. It ends with its lease.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Question {
    /// Chosen by the agent, another one for each question.
    pub id: QuestionId,
    pub lease: LeaseId,
    /// The tool that the run wants to use, by the name that the agent's program has for it.
    pub tool: String,
    /// JSON text: what the tool is to do.
    pub input: String,
    /// The questions in words, if that is what the tool does; empty: a person decides whether the tool may be used.
    pub texts: Vec<String>,
    pub asked_at: Ms,
    /// No answer is taken after this time.
    pub until: Ms,
    /// By how much the end of the lease was put off, in ms.
    pub put_off_ms: i64,
    pub answer: Option<Answer>,
}

#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Answer {
    pub allow: bool,
    /// Why not, for the run.
    pub message: Option<String>,
    /// One for each of the question's texts.
    pub texts: Vec<String>,
}
