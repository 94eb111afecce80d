//! The events of runs for people, grouped by attempt. Long events can be unfolded.

use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::Value;
use uuid::Uuid;

use super::attempts::Attempt;
use crate::files::size;
use crate::html::Html;
use crate::json;
use crate::lang::Lang;
use crate::times::{duration, shortened, used};
use bloom_api::answers::Event;
use bloom_api::phases::Phase;
use bloom_api::tool_calls;
use bloom_api::usage::Usage;
use bloom_api::words::Word;
use bloom_core::Ms;
use bloom_core::event::EventKind;

/// The limits of the part of an event that is always visible.
const CHARS: usize = 400;
const LINES: usize = 4;
/// How many characters can be unfolded: for one event, and for all events of a page together. The event's own page has the whole text.
const MORE_CHARS: usize = 6_000;
const ALL_CHARS: usize = 24_000;
/// JSON that is shorter needs no folds.
const SHORT_JSON: usize = 100;

pub(crate) struct Shown {
    pub number: i64,
    pub lease_id: Uuid,
    pub kind: String,
    pub at: Ms,
    pub text: String,
    pub more: Option<Html>,
    /// Whether neither `text` nor `more` contains all of the event.
    pub is_cut: bool,
}

/// Consecutive events of one attempt.
pub(crate) struct Group<'a> {
    pub attempt: Option<&'a Attempt>,
    /// The number of the attempt, which is the target of links; `None` also if an earlier group is the target already.
    pub anchor: Option<usize>,
    pub events: Vec<Shown>,
}

/// How many characters the folds of a page may still use.
pub(crate) struct Room(AtomicUsize);

impl Room {
    pub(crate) fn new() -> Self {
        Self(AtomicUsize::new(ALL_CHARS))
    }

    fn take(&self, chars: usize) -> bool {
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(chars)).is_ok()
    }
}

impl Shown {
    pub(crate) fn of(lang: Lang, event: Event<'_>, room: &Room) -> Self {
        let data: Value = serde_json::from_str(event.data.get()).unwrap_or_default();
        let in_a_sentence = match event.kind {
            Word::Known(EventKind::Lifecycle) => Phase::of(&data).map(|phase| sentence(lang, phase)),
            Word::Known(EventKind::Usage) => spent(lang, &data),
            _ => None,
        };
        let (whole, value) = match in_a_sentence {
            Some(sentence) => (sentence, None),
            None => {
                let (text, value) = told(&data);
                (said(lang, &event, text), value)
            }
        };
        // For a tool call, the most informative part of its input is shown; the rest can be unfolded.
        let name = data["name"].as_str().filter(|name| whole == format!("{name} {}", data["input"]));
        let call = name.map(|name| tool_calls::told(name, &data["input"]));
        let telling = call.as_deref().unwrap_or(&whole);
        let first: Vec<_> = telling.lines().take(LINES).collect();
        let text = shortened(&first.join("\n"), CHARS);
        let hides = call.is_some() && data["input"].as_object().is_some_and(|input| input.len() > 1);
        let has_more = hides || text != telling;
        let folds = value.filter(|value| has_more || value.to_string().len() > SHORT_JSON);
        let (more, is_cut) = match folds {
            _ if folds.is_none() && !has_more => (None, false),
            _ if !room.take(whole.chars().count().min(MORE_CHARS)) => (None, true),
            Some(value) if whole.len() <= MORE_CHARS => (json::folds(&value), false),
            _ => {
                let (mut more, shown) = (Html::default(), shortened(&whole, MORE_CHARS));
                more.tag("<pre tabindex=\"0\">");
                more.text(&shown);
                more.tag("</pre>");
                (Some(more), shown.len() != whole.len())
            }
        };
        Self { number: event.number, lease_id: event.lease_id, kind: event.kind.to_string(), at: event.at, text, more, is_cut }
    }
}

/// The English texts that agents send for most runs with a project and for answers, by the kind of the event. A name follows a text that
/// ends with a space.
const SAID: [(EventKind, &str, &str); 9] = [
    (EventKind::Lifecycle, "fetches ", "отримує репозиторій проєкту "),
    (
        EventKind::Lifecycle,
        "goes on where the last run of the context left it",
        "продовжує з того місця, де закінчив останній запуск контексту",
    ),
    (EventKind::Lifecycle, "committed ", "створено коміт "),
    (EventKind::Lifecycle, "pushed ", "надіслано "),
    (EventKind::Lifecycle, "nothing to push: the project's repository has ", "немає чого надсилати, репозиторій проєкту має "),
    (EventKind::Lifecycle, "files kept: ", "збережено файлів: "),
    (EventKind::Answer, "allowed", "дозволено"),
    (EventKind::Answer, "denied", "відмовлено"),
    (EventKind::Answer, "denied: ", "відмовлено: "),
];

