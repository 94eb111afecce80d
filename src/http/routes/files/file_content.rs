//! The content of a file, from the database or the object store, and its name for browsers.

use std::ops::Range;

use axum::body::{Body, Bytes};
use bloom_core::file::File;
use bloom_store::{CHUNK_BYTES, Store};
use futures_util::{StreamExt as _, TryStreamExt as _, stream};

use crate::AppState;
use crate::messages::error::Error;
use crate::routes::files::output_objects;

/// The size of all chunks but the last one.
const CHUNK: u64 = CHUNK_BYTES as u64;

/// A range of the file, as the body of an answer.
///
/// # Errors
/// The file can't be delivered now, or was removed.
pub(crate) async fn body(app: &AppState, file: &File, range: Range<u64>) -> Result<Body, Error> {
    if range.is_empty() {
        return Ok(Body::empty());
    }
    if let Some(url) = &file.object_url {
        return of_object(app, file, url, range).await;
    }
    match chunk(&app.store, file, &range).await? {
        Some(first) => {
            let begin = range.start + first.len() as u64;
            let rest = stream::try_unfold((app.store.clone(), file.clone(), begin..range.end), |(store, file, range)| async move {
                if range.is_empty() {
                    return Ok(None);
                }
                // The status was already sent. Breaking off the body is the only way to show the client that it is incomplete.
                let part = chunk(&store, &file, &range).await.map_err(|error| error.line())?.ok_or("the file was removed")?;
                let next = range.start + part.len() as u64..range.end;
                Ok::<_, String>(Some((part, (store, file, next))))
            });
            Ok(Body::from_stream(stream::iter([Ok(first)]).chain(rest)))
        }
        // The file was moved to the object store, or removed, after its row was read.
        None => match app.store.file(file.id).await? {
            Some(File { object_url: Some(url), .. }) => of_object(app, file, &url, range).await,
            _ => Err(Error::fixed(404, "Artifact not found")),
        },
    }
}

/// The part of the range that is in its first chunk.
async fn chunk(store: &Store, file: &File, range: &Range<u64>) -> Result<Option<Bytes>, Error> {
    let number = range.start / CHUNK;
    let begin = number * CHUNK;
    let Some(chunk) = store.file_chunk(file.id, i64::try_from(number).unwrap_or(i64::MAX)).await? else { return Ok(None) };
    let size = chunk.len() as u64;
    let part = (range.start - begin).min(size)..(range.end - begin).min(size);
    // The part is never empty, because the range ends with the file at the latest.
    let [first, end] = [part.start, part.end].map(|at| usize::try_from(at).unwrap_or(usize::MAX));
    Ok(Some(Bytes::from(chunk).slice(first..end)).filter(|part| !part.is_empty()))
}

async fn of_object(app: &AppState, file: &File, url: &str, range: Range<u64>) -> Result<Body, Error> {
    let store = app.settings.objects.as_ref().ok_or_else(|| output_objects::missing(file.id, url))?;
    let content = output_objects::readable(store, file.id, store.read(url, range).await).await?;
    Ok(Body::from_stream(content.map_err(|failure| failure.text)))
}

/// The header Content-Disposition for a file with this name. It makes a browser save the file instead of showing it as a page of this
/// server. The name is the last part of the path, once for old clients and once as RFC 6266 specifies it.
pub(crate) fn disposition(name: &str) -> String {
    let name = name.rsplit('/').next().unwrap_or_default();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._- ".contains(c);
    let plain: String = name.chars().map(|c| if is_plain(c) { c } else { '_' }).collect();
    if plain == name {
        return format!("attachment; filename=\"{plain}\"");
    }
    let is_kept = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    let encoded: String =
        name.bytes().map(|byte| if is_kept(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }).collect();
    format!("attachment; filename=\"{plain}\"; filename*=UTF-8''{encoded}")
}

#[cfg(test)]
mod tests {
    use super::disposition;

    #[test]
    fn names_of_downloads() {
        assert_eq!(disposition("out/report.txt"), "attachment; filename=\"report.txt\"");
        assert_eq!(disposition("my report-1.txt"), "attachment; filename=\"my report-1.txt\"");
        assert_eq!(
            disposition("a\"; x=\"ü\\.txt"),
            "attachment; filename=\"a__ x____.txt\"; filename*=UTF-8''a%22%3B%20x%3D%22%C3%BC%5C.txt"
        );
    }
}
