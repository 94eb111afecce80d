//! Calls of a server. They are repeated while the server is busy.

use std::time::Duration;

use backon::{ExponentialBuilder, Retryable};
use reqwest::Method;
use secrecy::SecretString;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use url::form_urlencoded;

use super::field_flags;
use super::term;
use crate::CommandError;
use bloom_client::{CALL_LIMIT, Client, Error, Tls};

/// The maximum number of rows of one page.
const PAGE: usize = 1000;
const TRIES: usize = 5;
const FIRST_WAIT: Duration = Duration::from_millis(500);
const LONGEST_WAIT: Duration = Duration::from_secs(8);
/// A server may ask for a wait of up to a minute, because its rate limit counts by the minute.
const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(60);

/// The server that commands call.
pub struct Server {
    pub client: Client,
}

/// Which failures of a call are retried.
#[derive(Clone, Copy)]
pub enum Again {
    /// Only failures of a busy server that has done nothing.
    Busy,
    /// All transient failures. The call must have the same effect when it is repeated.
    Passing,
}

impl Server {
    /// # Errors
    /// The URL or the key can't be used.
    pub fn new(url: &str, key: Option<&SecretString>, tls: &Tls) -> Result<Self, CommandError> {
        Ok(Self { client: Client::new(url, key, tls).map_err(failed)?.of_person() })
    }

    /// # Errors
    /// The call failed.
    pub async fn get(&self, path: &str) -> Result<Value, CommandError> {
        self.call(Again::Busy, || self.client.get(path)).await.map_err(failed)
    }

    /// # Errors
    /// The call failed; it may have taken effect.
    pub async fn post(&self, path: &str, body: &impl Serialize) -> Result<Value, CommandError> {
        self.call(Again::Busy, || self.client.post(path, body)).await.map_err(change_failed)
    }

    /// As [`post`](Self::post), for calls that may be repeated without a further effect: they are retried even if the answer was lost.
    ///
    /// # Errors
    /// The call failed.
    pub async fn post_surely(&self, path: &str, body: &impl Serialize) -> Result<Value, CommandError> {
        self.call(Again::Passing, || self.client.post(path, body)).await.map_err(failed)
    }

    /// # Errors
    /// The call failed; it may have taken effect.
    pub async fn patch(&self, path: &str, body: &impl Serialize) -> Result<Value, CommandError> {
        self.change(Method::PATCH, path, body, CALL_LIMIT).await
    }

    /// # Errors
    /// The call failed; it may have taken effect.
    pub async fn change(&self, method: Method, path: &str, body: &impl Serialize, limit: Duration) -> Result<Value, CommandError> {
        let call = || async { self.client.send(method.clone(), path, Some(body), limit).await?.json() };
        self.call(Again::Busy, call).await.map_err(change_failed)
    }

    /// As [`change`](Self::change).
    pub async fn delete(&self, path: &str) -> Result<Value, CommandError> {
        let call = || async { self.client.send::<()>(Method::DELETE, path, None, CALL_LIMIT).await?.json() };
        self.call(Again::Busy, call).await.map_err(change_failed)
    }

    /// At most `limit` rows of a list, read page by page, and whether there are more.
    ///
    /// # Errors
    /// A call failed.
    pub async fn list(&self, path: &str, query: &[(&str, String)], limit: usize) -> Result<(Vec<Value>, bool), Error> {
        let mut query = query.to_vec();
        query.push(("limit", limit.min(PAGE).to_string()));
        let mut next = Some(with_query(path, &query));
        let mut rows: Vec<Value> = Vec::new();
        while let Some(page) = next.take_if(|_| rows.len() < limit) {
            let (more, after) = self.page(&page).await?;
            rows.extend(more);
            next = after;
        }
        let more = next.is_some() || rows.len() > limit;
        rows.truncate(limit);
        Ok((rows, more))
    }

    /// One page of a list, and the path of the next one.
    ///
    /// # Errors
    /// The call failed.
    pub async fn page(&self, path: &str) -> Result<(Vec<Value>, Option<String>), Error> {
        let answer = self.call(Again::Busy, || self.client.send::<()>(Method::GET, path, None, CALL_LIMIT)).await?;
        Ok((answer.json()?, answer.next))
    }

    pub async fn call<T, F: Future<Output = Result<T, Error>>>(&self, again: Again, call: impl FnMut() -> F) -> Result<T, Error> {
        let waits =
            ExponentialBuilder::default().with_min_delay(FIRST_WAIT).with_max_delay(LONGEST_WAIT).with_max_times(TRIES - 1).with_jitter();
        let mut told = String::new();
        call.retry(waits)
            .when(|error| match again {
                Again::Busy => matches!(error.status(), Some(429 | 503)),
                Again::Passing => error.is_passing(),
            })
            .adjust(|error, wait| match retry_after(error) {
                Some(asked) if asked > LONGEST_RETRY_AFTER => None,
                Some(asked) => wait.map(|wait| wait.max(asked)),
                None => wait,
            })
            .notify(|error, wait| {
                let (text, seconds) = (error.to_string(), wait.as_secs_f64().ceil());
                // Repeating the same long text would hide the time of the next attempt.
                let why = if text == told { String::new() } else { format!("{text}; ") };
                term::info(&format!("{why}trying again in {seconds:.0} s"));
                told = text;
            })
            .await
    }
}

pub(crate) fn retry_after(error: &Error) -> Option<Duration> {
    if let Error::Refused { retry_after, .. } = error { *retry_after } else { None }
}

/// As [`failed`], for a call that makes a change and is not repeated if its answer is lost.
fn change_failed(error: Error) -> CommandError {
    match error {
        Error::Broken(text) => CommandError::from(format!("{text}; the change may have been made: look before you give the command again")),
        other => failed(other),
    }
}

/// A request that the server rejects was built from wrong flags, so the message names the flags.
pub(crate) fn failed(error: Error) -> CommandError {
    match error {
        Error::Usage(message) => CommandError::usage(message),
        Error::Refused { status: 400, fields, .. } if !fields.is_empty() => {
            CommandError::usage(fields.iter().map(|(field, text)| field_flags::told(field, text)).collect::<Vec<_>>().join("; "))
        }
        Error::Refused { status: 400 | 413, message, .. } => CommandError::usage(message),
        other => CommandError::from(term::indented(&other.to_string())),
    }
}

/// Parses an answer by reference, so that the original can still be shown as the server sent it.
///
/// # Errors
/// The answer is not a `T`.
pub(crate) fn read<T: DeserializeOwned>(answer: &Value) -> Result<T, CommandError> {
    let wrong =
        |error: serde_json::Error| format!("the server's answer is not what its API promises ({error}): check its address and its version");
    T::deserialize(answer).map_err(|error| wrong(error).into())
}

pub(crate) fn with_query(path: &str, query: &[(&str, String)]) -> String {
    if query.is_empty() {
        return path.to_owned();
    }
    format!("{path}?{}", form_urlencoded::Serializer::new(String::new()).extend_pairs(query).finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_are_encoded() {
        assert_eq!(with_query("p", &[]), "p");
        assert_eq!(with_query("p", &[("label", "a=b&c".into()), ("limit", "5".into())]), "p?label=a%3Db%26c&limit=5");
    }
}
