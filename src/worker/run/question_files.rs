//! The files through which a run asks a person, and their contents.
//!
//! ```text
//! question/question.json   the current question; written by the run
//! answer/ID.json           the answer to a question; in a sandbox, the run can only read it
//! questions.json           how long people were asked, for a later agent process
//! ```

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::claude::stream::cut;
use crate::home::{private_dir, read_json, write_json};
use crate::machine::boot_clock::Stamp;
use crate::machine::open_below::{open_at, read_all};
use crate::machine::program::own_program;
use bloom_core::limits::{ASKED_MS, NAME_CHARS, QUESTION_INPUT_BYTES, QUESTION_TEXT_CHARS, QUESTION_TEXTS};

/// The first argument that makes this program the server of the Claude CLI's permission tool.
pub(crate) const ASK_HUMAN: &str = "ask-human";
/// The names of that server and its tool in the CLI.
const SERVER: &str = "bloom_runtime";
pub(crate) const TOOL: &str = "ask_human";
/// The CLI's tool for questions in words.
const ASKS_IN_WORDS: &str = "AskUserQuestion";
/// The maximum size of a question in bytes, including the whole input of the tool.
pub(crate) const MAX_QUESTION: u64 = 4 << 20;
/// How long the CLI waits for the tool, in ms: longer than any question can last.
const TOOL_TIMEOUT_MS: i64 = ASKED_MS + 60 * 60 * 1000;

/// A question of a run.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) struct Question {
    pub id: Uuid,
    pub tool: String,
    pub input: Value,
}

/// The answer to a question, for the run.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) struct Reply {
    /// The question itself: a run must not get the answer to a question that is not its own.
    pub question: Question,
    pub allow: bool,
    pub message: Option<String>,
    /// One answer for each of the question's texts.
    pub answers: Vec<String>,
}

/// What the agent remembers of the questions of a run.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(crate) struct Past {
    pub count: u32,
    /// How long people were asked in total, in ms.
    pub asked_ms: u64,
    /// The current question, and since when it is asked.
    pub current: Option<(Uuid, Stamp)>,
}

impl Reply {
    /// The answer as a text.
    pub(crate) fn told(&self) -> String {
        match &self.message {
            _ if self.allow && self.answers.is_empty() => "allowed".into(),
            _ if self.allow => self.answers.join("; "),
            Some(message) => format!("denied: {message}"),
            None => "denied".into(),
        }
    }
}

impl Question {
    /// The texts of the question, each with its choices. Empty: a person decides whether the tool may be used.
    pub(crate) fn texts(&self) -> Vec<String> {
        let asked = self.in_words().into_iter().map(|question| {
            let choices = question["options"].as_array().into_iter().flatten().filter_map(|option| option["label"].as_str());
            let choices = choices.collect::<Vec<_>>().join(" / ");
            let text = question["question"].as_str().unwrap_or_default();
            let several = if question["multiSelect"] == true { "; one or more, with commas between them" } else { "" };
            let text = if choices.is_empty() { text.to_owned() } else { format!("{text} ({choices}{several})") };
            shown(&text, QUESTION_TEXT_CHARS)
        });
        asked.collect()
    }

    /// The input of the tool, with the answers to the question.
    pub(crate) fn answered_input(&self, answers: &[String]) -> Value {
        let mut input = self.input.clone();
        let given = self.in_words().into_iter().filter_map(|question| question["question"].as_str()).zip(answers);
        if !answers.is_empty() && input.is_object() {
            input["answers"] =
                given.map(|(question, answer)| (question.to_owned(), json!(answer))).collect::<serde_json::Map<_, _>>().into();
        }
        input
    }

    fn in_words(&self) -> Vec<&Value> {
        let asked: Vec<&Value> = match self.input["questions"].as_array() {
            Some(questions) if self.tool == ASKS_IN_WORDS => questions.iter().collect(),
            _ => Vec::new(),
        };
        let is_text = |question: &&Value| question["question"].as_str().is_some_and(|text| !text.is_empty());
        if asked.len() <= QUESTION_TEXTS && asked.iter().all(is_text) { asked } else { Vec::new() }
    }

    /// The input of the tool, shortened to what people are shown.
    pub(crate) fn shown_input(&self) -> Value {
        let text = self.input.to_string();
        // As a JSON string, the text may take twice the space, because its quotes are escaped.
        if text.len() <= QUESTION_INPUT_BYTES { self.input.clone() } else { json!(format!("{}…", cut(&text, QUESTION_INPUT_BYTES / 3))) }
    }

    /// The size of a command that is too long to be shown completely: nobody can allow a command that nobody sees. `None`: the command is
    /// shorter, or the tool has none. For long inputs of other tools, such as a file that is written, people are shown the beginning, and
    /// told so.
    pub(crate) fn too_long_command(&self) -> Option<usize> {
        let command = self.input["command"].as_str()?;
        (self.input.to_string().len() > QUESTION_INPUT_BYTES).then_some(command.len())
    }

    pub(crate) fn shown_tool(&self) -> String {
        shown(&self.tool, NAME_CHARS)
    }
}

fn shown(text: &str, max: usize) -> String {
    let text = text.replace('\0', "\u{fffd}");
    if text.chars().count() <= max { text } else { text.chars().take(max - 1).chain(['…']).collect() }
}

/// The directories of a run's questions and answers.
#[derive(Clone, Debug)]
pub(crate) struct QuestionDir(PathBuf);

impl QuestionDir {
    pub(crate) fn of_run(dir: &Path) -> Self {
        Self(dir.to_owned())
    }

    /// The directory in which the run writes.
    pub(crate) fn asked(&self) -> PathBuf {
        self.0.join("question")
    }

    /// The directory from which the run only reads.
    pub(crate) fn answered(&self) -> PathBuf {
        self.0.join("answer")
    }

