//! What a run asks, as the page of its task shows it.

use serde_json::Value;
use uuid::Uuid;

use crate::lang::Lang;
use crate::language_links::At;
use crate::refused::Refused;
use crate::times::shortened;
use bloom_api::questions::Question;
use bloom_api::tool_input::ToolInput;
use bloom_api::visible_text::compact;
use bloom_core::Ms;

/// The maximum length of one question with all its texts, so that eight questions fit on the page.
const WORDS_CHARS: usize = 1_500;
const OPTIONS: usize = 12;
const OPTION_CHARS: usize = 120;

pub(crate) struct Asked {
    pub id: Uuid,
    pub tool: String,
    /// The complete input of the tool, because nobody should allow what the page does not show.
    pub input: ToolInput,
    pub questions: Vec<InWords>,
    pub until: Ms,
    pub is_answered: bool,
    /// The reason of a denial, as it was typed before.
    pub message: String,
}

/// A question that is answered in words.
pub(crate) struct InWords {
    pub text: String,
    /// The options to choose from. Another answer can be typed instead.
    pub options: Vec<Choice>,
    /// Whether more than one option may be chosen.
    pub several: bool,
    /// The answer that was typed before.
    pub given: String,
}

pub(crate) struct Choice {
    pub label: String,
    pub about: String,
}

/// A form of the page that was refused: the error, and what was typed.
pub(crate) struct NotTaken {
    pub text: String,
    pub lang: Lang,
    pub answers: Vec<String>,
    pub message: String,
    /// The time limit and the budget, as they were typed into the form that requeues.
    pub limits: [String; 2],
}

impl NotTaken {
    pub(crate) fn new(refused: &Refused, at: &At) -> Self {
        let (text, lang) = (refused.text.text(at).to_owned(), refused.text.lang(at));
        Self { text, lang, answers: Vec::new(), message: String::new(), limits: Default::default() }
    }
}

impl Asked {
    pub(crate) fn of(question: &Question<'_>, before: Option<&NotTaken>) -> Self {
        let input: Value = serde_json::from_str(question.input.get()).unwrap_or_default();
        let answer = |at: usize| before.and_then(|before| before.answers.get(at)).cloned().unwrap_or_default();
        let questions = question.questions.iter().enumerate();
        Self {
            id: question.id,
            tool: question.tool.to_string(),
            input: question.tool_input(),
            questions: questions.map(|(at, text)| InWords::of(text, &input["questions"][at], answer(at))).collect(),
            until: question.until,
            is_answered: question.answer.is_some(),
            message: before.map(|before| before.message.clone()).unwrap_or_default(),
        }
    }
}

impl InWords {
    /// `text`: the question and its options in one line. `input`: the question as the agent sent it, which may have fewer fields, or be
    /// something else.
    fn of(text: &str, input: &Value, given: String) -> Self {
        let words = |value: &Value| shortened(&compact(value.as_str().unwrap_or_default()), OPTION_CHARS);
        let options = input["options"].as_array().into_iter().flatten().take(OPTIONS);
        let options: Vec<_> =
            options.map(|option| Choice { label: words(&option["label"]), about: words(&option["description"]) }).collect();
        let options: Vec<_> = options.into_iter().filter(|option| !option.label.is_empty()).collect();
        let own = input["question"].as_str().filter(|own| !options.is_empty() && text.starts_with(*own));
        let several = !options.is_empty() && input["multiSelect"] == true;
        Self { text: shortened(&compact(own.unwrap_or(text)), WORDS_CHARS), options, several, given }
    }
}
