//! `task approve`, `task deny` and `task answer`: a person answers what the run of a task asks.

use clap::Args;
use clap_complete::ArgValueCompleter;
use serde_json::Value;
use uuid::Uuid;

use crate::CommandError;
use crate::ids::path;
use crate::server_calls::{Server, read};
use crate::show::{self, Shown};
use crate::{columns, ids, shell_completion, term};
use bloom_api::questions::{NewAnswer, Question};
use bloom_api::values::{Id, List};

/// Which question is answered.
#[derive(Args, Debug)]
pub struct Asked {
    /// The task's id
    #[arg(value_name = "ID", add = ArgValueCompleter::new(shell_completion::tasks))]
    id: String,
    /// Only if the run still asks this question: the id that task describe and task logs show
    #[arg(long, value_name = "ID")]
    question: Option<Uuid>,
}

#[derive(Args, Debug)]
pub struct DenyArgs {
    #[command(flatten)]
    asked: Asked,
    /// The reason, which the run gets
    #[arg(short, long, value_name = "TEXT")]
    message: Option<String>,
    /// The same as --message
    #[arg(value_name = "MESSAGE", conflicts_with = "message")]
    why: Option<String>,
}

#[derive(Args, Debug)]
pub struct AnswerArgs {
    #[command(flatten)]
    asked: Asked,
    /// The answer; if the run asks several questions at once, one answer for each, in their order
    #[arg(required = true, value_name = "TEXT")]
    answers: Vec<String>,
}

/// # Errors
/// The run asks nothing, or something else than a permission, or the call failed.
pub(crate) async fn approve(args: Asked, server: &Server, shown: Shown) -> Result<(), CommandError> {
    answer(args, server, shown, "allowed", (true, None, Vec::new())).await
}

/// # Errors
/// The run asks nothing, or the call failed.
pub(crate) async fn deny(args: DenyArgs, server: &Server, shown: Shown) -> Result<(), CommandError> {
    answer(args.asked, server, shown, "denied", (false, args.message.or(args.why), Vec::new())).await
}

/// # Errors
/// The run asks nothing in words, or the call failed.
pub(crate) async fn in_words(args: AnswerArgs, server: &Server, shown: Shown) -> Result<(), CommandError> {
    answer(args.asked, server, shown, "answered", (true, None, args.answers)).await
}

type Given = (bool, Option<String>, Vec<String>);

async fn answer(args: Asked, server: &Server, shown: Shown, verb: &str, (allow, message, answers): Given) -> Result<(), CommandError> {
    let id = ids::task(server, &args.id).await?;
    let failed = |failure: CommandError| failure.about(&args.id);
    // The answer is for this question, unless the command names another one.
    let question: Question = read(&server.get(&path(&id, "/question")).await.map_err(failed)?)?;
    let fits = !allow || answers.len() == question.questions.len();
    let body = NewAnswer {
        question_id: Some(Id(args.question.unwrap_or(question.id))),
        allow,
        message: message.map(Into::into),
        answers: answers.into_iter().collect::<List<_, 0, _>>(),
    };
    // The user may need another command: for example, a question in words can't be approved.
    let refused = |failure: CommandError| match fits {
        true => failed(failure),
        false => failed(CommandError { message: format!("{}: {}", failure.message, advice(&question, &args.id)), ..failure }),
    };
    let task: Value = server.post(&path(&id, "/answer"), &body).await.map_err(refused)?;
    match shown.form() {
        Some(form) => show::one(form, &columns::TASKS, &task),
        None => {
            term::info(&format!("task {id}: {verb}: {} (question {})", term::indented(&told(&question)), question.id));
            Ok(())
        }
    }
}

/// All that is asked: nobody should allow what is not shown.
pub(crate) fn told(question: &Question) -> String {
    let input = question.tool_input();
    let rest = if input.is_cut { " (only the beginning: the rest is too long to be shown)" } else { "" };
    let mut told = question.in_words();
    if told.is_empty() || !input.fields.is_empty() {
        told.push(format!("{} {}{rest}", term::line(&question.tool), input.text()));
    }
    told.join("\n")
}

/// How to answer it, and not another one that the run asks meanwhile.
pub(crate) fn advice(question: &Question, id: &str) -> String {
    let only = format!("--question {}", question.id);
    let deny = format!("or bloom-runtime task deny {id} {only}");
    match question.questions.len() {
        0 => format!("bloom-runtime task approve {id} {only}, {deny} --message WHY"),
        1 => format!("bloom-runtime task answer {id} {only} TEXT, {deny}"),
        texts => format!("bloom-runtime task answer {id} {only} TEXT… (one for each of the {texts} questions), {deny}"),
    }
}
