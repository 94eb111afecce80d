//! Sends and receives files in pieces, so that no file is in memory as a whole.

use std::io::{self, Write};
use std::time::Duration;

use reqwest::header::{CONTENT_LENGTH, CONTENT_TYPE};
use reqwest::{Body, Method};
use sha2::{Digest, Sha256};
use tokio::fs::File;

use super::{Answer, CALL_LIMIT, Client, Error};

/// Bytes per second on the slowest connection.
const SLOWEST: u64 = 16 << 10;

fn limit(bytes: u64) -> Duration {
    CALL_LIMIT + Duration::from_secs(bytes / SLOWEST)
}

/// A writer that also computes the digest of what is written.
#[derive(Debug)]
pub struct Digesting<W> {
    into: W,
    digest: Sha256,
}

impl<W> Digesting<W> {
    /// Writes into `into`. The digest starts here.
    pub fn new(into: W) -> Self {
        Self { into, digest: Sha256::new() }
    }

    /// Returns the inner writer, and the SHA-256 of what was written, in hexadecimal.
    pub fn finish(self) -> (W, String) {
        (self.into, hex::encode(self.digest.finalize()))
    }
}

impl<W: Write> Write for Digesting<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.into.write(bytes)?;
        self.digest.update(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.into.flush()
    }
}

impl Client {
    /// Sends the file as the body of a POST. `path` begins with `api/` and its parts are encoded.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn upload(&self, path: &str, content_type: &str, file: File, bytes: u64) -> Result<Answer, Error> {
        let limit = limit(bytes);
        let request = self.request(Method::POST, path)?.timeout(limit);
        let request = request.header(CONTENT_TYPE, content_type).header(CONTENT_LENGTH, bytes).body(Body::from(file));
        self.answer(request, limit).await
    }

    /// Writes the body of a GET's answer, which should have `bytes` bytes, and returns how many were received.
    ///
    /// # Errors
    /// See [`Error`]; also if more than `bytes` bytes arrive, or they can't be written.
    pub async fn download(&self, path: &str, bytes: u64, into: &mut (impl Write + Send)) -> Result<u64, Error> {
        let limit = limit(bytes);
        let request = self.request(Method::GET, path)?.timeout(limit);
        let mut response = request.send().await.map_err(|error| self.unreachable(&error, limit))?;
        if !response.status().is_success() {
            return Err(self.refused(response).await);
        }
        let mut came = 0;
        while let Some(piece) = response.chunk().await.map_err(|error| self.unreachable(&error, limit))? {
            came += piece.len() as u64;
            if came > bytes {
                return Err(Error::Garbled(format!("the server's answer is longer than {bytes} bytes")));
            }
            into.write_all(&piece).map_err(|error| Error::Unwritten(error.to_string()))?;
        }
        Ok(came)
    }
}
