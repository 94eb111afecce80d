//! A browser's request: its visitor, and the data that all pages share.

use std::borrow::Cow;
use std::fmt::Display;

use axum::body::Bytes;
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::header::{CONTENT_TYPE, SET_COOKIE};
use axum::http::request::Parts;
use axum::http::{HeaderValue, Method, StatusCode};
use axum::response::{IntoResponse, Response};
use url::form_urlencoded;

use super::answer::{page, see_other};
use super::cookies::{Cookies, TokenStandIn, form_token, is_form_token, new_visitor};
use super::language_links::{At, NEXT, place};
use super::multipart::{self, Upload, boundary};
use super::refused::Refused;
use super::times::Time;
use bloom_core::Ms;
use bloom_core::api_key::Scope;
use bloom_http::{Api, Caller, Identity, Share, refuse_unread_form};

/// The form field that proves that a page of this server has made the form.
pub(crate) const FORM_TOKEN: &str = "form_token";

/// The data that all pages show.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    pub at: At,
    /// The menu entry to which the page belongs.
    pub here: String,
    pub scope: Scope,
    /// The name of the key, or the label of its scope.
    pub who: String,
    /// Whether the server has no keys, so that nobody needs to sign in.
    pub is_open: bool,
    /// Whether the address of a control plane is set.
    pub uses_membridge: bool,
    pub token: String,
    pub now: Ms,
}

impl Layout {
    fn of(parts: &Parts, api: &Api, identity: &Identity, cookie: &str) -> Self {
        let at = At::of(&parts.method, &parts.uri, &parts.headers, api.root());
        Self {
            here: place(parts.uri.path()),
            scope: identity.scope,
            who: identity.key.as_ref().map_or_else(|| at.lang.word(identity.scope.as_str()).into_owned(), |key| key.name.clone()),
            is_open: api.is_open(),
            uses_membridge: api.uses_membridge(),
            token: parts.extensions.get::<TokenStandIn>().map_or_else(|| form_token(cookie), |stand_in| stand_in.0.to_string()),
            now: api.now(),
            at,
        }
    }

    /// The layout for the visitor who is signed in, for a page that is made after the request was refused.
    pub(crate) async fn of_session(parts: &Parts) -> Option<Self> {
        let api = parts.extensions.get::<Api>()?;
        let cookies = Cookies::of(&parts.headers, api.root(), api.is_secure(parts));
        if api.is_open() {
            return Some(Self::of(parts, api, &Identity::ADMIN, &cookies.visitor?));
        }
        let cookie = cookies.session?;
        let identity = api.session(&cookie).await?;
        Some(Self::of(parts, api, &identity, &cookie))
    }

    /// Whether the visitor may change tasks: an admin key all tasks, a submit key its own, a member key those of its team.
    pub(crate) fn may_act(&self) -> bool {
        matches!(self.scope, Scope::Admin | Scope::Submit | Scope::Member)
    }

    pub(crate) fn is_admin(&self) -> bool {
        self.scope == Scope::Admin
    }

    /// Whether the visitor may see workers and the records of all keys.
    pub(crate) fn sees_all(&self) -> bool {
        matches!(self.scope, Scope::Admin | Scope::Read)
    }

    /// Whether the visitor may see usage: that of all tasks, of its team's tasks, or of its own.
    pub(crate) fn sees_usage(&self) -> bool {
        self.sees_team() || self.scope == Scope::Submit
    }

    /// Whether the visitor may see queues, projects and workers: all of them, or those that its team needs to know.
    pub(crate) fn sees_team(&self) -> bool {
        self.sees_all() || self.scope == Scope::Member
    }

    pub(crate) fn time(&self, at: &Ms) -> Time {
        Time::new(*at, self.now, self.at.lang)
    }

    /// The label of a word of the API.
    pub(crate) fn word(&self, word: impl Display) -> Cow<'static, str> {
        self.at.lang.word(&word.to_string())
    }

    /// Returns whichever of the two texts is in the language of the page.
    pub(crate) fn t<T>(&self, english: T, ukrainian: T) -> T {
        self.at.lang.t(english, ukrainian)
    }
}

/// A visitor who may see pages.
pub(crate) struct Visit {
    pub api: Api,
    pub caller: Caller,
    pub layout: Layout,
    pub cookies: Cookies,
    /// The address of this server, for commands that are run on other machines.
    pub address: String,
    query: Fields,
    set_cookie: Option<HeaderValue>,
}

impl Visit {
    pub(crate) fn query(&self) -> &Fields {
        &self.query
    }

