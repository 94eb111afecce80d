//! Files: uploads for tasks, what agents upload of their runs, and who may read them.

mod killed;
mod objects;
mod runs;
mod uploads;

use sha2::{Digest as _, Sha256};

use crate::support::checker::Link;
use crate::support::*;

fn sha256(content: &[u8]) -> String {
    hex::encode(Sha256::digest(content))
}

/// Bytes that are no text, and differ from chunk to chunk.
fn bytes(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at ^ (at >> 8) ^ (at >> 16)) as u8).collect()
}

pub async fn upload(api: &Api, query: &str, content: &[u8]) -> Answer {
    api.post_bytes(&format!("artifacts?{query}"), content).await
}

/// The content of an artifact, as bytes.
async fn content(api: &Api, artifact: &Value) -> Vec<u8> {
    let request = api.request(reqwest::Method::GET, &format!("artifacts/{}/content", id(artifact)));
    let response = request.send().await.expect("an answer");
    assert_eq!(response.status(), 200);
    response.bytes().await.expect("its content").to_vec()
}

fn id(thing: &Value) -> &str {
    thing["id"].as_str().expect("an id")
}

/// Waits until the database has no chunk.
async fn has_no_chunks(server: &Server) {
    let url = server.database_url();
    eventually("no chunks are left", || async { (Link::open(&url).await.count("file_chunks").await == 0).then_some(()) }).await;
}
