//! What is read from lines of the stream.

use super::*;

fn read(lines: &[Value]) -> (Reading, Vec<Found>) {
    let (mut reading, mut found) = (Reading::new(false, Prices::default()), Vec::new());
    lines.iter().for_each(|line| reading.line(&line.to_string(), &mut found));
    (reading, found)
}

fn texts(found: &[Found]) -> Vec<&str> {
    found.iter().filter(|(kind, _)| *kind == EventKind::Text).filter_map(|(_, data)| data["text"].as_str()).collect()
}

fn delta(text: &str) -> Value {
    json!({"type": "stream_event", "parent_tool_use_id": null, "event": {"type": "content_block_delta", "delta": {"type": "text_delta", "text": text}}})
}

#[test]
fn text_that_came_in_pieces_is_not_told_twice() {
    let whole = json!({"type": "assistant", "message": {"id": "1", "content": [{"type": "text", "text": "ab"}], "stop_reason": null}});
    assert_eq!(texts(&read(&[delta("a"), delta("b"), whole.clone()]).1), ["ab"]);
    assert_eq!(texts(&read(&[whole]).1), ["ab"], "a stream without partial messages");
}

#[test]
fn an_allowed_rate_limit_event_is_no_error() {
    let event = |status: &str| json!({"type": "rate_limit_event", "rate_limit_info": {"status": status, "resetsAt": 1_800_000_000}});
    let (reading, found) = read(&[event("allowed"), event("allowed_warning")]);
    assert_eq!((reading.api_error, reading.resets_at, found.len()), (None, None, 2));
    let (reading, _) = read(&[event("rejected")]);
    assert_eq!(reading.resets_at, Some(1_800_000_000_000));
    for at in [1.8e9, 1.8e12, 1.8e15, 1.8e18] {
        assert_eq!(milliseconds(at), 1_800_000_000_000, "{at}");
    }
}

#[test]
fn usage_of_a_run_without_a_result_is_that_of_its_messages_and_sub_agents() {
    let usage = |output: u64| json!({"input_tokens": 10, "cache_read_input_tokens": 5, "output_tokens": output});
    let message = |id: &str, output: u64, parent: Value| json!({"type": "assistant", "parent_tool_use_id": parent, "message": {"id": id, "usage": usage(output)}});
    let started = json!({"type": "stream_event", "parent_tool_use_id": null, "event": {"type": "message_start", "message": {"id": "3", "usage": usage(1)}}});
    let result = json!({"type": "user", "tool_use_result": {"usage": usage(20)}, "message": {"content": [{"type": "tool_result", "tool_use_id": "t"}]}});
    let init = json!({"type": "system", "subtype": "init", "model": "claude-sonnet-5"});
    let own = [init, message("1", 1, Value::Null), message("1", 7, Value::Null), started];
    let (reading, _) = read(&own);
    let Usage { input_tokens, output_tokens, cost_usd, cost_estimated } = reading.usage().unwrap();
    assert_eq!((input_tokens, output_tokens, (cost_usd * 1e9).round(), cost_estimated), (30, 8, 122_000.0, true));
    let (reading, _) = read(&[&own[..], &[message("2", 2, json!("t")), result]].concat());
    let all = reading.usage().unwrap();
    assert_eq!((all.input_tokens, all.output_tokens), (60, 30), "a sub-agent's messages are its own, and its result is its last one");
}

#[test]
fn the_event_of_usage_tells_what_the_run_used() {
    let ended = |more: Value| {
        let mut ended = json!({"type": "result", "subtype": "success", "result": "", "usage": {"input_tokens": 1, "output_tokens": 1}});
        ended.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        read(&[json!({"type": "system", "subtype": "init", "model": "claude-haiku-4-5"}), ended]).1.pop().unwrap().1
    };
    assert_eq!(
        ended(json!({"total_cost_usd": 0.5, "modelUsage": {"m": {"inputTokens": 3, "outputTokens": 2}}})),
        json!({
            "input_tokens": 3, "output_tokens": 2, "cost_usd": 0.5, "turns": null, "duration_ms": null,
        })
    );
    assert_eq!(ended(json!({}))["cost_estimated"], json!(true));
}

#[test]
fn garbage_is_kept_to_be_shown() {
    let (mut reading, mut found) = (Reading::new(false, Prices::default()), Vec::new());
    for line in ["", "Segmentation fault", "[1]", "{\"type\":\"new\"}"] {
        reading.line(line, &mut found);
    }
    assert_eq!(reading.odd, "Segmentation fault\n[1]\n");
}

#[test]
fn what_the_cli_tells_beside_the_conversation_is_an_event_and_what_changes_the_answer_a_warning() {
    let system = |subtype: &str, more: Value| {
        let mut message = json!({"type": "system", "subtype": subtype});
        message.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        message
    };
    let (reading, found) = read(&[
        system("informational", json!({"content": "continuing once", "level": "notice"})),
        system("notification", json!({"key": "k", "text": "two files of settings", "color": "warning"})),
        system("informational", json!({"content": "stopped by a Stop hook", "level": "info", "prevent_continuation": true})),
        system("model_refusal_fallback", json!({"original_model": "opus", "fallback_model": "haiku", "content": "flagged"})),
        system("session_writes_lost", json!({"error_code": "ENOSPC", "lost": ["transcript"]})),
        system(
            "hook_response",
            json!({"hook_name": "SessionStart:startup", "exit_code": 3, "stderr": "no such file\n", "outcome": "error"}),
        ),
        system("hook_response", json!({"hook_name": "SessionStart:startup", "exit_code": 0, "outcome": "success"})),
        system("compact_boundary", json!({"compact_metadata": {"trigger": "auto", "pre_tokens": 160_000}})),
        system("code_change_published", json!({"action": "created", "url": "https://example.com/pull/1"})),
        system("informational", json!({"content": 7})),
    ]);
    let events: Vec<_> =
        found.iter().map(|(kind, data)| (*kind == EventKind::Log && data["stream"] == "cli", data["text"].as_str().unwrap())).collect();
    let warnings = [
        "two files of settings",
        "stopped by a Stop hook",
        "the model haiku answered instead of opus: flagged",
        "the disk was full (ENOSPC): a later run of this context may not know all of this conversation",
        "the hook SessionStart:startup failed with exit status 3: no such file",
    ];
    let told = ["the conversation was compacted; it had 160000 tokens", "created https://example.com/pull/1"];
    let all: Vec<_> = ["continuing once"].iter().chain(&warnings).chain(&told).map(|text| (true, *text)).collect();
    assert_eq!(events, all);
    assert_eq!(reading.warnings.texts(), warnings);
}