    /// Renders a page, and sets the cookie that its forms need.
    pub(crate) fn show(&self, status: StatusCode, template: &impl askama::Template) -> Result<Response, Refused> {
        let mut response = page(status, template)?;
        if let Some(cookie) = &self.set_cookie {
            response.headers_mut().append(SET_COOKIE, cookie.clone());
        }
        Ok(response)
    }

    /// # Errors
    /// The visitor is not an administrator.
    pub(crate) fn must_be_admin(&self) -> Result<(), Refused> {
        let refused = || Refused::new(403, "Only an administrator may do this", "Це може робити лише адміністратор");
        self.layout.is_admin().then_some(()).ok_or_else(refused)
    }

    pub(crate) fn ok(&self, template: &impl askama::Template) -> Result<Response, Refused> {
        self.show(StatusCode::OK, template)
    }

    /// A visitor who is not signed in, for the pages that need no sign-in.
    pub(crate) fn stranger(parts: &mut Parts) -> Result<Self, Refused> {
        Self::of(parts, Identity { scope: Scope::Join, key: None }, None)
    }

    fn of(parts: &Parts, identity: Identity, session: Option<String>) -> Result<Self, Refused> {
        let (Some(api), Some(caller)) = (parts.extensions.get::<Api>().cloned(), parts.extensions.get::<Caller>().cloned()) else {
            return Err(outside());
        };
        let cookies = Cookies::of(&parts.headers, api.root(), api.is_secure(parts));
        let (cookie, set_cookie) = match session.or_else(|| cookies.visitor.clone()) {
            Some(known) => (known, None),
            None => {
                let no_bytes = || Refused::internal("The machine has no random bytes", "Машина не має випадкових байтів");
                let new = new_visitor().ok_or_else(no_bytes)?;
                let set = cookies.set_visitor(&new);
                (new, set)
            }
        };
        let layout = Layout::of(parts, &api, &identity, &cookie);
        let address = api.address(parts).unwrap_or_default();
        let query = Fields::parse(parts.uri.query().unwrap_or_default().as_bytes());
        let caller = Caller { scope: identity.scope, key: identity.key, ..caller };
        Ok(Self { api, caller, layout, cookies, address, query, set_cookie })
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Visit {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Response> {
        let Some(api) = parts.extensions.get::<Api>().cloned() else {
            return Err(outside().into_response());
        };
        if api.is_open() {
            return Self::of(parts, Identity::ADMIN, None).map_err(IntoResponse::into_response);
        }
        let cookie = Cookies::of(&parts.headers, api.root(), api.is_secure(parts)).session;
        let identity = match &cookie {
            Some(cookie) => api.session(cookie).await,
            None => None,
        };
        match identity {
            Some(identity) => Self::of(parts, identity, cookie).map_err(IntoResponse::into_response),
            None if parts.method == Method::GET => {
                let asked = parts.uri.path_and_query().map_or("/", |asked| asked.as_str());
                let target = format!("/sign-in?{}", form_urlencoded::Serializer::new(String::new()).append_pair(NEXT, asked).finish());
                Err(see_other(if asked == "/" { "/sign-in" } else { &target }))
            }
            None => {
                let refused = Refused::new(
                    401,
                    "You are signed out, so nothing was done: sign in, and send the form again",
                    "Ви не ввійшли, тому нічого не зроблено: увійдіть і надішліть форму ще раз",
                );
                Err(refused.into_response())
            }
        }
    }
}

fn outside() -> Refused {
    Refused::internal("A page is outside the server", "Сторінка поза сервером")
}

/// A form that a page of this server has made for this visitor.
pub(crate) struct Posted {
    pub visit: Visit,
    pub fields: Fields,
    /// The uploaded files.
    pub files: Vec<Upload>,
    /// The share of the memory for bodies that this form uses.
    _held: Share,
}

impl<S: Send + Sync> FromRequest<S> for Posted {
    type Rejection = Response;

    async fn from_request(request: Request, state: &S) -> Result<Self, Response> {
        let (mut parts, body) = request.into_parts();
        // The body is read only if the visitor may send one.
        let visit = Visit::from_request_parts(&mut parts, state).await;
        let request = Request::from_parts(parts, body);
        let visit = match visit {
            Ok(visit) => visit,
            Err(refused) => return Err(refuse_unread_form(request, refused).await),
        };
        let (request, held) = visit.api.gather(request, &visit.caller, false).await?;
        let session = if visit.layout.is_open { &visit.cookies.visitor } else { &visit.cookies.session };
        let (fields, files) = read_form(request, session.as_deref()).await.map_err(IntoResponse::into_response)?;
        Ok(Self { visit, fields, files, _held: held })
    }
}

/// The form of a visitor who is not signed in.
pub(crate) async fn read_form_of_stranger(request: Request) -> Result<(Visit, Fields), Response> {
    let (mut parts, body) = request.into_parts();
    let visit = Visit::stranger(&mut parts).map_err(IntoResponse::into_response)?;
    let (request, _held) = visit.api.gather(Request::from_parts(parts, body), &visit.caller, true).await?;
    let (fields, _) = read_form(request, visit.cookies.visitor.as_deref()).await.map_err(IntoResponse::into_response)?;
    Ok((visit, fields))
}

async fn read_form(request: Request, cookie: Option<&str>) -> Result<(Fields, Vec<Upload>), Refused> {
    let unreadable = || Refused::new(400, "The form could not be read: send it again", "Форму не вдалося прочитати: надішліть її ще раз");
    let kind = request.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default().to_owned();
    let body = Bytes::from_request(request, &()).await.map_err(|_| unreadable())?;
    let (fields, files) = match boundary(&kind) {
        Some(boundary) => {
            let parts = multipart::read(boundary, body).await.ok_or_else(unreadable)?;
            (Fields(parts.texts), parts.files)
        }
        None => (Fields::parse(&body), Vec::new()),
    };
    let token = fields.get(FORM_TOKEN).unwrap_or_default();
    if !cookie.is_some_and(|cookie| is_form_token(cookie, token)) {
        return Err(Refused::of_session());
    }
    Ok((fields, files))
}

/// Joins the queries that are not empty.
pub(crate) fn joined<const N: usize>(queries: [&str; N]) -> String {
    queries.into_iter().filter(|query| !query.is_empty()).collect::<Vec<_>>().join("&")
}

/// The fields of a form or of a query, in the order in which they were sent.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fields(Vec<(String, String)>);

impl Fields {
    pub(crate) fn of<'a>(texts: impl Iterator<Item = (&'a str, String)>) -> Self {
        Self(texts.map(|(name, text)| (name.to_owned(), text)).collect())
    }

