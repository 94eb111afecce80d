//! Limits the memory of the bodies of requests and answers, however slowly clients send or read them.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use http_body_util::BodyExt;
use hyper::body::Body as _;
use serde::Serialize;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep};

use crate::identity::clients::network;
use crate::limits::client_shares::{ClientPermit, Shares};
use crate::messages::answer::{HandlerResult, json_bytes, to_json};
use crate::messages::error::Error;

/// How long the next piece of an answer waits for room. The write timeout is shorter, so clients that do not read are disconnected before,
/// and free their room.
const ROOM_WAIT: Duration = Duration::from_secs(60);
/// How often a waiting answer checks for room.
pub(crate) const ROOM_EVERY: Duration = Duration::from_millis(50);
/// Bodies up to this size do not count: even thousands of them need little memory.
const SMALL: usize = 64 << 10;
/// The bytes per permit of the semaphore, because a number of bytes could exceed its maximum.
const UNIT: usize = 1 << 10;
const TOO_MUCH_SENT: Error = Error::Later("The server is receiving too many large requests at once, try again");
const TOO_MUCH_OF_ONE: Error = Error::Later("This address has too many large requests or answers at once: wait for some of them to end");
const TOO_MUCH_READ: Error = Error::Later("The server is sending too many large answers at once, try again");

/// A number of bytes that the bodies of all requests, or of all answers, share. One address may hold at most half of them, but always one
/// body.
#[derive(Clone)]
pub(crate) struct Budget {
    free: Arc<Semaphore>,
    units: u32,
    addresses: Shares<IpAddr>,
}

/// The part of a budget that one body holds.
#[derive(Default)]
pub struct Share(Option<(OwnedSemaphorePermit, ClientPermit<IpAddr>)>);

impl Budget {
    pub(crate) fn new(bytes: usize) -> Self {
        let units = u32::try_from(bytes / UNIT).unwrap_or(u32::MAX).max(1);
        // The number of units never exceeds the semaphore's maximum, on any platform.
        let permits = usize::try_from(units).unwrap_or(Semaphore::MAX_PERMITS);
        Self { free: Arc::new(Semaphore::new(permits)), units, addresses: Shares::by_address(permits) }
    }

    /// Enlarges the share to fit a body of this size. A body that is larger than the budget takes all of it.
    ///
    /// # Errors
    /// Other bodies, or those of this client, hold too much of the budget.
    pub(crate) fn fit(&self, share: &mut Share, bytes: usize, client: IpAddr) -> Result<(), Error> {
        self.take(share, bytes, client, TOO_MUCH_SENT)
    }

