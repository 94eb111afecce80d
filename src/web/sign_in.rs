//! Sign in and out.

use askama::Template;
use axum::extract::Request;
use axum::http::header::SET_COOKIE;
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;

use super::answer::see_other;
use super::refused::Refused;
use super::visit::{Fields, Layout, NEXT, Posted, Visit, read_form_of_stranger};
use bloom_core::api_key::Scope;
use bloom_http::SESSION_MS;

#[derive(Template)]
#[template(path = "sign_in.html")]
struct SignIn<'a> {
    v: &'a Layout,
    next: &'a str,
    error: Option<&'a str>,
}

pub async fn form(mut parts: Parts) -> Result<Response, Refused> {
    let visit = Visit::stranger(&mut parts)?;
    if visit.layout.is_open {
        return Ok(see_other("/"));
    }
    let next = visit.query().text(NEXT);
    visit.ok(&SignIn { v: &visit.layout, next: &next, error: None })
}

pub async fn send(request: Request) -> Result<Response, Refused> {
    let (visit, fields) = read_form_of_stranger(request).await?;
    if visit.layout.is_open {
        return Ok(see_other("/"));
    }
    match session(&visit, &fields).await {
        Ok(session) => {
            let mut response = see_other(own_page(&fields.text(NEXT)));
            let cookie = visit.cookies.set_session(&session, SESSION_MS / 1_000);
            response.headers_mut().extend(cookie.map(|cookie| (SET_COOKIE, cookie)));
            Ok(response)
        }
        Err((status, error)) => visit.show(status, &SignIn { v: &visit.layout, next: &fields.text(NEXT), error: Some(error) }),
    }
}

async fn session(visit: &Visit, fields: &Fields) -> Result<String, (StatusCode, &'static str)> {
    let Some(key) = fields.get("key").map(str::trim) else {
        return Err((StatusCode::BAD_REQUEST, "Enter a key."));
    };
    let wrong = "This is not a key of this server, or it was revoked or has expired. Ask the person who runs the server for a key.";
    let identity = visit.api.identify(key).await.ok_or((StatusCode::UNAUTHORIZED, wrong))?;
    match identity.scope {
        Scope::Worker => Err((
            StatusCode::FORBIDDEN,
            "This is the key of a worker, which shows nothing here: sign in with an admin, submit or read key.",
        )),
        Scope::Join => {
            Err((StatusCode::FORBIDDEN, "This is a join token, which only enrolls one worker: sign in with an admin, submit or read key."))
        }
        Scope::Admin | Scope::Submit | Scope::Read => {
            visit.api.begin_session(&identity).ok_or((StatusCode::INTERNAL_SERVER_ERROR, "The session could not be made. Try again."))
        }
    }
}

/// Where to go after signing in: a page of this server, never another site.
fn own_page(next: &str) -> &str {
    let is_own = next.starts_with('/') && !next.starts_with("//") && !next.contains(['\\', '\r', '\n', '\t']);
    if is_own { next } else { "/" }
}

pub async fn out(Posted { visit, .. }: Posted) -> Response {
    let mut response = see_other("/sign-in");
    let ended: HeaderMap = visit.cookies.end_session().map(|cookie| (SET_COOKIE, cookie)).into_iter().collect();
    response.headers_mut().extend(ended);
    response
}

#[cfg(test)]
mod tests {
    use super::own_page;

    #[test]
    fn signing_in_leads_to_no_other_site() {
        assert_eq!(own_page("/tasks?status=dead"), "/tasks?status=dead");
        for other in ["", "https://evil.example", "//evil.example", "/\\evil.example", "/\t/evil.example", "javascript:alert(1)"] {
            assert_eq!(own_page(other), "/", "{other}");
        }
    }
}
