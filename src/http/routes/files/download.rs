//! The content of an artifact, from the database or the object store, whole or a range of it.

use std::ops::Range;

use axum::body::{Body, Bytes};
use axum::extract::{Path, State};
use axum::http::header::{ACCEPT_RANGES, CONTENT_DISPOSITION, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, ETAG, IF_RANGE, RANGE};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::Response;
use bloom_api::error::ErrorText;
use bloom_api::files::FileContent;
use bloom_api::values::parse_id;
use bloom_core::api_key::Scope;
use bloom_core::run_result::RunResult;
use bloom_core::task::{Format, Outcome};
use futures_util::TryStreamExt;
use uuid::Uuid;

use crate::AppState;
use crate::identity::ownership;
use crate::identity::policy::{Rate, RoutePolicy};
use crate::messages::answer::HandlerResult;
use crate::messages::error::Error;
use crate::middleware::Caller;
use crate::routes::files::file_content;
use crate::routes::files::output_objects;

const NOT_FOUND: Error = Error::fixed(404, "Artifact not found");

pub(crate) const CONTENT: RoutePolicy = RoutePolicy::READ.or_submit().or_worker().rate(Rate::Worker);

/// Downloads the content of an artifact.
///
/// Returns a file unchanged, with its own content type, and the output of a run as JSON if the task asked for JSON, otherwise as text. With
/// a header `Range` that has one range of bytes, it returns only that part (206). The artifact of a failed run has no content. A worker key
/// can download only the inputs of the tasks that its worker holds.
#[utoipa::path(
    get, path = "/api/runtime/artifacts/{id}/content", operation_id = "getArtifactContent", tag = "records", params(("id" = String, Path)),
    responses(
        (status = 200, description = "The content.", content(
            (String = "text/plain"), (serde_json::Value = "application/json", example = json!({ "answer": "hello" })), (FileContent = "*/*")
        )),
        (status = 206, description = "The requested range of the content, which need not be valid JSON.", content(
            (String = "text/plain"), (String = "application/json", example = json!("hel")), (FileContent = "*/*")
        )),
        (status = 404, description = "The artifact does not exist, or has no content.", body = ErrorText),
        (status = 410, description = "The object store no longer has the content.", body = ErrorText),
        (status = 416, description = "The range begins after the end of the content.", body = ErrorText),
        (status = 503, description = "The object store can't deliver it now.", body = ErrorText),
    )
)]
pub(crate) async fn content(State(app): State<AppState>, caller: Caller, Path(id): Path<String>, headers: HeaderMap) -> HandlerResult {
    let id = parse_id(&id).ok_or(NOT_FOUND)?;
    if let Some(file) = app.store.file(id).await? {
        if !ownership::file(&app, &caller, &file).await? {
            return Err(NOT_FOUND);
        }
        let size = file.bytes.unsigned_abs();
        let Some(part) = Part::of(&headers, id, size) else { return Ok(beyond(size)) };
        let body = file_content::body(&app, &file, part.range.clone()).await?;
        return Ok(part.answer(body, &file.content_type, file_content::disposition(&file.name)));
    }
    if caller.scope == Scope::Worker {
        return Err(NOT_FOUND);
    }
    let result = app.store.artifact(id).await?.ok_or(NOT_FOUND)?;
    if ownership::tasks(&app, &caller, vec![result.task_id]).await?.is_empty() {
        return Err(NOT_FOUND);
    }
    if result.status != Outcome::Success || (result.output.is_none() && result.object.is_none()) {
        return Err(Error::fixed(404, "The artifact has no content"));
    }
    let Some(part) = Part::of(&headers, id, result.output_bytes() as u64) else { return Ok(beyond(result.output_bytes() as u64)) };
    let specs = app.engine.specs.by_id(&[result.task_id]).await?;
    let is_json = specs.first().is_some_and(|spec| spec.desired_format == Format::Json);
    let (content_type, extension) = if is_json { ("application/json", "json") } else { ("text/plain; charset=utf-8", "txt") };
    let body = body(&app, result, part.range.clone()).await?;
    Ok(part.answer(body, content_type, file_content::disposition(&format!("artifact-{id}.{extension}"))))
}

/// The part of a content that a request asks for.
struct Part {
    range: Range<u64>,
    size: u64,
    /// The request asks for a range.
    is_partial: bool,
    tag: String,
}

