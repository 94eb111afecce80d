//! How many bytes of bodies are held in memory at once, however slowly clients send or read them.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::response::{IntoResponse, Response};
use http_body_util::BodyExt;
use hyper::body::Body as _;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::error::Error;

/// For room for the next piece of an answer: those who do not read let go of theirs before.
const ROOM_WAIT: Duration = Duration::from_secs(60);
/// Smaller bodies do not count: thousands of them are nothing.
const SMALL: usize = 64 << 10;
/// The semaphore counts these: it can't count far enough in bytes.
const UNIT: usize = 1 << 10;
const TOO_MUCH_SENT: Error = Error::Later("The server is receiving too many large requests at once, try again");
const TOO_MUCH_READ: Error = Error::Later("The server is sending too many large answers at once, try again");

/// So many bytes, for all requests or for all answers together.
#[derive(Clone)]
pub struct Budget {
    free: Arc<Semaphore>,
    units: u32,
}

/// What one body has of it.
#[derive(Default)]
pub struct Share(Option<OwnedSemaphorePermit>);

impl Budget {
    pub fn new(bytes: usize) -> Self {
        let units = u32::try_from(bytes / UNIT).unwrap_or(u32::MAX).max(1);
        // A semaphore takes at least so many on every machine.
        Self { free: Arc::new(Semaphore::new(usize::try_from(units).unwrap_or(Semaphore::MAX_PERMITS))), units }
    }

    /// Makes the share fit a body of so many bytes. One that is larger than the whole budget needs all of it.
    ///
    /// # Errors
    /// Others have it.
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

    /// For an answer of so many bytes.
    ///
    /// # Errors
    /// Others have the room.
    pub fn answer(&self, bytes: usize) -> Result<Share, Error> {
        let mut share = Share::default();
        self.fit(&mut share, bytes).map_err(|_| TOO_MUCH_READ)?;
        Ok(share)
    }

    /// As [`answer`](Self::answer), when others let go of the room.
    ///
    /// # Errors
    /// They do not.
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

    /// The answer, whose bytes count until they were sent; another one where others have the room. Streams hold little, and have limits of
    /// their own.
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
    /// It counts for nothing.
    pub fn is_none(&self) -> bool {
        self.0.is_none()
    }

    /// The connection lets go of a body long before it has sent its bytes: so these carry the share.
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
