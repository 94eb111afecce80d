//! Forms with files (`multipart/form-data`, RFC 7578). The whole body is in memory already, within the limits of forms.

use std::convert::Infallible;

use axum::body::Bytes;
use futures_util::{future, stream};
use multer::{Field, Multipart};

/// The maximum number of parts of a form.
const MAX_PARTS: usize = 300;

/// A file that was sent with a form.
pub(crate) struct Upload {
    /// The name of the form's field.
    pub field: String,
    /// The name that the browser gives to the file, which may be a path.
    pub name: String,
    pub content_type: String,
    pub content: Bytes,
}

/// The text fields and the files, in the order in which they were sent. A file field without a chosen file is left out.
#[derive(Default)]
pub(crate) struct Parts {
    pub texts: Vec<(String, String)>,
    pub files: Vec<Upload>,
}

/// The boundary in the content type of a request; `None` if the request is not a form with files.
pub(crate) fn boundary(content_type: &str) -> Option<String> {
    multer::parse_boundary(content_type).ok().filter(|boundary| !boundary.is_empty())
}

/// `None` if the body can't be parsed.
pub(crate) async fn read(boundary: String, body: Bytes) -> Option<Parts> {
    let mut form = Multipart::new(stream::once(future::ready(Ok::<_, Infallible>(body))), boundary);
    let mut parts = Parts::default();
    for _ in 0..=MAX_PARTS {
        match form.next_field().await.ok()? {
            Some(field) => add(&mut parts, field).await?,
            None => return Some(parts),
        }
    }
    None
}

async fn add(parts: &mut Parts, part: Field<'_>) -> Option<()> {
    let field = unescaped(part.name()?);
    let name = part.file_name().map(unescaped);
    let content_type = part.content_type().map_or_else(|| "application/octet-stream".to_owned(), ToString::to_string);
    let content = part.bytes().await.ok()?;
    match name {
        None => parts.texts.push((field, String::from_utf8(content.into()).ok()?)),
        // A browser sends this for a field in which no file was chosen.
        Some(name) if name.is_empty() && content.is_empty() => {}
        Some(name) => parts.files.push(Upload { field, name, content_type, content }),
    }
    Some(())
}

/// A name as it was typed: browsers encode the characters that would end it as `%22`, `%0D` and `%0A`.
fn unescaped(name: &str) -> String {
    name.replace("%22", "\"").replace("%0D", "\r").replace("%0A", "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORM: &str = "--x\r\nContent-Disposition: form-data; name=\"prompt\"\r\n\r\na\r\nb --x\r\n--x\r\n\
        Content-Disposition: form-data; name=\"files\"; filename=\"a %22b%22.md\"\r\nContent-Type: text/markdown\r\n\r\n\r\n--y\r\n--x\r\n\
        content-disposition: form-data; name=\"files\"; filename=\"\"\r\nContent-Type: application/octet-stream\r\n\r\n\r\n--x--\r\n";

    async fn read_all(form: &[u8]) -> Option<Parts> {
        read("x".into(), Bytes::copy_from_slice(form)).await
    }

    #[tokio::test]
    async fn texts_and_files_are_read_as_they_are() {
        let parts = read_all(FORM.as_bytes()).await.unwrap();
        assert_eq!(parts.texts, [("prompt".to_owned(), "a\r\nb --x".to_owned())]);
        let [file] = &parts.files[..] else { panic!("{} files", parts.files.len()) };
        assert_eq!((file.field.as_str(), file.name.as_str(), file.content_type.as_str()), ("files", "a \"b\".md", "text/markdown"));
        assert_eq!(&file.content[..], b"\r\n--y");
    }

    #[tokio::test]
    async fn what_breaks_off_is_not_read() {
        for end in 0..FORM.len() - 4 {
            assert!(read_all(&FORM.as_bytes()[..end]).await.is_none(), "{end}");
        }
        let many = "--x\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\n\r\n".repeat(MAX_PARTS + 1) + "--x--";
        assert!(read_all(many.as_bytes()).await.is_none());
    }

    #[test]
    fn the_type_names_the_boundary() {
        assert_eq!(boundary("multipart/form-data; boundary=----a1"), Some("----a1".into()));
        assert_eq!(boundary("Multipart/Form-Data; charset=utf-8; Boundary=\"b c\""), Some("b c".into()));
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
