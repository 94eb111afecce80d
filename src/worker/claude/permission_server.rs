//! The server of the Claude CLI's permission tool. The CLI starts it and asks it for permissions over the Model Context Protocol. The
//! server passes each question to the agent through files, and waits for the answer. It has no key, and knows nothing but the directory of
//! these files.

use std::io::{self, BufRead, Read, Write};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::run::question_files::{MAX_QUESTION, Question, QuestionDir, TOOL};

/// The interval at which the server checks for the answer.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// The version of the protocol, for clients that name none.
const PROTOCOL: &str = "2025-06-18";
const METHOD_NOT_FOUND: i64 = -32601;

/// Serves the CLI until it closes standard input. The argument is the run's directory.
///
/// # Errors
/// Standard input can't be read, or standard output can't be written.
pub(crate) fn run() -> io::Result<()> {
    let dir = QuestionDir::of_run(std::env::args_os().nth(2).unwrap_or_default().as_ref());
    let mut input = io::stdin().lock();
    let mut line = Vec::new();
    loop {
        line.clear();
        let read = (&mut input).take(MAX_QUESTION).read_until(b'\n', &mut line)?;
        if read == 0 {
            return Ok(());
        }
        if !line.ends_with(b"\n") && read as u64 == MAX_QUESTION {
            return Err(io::Error::other("a message of the CLI is too long for a question to a person"));
        }
        let Ok(message) = serde_json::from_slice::<Value>(&line) else { continue };
        // Notifications have no id and get no answer.
        let Some(id) = message.get("id") else { continue };
        let mut answer = json!({"jsonrpc": "2.0", "id": id});
        match result(&dir, message["method"].as_str().unwrap_or_default(), &message["params"])? {
            Some(result) => answer["result"] = result,
            None => answer["error"] = json!({"code": METHOD_NOT_FOUND, "message": "there is no such method"}),
        }
        let mut out = io::stdout().lock();
        serde_json::to_writer(&mut out, &answer)?;
        out.write_all(b"\n")?;
        out.flush()?;
    }
}

/// The result of a method call; `None`: there is no such method.
fn result(dir: &QuestionDir, method: &str, params: &Value) -> io::Result<Option<Value>> {
    Ok(Some(match method {
        "initialize" => json!({
            "protocolVersion": params["protocolVersion"].as_str().unwrap_or(PROTOCOL), "capabilities": {"tools": {}},
            "serverInfo": {"name": "bloom-runtime", "version": env!("CARGO_PKG_VERSION")},
        }),
        "ping" => json!({}),
        "tools/list" => json!({"tools": [{
            "name": TOOL, "description": "Asks a person whether a tool may be used",
            "inputSchema": {"type": "object", "properties": {"tool_name": {"type": "string"}, "input": {"type": "object"}}},
        }]}),
        "tools/call" => {
            let asked = &params["arguments"];
            let tool = asked["tool_name"].as_str().unwrap_or_default().to_owned();
            let decision = decision(dir, &Question { id: Uuid::now_v7(), tool, input: asked["input"].clone() })?;
            json!({"content": [{"type": "text", "text": decision.to_string()}]})
        }
        _ => return Ok(None),
    }))
}

/// The decision about a question, in the CLI's format.
fn decision(dir: &QuestionDir, question: &Question) -> io::Result<Value> {
    let denied = |message: &str| json!({"behavior": "deny", "message": message});
    if let Err(error) = dir.ask(question) {
        return Ok(denied(&format!("A person can't be asked: {error}")));
    }
    let reply = loop {
        if let Some(reply) = dir.reply_to(question.id) {
            break reply;
        }
        wait()?;
    };
    dir.withdraw();
    if reply.question != *question {
        return Ok(denied("The question was changed after it had been asked"));
    }
    Ok(if reply.allow {
        json!({"behavior": "allow", "updatedInput": question.answered_input(&reply.answers)})
    } else {
        denied(reply.message.as_deref().filter(|message| !message.is_empty()).unwrap_or("A person has denied this"))
    })
}

/// # Errors
/// The CLI has closed the connection.
fn wait() -> io::Result<()> {
    let stdin = io::stdin();
    let limit = Timespec { tv_sec: 0, tv_nsec: LOOK_EVERY.subsec_nanos().into() };
    // Without requested events, `poll` only reports that the other side has closed the pipe.
    let mut sources = [PollFd::new(&stdin, PollFlags::empty())];
    match poll(&mut sources, Some(&limit)) {
        Ok(0) | Err(rustix::io::Errno::INTR) => Ok(()),
        Ok(_) => Err(io::ErrorKind::UnexpectedEof.into()),
        Err(error) => Err(error.into()),
    }
}
