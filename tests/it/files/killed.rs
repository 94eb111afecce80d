//! A server that is killed while a file arrives: the file is not there, and what was stored of it is removed.

use std::io::Write as _;
use std::net::TcpStream;

use super::{bytes, content, has_no_chunks, id, upload};
use crate::on_both;
use crate::support::checker::Link;
use crate::support::*;

on_both! { alone:
    async fn what_a_killed_server_stored_is_removed(database) {
        let server = Server::on(database).start();
        let kept = upload(&server, "name=kept", &bytes(5)).await.created();
        let mut stream = TcpStream::connect(server.base().strip_prefix("http://").unwrap()).unwrap();
        stream.write_all(b"POST /api/runtime/artifacts?name=a HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 2000000\r\n\r\n").unwrap();
        stream.write_all(&bytes(1_000_000)).unwrap();
        let url = server.database_url();
        let chunks = || async { Link::open(&url).await.count("file_chunks").await };
        eventually("chunks are stored", || async { (chunks().await > 3).then_some(()) }).await;
        server.kill9();
        assert!(chunks().await > 3);
        // Its time is over, as after two hours.
        let due = Link::open(&url).await.count("chunk_removals WHERE due_at > 0").await;
        assert_eq!(due, 1, "the chunks of the file that was cut off are to be removed, those of the other file are not");
        Link::open(&url).await.rows("UPDATE chunk_removals SET due_at = 1 RETURNING CAST(due_at AS TEXT)").await;
        server.start_again();
        assert_eq!(server.get("artifacts").await.ok(), json!([kept]));
        eventually("the rest is removed", || async { (chunks().await == 1).then_some(()) }).await;
        assert_eq!(content(&server, &kept).await, bytes(5));
        server.delete(&format!("artifacts/{}", id(&kept))).await.ok();
        has_no_chunks(&server).await;
    }
}
