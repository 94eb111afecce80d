//! Connections that do not get as far as a request, and a server that is full.

use std::net::IpAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::*;

/// Few connections, so that the test takes them all.
const FEW: &str = r#"ulimit -n 128 && exec "$0" "$@""#;
/// The beginning of a TLS handshake: the head of a record whose content does not come.
const BEGUN: &[u8] = &[0x16, 0x03, 0x01, 0x02, 0x00, 0x01];

async fn connect(server: &Server, bytes: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(server.base().trim_start_matches("https://")).await.unwrap();
    // The write fails if the server closes the connection at once.
    let _ = stream.write_all(bytes).await;
    stream
}

/// Everything that arrives until the server closes the connection.
async fn rest(mut stream: TcpStream) -> String {
    let mut bytes = Vec::new();
    // A reset connection is closed as well.
    let _ = tokio::time::timeout(std::time::Duration::from_secs(60), stream.read_to_end(&mut bytes)).await.expect("an end");
    String::from_utf8_lossy(&bytes).into_owned()
}

fn from(address: &str, server: &Server, authority: &Authority) -> Api {
    server.with_client(trusting(authority).local_address(address.parse::<IpAddr>().unwrap()).pool_max_idle_per_host(0).build().unwrap())
}

#[test]
fn a_stalled_handshake_holds_up_nobody_and_ends() {
    run(async {
        let authority = Authority::new();
        let place = Place::with(&authority.issue("bloom.example"));
        let server = place.server().through(FEW).start();
        let mut stalled = Vec::new();
        // More than one address may have.
        for n in 0..100 {
            stalled.push(connect(&server, if n % 2 == 0 { BEGUN } else { b"" }).await);
        }
        from("127.0.0.2", &server, &authority).get("stats").await.ok();
        for stream in stalled {
            assert_eq!(rest(stream).await, "", "it is closed without an answer");
        }
        let same = from("127.0.0.1", &server, &authority);
        eventually("their share is free again", || async { same.try_get("stats").await.ok().filter(|answer| answer.status == 200) }).await;
        assert!(server.stop().success());
    });
}

#[test]
fn a_full_server_says_so_over_https() {
    run(async {
        let authority = Authority::new();
        let place = Place::with(&authority.issue("bloom.example"));
        let server = place.server().through(FEW).start();
        let api = from("127.0.0.1", &server, &authority);
        let mut held = Vec::new();
        let refused = loop {
            assert!(held.len() < 128, "nobody is refused");
            let answer = api.request(reqwest::Method::GET, "watch").send().await.unwrap();
            if answer.status() != 200 {
                break answer;
            }
            held.push(answer);
        };
        assert_eq!(refused.status(), 503);
        let text = refused.text().await.unwrap();
        assert!(text.contains("This address has as many connections as one client may have"), "{text}");
        api.get("/healthz").await.expect(200);
        from("127.0.0.2", &server, &authority).get("stats").await.ok();
        drop(held);
        eventually("there is room again", || async { (api.get("stats").await.status == 200).then_some(()) }).await;
    });
}

#[test]
fn plain_http_is_answered_with_what_to_do() {
    run(async {
        let authority = Authority::new();
        let place = Place::with(&authority.issue("bloom.example"));
        let server = place.server().start();
        let request = "POST /api/runtime/llm-tasks HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}";
        let said = rest(connect(&server, request.as_bytes()).await).await;
        assert!(said.starts_with("HTTP/1.1 400 ") && said.contains("https://"), "{said}");
        // Probes and metrics are for connections whose requests may carry a key.
        let said = rest(connect(&server, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n").await).await;
        assert!(said.starts_with("HTTP/1.1 400 "), "{said}");
        assert_eq!(rest(connect(&server, b"\x00nonsense\r\n\r\n").await).await.find("HTTP/1.1 2"), None);

        let plain = server.base().replacen("https", "http", 1);
        let said = User::new().does(&["task", "list", "--server", &plain]).complains(2);
        assert!(said.contains("This port speaks https") && said.contains("https://"), "{said}");
        let (code, said) = agent::AgentPlan::at(&plain, "box").echo().start_in_vain();
        assert!(code != Some(0) && said.contains("This port speaks https"), "{code:?}: {said}");
        let plain_server = shared(Database::Sqlite);
        let wrong = plain_server.base().replacen("http", "https", 1);
        let said = User::new().does(&["task", "list", "--server", &wrong]).complains(2);
        assert!(said.contains("does not speak https"), "{said}");
    });
}
