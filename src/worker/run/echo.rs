//! The echo runner, for trying things out without an account. It prints a stream like the Claude CLI's, with the prompt as the answer.

use std::io::{self, Read, Write};

use serde_json::{Value, json};
use uuid::Uuid;

/// Longer prompts are cut.
const MAX_PROMPT: u64 = 4 << 20;

/// Reads the prompt from standard input and prints the stream of a run that repeats it.
///
/// # Errors
/// Standard input can't be read, or standard output can't be written.
pub(crate) fn run() -> io::Result<()> {
    let mut prompt = String::new();
    io::stdin().lock().take(MAX_PROMPT).read_to_string(&mut prompt)?;
    let wants_json = std::env::var("BLOOM_DESIRED_FORMAT").is_ok_and(|format| format == "json");
    let answer = if wants_json { json!({"echo": prompt.trim()}).to_string() } else { prompt.trim().to_owned() };
    let session = Uuid::now_v7();
    let mut out = io::stdout().lock();
    let mut print = |message: Value| {
        serde_json::to_writer(&mut out, &message)?;
        out.write_all(b"\n")?;
        out.flush()
    };
    print(json!({"type": "system", "subtype": "init", "session_id": session, "model": "echo"}))?;
    let message = json!({
        "id": "echo", "model": "echo", "role": "assistant", "stop_reason": "end_turn",
        "content": [{"type": "text", "text": answer}], "usage": usage(&prompt, &answer),
    });
    print(json!({"type": "assistant", "session_id": session, "parent_tool_use_id": null, "message": message}))?;
    print(json!({
        "type": "result", "subtype": "success", "is_error": false, "result": answer, "session_id": session, "num_turns": 1,
        "total_cost_usd": 0.0, "usage": usage(&prompt, &answer), "permission_denials": [],
    }))
}

/// Counts words instead of tokens.
fn usage(prompt: &str, answer: &str) -> Value {
    let words = |text: &str| text.split_whitespace().count();
    json!({"input_tokens": words(prompt), "output_tokens": words(answer)})
}