/// The text of an event in the language of the page, if it is one of the texts in `SAID`; any other text stays unchanged.
fn said(lang: Lang, event: &Event<'_>, text: String) -> String {
    let told = SAID.iter().filter(|(kind, ..)| event.kind == *kind).find_map(|(_, english, ukrainian)| {
        let rest = text.strip_prefix(english)?;
        (rest.is_empty() || english.ends_with(' ')).then(|| format!("{ukrainian}{rest}"))
    });
    match told {
        Some(told) => lang.t(text, told),
        None => text,
    }
}

/// A phase of a run in words, as `task logs` shows it, too.
fn sentence(lang: Lang, phase: Phase<'_>) -> String {
    match phase {
        Phase::Started { resumed, worker, profile } => {
            let by = match profile {
                "" => String::new(),
                _ => lang.t(format!(", by the profile {profile}"), format!(", за профілем {profile}")),
            };
            match resumed {
                true => lang.t(
                    format!("the run goes on with its conversation, on worker {worker}{by}"),
                    format!("запуск продовжує свою розмову на воркері {worker}{by}"),
                ),
                false => lang.t(format!("the run begins on worker {worker}{by}"), format!("запуск починається на воркері {worker}{by}")),
            }
        }
        Phase::Session("") => lang.t("the session begins", "сеанс починається").to_owned(),
        Phase::Session(model) => lang.t(format!("the model is {model}"), format!("модель — {model}")),
        Phase::Stopping(why) => {
            let why = lang.word(why);
            lang.t(format!("the run is stopped: {why}"), format!("запуск спиняють: {why}"))
        }
        Phase::Ended(None) => lang.t("the run ends", "запуск закінчується").to_owned(),
        Phase::Ended(Some(ms)) => {
            let span = duration(lang, ms);
            lang.t(format!("the run ends after {span}"), format!("запуск закінчується; він тривав {span}"))
        }
        Phase::Egress(bytes) => {
            let moved = size(lang, bytes);
            lang.t(format!("the run moved {moved} over the network"), format!("запуск передав мережею {moved}"))
        }
    }
}

/// The usage of a run so far, in the form of the task's page; `None` if the event does not have all the fields.
fn spent(lang: Lang, data: &Value) -> Option<String> {
    let usage: Usage = serde_json::from_value(data.clone()).ok()?;
    let told = used(lang, &usage);
    Some(match data["duration_ms"].as_i64() {
        Some(ms) => {
            let span = duration(lang, ms);
            lang.t(format!("{told}, in {span}"), format!("{told}, за {span}"))
        }
        None => told,
    })
}

pub(crate) fn grouped(events: Vec<Shown>, attempts: &[Attempt]) -> Vec<Group<'_>> {
    let mut groups: Vec<Group<'_>> = Vec::new();
    for event in events {
        match groups.last_mut() {
            Some(group) if group.events.iter().all(|other| other.lease_id == event.lease_id) => group.events.push(event),
            _ => {
                let attempt = attempts.iter().find(|attempt| attempt.lease_id == event.lease_id);
                let number = attempt.and_then(|attempt| attempt.number);
                let anchor = number.filter(|number| groups.iter().all(|group| group.anchor != Some(*number)));
                groups.push(Group { attempt, anchor, events: vec![event] });
            }
        }
    }
    groups
}

