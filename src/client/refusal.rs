//! Why a server, or something in front of it, refuses a call.

use std::time::Duration;

use reqwest::StatusCode;
use reqwest::header::{HeaderMap, LOCATION, RETRY_AFTER};
use serde_json::Value;

use super::Error;

const MAX_ERROR_CHARS: usize = 1000;
/// How many characters of an error answer that is not from the API are repeated.
const MAX_FOREIGN_CHARS: usize = 200;
/// What to check if something other than the server has answered.
pub(crate) const NOT_THE_API: &str = "check the address, and whether the server behind the proxy runs";

pub(crate) const NEEDS_KEY: &str = "the server needs a key: give it with --key-file or BLOOM_KEY";

/// How the refusal of a key begins.
pub const REFUSES_KEY: &str = "the server refuses this key";

/// Whether the server refused the call because its key is wrong, or it has none. A proxy may refuse calls, too.
pub fn is_about_key(error: &Error) -> bool {
    let told = |message: &str| [REFUSES_KEY, NEEDS_KEY].iter().any(|text| message.starts_with(text));
    matches!(error, Error::Refused { status: 401, message, .. } if told(message))
}

/// `has_key`: whether the call was sent with a key.
pub(crate) fn refusal(status: u16, headers: &HeaderMap, body: &[u8], has_key: bool) -> Error {
    let seconds = headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
    let refused = |message, fields| Error::Refused { status, message, retry_after: seconds.map(Duration::from_secs), fields };
    let Some(Told { message, fields }) = told(body) else {
        let location = headers.get(LOCATION).and_then(|url| url.to_str().ok()).filter(|_| (300..400).contains(&status));
        let foreign = location.map_or_else(|| foreign(status, body), |url| moved(status, url));
        // These statuses count even if a proxy sent them. Others, such as 404, count only if they come from the API.
        let is_anybodys = matches!(status, 401 | 403 | 408 | 413 | 429 | 500..);
        return if is_anybodys { refused(foreign, Vec::new()) } else { Error::Garbled(foreign) };
    };
    let message = match (status, message) {
        (401, _) if has_key => {
            format!("{REFUSES_KEY}: it is wrong, was revoked or has expired; give another one with --key-file or BLOOM_KEY")
        }
        (401, _) => NEEDS_KEY.to_owned(),
        (404, message) if message == "Not found" => {
            "Not found: the server does not know this path. Its address must be that of its root, such as http://127.0.0.1:5000, without \
             /api; or the server is older than this program"
                .to_owned()
        }
        // The server names the setting.
        (413, message) if message.contains("the server's limit") => format!("{message}; send less, or raise this limit"),
        (413, message) => format!("{message}; send less, or raise the server's MAX_BODY_BYTES"),
        // This is not the rate limit, which each answer reports in its headers.
        (429, message) if message.starts_with("The quota of this key") => message,
        (429, message) => match headers.get("ratelimit-limit").and_then(|limit| limit.to_str().ok()) {
            Some(limit) => {
                format!(
                    "{message} (the server allows {limit} calls a minute: RATE_LIMIT_PER_MINUTE, for workers WORKER_RATE_LIMIT_PER_MINUTE)"
                )
            }
            None => message,
        },
        (_, message) if message.trim().is_empty() => format!("the server answered {status}"),
        (_, message) => message,
    };
    refused(message, fields)
}

/// The text of an error answer that does not come from the API. A page of HTML is not repeated.
fn foreign(status: u16, body: &[u8]) -> String {
    let name = StatusCode::from_u16(status).ok().and_then(|status| status.canonical_reason()).unwrap_or_default();
    let answer = format!("{status} {name}").trim_end().to_owned();
    let text = String::from_utf8_lossy(body);
    let first = text.trim().lines().next().filter(|line| !line.starts_with(['<', '{', '[']));
    let words: String = first.map(|line| format!(" ({line})").chars().take(MAX_FOREIGN_CHARS).collect()).unwrap_or_default();
    let advice = match status {
        401 | 403 | 407 => "something before the server, such as a proxy, refuses the call",
        413 => "something before the server, such as a proxy, takes no request of this size: send less, or raise its limit",
        _ => NOT_THE_API,
    };
    format!("the answer {answer} is not from this API{words}: {advice}")
}

/// The text for a redirect. Calls do not follow it, because they would send the key along.
fn moved(status: u16, url: &str) -> String {
    let url: String = url.chars().take(MAX_FOREIGN_CHARS).collect();
    format!("the address leads to another one ({status}): {url}. Give that of the server there, such as https:// instead of http://")
}

/// What an error answer of the API says.
struct Told {
    message: String,
    fields: Vec<(String, String)>,
}

