//! Sign in and out.

use askama::Template;
use axum::extract::Request;
use axum::http::header::SET_COOKIE;
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};

use super::answer::{own_page, see_other};
use super::language_links::NEXT;
use super::refused::Refused;
use super::visit::{Fields, Layout, Posted, Visit, read_form_of_stranger};
use bloom_core::api_key::Scope;
use bloom_http::SESSION_MS;

#[derive(Template)]
#[template(path = "sign_in.html")]
struct SignIn<'a> {
    v: &'a Layout,
    next: &'a str,
    error: Option<&'a str>,
}

pub(crate) async fn form(mut parts: Parts) -> Result<Response, Refused> {
    let visit = Visit::stranger(&mut parts)?;
    if visit.layout.is_open {
        return Ok(see_other("/"));
    }
    let next = visit.query().text(NEXT);
    visit.ok(&SignIn { v: &visit.layout, next: &next, error: None })
}

pub(crate) async fn send(request: Request) -> Result<Response, Response> {
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
        Err((status, error)) => {
            let page = SignIn { v: &visit.layout, next: &fields.text(NEXT), error: Some(error) };
            visit.show(status, &page).map_err(IntoResponse::into_response)
        }
    }
}

async fn session(visit: &Visit, fields: &Fields) -> Result<String, (StatusCode, &'static str)> {
    let v = &visit.layout;
    let Some(key) = fields.get("key").map(str::trim) else {
        return Err((StatusCode::BAD_REQUEST, v.t("Enter a key.", "Введіть ключ.")));
    };
    let wrong = v.t(
        "This is not a key of this server, or it was revoked or has expired. Ask the person who runs the server for a key.",
        "Це не ключ цього сервера, або його відкликано чи термін його дії минув. Попросіть ключ в адміністратора сервера.",
    );
    let identity = visit.api.identify(key).await.ok_or((StatusCode::UNAUTHORIZED, wrong))?;
    match identity.scope {
        Scope::Worker => Err((
            StatusCode::FORBIDDEN,
            v.t(
                "This is the key of a worker, which shows nothing here: sign in with an admin, submit, member or read key.",
                "Це ключ воркера, який тут нічого не показує: увійдіть із ключем рівня admin, submit, member або read.",
            ),
        )),
        Scope::Join => Err((
            StatusCode::FORBIDDEN,
            v.t(
                "This is a join token, which only enrolls one worker: sign in with an admin, submit, member or read key.",
                "Це токен приєднання, який лише приєднує один воркер: увійдіть із ключем рівня admin, submit, member або read.",
            ),
        )),
        Scope::Admin | Scope::Submit | Scope::Member | Scope::Read => visit.api.begin_session(&identity).ok_or((
            StatusCode::INTERNAL_SERVER_ERROR,
            v.t("The session could not be made. Try again.", "Не вдалося створити сеанс. Спробуйте ще раз."),
        )),
    }
}

pub(crate) async fn out(Posted { visit, .. }: Posted) -> Response {
    let mut response = see_other("/sign-in");
    let ended: HeaderMap = visit.cookies.end_session().map(|cookie| (SET_COOKIE, cookie)).into_iter().collect();
    response.headers_mut().extend(ended);
    response
}
