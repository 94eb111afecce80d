//! A browser without scripts: it keeps cookies, and sends the forms of its pages.

use std::collections::BTreeMap;
use std::sync::Mutex;

use reqwest::Method;

use crate::support::*;

pub struct Browser {
    api: Api,
    cookies: Mutex<BTreeMap<String, String>>,
}

pub struct Page {
    pub status: u16,
    pub headers: reqwest::header::HeaderMap,
    pub text: String,
}

impl Browser {
    pub fn of(api: &Api) -> Self {
        Self { api: api.with_header("accept", "text/html,application/xhtml+xml"), cookies: Mutex::default() }
    }

    /// A browser that has signed in with this key.
    pub async fn signed_in(api: &Api, key: &str) -> Self {
        let browser = Self::of(api);
        browser.sign_in(key).await.leads_to("/");
        browser
    }

    pub async fn sign_in(&self, key: &str) -> Page {
        self.send_form("/sign-in", "/sign-in", &[("key", key)]).await
    }

    pub async fn get(&self, path: &str) -> Page {
        self.send(Method::GET, path, None, &[]).await
    }

    pub async fn ok(&self, path: &str) -> Page {
        self.get(path).await.expect(200)
    }

    /// Sends a form of this page, with the token that the page has.
    pub async fn send_form(&self, page: &str, target: &str, fields: &[(&str, &str)]) -> Page {
        let token = self.ok(page).await.form_token();
        self.post(target, &[&[("form_token", token.as_str())], fields].concat(), &[]).await
    }

    pub async fn post(&self, target: &str, fields: &[(&str, &str)], headers: &[(&str, &str)]) -> Page {
        let body = url_of(fields);
        self.send(Method::POST, target, Some(body), headers).await
    }

    pub async fn send(&self, method: Method, path: &str, body: Option<String>, headers: &[(&str, &str)]) -> Page {
        let mut request = self.api.request(method, path).header("cookie", self.cookie_header());
        if let Some(body) = body {
            request = request.header("content-type", "application/x-www-form-urlencoded").body(body);
        }
        self.exchange(headers.iter().fold(request, |request, (name, value)| request.header(*name, *value))).await
    }

    /// Sends a form of this page that has files: name, type and content of each.
    pub async fn send_files(&self, page: &str, field: &str, files: &[(&str, &str, &[u8])], fields: &[(&str, &str)]) -> Page {
        const BOUNDARY: &str = "----form-0123456789";
        let token = self.ok(page).await.form_token();
        let mut body = Vec::new();
        for (name, value) in [("form_token", token.as_str())].iter().chain(fields) {
            body.extend(format!("--{BOUNDARY}\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n").bytes());
        }
        for (name, kind, content) in files {
            let head = format!("Content-Disposition: form-data; name=\"{field}\"; filename=\"{name}\"\r\nContent-Type: {kind}");
            body.extend(format!("--{BOUNDARY}\r\n{head}\r\n\r\n").bytes());
            body.extend_from_slice(content);
            body.extend(b"\r\n");
        }
        body.extend(format!("--{BOUNDARY}--\r\n").bytes());
        let request = self.api.request(Method::POST, page).header("cookie", self.cookie_header());
        self.exchange(request.header("content-type", format!("multipart/form-data; boundary={BOUNDARY}")).body(body)).await
    }

    /// Sends a body of another type.
    pub async fn send_as(&self, target: &str, kind: &str, body: &str) -> Page {
        let request = self.api.request(Method::POST, target).header("cookie", self.cookie_header());
        self.exchange(request.header("content-type", kind).body(body.to_owned())).await
    }

    async fn exchange(&self, request: reqwest::RequestBuilder) -> Page {
        let response = request.send().await.expect("an answer");
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        for cookie in headers.get_all("set-cookie") {
            let text = cookie.to_str().unwrap();
            let (name, value) = text.split(';').next().unwrap().split_once('=').unwrap();
            self.cookies.lock().unwrap().insert(name.into(), value.into());
        }
        Page { status, headers, text: response.text().await.expect("a page") }
    }

    pub fn cookie_header(&self) -> String {
        let cookies = self.cookies.lock().unwrap();
        cookies.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join("; ")
    }

    pub fn cookie(&self, name: &str) -> Option<String> {
        self.cookies.lock().unwrap().get(name).filter(|value| !value.is_empty()).cloned()
    }

    pub fn set_cookie(&self, name: &str, value: &str) {
        self.cookies.lock().unwrap().insert(name.into(), value.into());
    }
}

fn url_of(fields: &[(&str, &str)]) -> String {
    let encoded = |text: &str| text.bytes().map(|byte| format!("%{byte:02X}")).collect::<String>();
    fields.iter().map(|(name, value)| format!("{}={}", encoded(name), encoded(value))).collect::<Vec<_>>().join("&")
}

impl Page {
    #[track_caller]
    pub fn expect(self, status: u16) -> Self {
        assert_eq!(self.status, status, "{:?} {}", self.headers, self.text);
        self
    }

    /// A browser would go on there.
    #[track_caller]
    pub fn leads_to(&self, target: &str) {
        assert_eq!((self.status, self.header("location")), (303, target), "{}", self.text);
    }

    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map(|value| value.to_str().unwrap()).unwrap_or_default()
    }

    #[track_caller]
    pub fn has(&self, text: &str) {
        assert!(self.text.contains(text), "no {text} in {}", self.text);
    }

    #[track_caller]
    pub fn has_not(&self, text: &str) {
        assert!(!self.text.contains(text), "{text} in {}", self.text);
    }

    #[track_caller]
    pub fn form_token(&self) -> String {
        let after = self.text.split("name=\"form_token\" value=\"").nth(1).expect("a form with a token");
        after.split('"').next().unwrap().to_owned()
    }
}
