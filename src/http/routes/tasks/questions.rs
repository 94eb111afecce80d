//! Questions of runs: workers ask, people answer.

use axum::extract::State;

use crate::AppState;
use crate::identity::ownership;
use crate::identity::policy::{Rate, RoutePolicy};
use crate::messages::answer::{HandlerResult, ok};
use crate::messages::error::Error;
use crate::messages::error_precedence;
use crate::messages::path_ids::TaskPath;
use crate::messages::request_body::Content;
use crate::middleware::Caller;
use crate::routes::tasks::lifecycle::show_reply;
use bloom_api::error::ErrorText;
use bloom_api::questions::{Answer, Ask, Asked, NewAnswer, Question};
use bloom_api::tasks::Task;
use bloom_api::wire::Wire;
use bloom_core::reply;

pub(crate) const ASK: RoutePolicy = RoutePolicy::WORKER.rate(Rate::Events);

/// Asks a person a question for the run of a task.
///
/// A run asks one question at a time: a call with another `id` ends the previous question, which can't be asked again. Repeating the call
/// changes nothing; it returns the answer as soon as there is one, which `directives.answered` of claims and heartbeats announces. A call
/// without `question` ends the question with this `id`, and returns its answer if there was one. While a person is asked, the time limit of
/// the run is suspended, for at most one day in total.
#[utoipa::path(
    post, path = "/api/runtime/llm-tasks/{id}/question", operation_id = "askQuestion", tag = "questions",
    params(("id" = String, Path)), request_body = Ask,
    responses(
        (status = 200, description = "The answer, if there is one.", body = Asked),
        (status = 404, description = "The task does not exist, or has no active lease.", body = ErrorText),
        (status = 409, description = "Another lease holds the task.", body = ErrorText),
    )
)]
pub(crate) async fn ask(State(app): State<AppState>, caller: Caller, path: TaskPath, body: Content) -> HandlerResult {
    let raw = body.raw()?;
    let asked = match Ask::read(raw) {
        Ok(asked) => asked,
        Err(wrong) => return Err(app.most_important_error(&path, error_precedence::Ask::Question, raw, wrong.into()).await),
    };
    ownership::lease(&app, &caller, path.known(), asked.lease_id.0).await?;
    let reply::Asked { answer, is_over } = app.engine.writers.submit(caller.command(asked.into_op(path.id()?))).await?;
    ok(&Asked { answer: answer.as_ref().map(Answer::from), over: is_over })
}

pub(crate) const GET: RoutePolicy = RoutePolicy::READ.or_submit();

/// Shows the question that the run of a task asks a person.
///
/// The question is available until the worker has fetched the answer or the run has ended.
#[utoipa::path(
    get, path = "/api/runtime/llm-tasks/{id}/question", operation_id = "getQuestion", tag = "questions", params(("id" = String, Path)),
    responses(
        (status = 200, description = "The question.", body = Question),
        (status = 404, description = "The task does not exist, or its run asks nothing now.", body = ErrorText),
    )
)]
pub(crate) async fn get(State(app): State<AppState>, path: TaskPath) -> HandlerResult {
    let id = path.id()?;
    let state = app.store.task_states(&[id]).await?.into_iter().next().ok_or(Error::TASK_NOT_FOUND)?;
    let question = state.open_question().ok_or(Error::fixed(404, "The task's run asks nothing now"))?;
    ok(&Question::new(id, question).map_err(|error| Error::Internal(format!("the question of task {id}: {error}")))?)
}

pub(crate) const ANSWER: RoutePolicy = RoutePolicy::ADMIN.or_submit();

/// Answers the question that the run of a task asks.
///
/// The worker gets the answer at once, and the run goes on. A question can be answered only once.
#[utoipa::path(
    post, path = "/api/runtime/llm-tasks/{id}/answer", operation_id = "answerQuestion", tag = "questions",
    params(("id" = String, Path)), request_body = NewAnswer,
    responses(
        (status = 200, description = "The task.", body = Task),
        (status = 404, description = "Task not found.", body = ErrorText),
        (status = 409, description = "The run asks nothing or asks another question, or the question was already answered, or its time limit is over.", body = ErrorText),
    )
)]
pub(crate) async fn answer(State(app): State<AppState>, caller: Caller, path: TaskPath, body: Content) -> HandlerResult {
    let answer = body.read::<NewAnswer>()?;
    let task = path.id()?;
    show_reply(&app, &caller, task, answer.into_op(task)).await
}
