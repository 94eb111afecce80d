//! Reads and commands: calls of the API with the visitor's rights.

use axum::http::header::LINK;
use axum::http::{HeaderValue, Method};
use axum::response::Response;
use http_body_util::BodyExt as _;
use serde::de::DeserializeOwned;
use serde_json::Value;
use url::form_urlencoded;

use super::json_rows::Rows;
use super::multipart::Upload;
use super::refused::Refused;
use super::visit::Visit;

/// The base of paths that do not begin with `/`.
const BASE: &str = "/api/runtime/";

/// A page of a list.
pub(crate) struct Listed<R> {
    pub rows: Vec<R>,
    /// The cursor of the next page.
    pub next: Option<String>,
}

impl Visit {
    /// # Errors
    /// The API refuses the call.
    pub(crate) async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, Refused> {
        self.read(self.send(Method::GET, path, String::new()).await).await
    }

    /// As [`get`](Self::get); `None` if the object does not exist, or if the key may not see it.
    pub(crate) async fn find<T: DeserializeOwned>(&self, path: &str) -> Result<Option<T>, Refused> {
        match self.get(path).await {
            Ok(found) => Ok(Some(found)),
            Err(refused) if matches!(refused.status, 403 | 404) => Ok(None),
            Err(refused) => Err(refused),
        }
    }

    /// # Errors
    /// The API refuses the call.
    pub(crate) async fn act(&self, method: Method, path: &str, body: &Value) -> Result<Value, Refused> {
        self.read(self.send(method, path, body.to_string()).await).await
    }

    /// As [`act`](Self::act), for a POST whose answer is parsed.
    ///
    /// # Errors
    /// The API refuses the call.
    pub(crate) async fn post<T: DeserializeOwned>(&self, path: &str, body: &Value) -> Result<T, Refused> {
        self.read(self.send(Method::POST, path, body.to_string()).await).await
    }

    /// A page of a list. Rows are converted as they are read, because texts of tasks may be large.
    ///
    /// # Errors
    /// The API refuses the call.
    pub(crate) async fn list<T: DeserializeOwned, R>(&self, path: &str, convert: impl Fn(T) -> R) -> Result<Listed<R>, Refused> {
        let response = self.send(Method::GET, path, String::new()).await;
        if !response.status().is_success() {
            return Err(refused(response).await);
        }
        let next = response.headers().get(LINK).and_then(|link| link.to_str().ok()).and_then(cursor);
        let (mut body, mut scan, mut rows) = (response.into_body(), Rows::default(), Vec::new());
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|_| Refused::new(503, "The list broke off", "Список обірвався"))?;
            for row in scan.take(&frame.into_data().unwrap_or_default()) {
                rows.push(convert(serde_json::from_slice(&row).map_err(|_| unreadable())?));
            }
        }
        Ok(Listed { rows, next })
    }

    /// As [`list`](Self::list); `None` if the key may not see the list.
    pub(crate) async fn list_if_allowed<T: DeserializeOwned, R>(
        &self,
        path: &str,
        convert: impl Fn(T) -> R,
    ) -> Result<Option<Listed<R>>, Refused> {
        match self.list(path, convert).await {
            Ok(listed) => Ok(Some(listed)),
            Err(refused) if refused.status == 403 => Ok(None),
            Err(refused) => Err(refused),
        }
    }

    /// Uploads a file.
    ///
    /// # Errors
    /// The API refuses it.
    pub(crate) async fn upload(&self, file: &Upload) -> Result<Value, Refused> {
        // Browsers send a valid content type. The API refuses the upload if it is not.
        let content_type = HeaderValue::try_from(&file.content_type).unwrap_or(HeaderValue::from_static("application/octet-stream"));
        let target = format!("{BASE}artifacts?name={}", path_part(&file.name));
        self.read(self.api.upload(&self.caller, &target, content_type, file.content.clone()).await).await
    }

    pub(crate) async fn send(&self, method: Method, path: &str, body: String) -> Response {
        let target = if path.starts_with('/') { path.to_owned() } else { format!("{BASE}{path}") };
        self.api.call(&self.caller, method, &target, body).await
    }

    async fn read<T: DeserializeOwned>(&self, response: Response) -> Result<T, Refused> {
        if !response.status().is_success() {
            return Err(refused(response).await);
        }
        let body = response.into_body().collect().await.map_err(|_| Refused::new(503, "The answer broke off", "Відповідь обірвалася"))?;
        serde_json::from_slice(&body.to_bytes()).map_err(|_| unreadable())
    }
}

fn unreadable() -> Refused {
    Refused::internal("An answer of the API could not be read", "Відповідь API не вдалося прочитати")
}

pub(crate) async fn refused(response: Response) -> Refused {
    let status = response.status().as_u16();
    match response.into_body().collect().await {
        Ok(body) => Refused::of(status, &body.to_bytes()),
        Err(_) => Refused::new(status, "The server could not answer", "Сервер не зміг відповісти"),
    }
}

/// The cursor in a link to the next page.
fn cursor(link: &str) -> Option<String> {
    let target = link.strip_prefix('<')?.split_once('>')?.0;
    let query = target.split_once('?')?.1;
    form_urlencoded::parse(query.as_bytes()).find(|(name, _)| name == "cursor").map(|(_, value)| value.into_owned())
}

/// Encodes a text as one part of a path: characters that would end the part are escaped.
pub(crate) fn path_part(text: &str) -> String {
    form_urlencoded::byte_serialize(text.as_bytes()).collect::<String>().replace('+', "%20")
}
