//! Lists of rows that may be large. A list is read and sent in pieces, so that a client that does not read takes the memory of one piece,
//! not of the whole list.

use std::net::IpAddr;

use axum::body::{Body, Bytes};
use futures_util::{StreamExt, TryStreamExt, stream};
use serde::Serialize;

use crate::AppState;
use crate::limits::body_memory::Share;
use crate::messages::answer::{HandlerResult, json_body, linked};
use crate::messages::error::Error;

/// Approximate size of a piece. A larger row is a piece of its own.
const PIECE_BYTES: i64 = 64 << 10;
/// Approximate size of a row as JSON, without its texts.
const ROW_BYTES: i64 = 1 << 10;

/// A list that is being sent: the keys of the rows still to be read, with the bytes of their texts, and the function that reads them.
struct Pieces<K, R> {
    app: AppState,
    client: IpAddr,
    keys: std::vec::IntoIter<(K, i64)>,
    read: R,
    has_begun: bool,
}

/// Answers with the rows of these keys. `read` returns them as JSON (see [`rows`]), without those that were removed meanwhile. `next` is
/// the link to the next page.
pub(crate) async fn list<K, R, F>(app: &AppState, client: IpAddr, keys: Vec<(K, i64)>, next: Option<String>, read: R) -> HandlerResult
where
    K: Send + 'static,
    R: Fn(AppState, Vec<K>) -> F + Send + 'static,
    F: Future<Output = Result<Vec<u8>, Error>> + Send,
{
    let mut pieces = Pieces { app: app.clone(), client, keys: keys.into_iter(), read, has_begun: false };
    let (keys, bytes) = pieces.keys_of_next();
    let share = app.limits.held_of_answers.answer(bytes, client)?;
    let is_small = share.is_none();
    let first = pieces.next(keys, share).await?;
    let body = if is_small && pieces.is_over() {
        Body::from(first)
    } else {
        let rest = stream::try_unfold(pieces, |mut pieces| async move {
            if pieces.is_over() {
                return Ok(None);
            }
            let (keys, bytes) = pieces.keys_of_next();
            let share = pieces.app.limits.held_of_answers.wait(bytes, pieces.client).await?;
            let piece = pieces.next(keys, share).await?;
            Ok::<_, Error>(Some((piece, pieces)))
        });
        // The status was already sent. Breaking off the body is the only way to show the client that the list is incomplete.
        let rest = rest.map_err(|error| {
            tracing::warn!(?error, "a list could not be sent completely");
            error.line()
        });
        Body::from_stream(stream::iter([Ok(first)]).chain(rest))
    };
    Ok(linked(json_body(body), next))
}

impl<K, R, F> Pieces<K, R>
where
    R: Fn(AppState, Vec<K>) -> F,
    F: Future<Output = Result<Vec<u8>, Error>>,
{
    /// The keys of the next piece, and its approximate size in bytes.
    fn keys_of_next(&mut self) -> (Vec<K>, usize) {
        let (mut keys, mut bytes) = (Vec::new(), 0);
        while let Some((_, size)) = self.keys.as_slice().first()
            && (keys.is_empty() || bytes + size + ROW_BYTES <= PIECE_BYTES)
        {
            bytes += size + ROW_BYTES;
            keys.extend(self.keys.next().map(|(key, _)| key));
        }
        (keys, usize::try_from(bytes).unwrap_or(usize::MAX))
    }

    async fn next(&mut self, keys: Vec<K>, share: Share) -> Result<Bytes, Error> {
        let mut text = (self.read)(self.app.clone(), keys).await?;
        if let (false, Some(first)) = (self.has_begun, text.first_mut()) {
            *first = b'[';
            self.has_begun = true;
        }
        if self.is_over() {
            text.extend_from_slice(if self.has_begun { b"]" } else { b"[]" });
        }
        Ok(share.hold(text))
    }

    fn is_over(&self) -> bool {
        self.keys.as_slice().is_empty()
    }
}

/// Rows as JSON, each preceded by a comma.
///
/// # Errors
/// A row can't be serialized, which is a bug.
pub(crate) fn rows<T: Serialize>(rows: impl IntoIterator<Item = T>) -> Result<Vec<u8>, Error> {
    let mut text = Vec::new();
    for row in rows {
        text.push(b',');
        serde_json::to_writer(&mut text, &row).map_err(|error| Error::Internal(error.to_string()))?;
    }
    Ok(text)
}