/// The words of an event: its text, or the tool and its input, or its fields; and the JSON value in it, if there is one.
pub(crate) fn told(data: &Value) -> (String, Option<Value>) {
    let is_tree = |value: &Value| value.is_object() || value.is_array();
    let words = ["text", "message", "content"].iter().find_map(|name| data[name].as_str());
    let blocks = data["content"].as_array().filter(|blocks| !blocks.is_empty() && blocks.iter().all(|block| block["text"].is_string()));
    let of_blocks = blocks.map(|blocks| blocks.iter().filter_map(|block| block["text"].as_str()).collect::<Vec<_>>().join("\n"));
    let text = data.as_str().or(words).map(str::to_owned).or(of_blocks);
    match (text, data["name"].as_str(), data.as_object()) {
        (Some(text), ..) => {
            let value = serde_json::from_str(&text).ok().filter(is_tree);
            (text.trim().to_owned(), value)
        }
        (_, Some(name), _) => (format!("{name} {}", data["input"]), Some(data["input"].clone()).filter(is_tree)),
        (.., Some(members)) => {
            let shown = members.iter().filter(|(_, value)| !value.is_null());
            let pairs = shown.map(|(name, value)| match value {
                Value::String(text) => format!("{name}: {text}"),
                other => format!("{name}: {other}"),
            });
            (pairs.collect::<Vec<_>>().join(", "), None)
        }
        _ => (data.to_string(), None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn events_are_told_in_words() {
        let check = |data: Value, expected: &str, value: Option<Value>| assert_eq!(told(&data), (expected.to_owned(), value));
        check(json!({ "text": " a\nb " }), "a\nb", None);
        check(json!({ "name": "Bash", "input": { "command": "ls" } }), "Bash {\"command\":\"ls\"}", Some(json!({ "command": "ls" })));
        check(json!({ "phase": "ended", "exit": null, "ms": 5 }), "phase: ended, ms: 5", None);
        check(json!({ "content": [{ "type": "text", "text": "a" }, { "type": "text", "text": "b" }] }), "a\nb", None);
        check(json!({ "content": "[1]" }), "[1]", Some(json!([1])));
    }

    #[test]
    fn what_a_run_has_used_is_told_in_a_sentence() {
        let data = json!({ "input_tokens": 2_400, "output_tokens": 700, "cost_usd": 0.0236, "turns": null, "duration_ms": 791 });
        assert_eq!(spent(Lang::English, &data).unwrap(), "$0.0236 for 2400 tokens in, 700 out, in 791 ms");
        assert_eq!(spent(Lang::Ukrainian, &data).unwrap(), "0,0236\u{a0}$; токенів: вхідних 2400, вихідних 700, за 791 мс");
        assert_eq!(spent(Lang::English, &json!({ "input_tokens": 5 })), None);
    }

    #[test]
    fn what_agents_say_of_a_repository_is_translated() {
        let shown = |lang: Lang, kind: &str, text: &str| {
            let event = json!({
                "task_id": Uuid::nil(), "number": 1, "lease_id": Uuid::nil(), "seq": 1, "kind": kind, "at": 1, "data": null
            });
            let mut event: Event = serde_json::from_value(event).unwrap();
            event.data = std::borrow::Cow::Owned(serde_json::value::to_raw_value(&json!({ "phase": "preparing", "text": text })).unwrap());
            Shown::of(lang, event, &Room::new()).text
        };
        assert_eq!(shown(Lang::Ukrainian, "lifecycle", "fetches site"), "отримує репозиторій проєкту site");
        assert_eq!(shown(Lang::English, "lifecycle", "fetches site"), "fetches site");
        assert_eq!(shown(Lang::Ukrainian, "answer", "denied: no"), "відмовлено: no");
        for other in ["allowed users", "fetches site"] {
            assert_eq!(shown(Lang::Ukrainian, "answer", other), other);
        }
        assert_eq!(shown(Lang::Ukrainian, "text", "fetches site"), "fetches site", "what the model says stays as it is");
    }

    #[test]
    fn what_can_be_unfolded_has_limits() {
        let shown = |text: &str, room: &Room| {
            let data = serde_json::value::to_raw_value(&json!({ "content": text })).unwrap();
            let event = json!({ "task_id": Uuid::nil(), "number": 1, "lease_id": Uuid::nil(), "seq": 1, "kind": "tool_result", "at": 1 });
            let mut event: Event = serde_json::from_value({
                let mut event = event;
                event["data"] = Value::Null;
                event
            })
            .unwrap();
            event.data = std::borrow::Cow::Owned(data);
            let shown = Shown::of(Lang::English, event, room);
            (shown.text.chars().count(), shown.more.is_some(), shown.is_cut)
        };
        let call = |input: Value| {
            let data = serde_json::value::to_raw_value(&json!({ "name": "Edit", "input": input })).unwrap();
            let event = json!({ "task_id": Uuid::nil(), "number": 1, "lease_id": Uuid::nil(), "seq": 1, "kind": "tool_use", "at": 1, "data": null });
            let mut event: Event = serde_json::from_value(event).unwrap();
            event.data = std::borrow::Cow::Owned(data);
            let shown = Shown::of(Lang::English, event, &Room::new());
            (shown.text, shown.more.is_some())
        };
        assert_eq!(call(json!({ "file_path": "/a" })), ("Edit: /a".to_owned(), false));
        assert_eq!(call(json!({ "new_string": "b", "file_path": "/a" })), ("Edit: /a".to_owned(), true), "the rest can be unfolded");
        let room = Room::new();
        assert_eq!(shown("a\nb\nc\nd", &room), (7, false, false));
        assert_eq!(shown("a\nb\nc\nd\ne", &room), (7, true, false));
        assert_eq!(shown(&"a".repeat(CHARS + 1), &room), (CHARS + 1, true, false));
        for _ in 0..3 {
            assert_eq!(shown(&"a".repeat(MORE_CHARS + 1), &room), (CHARS + 1, true, true));
        }
        assert_eq!(shown(&"a".repeat(MORE_CHARS + 1), &room), (CHARS + 1, false, true), "the page is full");
    }
}
