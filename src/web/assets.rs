//! Styles and scripts. The name of a file contains the digest of its content, so browsers can keep a file for ever and never use an
//! outdated one.

use std::sync::LazyLock;

use axum::body::Body;
use axum::extract::Path;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::Response;
use sha2::{Digest, Sha256};

pub(crate) struct Asset {
    pub path: String,
    content_type: &'static str,
    content: &'static str,
}

fn asset(name: &str, ending: &str, content_type: &'static str, content: &'static str) -> Asset {
    let digest = hex::encode(Sha256::digest(content));
    Asset { path: format!("/assets/{name}.{}.{ending}", digest.get(..16).unwrap_or(&digest)), content_type, content }
}

pub(crate) static STYLE: LazyLock<Asset> =
    LazyLock::new(|| asset("style", "css", "text/css; charset=utf-8", include_str!("assets/style.css")));
pub(crate) static SCRIPT: LazyLock<Asset> =
    LazyLock::new(|| asset("page", "js", "text/javascript; charset=utf-8", include_str!("assets/page.js")));
pub(crate) static ICON: LazyLock<Asset> = LazyLock::new(|| asset("icon", "svg", "image/svg+xml", include_str!("assets/icon.svg")));
pub(crate) static ICON_ASKS: LazyLock<Asset> =
    LazyLock::new(|| asset("icon-asks", "svg", "image/svg+xml", include_str!("assets/icon-asks.svg")));

pub(crate) async fn file(Path(name): Path<String>) -> Response {
    let path = format!("/assets/{name}");
    let found = [&*STYLE, &*SCRIPT, &*ICON, &*ICON_ASKS].into_iter().find(|asset| asset.path == path);
    let mut response = Response::new(Body::from(found.map_or("There is no such file", |asset| asset.content)));
    *response.status_mut() = if found.is_some() { StatusCode::OK } else { StatusCode::NOT_FOUND };
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(found.map_or("text/plain; charset=utf-8", |asset| asset.content_type)));
    let caching = if found.is_some() { "public, max-age=31536000, immutable" } else { "no-store" };
    headers.insert(CACHE_CONTROL, HeaderValue::from_static(caching));
    response
}
