//! How far a run is, as its events of the kind `lifecycle` tell it: what of them is told in a sentence.

use serde_json::Value;

/// What a run has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase<'a> {
    /// It runs on a worker, by this profile; an empty one is not told.
    Started {
        /// Whether it goes on with the conversation of a run before it.
        resumed: bool,
        /// The name of the worker.
        worker: &'a str,
        /// The name of the profile.
        profile: &'a str,
    },
    /// The CLI has begun its session, with this model; it is empty if the CLI does not tell.
    Session(&'a str),
    /// It is stopped from outside, for this reason.
    Stopping(&'a str),
    /// It has ended, after so many milliseconds.
    Ended(Option<i64>),
    /// What it moved over the network, in bytes.
    Egress(i64),
}

impl<'a> Phase<'a> {
    /// `None`: an event that has no sentence; its text, or all that it says, is told.
    pub fn of(data: &'a Value) -> Option<Self> {
        let of = |field: &str| data[field].as_str().unwrap_or_default();
        match of("phase") {
            "started" if !of("worker").is_empty() => {
                Some(Self::Started { resumed: data["resumed"] == true, worker: of("worker"), profile: of("profile") })
            }
            "session" => Some(Self::Session(of("model"))),
            "stopping" if !of("why").is_empty() => Some(Self::Stopping(of("why"))),
            "ended" => Some(Self::Ended(data["duration_ms"].as_i64())),
            "egress" => data["bytes"].as_i64().map(Self::Egress),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_phase_has_what_its_sentence_needs() {
        let started = json!({ "phase": "started", "pid": 5, "worker": "w", "resumed": true, "profile": "p" });
        assert_eq!(Phase::of(&started), Some(Phase::Started { resumed: true, worker: "w", profile: "p" }));
        assert_eq!(Phase::of(&json!({ "phase": "session", "session_id": "x" })), Some(Phase::Session("")));
        assert_eq!(Phase::of(&json!({ "phase": "ended", "exit": 143 })), Some(Phase::Ended(None)));
        for other in [json!({ "phase": "stopping" }), json!({ "phase": "pushed", "text": "b" }), json!({ "a": 1 }), json!("text")] {
            assert_eq!(Phase::of(&other), None, "{other}");
        }
    }
}
