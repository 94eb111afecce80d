//! The language and address of a page, for the links that show it in another language, and the handler of these links.

use axum::extract::Path;
use axum::http::header::SET_COOKIE;
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method, Uri};
use axum::response::Response;
use url::form_urlencoded;

use super::answer::{own_page, see_other};
use super::cookies::{Cookies, language};
use super::lang::Lang;
use bloom_http::Api;

/// The field with the address of the page to show next.
pub(crate) const NEXT: &str = "next";

/// The language of a page, and its address.
#[derive(Clone, Debug)]
pub(crate) struct At {
    pub lang: Lang,
    /// The path below which browsers reach the server, or nothing. Links begin with it.
    pub root: String,
    /// The address of the page. A page that answers a form has no address of its own, so it gets that of its menu entry.
    address: String,
}

impl At {
    pub(crate) fn of(method: &Method, uri: &Uri, headers: &HeaderMap, root: &str) -> Self {
        let asked = uri.path_and_query().map_or("/", |asked| asked.as_str());
        let address = if method == Method::POST { place(uri.path()) } else { asked.to_owned() };
        Self { lang: language(headers, root), root: root.to_owned(), address }
    }

    /// The other languages, each with the link that changes to it.
    pub(crate) fn others(&self) -> impl Iterator<Item = (Lang, String)> {
        let next = form_urlencoded::Serializer::new(String::new()).append_pair(NEXT, &self.address).finish();
        Lang::ALL.into_iter().filter(|lang| *lang != self.lang).map(move |lang| (lang, format!("/language/{}?{next}", lang.code())))
    }
}

/// The menu entry that a path belongs to.
pub(crate) fn place(path: &str) -> String {
    match path {
        "/tasks/new" => path.to_owned(),
        _ => format!("/{}", path.split('/').nth(1).unwrap_or_default()),
    }
}

/// Stores the language in a cookie. It is a link and not a form, because it only changes how pages are shown to this browser.
pub(crate) async fn choose(Path(tag): Path<String>, parts: Parts) -> Response {
    let query = form_urlencoded::parse(parts.uri.query().unwrap_or_default().as_bytes());
    let next = query.into_iter().find(|(name, _)| name == NEXT).map(|(_, next)| next.into_owned()).unwrap_or_default();
    let mut response = see_other(own_page(&next));
    let cookies = parts.extensions.get::<Api>().map(|api| Cookies::of(&parts.headers, api.root(), api.is_secure(&parts)));
    let cookie = cookies.zip(Lang::of_tag(&tag)).and_then(|(cookies, lang)| cookies.set_language(lang));
    response.headers_mut().extend(cookie.map(|cookie| (SET_COOKIE, cookie)));
    response
}
