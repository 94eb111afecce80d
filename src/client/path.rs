//! Paths of calls: their parts, and the path of the next page.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::header::HeaderValue;

/// The characters that are not encoded in a part of a path (RFC 3986, unreserved).
const UNRESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Encodes a part of a path. Otherwise a slash would split the part, and URL parsers would drop line breaks.
pub fn part(text: &str) -> String {
    utf8_percent_encode(text, UNRESERVED).to_string()
}

/// The path of `Link: <…>; rel="next"`, starting at `/api`. The prefix of a proxy is added again when the page is requested.
pub fn next_page(link: &HeaderValue) -> Option<String> {
    let link = link.to_str().ok()?.split(',').find(|part| part.contains("rel=\"next\""))?;
    let uri = link.split_once('<')?.1.split_once('>')?.0;
    uri.find("/api/").map(|start| uri[start..].to_owned())
}
