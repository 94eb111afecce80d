//! Server-sent events as in the HTML standard (html.spec.whatwg.org, "9.2 Server-sent events"), except for `retry`.

use std::time::Duration;

use reqwest::Response;

use super::Error;
use bloom_outbound::cause;

/// Longer than the server is ever silent: it sends at least a comment every 15 s.
const SILENCE: Duration = Duration::from_secs(60);
const MAX_EVENT_BYTES: usize = 64 << 20;

/// An event of a stream.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Event {
    /// `message` if the server gave no name.
    pub name: String,
    /// The content, with its lines joined by line feeds.
    pub data: String,
    /// The event's id; `None` if the server gave none.
    pub id: Option<String>,
}

/// An open stream.
pub struct Events {
    response: Response,
    server: String,
    lines: Lines,
}

impl Events {
    pub(super) fn new(response: Response, server: &str) -> Self {
        Self { response, server: server.to_owned(), lines: Lines::default() }
    }

    /// The next event; `None` if the server has ended the stream.
    ///
    /// # Errors
    /// The connection broke, or nothing was received for a minute.
    pub async fn next(&mut self) -> Result<Option<Event>, Error> {
        loop {
            if let Some(event) = self.lines.event() {
                return Ok(Some(event));
            }
            let broke = |why: String| Error::Broken(format!("the stream from {} broke: {why}", self.server));
            match tokio::time::timeout(SILENCE, self.response.chunk()).await {
                Err(_) => return Err(broke("nothing was received for a minute".into())),
                Ok(Err(error)) => return Err(broke(cause(&error))),
                Ok(Ok(None)) => return Ok(None),
                Ok(Ok(Some(chunk))) if self.lines.bytes.len() + self.lines.begun.data.len() + chunk.len() > MAX_EVENT_BYTES => {
                    return Err(broke("an event is too long".into()));
                }
                Ok(Ok(Some(chunk))) => self.lines.bytes.extend_from_slice(&chunk),
            }
        }
    }
}

#[derive(Default)]
struct Lines {
    bytes: Vec<u8>,
    begun: Event,
}

impl Lines {
    fn event(&mut self) -> Option<Event> {
        let mut read = 0;
        let mut whole = None;
        while let Some(length) = self.bytes[read..].iter().position(|byte| *byte == b'\n') {
            let line = String::from_utf8_lossy(&self.bytes[read..read + length]).into_owned();
            read += length + 1;
            let line = line.strip_suffix('\r').unwrap_or(&line);
            if line.is_empty() {
                let mut event = std::mem::take(&mut self.begun);
                if event.data.pop().is_some() {
                    if event.name.is_empty() {
                        event.name.push_str("message");
                    }
                    whole = Some(event);
                    break;
                }
                continue;
            }
            let (field, value) = line.split_once(':').unwrap_or((line, ""));
            let value = value.strip_prefix(' ').unwrap_or(value);
            match field {
                "data" => {
                    self.begun.data.push_str(value);
                    self.begun.data.push('\n');
                }
                "event" => self.begun.name = value.to_owned(),
                "id" => self.begun.id = Some(value.to_owned()),
                _ => {}
            }
        }
        self.bytes.drain(..read);
        whole
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_whole_however_they_are_cut() {
        let stream = ": hello\n\nevent: task\nid: 7\ndata: {\"a\":\ndata: \"ä\"}\r\n\r\nevent: empty\n\ndata:x\n\n";
        for size in [1, 2, 3, 7, 1000] {
            let mut lines = Lines::default();
            let mut events = Vec::new();
            for chunk in stream.as_bytes().chunks(size) {
                lines.bytes.extend_from_slice(chunk);
                events.extend(std::iter::from_fn(|| lines.event()));
            }
            let event =
                |name: &str, data: &str, id: Option<&str>| Event { name: name.into(), data: data.into(), id: id.map(str::to_owned) };
            assert_eq!(events, [event("task", "{\"a\":\n\"ä\"}", Some("7")), event("message", "x", None)], "in chunks of {size} bytes");
        }
    }
}
