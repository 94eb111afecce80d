//! Reads a stream of server-sent events.

use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use reqwest::Method;
use reqwest::header::HeaderMap;
use serde_json::Value;

use bloom_test_support::waiting::PATIENCE;

use super::client::Api;

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Event {
    pub kind: String,
    pub id: String,
    pub data: String,
}

impl Event {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.data).unwrap_or_else(|error| panic!("{error}: {}", self.data))
    }
}

pub struct Stream {
    pub headers: HeaderMap,
    bytes: BoxStream<'static, reqwest::Result<Vec<u8>>>,
    unread: String,
    /// This many bytes of `unread` were searched and contain no end of an event.
    searched: usize,
}

/// Opens the stream at this path. `last` is sent as `Last-Event-ID`.
pub async fn open(api: &Api, path: &str, last: Option<&str>) -> Stream {
    let mut request = api.request(Method::GET, path).header("accept", "text/event-stream");
    if let Some(last) = last {
        request = request.header("last-event-id", last);
    }
    let response = request.send().await.expect("an answer");
    assert_eq!(response.status(), 200, "{path}");
    let kind = response.headers().get("content-type").expect("a content type");
    assert!(kind.to_str().expect("text").starts_with("text/event-stream"), "{kind:?}");
    let headers = response.headers().clone();
    let bytes = response.bytes_stream().map(|chunk| chunk.map(|bytes| bytes.to_vec())).boxed();
    Stream { headers, bytes, unread: String::new(), searched: 0 }
}

impl Stream {
    /// The next event, without comments; `None` at the end of the stream.
    pub async fn next(&mut self) -> Option<Event> {
        tokio::time::timeout(PATIENCE, self.read()).await.expect("an event in time")
    }

    /// As [`next`](Self::next), for streams that may be silent.
    pub async fn read(&mut self) -> Option<Event> {
        loop {
            while let Some(found) = self.unread[self.searched..].find("\n\n") {
                let end = self.searched + found;
                let event = parse(&self.unread[..end]);
                self.unread.drain(..end + 2);
                self.searched = 0;
                if !event.data.is_empty() || !event.kind.is_empty() {
                    return Some(event);
                }
            }
            // Up to the last line break, which may be the first of two. This never splits a character.
            self.searched = self.unread.rfind('\n').unwrap_or(0);
            let chunk = self.bytes.next().await?.ok()?;
            self.unread.push_str(&String::from_utf8(chunk).expect("text").replace('\r', ""));
        }
    }

    /// The next event that fits.
    pub async fn find(&mut self, mut fits: impl FnMut(&Event) -> bool) -> Event {
        loop {
            let event = self.next().await.expect("the stream goes on");
            if fits(&event) {
                return event;
            }
        }
    }
}

fn parse(block: &str) -> Event {
    let mut event = Event::default();
    for line in block.lines() {
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "event" => value.clone_into(&mut event.kind),
            "id" => value.clone_into(&mut event.id),
            "data" => event.data.push_str(value),
            _ => {}
        }
    }
    event
}
