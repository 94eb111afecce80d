//! The beginning of a connection: the TLS handshake, if the server speaks https.

use std::io;
use std::pin::Pin;
use std::time::Duration;

use rustix::net::sockopt::set_tcp_user_timeout;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_io_timeout::TimeoutStream;
use tokio_rustls::TlsAcceptor;

use crate::identity::clients::Security;

/// The first byte of a TLS connection: the type of a handshake's record (RFC 8446, 5.1). No method of HTTP begins with it.
const HANDSHAKE_RECORD: u8 = 0x16;

pub(crate) trait Io: AsyncRead + AsyncWrite + Send {}

impl<T: AsyncRead + AsyncWrite + Send> Io for T {}

/// A connection that is ready for HTTP. Writes fail if the client does not read for the write timeout.
pub(crate) type Stream = Pin<Box<dyn Io>>;

pub(crate) enum Begun {
    Ready(Stream, Security),
    /// The client speaks plain HTTP to a server that speaks https.
    NotTls(Stream),
}

/// Performs the TLS handshake, if there is one. Returns an error if it takes longer than `limit`.
pub(crate) async fn begin(stream: TcpStream, tls: Option<TlsAcceptor>, limit: Duration, write_timeout: Duration) -> io::Result<Begun> {
    // Without TCP_NODELAY, small answers would be delayed. The call fails only if the connection is closed.
    let _ = stream.set_nodelay(true);
    // Without this timeout, the system would keep unread data for some minutes after the connection was given up.
    let unread_for = u32::try_from(write_timeout.as_millis()).unwrap_or(u32::MAX);
    let _ = set_tcp_user_timeout(&stream, unread_for);
    let Some(tls) = tls else { return Ok(Begun::Ready(limited(stream, write_timeout), Security::Plain)) };
    timeout(limit, shake_hands(stream, &tls, write_timeout)).await?
}

async fn shake_hands(stream: TcpStream, tls: &TlsAcceptor, write_timeout: Duration) -> io::Result<Begun> {
    let mut first = [0];
    if stream.peek(&mut first).await? == 1 && first[0] != HANDSHAKE_RECORD {
        return Ok(Begun::NotTls(limited(stream, write_timeout)));
    }
    let stream = tls.accept(limited(stream, write_timeout)).await?;
    // A certificate that could not be verified would have ended the handshake.
    let is_verified = stream.get_ref().1.peer_certificates().is_some();
    Ok(Begun::Ready(Box::pin(stream), if is_verified { Security::VerifiedClient } else { Security::Tls }))
}

fn limited(stream: TcpStream, write_timeout: Duration) -> Stream {
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(write_timeout));
    Box::pin(stream)
}
