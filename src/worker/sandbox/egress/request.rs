//! The request of a run to the proxy: reads the head within limits, and parses it.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt};

use super::allow_list::Target;

/// The maximum length of a head, in bytes.
const MAX_HEAD: usize = 16 << 10;
const MAX_HEADERS: usize = 100;
const PORT_OF_HTTP: u16 = 80;
/// Headers that concern only the connection to the proxy. Transfer-Encoding is not among them, because the body is passed on unchanged.
const HOP_BY_HOP: [&str; 8] =
    ["connection", "proxy-connection", "proxy-authorization", "proxy-authenticate", "keep-alive", "te", "trailer", "upgrade"];

/// A head including its empty line, and the bytes that arrived after it.
#[derive(Debug)]
pub(crate) struct Head {
    pub head: Vec<u8>,
    pub rest: Vec<u8>,
}

/// A request of a run.
#[derive(Debug, PartialEq)]
pub(crate) struct Asked {
    pub target: Target,
    /// What to send to the target first: the head in the form for a server. `None` for a tunnel.
    pub head: Option<Vec<u8>>,
}

impl Head {
    /// Reads a head. `None` if the peer closed the connection before it sent anything.
    ///
    /// # Errors
    /// The connection broke, or the head is too long.
    pub(crate) async fn read(from: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<Self>> {
        let mut head = Vec::new();
        loop {
            if let Some(end) = head.windows(4).position(|four| four == b"\r\n\r\n") {
                let rest = head.split_off(end + 4);
                return Ok(Some(Self { head, rest }));
            }
            if head.len() >= MAX_HEAD {
                return Err(io::Error::new(io::ErrorKind::InvalidData, format!("the head is longer than {MAX_HEAD} bytes")));
            }
            let mut piece = [0; 4096];
            let room = piece.len().min(MAX_HEAD - head.len());
            match from.read(&mut piece[..room]).await? {
                0 if head.is_empty() => return Ok(None),
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                length => head.extend_from_slice(&piece[..length]),
            }
        }
    }
}

impl Asked {
    /// # Errors
    /// The head is no request to a proxy. The text says why.
    pub(crate) fn parse(head: &[u8]) -> Result<Self, String> {
        let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
        let mut request = httparse::Request::new(&mut headers);
        let status = request.parse(head).map_err(|error| format!("the request can't be read: {error}"))?;
        let (Some(method), Some(path), true) = (request.method, request.path, status.is_complete()) else {
            return Err("the request is not complete".to_owned());
        };
        let target = |text: &str| Target::parse(text).map_err(|why| format!("{text:?} {why}"));
        if method == "CONNECT" {
            return Ok(Self { target: target(path)?, head: None });
        }
        let scheme = path.get(..7).filter(|scheme| scheme.eq_ignore_ascii_case("http://"));
        let after = scheme.and_then(|scheme| path.get(scheme.len()..));
        let after = after.ok_or("this is a proxy: it takes CONNECT host:port and the URLs http://host/path".to_owned())?;
        let (authority, path) = after.split_at(after.find(['/', '?', '#']).unwrap_or(after.len()));
        let has_port = authority.rsplit_once(':').is_some_and(|(_, port)| !port.ends_with(']'));
        let target = if has_port { target(authority)? } else { target(&format!("{authority}:{PORT_OF_HTTP}"))? };
        let path = path.split('#').next().unwrap_or_default();
        let slash = if path.starts_with('/') { "" } else { "/" };
        let mut head = format!("{method} {slash}{path} HTTP/1.1\r\nHost: {authority}\r\nConnection: close\r\n").into_bytes();
        for header in passed_on(request.headers) {
            head.extend_from_slice(header.name.as_bytes());
            head.extend_from_slice(b": ");
            head.extend_from_slice(header.value);
            head.extend_from_slice(b"\r\n");
        }
        head.extend_from_slice(b"\r\n");
        Ok(Self { target, head: Some(head) })
    }
}

/// All headers except those for this proxy, and those that the header Connection names.
fn passed_on<'h>(headers: &'h [httparse::Header<'h>]) -> impl Iterator<Item = &'h httparse::Header<'h>> {
    let is = |header: &httparse::Header<'_>, name: &str| header.name.eq_ignore_ascii_case(name);
    let connections = headers.iter().filter(move |header| is(header, "connection"));
    let named: Vec<&str> =
        connections.filter_map(|header| str::from_utf8(header.value).ok()).flat_map(|value| value.split(',')).map(str::trim).collect();
    headers.iter().filter(move |header| !is(header, "host") && !HOP_BY_HOP.iter().chain(&named).any(|name| is(header, name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(head: &str) -> Result<(String, Option<String>), String> {
        let asked = Asked::parse(head.replace('\n', "\r\n").as_bytes())?;
        Ok((asked.target.to_string(), asked.head.map(|head| String::from_utf8(head).unwrap().replace("\r\n", "\n"))))
    }

    #[test]
    fn a_tunnel_and_a_url_are_taken() {
        assert_eq!(parsed("CONNECT A.com:443 HTTP/1.1\nHost: b.com\n\n"), Ok(("a.com:443".into(), None)));
        let (target, head) = parsed(
            "POST http://a.com:81?q=1 HTTP/1.1\nHost: b.com\nX-Own: 1\nX-Hop: 2\nConnection: keep-alive, x-hop\nProxy-Authorization: x\n\
             Content-Length: 3\n\n",
        )
        .unwrap();
        assert_eq!(target, "a.com:81");
        assert_eq!(head.unwrap(), "POST /?q=1 HTTP/1.1\nHost: a.com:81\nConnection: close\nX-Own: 1\nContent-Length: 3\n\n");
        let (target, head) = parsed("GET HTTP://[::1] HTTP/1.0\n\n").unwrap();
        assert_eq!((target.as_str(), head.unwrap().lines().next().unwrap()), ("[::1]:80", "GET / HTTP/1.1"));
    }

    #[test]
    fn anything_else_is_refused() {
        for (head, why) in [
            ("GET / HTTP/1.1\nHost: a.com\n\n", "this is a proxy"),
            ("GET https://a.com/ HTTP/1.1\n\n", "this is a proxy"),
            ("CONNECT a.com HTTP/1.1\n\n", "has no port"),
            ("CONNECT http://a.com:80 HTTP/1.1\n\n", "has no name"),
            ("GET http://user@a.com/ HTTP/1.1\n\n", "has no name"),
            ("GET http://a.com@b.com:80/ HTTP/1.1\n\n", "has no name"),
            ("GET http:///path HTTP/1.1\n\n", "has no name"),
            ("GET http://a.com/ HTTP/2.0\n\n", "can't be read"),
            ("GET http://a.com/ HTTP/1.1\nX : 1\n\n", "can't be read"),
        ] {
            let error = parsed(head).unwrap_err();
            assert!(error.contains(why), "{head}: {error}");
        }
    }

    #[tokio::test]
    async fn a_head_ends_where_its_empty_line_is() {
        let read = async |sent: &[u8]| Head::read(&mut &*sent).await;
        let whole = read(b"GET / HTTP/1.1\r\n\r\nbody").await.unwrap().unwrap();
        assert_eq!((whole.head.as_slice(), whole.rest.as_slice()), (&b"GET / HTTP/1.1\r\n\r\n"[..], &b"body"[..]));
        assert!(read(b"").await.unwrap().is_none());
        assert!(read(b"GET").await.is_err());
        assert!(read(&vec![b'x'; MAX_HEAD + 1]).await.unwrap_err().to_string().contains("longer than"));
    }
}