    fn take(&self, share: &mut Share, bytes: usize, client: IpAddr, full: Error) -> Result<(), Error> {
        let held = share.0.as_ref().map_or(0, |(permit, _)| permit.num_permits());
        let more = self.units_of(bytes).saturating_sub(u32::try_from(held).unwrap_or(u32::MAX));
        if more > 0 {
            let units = usize::try_from(more).unwrap_or(usize::MAX);
            let of_address = self.addresses.take_beside(held, network(client), units).ok_or(TOO_MUCH_OF_ONE)?;
            let permit = self.free.clone().try_acquire_many_owned(more).map_err(|_| full)?;
            match &mut share.0 {
                Some((known, known_of_address)) => {
                    known.merge(permit);
                    known_of_address.merge(of_address);
                }
                none => *none = Some((permit, of_address)),
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
    /// Other answers, or those of this client, hold too much of the budget.
    pub(crate) fn answer(&self, bytes: usize, client: IpAddr) -> Result<Share, Error> {
        let mut share = Share::default();
        self.take(&mut share, bytes, client, TOO_MUCH_READ)?;
        Ok(share)
    }

    /// Like [`answer`](Self::answer), but waits until other answers have freed enough of the budget.
    ///
    /// # Errors
    /// They did not free it in time.
    pub(crate) async fn wait(&self, bytes: usize, client: IpAddr) -> Result<Share, Error> {
        let until = Instant::now() + ROOM_WAIT;
        loop {
            match self.answer(bytes, client) {
                Err(full) if Instant::now() >= until => return Err(full),
                Err(_) => sleep(ROOM_EVERY).await,
                room => return room,
            }
        }
    }

    /// Reserves room for an answer of about this size. It is reserved before the call changes anything, because the answer must not be
    /// refused afterwards.
    ///
    /// # Errors
    /// Other answers, or those of this client, hold too much of the budget.
    pub(crate) fn reserve(&self, bytes: usize, client: IpAddr) -> Result<Room, Error> {
        Ok(Room { budget: self.clone(), client, share: self.answer(bytes, client)? })
    }

    /// Counts the bytes of the answer until they are sent. If there is no room, an answer that may be refused becomes a 503, and any other
    /// answer is sent without being counted. Streams are not counted, because they hold little memory and have limits of their own.
    /// [`Counted`] bytes are not counted again.
    pub(crate) async fn send(&self, answer: Response, client: IpAddr, may_be_refused: bool) -> Response {
        let size = answer.body().size_hint().exact().and_then(|size| usize::try_from(size).ok());
        let is_counted = answer.extensions().get::<Counted>().is_some();
        let Some(size) = size.filter(|size| *size > SMALL && !is_counted) else { return answer };
        let mut share = Share::default();
        if let Err(refused) = self.take(&mut share, size, client, TOO_MUCH_READ)
            && may_be_refused
        {
            return refused.into_response();
        }
        let (head, body) = answer.into_parts();
        match body.collect().await {
            Ok(body) => Response::from_parts(head, Body::from(share.hold(body.to_bytes()))),
            Err(error) => Error::Internal(error.to_string()).into_response(),
        }
    }
}

/// Marks an answer whose bytes are already counted, or which all clients share in memory anyway.
#[derive(Clone, Copy)]
pub(crate) struct Counted;

/// Reserved room for the answer of a call that changes something; see [`Budget::reserve`].
pub(crate) struct Room {
    budget: Budget,
    client: IpAddr,
    share: Share,
}

impl Room {
    /// Makes the answer, which is counted until it is sent. If it is larger than expected and there is no room for the rest, the rest is
    /// not counted.
    ///
    /// # Errors
    /// The body can't be serialized, which is a bug.
    pub(crate) fn json(mut self, status: StatusCode, body: &impl Serialize) -> HandlerResult {
        let bytes = to_json(body)?;
        let _ = self.budget.take(&mut self.share, bytes.len(), self.client, TOO_MUCH_READ);
        let mut answer = json_bytes(status, self.share.hold(bytes));
        answer.extensions_mut().insert(Counted);
        Ok(answer)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_address_holds_half_at_most_but_always_one_body() {
        let budget = Budget::new(1 << 20);
        let fit = |client: &str, bytes: usize| {
            let mut share = Share::default();
            budget.fit(&mut share, bytes, client.parse().unwrap()).map(|()| share)
        };
        let whole = fit("192.0.2.1", 1 << 20).unwrap();
        assert!(fit("192.0.2.2", 100 << 10).is_err(), "nothing is left");
        drop(whole);
        let first = fit("192.0.2.1", 300 << 10).unwrap();
        assert_eq!(fit("192.0.2.1", 300 << 10).err(), Some(TOO_MUCH_OF_ONE));
        let second = fit("192.0.2.1", 200 << 10).unwrap();
        assert_eq!(budget.answer(300 << 10, "192.0.2.1".parse().unwrap()).err(), Some(TOO_MUCH_OF_ONE), "pieces of lists count as well");
        let other = fit("2001:db8::1", 500 << 10).unwrap();
        assert_eq!(fit("192.0.2.3", 100 << 10).err(), Some(TOO_MUCH_SENT));
        drop((first, second, other));
        assert!(budget.addresses.is_unused());
        // A body that can't grow keeps the share that it had.
        let (other, mut share) = (fit("192.0.2.9", 900 << 10).unwrap(), fit("192.0.2.1", 100 << 10).unwrap());
        assert_eq!(budget.fit(&mut share, 200 << 10, "192.0.2.1".parse().unwrap()).err(), Some(TOO_MUCH_SENT));
        drop(other);
        assert_eq!(fit("192.0.2.1", 500 << 10).err(), Some(TOO_MUCH_OF_ONE));
        drop(share);
        // A body that grows still counts as one body.
        let mut share = Share::default();
        for bytes in [100 << 10, 400 << 10, 900 << 10] {
            budget.fit(&mut share, bytes, "192.0.2.1".parse().unwrap()).unwrap();
        }
    }
}
