//! Shares what open pages load again after a change. Browsers that show the same page with the same key, in the same language, get the same
//! text, so the page is read and rendered once for all of them. Only the token in the forms differs for each browser.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{FromRequestParts as _, Request, State};
use axum::http::header::SET_COOKIE;
use axum::http::response::Parts;
use axum::http::{StatusCode, Uri};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use http_body_util::BodyExt as _;
use quick_cache::Weighter;
use quick_cache::sync::Cache;

use super::cookies::{TokenStandIn, new_visitor};
use super::lang::Lang;
use super::refused::Refused;
use super::visit::Visit;
use bloom_core::Ms;
use bloom_core::api_key::Scope;

/// The header with which the script of an open page marks its repeated requests.
const AGAIN: &str = "bloom-again";
const MAX_BYTES: u64 = 16 << 20;
/// Larger pages are not kept, because each would evict too many others.
const MAX_PAGE_BYTES: usize = 1 << 20;
/// Roughly the size of a page of a list.
const PAGE_BYTES: usize = 16 << 10;
const SECOND: Ms = 1_000;

/// Everything that determines the content of a page, except the token. Times and a few states change without a commit, so a page is kept
/// for only a second.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Key {
    commits: i64,
    second: Ms,
    scope: Scope,
    /// The digest of the named key.
    key: Option<String>,
    address: String,
    lang: Lang,
    target: String,
}

impl Key {
    fn of(visit: &Visit, target: &Uri) -> Self {
        Self {
            commits: visit.api.commits(),
            second: visit.layout.now / SECOND,
            scope: visit.caller.scope,
            key: visit.caller.key.as_ref().map(|key| key.digest.clone()),
            address: visit.address.clone(),
            lang: visit.layout.at.lang,
            target: target.to_string(),
        }
    }
}

#[derive(Clone)]
struct Rendered {
    parts: Parts,
    text: Arc<str>,
}

impl Rendered {
    async fn of(response: Response) -> Result<Self, Refused> {
        let (parts, body) = response.into_parts();
        let bytes = body.collect().await.map_err(|_| Refused::from(askama::Error::Fmt))?.to_bytes();
        Ok(Self { parts, text: String::from_utf8_lossy(&bytes).into() })
    }

    /// Whether other browsers may get this page. Errors and pages that set a cookie are for one browser only.
    fn is_for_many(&self) -> bool {
        self.parts.status == StatusCode::OK && !self.parts.headers.contains_key(SET_COOKIE) && self.text.len() <= MAX_PAGE_BYTES
    }
}

#[derive(Clone)]
struct Bytes;

impl Weighter<Key, Option<Rendered>> for Bytes {
    fn weight(&self, key: &Key, page: &Option<Rendered>) -> u64 {
        (key.target.len() + page.as_ref().map_or(0, |page| page.text.len())) as u64
    }
}

/// The pages that open browsers have loaded in the last second.
#[derive(Clone)]
pub(crate) struct Recent {
    /// `None` for a page that must not be shared.
    pages: Arc<Cache<Key, Option<Rendered>, Bytes>>,
    stand_in: TokenStandIn,
}

impl Recent {
    /// `None` if the machine has no source of random bytes, for example in a root directory without `/dev`. Then each browser gets a page
    /// of its own.
    pub(crate) fn new() -> Option<Self> {
        let pages = Arc::new(Cache::with_weighter(MAX_BYTES as usize / PAGE_BYTES, MAX_BYTES, Bytes));
        Some(Self { pages, stand_in: TokenStandIn(new_visitor()?.into()) })
    }
}

/// Answers with the page that another browser has just loaded, or renders it once for all requests that wait for it.
pub(crate) async fn once(State(recent): State<Recent>, request: Request, next: Next) -> Response {
    if !request.headers().contains_key(AGAIN) {
        return next.run(request).await;
    }
    let mut parts = request.into_parts().0;
    let visit = match Visit::from_request_parts(&mut parts, &()).await {
        Ok(visit) => visit,
        Err(refused) => return refused,
    };
    let key = Key::of(&visit, &parts.uri);
    parts.extensions.insert(recent.stand_in.clone());
    let load = async || Rendered::of(next.clone().run(Request::from_parts(parts.clone(), Body::empty())).await).await;
    let mut own = None;
    let make = async {
        let page = own.insert(load().await?);
        Ok::<_, Refused>(page.is_for_many().then(|| page.clone()))
    };
    let kept = recent.pages.get_or_insert_async(&key, make).await;
    let is_shared = own.is_none() && matches!(kept, Ok(Some(_)));
    visit.api.page_loaded_again(is_shared);
    let page = match (kept, own) {
        (Ok(Some(page)), _) | (Ok(None), Some(page)) => Ok(page),
        (Ok(None), None) => load().await,
        (Err(refused), _) => Err(refused),
    };
    match page {
        Ok(page) => Response::from_parts(page.parts, Body::from(page.text.replace(&*recent.stand_in.0, &visit.layout.token))),
        Err(refused) => refused.into_response(),
    }
}
