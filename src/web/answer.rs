//! HTTP responses.

use std::sync::Arc;

use askama::Template;
use axum::body::Body;
use axum::extract::State;
use axum::http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, LOCATION, REFERRER_POLICY, VARY};
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::Response;
use bloom_api::visible_text::escaped;

/// Nothing is loaded from elsewhere, no script or style stands in a page, no other site shows a page in a frame.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; \
     base-uri 'none'; frame-ancestors 'none'";

/// What every page is sent with. With another referrer policy, browsers would leave out the `Origin` of forms, which the server checks.
const HEADERS: [(HeaderName, &str); 5] = [
    (CONTENT_TYPE, "text/html; charset=utf-8"),
    (CONTENT_SECURITY_POLICY, POLICY),
    (CACHE_CONTROL, "no-store"),
    (REFERRER_POLICY, "same-origin"),
    // Errors are pages for browsers and JSON for programs; pages are in the visitor's language.
    (VARY, "accept, accept-language, cookie"),
];

/// # Errors
/// The template fails, which is a bug.
pub(crate) fn page(status: StatusCode, template: &impl Template) -> Result<Response, askama::Error> {
    // In the whole page, because templates have none of these characters of their own: nothing that they show can hide what follows it.
    let text = escaped(&template.render()?).into_owned();
    let mut response = Response::new(Body::from(text));
    *response.status_mut() = status;
    for (name, value) in HEADERS {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    Ok(response)
}

/// After a form, the browser loads this page; so loading it again does not send the form again.
pub(crate) fn see_other(target: &str) -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SEE_OTHER;
    if let Ok(target) = HeaderValue::try_from(target) {
        response.headers_mut().insert(LOCATION, target);
    }
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// The code names pages by their paths on this server; redirects get its root here, and links in the templates.
pub(crate) async fn below_root(State(root): State<Arc<str>>, mut response: Response) -> Response {
    if let Some(location) = response.headers_mut().get_mut(LOCATION)
        && let Ok(target) = HeaderValue::try_from([root.as_bytes(), location.as_bytes()].concat())
    {
        *location = target;
    }
    response
}

/// Where a form or a link leads afterwards: a page of this server, never another site.
pub(crate) fn own_page(target: &str) -> &str {
    // Browsers take `..` out of a path, and would leave the root of this server by it.
    let is_dots = |part: &str| matches!(part.to_ascii_lowercase().replace("%2e", ".").as_str(), "." | "..");
    let is_own = target.starts_with('/')
        && !target.starts_with("//")
        && !target.contains(['\\', '\r', '\n', '\t'])
        && !target.split(['?', '#']).next().unwrap_or_default().split('/').any(is_dots);
    if is_own { target } else { "/" }
}

/// Text as it is, which no browser takes for a page.
pub(crate) fn plain(text: String, download: Option<&str>) -> Response {
    let mut response = Response::new(Body::from(text));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static("default-src 'none'; sandbox"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if let Some(Ok(value)) = download.map(|name| HeaderValue::try_from(format!("attachment; filename=\"{name}\""))) {
        headers.insert(axum::http::header::CONTENT_DISPOSITION, value);
    }
    response
}

#[cfg(test)]
mod tests {
    use super::own_page;

    #[test]
    fn nothing_leads_to_another_site() {
        assert_eq!(own_page("/tasks?status=dead"), "/tasks?status=dead");
        for other in [
            "",
            "https://evil.example",
            "//evil.example",
            "/\\evil.example",
            "/\t/evil.example",
            "javascript:alert(1)",
            "/../evil",
            "/tasks/%2E./../evil?x",
        ] {
            assert_eq!(own_page(other), "/", "{other}");
        }
    }
}
