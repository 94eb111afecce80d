//! What goes wrong, and its page.

use std::borrow::Cow;
use std::collections::BTreeMap;

use askama::Template;
use axum::body::Body;
use axum::extract::Request;
use axum::http::header::{ACCEPT, CONTENT_LENGTH, CONTENT_TYPE, VARY};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http_body_util::{BodyExt as _, Limited};

use super::answer::page;
use bloom_api::error::{Cause, ErrorText};

/// The longest error answer that is turned into a page.
const MAX_ERROR: usize = 64 << 10;
/// Paths of programs; what they answer is for programs.
const OF_PROGRAMS: [&str; 8] = ["/api", "/metrics", "/health", "/healthz", "/readyz", "/openapi.json", "/docs", "/assets"];

/// Why there is no page, or why nothing was done.
#[derive(Clone, Debug)]
pub struct Refused {
    pub status: u16,
    /// For people.
    pub text: Cow<'static, str>,
    /// What is wrong with single fields.
    pub fields: BTreeMap<String, String>,
}

impl Refused {
    pub fn new(status: u16, text: impl Into<Cow<'static, str>>) -> Self {
        Self { status, text: text.into(), fields: BTreeMap::new() }
    }

    /// An error of this program.
    pub fn internal(text: &'static str) -> Self {
        Self::new(500, text)
    }

    /// From an answer of the API.
    pub fn of(status: u16, body: &[u8]) -> Self {
        match serde_json::from_slice(body) {
            Ok(ErrorText { error: Cause::Text(text), .. }) => Self::new(status, text.into_owned()),
            Ok(ErrorText { error: Cause::Invalid(invalid), .. }) => {
                let fields = invalid.fields.iter().map(|(field, texts)| (field.clone(), texts.join("; "))).collect();
                Self { fields, ..Self::new(status, invalid.line()) }
            }
            Err(_) => Self::new(status, "The server could not answer"),
        }
    }

    fn title(&self) -> &'static str {
        match self.status {
            400 => "This can't be read",
            401 => "You are signed out",
            403 => "This is not allowed",
            404 | 405 => "There is no such page",
            408 | 429 => "Too much at once",
            409 => "This is not possible now",
            413 => "This is too large",
            502 | 503 => "This does not work now",
            status if status < 500 => "This is not possible",
            _ => "The server has failed",
        }
    }

    /// What to do next.
    fn advice(&self) -> &'static str {
        match self.status {
            401 => "Sign in with a key of this server.",
            403 => "Sign out, and sign in with a key that allows it.",
            404 | 405 => "What you look for may have been removed. The lists have what there is.",
            409 => "Go back and load the page again: it shows the present state.",
            429 => "Wait a minute, then load the page again.",
            500 => "The server's log has the cause. Load the page again; if it stays, tell the person who runs the server.",
            502..=599 => "Load the page again in a moment.",
            _ => "Go back, correct it, and send it again.",
        }
    }
}

impl From<askama::Error> for Refused {
    fn from(_: askama::Error) -> Self {
        Self::internal("The page could not be made")
    }
}

#[derive(Template)]
#[template(path = "refused.html")]
struct RefusedPage<'a> {
    title: &'a str,
    text: &'a str,
    advice: &'a str,
    sign_in: bool,
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let template =
            RefusedPage { title: self.title(), text: &self.text, advice: self.advice(), sign_in: matches!(self.status, 401 | 403) };
        page(status, &template).unwrap_or_else(|_| status.into_response())
    }
}

/// Shows errors of the server itself as pages to browsers: a wrong address, too many requests, a wrong host.
pub async fn errors_as_pages(request: Request, next: Next) -> Response {
    let of_program =
        |path: &str| OF_PROGRAMS.iter().any(|own| path.strip_prefix(own).is_some_and(|rest| rest.is_empty() || rest.starts_with('/')));
    let is_wanted = is_for_person(request.headers()) && !of_program(request.uri().path());
    let response = next.run(request).await;
    let is_json = response.headers().get(CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(b"application/json"));
    if !is_wanted || !is_json || response.status().as_u16() < 400 {
        return response;
    }
    let (mut parts, body) = response.into_parts();
    let Ok(body) = Limited::new(body, MAX_ERROR).collect().await else { return (parts, Body::empty()).into_response() };
    let shown = Refused::of(parts.status.as_u16(), &body.to_bytes()).into_response();
    parts.headers.remove(CONTENT_LENGTH);
    parts.headers.insert(VARY, HeaderValue::from_static("Accept"));
    let (shown, body) = shown.into_parts();
    parts.headers.extend(shown.headers);
    Response::from_parts(parts, body)
}

fn is_for_person(headers: &HeaderMap) -> bool {
    headers.get(ACCEPT).and_then(|accept| accept.to_str().ok()).is_some_and(|accept| accept.contains("text/html"))
}
