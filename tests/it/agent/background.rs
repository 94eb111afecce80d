//! Runs of the real CLI that go on after an answer: with tasks in the background, and with turns that follow.

use super::claude::with;
use super::*;
use crate::support::claude::is_oldest;

const BASH: &str = "allowed_tools = [\"Bash\"]";

/// A command in the background, an answer, and another answer when the command has ended.
fn build(command: &str, then: &str) -> String {
    let call = json!({"command": command, "description": "the build", "run_in_background": true});
    format!("CALL: Bash {call}\nSAY: on its way\n{then}\n")
}

/// Waits until the run has answered for the first time.
async fn has_answered(task: &Task<'_>) {
    eventually("the first answer", || async { told(task, "usage").await.pop() }).await;
}

fn warning(result: &Value) -> &str {
    result["warnings"][0].as_str().unwrap_or_default()
}

#[test]
fn a_run_ends_when_nothing_is_left_to_do() {
    with(BASH, async |server, _, _| {
        // Longer than a process may go on that has nothing to do.
        let outputs = if is_oldest() { json!([]) } else { json!(["late"]) };
        let prompt = build("sleep 13; echo built > late", "THEN: built");
        let task = server.crew().task().prompt(&prompt).with("outputs", outputs).create().await;
        task.reaches("completed").await;
        let result = result(&task).await;
        if is_oldest() {
            // This version ends what is in the background by itself.
            assert_eq!(result["output"], json!("on its way"));
            assert!(warning(&result).contains("in the background: the build"), "{result}");
        } else {
            assert_eq!((&result["output"], &result["warnings"]), (&json!("on its way\n\nbuilt"), &json!([])), "{result}");
            let files = server.get(&format!("artifacts?task_id={}&type=OUTPUT", task.id)).await.ok();
            assert!(files.as_array().unwrap().iter().any(|file| file["name"] == json!("late")), "{files}");
        }
    });
}

#[test]
fn what_lives_for_ever_in_the_background_is_cut_off() {
    with(&format!("background_seconds = 1\n{BASH}"), async |server, _, _| {
        let task = server.crew().task().prompt(&build("while true; do sleep 1; done", "")).create().await;
        task.reaches("completed").await;
        let result = result(&task).await;
        assert_eq!(result["output"], json!("on its way"));
        assert!(warning(&result).contains("the run was ended while it still worked (in the background: the build)"), "{result}");
    });
}

#[test]
fn a_profile_forbids_background_tasks() {
    with(&format!("background = false\n{BASH}"), async |server, api, _| {
        let task = server.crew().task().prompt(&build("true", "")).create().await;
        task.reaches("completed").await;
        let tools = api.seen_with("on its way")[0]["tools"].clone();
        let bash = tools.as_array().unwrap().iter().find(|tool| tool["name"] == json!("Bash")).expect("the tool");
        let arguments = bash["input_schema"]["properties"].as_object().unwrap();
        assert!(arguments.contains_key("command") && !arguments.contains_key("run_in_background"), "{arguments:?}");
    });
}

#[test]
fn a_run_that_still_works_is_cancelled() {
    with(BASH, async |server, _, _| {
        let task = server.crew().task().prompt(&build("while true; do sleep 1; done", "")).create().await;
        has_answered(&task).await;
        task.cancel().await.ok();
        let cancelled = task.reaches("cancelled").await;
        assert_eq!(cancelled["failure"]["reason"], json!("cancelled"), "{cancelled}");
    });
}

#[test]
fn an_answer_stays_one_when_a_later_turn_fails() {
    with(BASH, async |server, _, _| {
        let task = server.crew().task().prompt(&build("true", "THEN-REFUSED")).create().await;
        let done = task.reaches("completed").await;
        assert_eq!(done["attempts"], json!(1));
        let result = result(&task).await;
        assert_eq!(result["output"], json!("on its way"));
        assert!(warning(&result).starts_with("a turn after this answer failed: ") && warning(&result).contains("history"), "{result}");
    });
}

#[test]
fn of_several_answers_the_last_that_is_json_is_taken() {
    with(BASH, async |server, _, _| {
        let prompt = build("true", "THEN: Noted.").replace("on its way", "{\"a\": 1}");
        let task = server.crew().task().with("desired_format", json!("json")).prompt(&prompt).create().await;
        task.reaches("completed").await;
        assert_eq!(result(&task).await["output"], json!("{\"a\": 1}"));
    });
}

#[test]
fn a_person_is_asked_in_a_later_turn() {
    with(&format!("ask_human = true\n{BASH}"), async |server, _, _| {
        let task = server.crew().task().prompt(&build("true", "THEN-ASKS THEN: x")).create().await;
        let question = task.asks().await;
        task.answered(json!({"question_id": question["id"], "allow": true, "answers": ["red", "big"]})).await;
        task.reaches("completed").await;
        assert!(told(&task, "answer").await[0]["allow"] == json!(true));
    });
}
