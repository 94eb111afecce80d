//! Reads the HTTP chunks of a stream as they are sent.

use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::client::Api;

const PATIENCE: Duration = Duration::from_secs(30);

pub struct Pieces(BufReader<TcpStream>);

/// Opens the stream at this path below `/api/runtime/`.
pub async fn open(api: &Api, path: &str) -> Pieces {
    let mut stream = TcpStream::connect(api.base().trim_start_matches("http://")).await.expect("a connection");
    let head = format!("GET /api/runtime/{path} HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n");
    stream.write_all(head.as_bytes()).await.expect("the request is sent");
    let mut pieces = Pieces(BufReader::new(stream));
    let status = pieces.line().await;
    assert!(status.starts_with("HTTP/1.1 200"), "{status}");
    while !pieces.line().await.is_empty() {}
    pieces
}

impl Pieces {
    /// The next chunk, as text.
    pub async fn next(&mut self) -> String {
        let size = self.line().await;
        let size = usize::from_str_radix(&size, 16).unwrap_or_else(|_| panic!("a chunk's size, not {size:?}"));
        let mut piece = vec![0; size + 2];
        timeout(PATIENCE, self.0.read_exact(&mut piece)).await.expect("in time").expect("the whole piece");
        piece.truncate(size);
        String::from_utf8(piece).expect("text")
    }

    async fn line(&mut self) -> String {
        let mut line = String::new();
        timeout(PATIENCE, self.0.read_line(&mut line)).await.expect("in time").expect("a line");
        line.trim_end().to_owned()
    }
}
