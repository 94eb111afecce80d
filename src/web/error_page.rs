//! The pages that report errors.

use std::sync::Arc;

use askama::Template;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::{ACCEPT, CONTENT_LENGTH, CONTENT_TYPE, REFERER};
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http_body_util::{BodyExt as _, Limited};
use url::{Url, form_urlencoded};

use super::answer::page;
use super::language_links::{At, NEXT};
use super::refused::Refused;
use super::visit::Layout;

/// The longest error answer that is turned into a page.
const MAX_ERROR: usize = 64 << 10;
/// Paths for programs. Errors on these paths never become pages.
const OF_PROGRAMS: [&str; 8] = ["/api", "/metrics", "/health", "/healthz", "/readyz", "/openapi.json", "/docs", "/assets"];

/// The data of a page for a visitor who is not signed in.
struct Frame<'a> {
    at: &'a At,
}

#[derive(Template)]
#[template(path = "refused_bare.html")]
struct BarePage<'a> {
    v: Frame<'a>,
    refused: &'a Refused,
    about: About,
    /// The query with which the sign-in leads back to the page with the form; empty if there is none.
    back: String,
}

/// The same, with the menu.
#[derive(Template)]
#[template(path = "refused.html")]
struct MenuPage<'a> {
    v: &'a Layout,
    refused: &'a Refused,
    about: About,
    /// The query with which the sign-in leads back to the page with the form; empty if there is none.
    back: String,
}

/// The pages whose errors need more advice than the usual one.
#[derive(Clone, Copy, PartialEq, Eq)]
enum About {
    Keys,
    LostTask,
    ControlPlane,
    Other,
}

impl About {
    fn of(path: &str, refused: &Refused) -> Self {
        let is_below = |page: &str| path.strip_prefix(page).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        match refused.status {
            403 if is_below("/keys") => Self::Keys,
            404 if is_below("/tasks") => Self::LostTask,
            502 if is_below("/membridge") => Self::ControlPlane,
            _ => Self::Other,
        }
    }
}

fn shown(refused: &Refused, asked: &Parts, at: &At, layout: Option<&Layout>) -> Result<Response, askama::Error> {
    let status = StatusCode::from_u16(refused.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let about = About::of(asked.uri.path(), refused);
    let query = |page: String| form_urlencoded::Serializer::new(String::new()).append_pair(NEXT, &page).finish();
    let back = page_of_form(asked, &at.root).map(query).unwrap_or_default();
    match layout {
        Some(v) => page(status, &MenuPage { v, refused, about, back }),
        None => page(status, &BarePage { v: Frame { at }, refused, about, back }),
    }
}

/// Shows errors as pages to browsers: errors of pages, and errors of the server itself, such as a wrong address, too many requests or a
/// wrong host.
pub(crate) async fn errors_as_pages(State(root): State<Arc<str>>, request: Request, next: Next) -> Response {
    let of_program =
        |path: &str| OF_PROGRAMS.iter().any(|own| path.strip_prefix(own).is_some_and(|rest| rest.is_empty() || rest.starts_with('/')));
    let is_wanted = is_for_person(request.headers()) && !of_program(request.uri().path());
    let (asked, body) = request.into_parts();
    let (mut parts, body) = next.run(Request::from_parts(asked.clone(), body)).await.into_parts();
    let is_json = parts.headers.get(CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(b"application/json"));
    let refused = match parts.extensions.remove::<Refused>() {
        Some(refused) => refused,
        None if is_wanted && is_json && parts.status.as_u16() >= 400 => {
            let Ok(body) = Limited::new(body, MAX_ERROR).collect().await else { return (parts, Body::empty()).into_response() };
            Refused::of(parts.status.as_u16(), &body.to_bytes())
        }
        None => return Response::from_parts(parts, body),
    };
    // The server does no further work for a caller that it refuses as such, for example for a wrong host or too many requests.
    let layout = if matches!(refused.status, 400 | 403 | 404 | 405 | 409 | 413 | 502) { Layout::of_session(&asked).await } else { None };
    let at = At::of(&asked.method, &asked.uri, &asked.headers, &root);
    let Ok(shown) = shown(&refused, &asked, &at, layout.as_ref()) else { return (parts, Body::empty()).into_response() };
    parts.headers.remove(CONTENT_LENGTH);
    let (shown, body) = shown.into_parts();
    parts.headers.extend(shown.headers);
    Response::from_parts(parts, body)
}

/// The page that contained the form. The sign-in leads back to it.
fn page_of_form(asked: &Parts, root: &str) -> Option<String> {
    let is_form = asked.method == Method::POST;
    let referrer = asked.headers.get(REFERER).filter(|_| is_form)?.to_str().ok()?;
    let page = Url::parse(referrer).ok()?;
    let path = page.path().strip_prefix(root)?;
    Some(page.query().map_or_else(|| path.to_owned(), |query| format!("{path}?{query}")))
}

fn is_for_person(headers: &HeaderMap) -> bool {
    headers.get(ACCEPT).and_then(|accept| accept.to_str().ok()).is_some_and(|accept| accept.contains("text/html"))
}
