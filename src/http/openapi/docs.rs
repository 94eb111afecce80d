//! The OpenAPI description and an explorer for it. All files are in this program, so the explorer works offline.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, OnceLock};

use axum::body::Bytes;
use axum::extract::Path;
use axum::extract::rejection::PathRejection;
use axum::http::header::CONTENT_SECURITY_POLICY;
use axum::http::{HeaderValue, StatusCode};
use axum::response::Redirect;
use axum::routing::get;
use parking_lot::Mutex;
use utoipa_swagger_ui::{Config, serve};

use crate::limits::body_memory::Counted;
use crate::messages::answer::{HandlerResult, json_bytes, typed};
use crate::messages::error::Error;
use crate::openapi::description::Routes;

const NOT_FOUND: Error = Error::fixed(404, "Not found");
const POLICY: HeaderValue =
    HeaderValue::from_static("default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; frame-ancestors 'none'");

pub(crate) fn add_to(routes: Routes) -> Routes {
    routes
        .add_page("/openapi.json", get(openapi))
        .add_page("/docs", get(|| async { Redirect::temporary("/docs/") }))
        .add_page("/docs/", get(explorer))
        .add_page("/docs/{*file}", get(file))
}

async fn openapi() -> HandlerResult {
    static TEXT: OnceLock<Bytes> = OnceLock::new();
    let text = match TEXT.get() {
        Some(text) => text,
        None => {
            let text = crate::openapi().map_err(|error| Error::Internal(error.to_string()))?.to_string();
            TEXT.get_or_init(|| text.into())
        }
    };
    let mut response = json_bytes(StatusCode::OK, text.clone());
    response.extensions_mut().insert(Counted);
    Ok(response)
}

/// The page loads its files by relative addresses, because a proxy may serve the server below a path.
async fn explorer() -> HandlerResult {
    asset("index.html")
}

async fn file(path: Result<Path<String>, PathRejection>) -> HandlerResult {
    path.map_or(Err(NOT_FOUND), |Path(file)| asset(&file))
}

fn asset(file: &str) -> HandlerResult {
    /// All answers share the bytes of a file. There are as many entries as files.
    static FILES: LazyLock<Mutex<HashMap<String, (HeaderValue, Bytes)>>> = LazyLock::new(Mutex::default);
    let known = FILES.lock().get(file).cloned();
    let (content_type, bytes) = match known {
        Some(known) => known,
        None => {
            let read = read(file)?;
            FILES.lock().entry(file.to_owned()).or_insert(read).clone()
        }
    };
    let mut response = typed(StatusCode::OK, content_type, bytes);
    response.headers_mut().insert(CONTENT_SECURITY_POLICY, POLICY);
    response.extensions_mut().insert(Counted);
    Ok(response)
}

fn read(file: &str) -> Result<(HeaderValue, Bytes), Error> {
    let config = Arc::new(Config::from("../openapi.json").persist_authorization(true));
    let found = serve(file, config).map_err(|error| Error::Internal(error.to_string()))?;
    let found = found.ok_or(NOT_FOUND)?;
    let content_type = HeaderValue::try_from(found.content_type).map_err(|error| Error::Internal(error.to_string()))?;
    let mut bytes = found.bytes.into_owned();
    if file == "index.html" {
        let page = String::from_utf8_lossy(&bytes);
        bytes = page.replacen("Swagger UI", "bloom-runtime API", 1).into_bytes();
    }
    Ok((content_type, bytes.into()))
}
