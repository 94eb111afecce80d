//! HTTP responses.

use std::sync::Arc;

use askama::Template;
use axum::body::Body;
use axum::extract::State;
use axum::http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, LOCATION, REFERRER_POLICY, VARY};
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::Response;
use bloom_api::visible_text::escaped;

/// A page loads nothing from other sites and has no inline scripts or styles, and no other site may show it in a frame.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; \
     base-uri 'none'; frame-ancestors 'none'";

/// The headers of every page. With a stricter referrer policy, browsers would leave out the `Origin` of forms, which the server checks.
const HEADERS: [(HeaderName, &str); 5] = [
    (CONTENT_TYPE, "text/html; charset=utf-8"),
    (CONTENT_SECURITY_POLICY, POLICY),
    (CACHE_CONTROL, "no-store"),
    (REFERRER_POLICY, "same-origin"),
    // Browsers get errors as pages, programs get them as JSON; and pages are in the visitor's language.
    (VARY, "accept, accept-language, cookie"),
];

/// # Errors
/// The template failed to render, which is a bug.
pub(crate) fn page(status: StatusCode, template: &impl Template) -> Result<Response, askama::Error> {
    // The whole page is escaped. Templates themselves have none of these characters, so no text that they show can hide what follows it.
    let text = escaped(&template.render()?).into_owned();
    let mut response = Response::new(Body::from(text));
    *response.status_mut() = status;
    for (name, value) in HEADERS {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    Ok(response)
}

/// Redirects the browser to this page after a form was sent, so that reloading the page does not send the form again.
pub(crate) fn see_other(target: &str) -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SEE_OTHER;
    if let Ok(target) = HeaderValue::try_from(target) {
        response.headers_mut().insert(LOCATION, target);
    }
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// Adds the root to redirects: the code names pages by their paths on this server. Links get the root in the templates.
pub(crate) async fn below_root(State(root): State<Arc<str>>, mut response: Response) -> Response {
    if let Some(location) = response.headers_mut().get_mut(LOCATION)
        && let Ok(target) = HeaderValue::try_from([root.as_bytes(), location.as_bytes()].concat())
    {
        *location = target;
    }
    response
}

/// The page to show after a form or a link: always a page of this server, never one of another site.
pub(crate) fn own_page(target: &str) -> &str {
    // Browsers resolve `..` in a path, so such a path could leave the root of this server.
    let is_dots = |part: &str| matches!(part.to_ascii_lowercase().replace("%2e", ".").as_str(), "." | "..");
    let is_own = target.starts_with('/')
        && !target.starts_with("//")
        && !target.contains(['\\', '\r', '\n', '\t'])
        && !target.split(['?', '#']).next().unwrap_or_default().split('/').any(is_dots);
    if is_own { target } else { "/" }
}

/// Plain text, which no browser interprets as a page.
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