/// The text of `{"error": "text"}`, or the texts of `{"error": {"formErrors", "fieldErrors"}}` in one line. `None`: the body is no error of
/// the API.
fn told(body: &[u8]) -> Option<Told> {
    let value: Value = serde_json::from_slice(body).ok()?;
    let (message, fields) = match value.get("error")? {
        Value::String(text) => (text.clone(), Vec::new()),
        wrong => {
            let form = wrong["formErrors"].as_array().into_iter().flatten().filter_map(|text| text.as_str().map(str::to_owned));
            let fields = wrong["fieldErrors"].as_object().into_iter().flatten().flat_map(|(field, texts)| {
                texts.as_array().into_iter().flatten().filter_map(move |text| Some((field.clone(), text.as_str()?.to_owned())))
            });
            let fields: Vec<(String, String)> = fields.collect();
            let lines = fields.iter().map(|(field, text)| format!("{field}: {text}"));
            (form.chain(lines).collect::<Vec<_>>().join("; "), fields)
        }
    };
    Some(Told { message: message.chars().take(MAX_ERROR_CHARS).collect(), fields })
}

#[cfg(test)]
mod tests {
    use super::super::Answer;
    use super::*;
    use reqwest::header::{HeaderName, HeaderValue};

    #[test]
    fn a_limit_is_told_by_the_name_of_its_setting() {
        let headers = HeaderMap::from_iter([(HeaderName::from_static("ratelimit-limit"), HeaderValue::from_static("100"))]);
        let told = refusal(429, &headers, br#"{"error": "Too many requests"}"#, false).to_string();
        assert!(told.starts_with("Too many requests (the server allows 100 calls a minute: RATE_LIMIT_PER_MINUTE"), "{told}");
    }

    #[test]
    fn a_body_that_is_too_large_is_told_with_what_to_do() {
        let told = |body: &str| refusal(413, &HeaderMap::new(), body.as_bytes(), false).to_string();
        let own = told(r#"{"error": "Request body is too large: at most 1048576 bytes are taken"}"#);
        assert!(own.contains("at most 1048576 bytes are taken; send less, or raise the server's MAX_BODY_BYTES"), "{own}");
        let foreign = told("<html>");
        assert!(foreign.contains("a proxy, takes no request of this size") && !foreign.contains("MAX_BODY_BYTES"), "{foreign}");
    }

    #[test]
    fn refusals_are_told_in_one_line() {
        let told = |status: u16, body: &str| refusal(status, &HeaderMap::new(), body.as_bytes(), false).to_string();
        assert_eq!(told(400, r#"{"error": "Task not found"}"#), "Task not found");
        let wrong = r#"{"error": {"formErrors": ["a"], "fieldErrors": {"prompt": ["Required", "b"]}}}"#;
        assert_eq!(told(400, wrong), "a; prompt: Required; prompt: b");
        assert_eq!(told(403, r#"{"error": "This key has the scope read"}"#), "This key has the scope read");
        assert_eq!(told(409, r#"{"error": ""}"#), "the server answered 409");
        assert!(told(404, r#"{"error": "Not found"}"#).contains("of its root"));
        let Error::Refused { fields, .. } = refusal(400, &HeaderMap::new(), wrong.as_bytes(), false) else { panic!("it is refused") };
        assert_eq!(fields, [("prompt".into(), "Required".into()), ("prompt".into(), "b".into())]);
    }

    #[test]
    fn only_the_api_can_say_that_something_is_not_there() {
        let refused = |status: u16, body: &str| refusal(status, &HeaderMap::new(), body.as_bytes(), false).status();
        assert_eq!(refused(404, r#"{"error": "Task not found"}"#), Some(404));
        assert_eq!(refused(404, "<html>default backend</html>"), None);
        assert_eq!(refused(302, ""), None);
        assert_eq!(refused(502, "<html>Bad Gateway</html>"), Some(502));
    }

    #[test]
    fn what_a_proxy_says_is_not_taken_for_the_server() {
        let told = |status: u16, body: &str| refusal(status, &HeaderMap::new(), body.as_bytes(), false).to_string();
        let page = "<html>\n<h1>Forbidden</h1></html>";
        assert_eq!(
            told(403, page),
            "the answer 403 Forbidden is not from this API: something before the server, such as a proxy, refuses the call"
        );
        assert!(told(401, page).contains("such as a proxy") && !told(401, page).contains("BLOOM_KEY"));
        let elsewhere = HeaderMap::from_iter([(LOCATION, HeaderValue::from_static("https://bloom.example/api"))]);
        assert!(refusal(308, &elsewhere, b"<html>", true).to_string().contains("another one (308): https://bloom.example/api. Give"));
        assert!(told(502, "no healthy upstream").contains("502 Bad Gateway is not from this API (no healthy upstream): check"));
        let answer = Answer { status: 200, body: b"<!doctype html>".to_vec(), next: None, server: "http://h".to_owned() };
        let told = answer.json::<Value>().unwrap_err().to_string();
        assert!(
            told.starts_with("http://h is not a bloom-runtime server") && told.contains("(it is not JSON): check the address"),
            "{told}"
        );
    }
}
