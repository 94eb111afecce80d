//! The limits of the push server: nobody outside can take the agent's memory, file descriptors or time.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use super::push_server::{KEY, with};
use super::*;

/// More than one address may have, and than all may have together.
const PER_ADDRESS: usize = 64;
const IN_ALL: usize = 256;
/// Longer than the push server waits for anything that a caller sends.
const PATIENCE: Duration = Duration::from_secs(30);

fn connect(push_server: &Api, from: [u8; 4]) -> std::net::TcpStream {
    let address: SocketAddr = push_server.base().trim_start_matches("http://").parse().expect("an address");
    let socket = tokio::net::TcpSocket::new_v4().expect("a socket");
    socket.bind((IpAddr::from(from), 0).into()).expect("a loopback address");
    let runtime = tokio::runtime::Handle::current();
    let stream = runtime.block_on(socket.connect(address)).expect("a connection").into_std().expect("a stream");
    stream.set_nonblocking(false).expect("a blocking stream");
    stream.set_read_timeout(Some(PATIENCE)).expect("a time limit");
    stream
}

/// It was closed by the agent, without an answer.
fn is_closed(mut stream: std::net::TcpStream) -> bool {
    match stream.read(&mut [0]) {
        Ok(read) => read == 0,
        Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
    }
}

fn health(push_server: &Api, from: [u8; 4]) -> String {
    let mut stream = connect(push_server, from);
    let mut answer = String::new();
    let asked = stream.write_all(b"GET /health HTTP/1.1\r\nHost: agent\r\nConnection: close\r\n\r\n");
    let _ = asked.and_then(|()| stream.read_to_string(&mut answer));
    answer
}

#[test]
fn silent_connections_are_limited_and_closed() {
    with(&[], async |server, push_server, _| {
        tokio::task::block_in_place(|| {
            let mut held: Vec<_> = (0..PER_ADDRESS).map(|_| connect(push_server, [127, 0, 0, 2])).collect();
            assert!(is_closed(connect(push_server, [127, 0, 0, 2])), "an address has no more than {PER_ADDRESS}");
            assert!(health(push_server, [127, 0, 0, 3]).starts_with("HTTP/1.1 200"), "others are served");
            for address in 3..=u8::try_from(IN_ALL / PER_ADDRESS).unwrap() + 1 {
                held.extend((0..PER_ADDRESS).map(|_| connect(push_server, [127, 0, 0, address])));
            }
            assert!(is_closed(connect(push_server, [127, 0, 0, 9])), "all together have no more than {IN_ALL}");
            assert!(held.into_iter().all(is_closed), "who says nothing keeps no connection");
        });
        server.post("workers", json!({"name": "box", "dispatch": "push"})).await.ok();
        server.crew().task().prompt("echo done").create().await.reaches("completed").await;
    });
}

#[test]
fn bodies_are_limited_in_size_and_time() {
    with(&[], async |_, push_server, _| {
        let (name, key) = KEY;
        let with_key = push_server.with_header(name, key);
        assert_eq!(with_key.post("/execute-task", json!({"prompt": "p".repeat(5 << 20)})).await.status, 413);
        let answer = tokio::task::block_in_place(|| {
            let mut stream = connect(push_server, [127, 0, 0, 1]);
            let head = format!("POST /execute-task HTTP/1.1\r\nHost: agent\r\n{name}: {key}\r\nContent-Length: 100\r\n\r\n{{");
            stream.write_all(head.as_bytes()).expect("a head");
            let mut answer = String::new();
            stream.read_to_string(&mut answer).expect("an answer in time");
            answer
        });
        assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
    });
}
