//! Forms with files (`multipart/form-data`, RFC 7578). The whole body is in memory already, within the limits of forms.

use axum::body::Bytes;

/// The most parts of a form.
const MAX_PARTS: usize = 300;

/// A file of a form.
pub struct Upload {
    /// The field.
    pub field: String,
    /// What the browser calls it, which may be a path.
    pub name: String,
    pub content_type: String,
    pub content: Bytes,
}

/// Fields with texts, and files, in the order in which they were sent. A field for files of which none was chosen is left out.
#[derive(Default)]
pub struct Parts {
    pub texts: Vec<(String, String)>,
    pub files: Vec<Upload>,
}

/// The boundary that the type of a request names; `None` if it is no form with files.
pub fn boundary(content_type: &str) -> Option<&str> {
    let (kind, parameters) = content_type.split_once(';')?;
    if !kind.trim().eq_ignore_ascii_case("multipart/form-data") {
        return None;
    }
    let named = parameters.split(';').filter_map(|parameter| parameter.trim().split_once('='));
    let (_, value) = named.into_iter().find(|(name, _)| name.eq_ignore_ascii_case("boundary"))?;
    Some(value.trim_matches('"')).filter(|boundary| (1..=70).contains(&boundary.len()))
}

/// `None` if it can't be read.
pub fn parse(boundary: &str, body: &Bytes) -> Option<Parts> {
    let line = format!("--{boundary}");
    let between = format!("\r\n{line}");
    let mut parts = Parts::default();
    let mut at = find(body, 0, line.as_bytes())? + line.len();
    for _ in 0..MAX_PARTS {
        if body[at..].starts_with(b"--") {
            return Some(parts);
        }
        let begin = at + body[at..].starts_with(b"\r\n").then_some(2)?;
        let end_of_headers = find(body, begin, b"\r\n\r\n")?;
        let headers = std::str::from_utf8(&body[begin..end_of_headers]).ok()?;
        let content = end_of_headers + 4;
        let end = find(body, content, between.as_bytes())?;
        add(&mut parts, headers, body.slice(content..end))?;
        at = end + between.len();
    }
    None
}

fn add(parts: &mut Parts, headers: &str, content: Bytes) -> Option<()> {
    let header = |name: &str| {
        let named = headers.split("\r\n").filter_map(|line| line.split_once(':'));
        named.into_iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim())
    };
    let disposition = header("content-disposition")?;
    let field = parameter(disposition, "name")?;
    match parameter(disposition, "filename") {
        None => parts.texts.push((field, String::from_utf8(content.into()).ok()?)),
        // A browser sends this for a field in which no file was chosen.
        Some(name) if name.is_empty() && content.is_empty() => {}
        Some(name) => {
            let content_type = header("content-type").unwrap_or("application/octet-stream").to_owned();
            parts.files.push(Upload { field, name, content_type, content });
        }
    }
    Some(())
}

/// A parameter in quotes. Browsers write what would end it as `%22`, `%0D` and `%0A`.
fn parameter(disposition: &str, name: &str) -> Option<String> {
    let start = format!("; {name}=\"");
    let value = disposition.split_once(&start)?.1.split_once('"')?.0;
    Some(value.replace("%22", "\"").replace("%0D", "\r").replace("%0A", "\n"))
}

fn find(body: &[u8], from: usize, wanted: &[u8]) -> Option<usize> {
    let first = *wanted.first()?;
    let mut at = from;
    loop {
        at += body.get(at..)?.iter().position(|byte| *byte == first)?;
        if body[at..].starts_with(wanted) {
            return Some(at);
        }
        at += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORM: &str = "--x\r\nContent-Disposition: form-data; name=\"prompt\"\r\n\r\na\r\nb --x\r\n--x\r\n\
        Content-Disposition: form-data; name=\"files\"; filename=\"a %22b%22.md\"\r\nContent-Type: text/markdown\r\n\r\n\r\n--y\r\n--x\r\n\
        content-disposition: form-data; name=\"files\"; filename=\"\"\r\nContent-Type: application/octet-stream\r\n\r\n\r\n--x--\r\n";

    #[test]
    fn texts_and_files_are_read_as_they_are() {
        let parts = parse("x", &Bytes::from(FORM)).unwrap();
        assert_eq!(parts.texts, [("prompt".to_owned(), "a\r\nb --x".to_owned())]);
        let [file] = &parts.files[..] else { panic!("{} files", parts.files.len()) };
        assert_eq!((file.field.as_str(), file.name.as_str(), file.content_type.as_str()), ("files", "a \"b\".md", "text/markdown"));
        assert_eq!(&file.content[..], b"\r\n--y");
    }

    #[test]
    fn what_breaks_off_is_not_read() {
        for end in 0..FORM.len() - 4 {
            assert!(parse("x", &Bytes::copy_from_slice(&FORM.as_bytes()[..end])).is_none(), "{end}");
        }
        let many = "--x\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\n\r\n".repeat(MAX_PARTS + 1) + "--x--";
        assert!(parse("x", &Bytes::from(many)).is_none());
    }

    #[test]
    fn the_type_names_the_boundary() {
        assert_eq!(boundary("multipart/form-data; boundary=----a1"), Some("----a1"));
        assert_eq!(boundary("Multipart/Form-Data; charset=utf-8; Boundary=\"b c\""), Some("b c"));
        for other in [
            "",
            "application/x-www-form-urlencoded",
            "multipart/form-data",
            "multipart/form-data; boundary=",
            "multipart/mixed; boundary=x",
        ] {
            assert_eq!(boundary(other), None, "{other}");
        }
    }
}