impl Part {
    /// `None`: the content ends before the range.
    fn of(headers: &HeaderMap, id: Uuid, size: u64) -> Option<Self> {
        let tag = format!("\"{id}\"");
        let is_same = headers.get(IF_RANGE).is_none_or(|named| named.as_bytes() == tag.as_bytes());
        let range = headers.get(RANGE).filter(|_| is_same).and_then(|range| range.to_str().ok());
        match range.map_or(Wanted::All, |range| wanted(range, size)) {
            Wanted::All => Some(Self { range: 0..size, size, is_partial: false, tag }),
            Wanted::Part(range) => Some(Self { range, size, is_partial: true, tag }),
            Wanted::Nothing => None,
        }
    }

    /// A browser saves the content, so that what a run wrote or a client uploaded is never shown as a page of this server.
    fn answer(self, body: Body, content_type: &str, disposition: String) -> Response {
        let Self { range, size, is_partial, tag } = self;
        let mut response = Response::new(body);
        let headers = response.headers_mut();
        headers.insert(ACCEPT_RANGES, HeaderValue::from_static("bytes"));
        headers.insert(CONTENT_LENGTH, HeaderValue::from(range.end - range.start));
        let mut texts = vec![(CONTENT_TYPE, content_type.to_owned()), (CONTENT_DISPOSITION, disposition), (ETAG, tag)];
        if is_partial {
            texts.push((CONTENT_RANGE, format!("bytes {}-{}/{size}", range.start, range.end - 1)));
        }
        for (name, text) in texts {
            headers.extend(HeaderValue::try_from(text).ok().map(|value| (name, value)));
        }
        if is_partial {
            *response.status_mut() = StatusCode::PARTIAL_CONTENT;
        }
        response
    }
}

async fn body(app: &AppState, result: RunResult, range: Range<u64>) -> Result<Body, Error> {
    if let Some(object) = &result.object {
        let store = app.settings.objects.as_ref().ok_or_else(|| output_objects::missing(result.artifact_id, &object.url))?;
        let stream = output_objects::readable(store, result.artifact_id, store.read(&object.url, range).await).await?;
        return Ok(Body::from_stream(stream.map_err(|failure| failure.text)));
    }
    let content = Bytes::from(result.output.unwrap_or_default());
    let part = usize::try_from(range.start).unwrap_or(usize::MAX)..usize::try_from(range.end).unwrap_or(usize::MAX);
    Ok(Body::from(content.slice(part)))
}

/// What a header `Range` asks for.
#[derive(Debug, PartialEq, Eq)]
enum Wanted {
    All,
    Part(Range<u64>),
    /// The range begins after the end of the content.
    Nothing,
}

/// Parses a header `Range`. For several ranges, or anything that is not a range of bytes, the whole content is returned, as RFC 9110
/// allows.
fn wanted(header: &str, size: u64) -> Wanted {
    let Some((unit, range)) = header.split_once('=') else { return Wanted::All };
    let Some((first, last)) = range.trim().split_once('-').filter(|_| unit.eq_ignore_ascii_case("bytes") && !range.contains(',')) else {
        return Wanted::All;
    };
    let number = |text: &str| text.parse::<u64>().ok().filter(|_| text.bytes().all(|byte| byte.is_ascii_digit()));
    let range = match (first, last, number(first), number(last)) {
        ("", _, _, Some(length)) => size.saturating_sub(length)..size,
        (_, "", Some(first), _) => first..size,
        (_, _, Some(first), Some(last)) if first <= last => first..last.saturating_add(1).min(size),
        _ => return Wanted::All,
    };
    if range.start < range.end { Wanted::Part(range) } else { Wanted::Nothing }
}

fn beyond(size: u64) -> Response {
    let error = Error::Text { status: 416, text: format!("The content has {size} bytes").into() };
    let mut response = axum::response::IntoResponse::into_response(error);
    response.headers_mut().extend(HeaderValue::try_from(format!("bytes */{size}")).ok().map(|value| (CONTENT_RANGE, value)));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_bytes() {
        for (header, expected) in [
            ("bytes=0-3", Wanted::Part(0..4)),
            ("bytes=4-", Wanted::Part(4..10)),
            ("bytes=-3", Wanted::Part(7..10)),
            ("bytes=-30", Wanted::Part(0..10)),
            ("bytes=8-99", Wanted::Part(8..10)),
            ("bytes=10-", Wanted::Nothing),
            ("bytes=-0", Wanted::Nothing),
            ("bytes=3-2", Wanted::All),
            ("bytes=0-1,3-4", Wanted::All),
            ("lines=0-1", Wanted::All),
            ("bytes=+1-2", Wanted::All),
            ("bytes", Wanted::All),
        ] {
            assert_eq!(wanted(header, 10), expected, "{header}");
        }
    }
}
