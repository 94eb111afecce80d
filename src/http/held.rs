//! Limits the memory of the bodies of requests and answers, however slowly clients send or read them.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::response::{IntoResponse, Response};
use http_body_util::BodyExt;
use hyper::body::Body as _;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::error::Error;

/// How long the next piece of an answer waits for room. The write timeout is shorter, so clients that do not read free theirs before.
const ROOM_WAIT: Duration = Duration::from_secs(60);
/// Bodies up to this size do not count: even thousands of them need little memory.
const SMALL: usize = 64 << 10;
/// The unit that the semaphore counts: the number of bytes could exceed its maximum.
const UNIT: usize = 1 << 10;
const TOO_MUCH_SENT: Error = Error::Later("The server is receiving too many large requests at once, try again");
const TOO_MUCH_READ: Error = Error::Later("The server is sending too many large answers at once, try again");

/// A number of bytes that the bodies of all requests, or of all answers, share.
#[derive(Clone)]
pub struct Budget {
    free: Arc<Semaphore>,
    units: u32,
}

/// The part of a budget that one body holds.
#[derive(Default)]
pub struct Share(Option<OwnedSemaphorePermit>);

impl Budget {
    pub fn new(bytes: usize) -> Self {
        let units = u32::try_from(bytes / UNIT).unwrap_or(u32::MAX).max(1);
        // The number of units never exceeds the semaphore's maximum, on any platform.
        Self { free: Arc::new(Semaphore::new(usize::try_from(units).unwrap_or(Semaphore::MAX_PERMITS))), units }
    }

    /// Enlarges the share to a body of this size. A body that is larger than the budget needs all of it.
    ///
    /// # Errors
    /// Other bodies hold too much of the budget.
    pub fn fit(&self, share: &mut Share, bytes: usize) -> Result<(), Error> {
        let held = share.0.as_ref().map_or(0, |permit| permit.num_permits());
        let more = self.units_of(bytes).saturating_sub(u32::try_from(held).unwrap_or(u32::MAX));
        if more > 0 {
            let more = self.free.clone().try_acquire_many_owned(more).map_err(|_| TOO_MUCH_SENT)?;
            match &mut share.0 {
                Some(permit) => permit.merge(more),
                none => *none = Some(more),
            }
        }
        Ok(())
    }

    fn units_of(&self, bytes: usize) -> u32 {
        if bytes <= SMALL { 0 } else { u32::try_from(bytes.div_ceil(UNIT)).unwrap_or(u32::MAX).min(self.units) }
    }

    /// The share of an answer of this size.
    ///
    /// # Errors
    /// Other answers hold too much of the budget.
    pub fn answer(&self, bytes: usize) -> Result<Share, Error> {
        let mut share = Share::default();
        self.fit(&mut share, bytes).map_err(|_| TOO_MUCH_READ)?;
        Ok(share)
    }

    /// As [`answer`](Self::answer), but waits until other answers free enough of the budget.
    ///
    /// # Errors
    /// They did not in time.
    pub async fn wait(&self, bytes: usize) -> Result<Share, Error> {
        let units = self.units_of(bytes);
        if units == 0 {
            return Ok(Share::default());
        }
        match timeout(ROOM_WAIT, self.free.clone().acquire_many_owned(units)).await {
            Ok(Ok(permit)) => Ok(Share(Some(permit))),
            _ => Err(TOO_MUCH_READ),
        }
    }

    /// Counts the bytes of the answer until they are sent. Returns a 503 instead if there is no room. Streams do not count: they hold
    /// little, and have limits of their own.
    pub async fn send(&self, answer: Response) -> Response {
        let size = answer.body().size_hint().exact().and_then(|size| usize::try_from(size).ok());
        let Some(size) = size.filter(|size| *size > SMALL) else { return answer };
        let share = match self.answer(size) {
            Ok(share) => share,
            Err(refused) => return refused.into_response(),
        };
        let (head, body) = answer.into_parts();
        match body.collect().await {
            Ok(body) => Response::from_parts(head, Body::from(share.hold(body.to_bytes()))),
            Err(error) => Error::Internal(error.to_string()).into_response(),
        }
    }
}

impl Share {
    /// Whether nothing is counted.
    pub fn is_none(&self) -> bool {
        self.0.is_none()
    }

    /// Attaches the share to the bytes, because the connection drops a body long before it has sent its bytes.
    pub fn hold(self, bytes: impl Into<Bytes>) -> Bytes {
        let bytes = bytes.into();
        if self.is_none() { bytes } else { Bytes::from_owner(Held { bytes, _share: self }) }
    }
}

struct Held {
    bytes: Bytes,
    _share: Share,
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}