    pub(crate) fn parse(text: &[u8]) -> Self {
        Self(form_urlencoded::parse(text).map(|(name, value)| (name.into_owned(), value.into_owned())).collect())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The first value that is not empty.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.all(name).next()
    }

    pub(crate) fn text(&self, name: &str) -> String {
        self.get(name).unwrap_or_default().to_owned()
    }

    pub(crate) fn all<'a>(&'a self, name: &str) -> impl Iterator<Item = &'a str> {
        let name = name.to_owned();
        self.0.iter().filter(move |(key, value)| *key == name && !value.is_empty()).map(|(_, value)| value.as_str())
    }

    /// All values including the empty ones, so that each keeps its position.
    pub(crate) fn every<'a>(&'a self, name: &str) -> impl Iterator<Item = &'a str> {
        let name = name.to_owned();
        self.0.iter().filter(move |(key, _)| *key == name).map(|(_, value)| value.as_str())
    }

    /// # Errors
    /// A field has a name that is not in `known`. It is not ignored, because a misspelt filter must not count as no filter.
    pub(crate) fn only(&self, known: &[&str]) -> Result<(), Refused> {
        let unknown = self.0.iter().find(|(name, _)| !known.contains(&name.as_str()));
        unknown.map_or(Ok(()), |(name, _)| Err(Refused::unknown("name", name, known)))
    }

    /// # Errors
    /// The field is set, and its value is not in `known`.
    pub(crate) fn word(&self, name: &str, known: &[&str]) -> Result<String, Refused> {
        match self.get(name) {
            Some(given) if !known.contains(&given) => Err(Refused::unknown(name, given, known)),
            given => Ok(given.unwrap_or_default().to_owned()),
        }
    }

    /// A query string of those of these fields that are set.
    pub(crate) fn query_of(&self, names: &[&str]) -> String {
        form_urlencoded::Serializer::new(String::new()).extend_pairs(self.given(names)).finish()
    }

    /// Those of these fields that are set.
    pub(crate) fn given(&self, names: &[&str]) -> impl Iterator<Item = (&str, &str)> {
        let given = self.0.iter().filter(|(name, value)| names.contains(&name.as_str()) && !value.is_empty());
        given.map(|(name, value)| (name.as_str(), value.as_str()))
    }
}