    fn question_path(&self) -> PathBuf {
        self.asked().join("question.json")
    }

    fn reply_path(&self, id: Uuid) -> PathBuf {
        self.answered().join(format!("{id}.json"))
    }

    pub(crate) fn ask(&self, question: &Question) -> io::Result<()> {
        write_json(&self.question_path(), question)
    }

    pub(crate) fn withdraw(&self) {
        let _ = fs::remove_file(self.question_path());
    }

    pub(crate) fn reply(&self, reply: &Reply) -> io::Result<()> {
        write_json(&self.reply_path(reply.question.id), reply)
    }

    pub(crate) fn reply_to(&self, id: Uuid) -> Option<Reply> {
        read_json(&self.reply_path(id))
    }

    /// The question of the run that is not answered yet. A run may put anything there: links to files that only the agent may read, pipes,
    /// or an endless file.
    pub(crate) fn open_question(&self) -> Option<Question> {
        let bytes = read_all(open_at(&self.question_path()).ok()?, MAX_QUESTION).ok()?;
        let question: Question = serde_json::from_slice(&bytes).ok()?;
        (!self.reply_path(question.id).exists()).then_some(question)
    }

    pub(crate) fn past(&self) -> Past {
        read_json(&self.0.join("questions.json")).unwrap_or_default()
    }

    pub(crate) fn keep_past(&self, past: &Past) -> io::Result<()> {
        write_json(&self.0.join("questions.json"), past)
    }
}

/// The tool which the CLI of a run asks for permissions.
#[derive(Debug)]
pub(crate) struct PermissionTool {
    /// This program, which serves the tool.
    pub program: PathBuf,
    pub dir: QuestionDir,
}

impl PermissionTool {
    /// Makes the directories of the questions.
    pub(crate) fn prepare(dir: QuestionDir) -> io::Result<Self> {
        private_dir(&dir.asked())?;
        private_dir(&dir.answered())?;
        Ok(Self { program: own_program()?, dir })
    }

    /// The options that make the CLI use the tool.
    pub(crate) fn options(&self) -> [String; 2] {
        let args = json!([ASK_HUMAN, self.dir.0]);
        let server = json!({"type": "stdio", "command": self.program, "args": args, "timeout": TOOL_TIMEOUT_MS});
        [format!("--mcp-config={}", json!({"mcpServers": {SERVER: server}})), format!("--permission-prompt-tool=mcp__{SERVER}__{TOOL}")]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn question(tool: &str, input: Value) -> Question {
        Question { id: Uuid::now_v7(), tool: tool.into(), input }
    }

    #[test]
    fn questions_in_words_have_answers_in_words() {
        let input = json!({"questions": [{"question": "Which?", "options": [{"label": "A"}, {"label": "B"}]}, {"question": "Why?"}]});
        let asked = question("AskUserQuestion", input.clone());
        assert_eq!(asked.texts(), ["Which? (A / B)", "Why?"]);
        let answered = asked.answered_input(&["B".into(), "so".into()]);
        assert_eq!((&answered["answers"], &answered["questions"]), (&json!({"Which?": "B", "Why?": "so"}), &input["questions"]));
        assert!(question("Other", input).texts().is_empty());
        let several = json!({"questions": [{"question": "Which?", "options": [{"label": "A"}, {"label": "B"}], "multiSelect": true}]});
        assert_eq!(question("AskUserQuestion", several).texts(), ["Which? (A / B; one or more, with commas between them)"]);
        assert!(question("AskUserQuestion", json!({"questions": [{"question": ""}]})).texts().is_empty());
        assert!(question("AskUserQuestion", json!({"questions": vec![json!({"question": "x"}); 9]})).texts().is_empty());
        let long = question("AskUserQuestion", json!({"questions": [{"question": "x\0".repeat(3_000)}]}));
        assert_eq!(long.texts()[0].chars().count(), QUESTION_TEXT_CHARS);
    }

    #[test]
    fn what_a_person_is_shown_has_a_limit() {
        let long = question("Write", json!({"content": "\"".repeat(50_000)}));
        assert!(long.shown_input().to_string().len() <= QUESTION_INPUT_BYTES && long.shown_input().is_string());
        let short = question("Write", json!({"content": "x"}));
        assert_eq!(short.shown_input(), short.input);
        assert_eq!((long.too_long_command(), short.too_long_command()), (None, None));
        let command = |command: String| question("Bash", json!({ "command": command })).too_long_command();
        assert_eq!((command(" ".repeat(QUESTION_INPUT_BYTES)), command("ls".into())), (Some(QUESTION_INPUT_BYTES), None));
    }

    #[test]
    fn only_a_file_is_a_question() {
        let dir = tempfile::tempdir().unwrap();
        let dir = PermissionTool::prepare(QuestionDir::of_run(dir.path())).unwrap().dir;
        let asked = question("Bash", json!({}));
        dir.ask(&asked).unwrap();
        assert_eq!(dir.open_question(), Some(asked.clone()));
        let elsewhere = dir.answered().join("secret");
        fs::rename(dir.question_path(), &elsewhere).unwrap();
        std::os::unix::fs::symlink(&elsewhere, dir.question_path()).unwrap();
        assert_eq!(dir.open_question(), None, "a link");
        dir.withdraw();
        rustix::fs::mknodat(rustix::fs::CWD, dir.question_path(), rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR, 0).unwrap();
        assert_eq!(dir.open_question(), None, "a pipe");
        dir.withdraw();
        dir.ask(&asked).unwrap();
        dir.reply(&Reply { question: asked.clone(), allow: true, message: None, answers: Vec::new() }).unwrap();
        assert_eq!(dir.open_question(), None, "it is answered");
    }
}
