//! Errors and refusals that become pages.

use std::borrow::Cow;
use std::collections::BTreeMap;

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};

use super::lang::Lang;
use super::language_links::At;
use super::times::shortened;
use bloom_api::error::{Cause, ErrorText};
use bloom_api::invalid::Invalid;

/// The maximum length of an unknown text that is repeated in an error.
const SHOWN_CHARS: usize = 40;

/// The errors of a form, by the names of its fields.
pub(crate) type Wrong = BTreeMap<String, String>;

/// The errors that the API reports, by the names of its fields.
pub(crate) fn by_field(invalid: &Invalid) -> Wrong {
    invalid.fields.iter().map(|(field, texts)| (field.clone(), texts.join("; "))).collect()
}

/// Why there is no page, or why nothing was done.
#[derive(Clone, Debug)]
pub(crate) struct Refused {
    pub status: u16,
    pub text: Said,
    /// The errors of single fields.
    pub fields: Wrong,
    /// Whether a form was not made for the visitor's session. Then another key would not help.
    pub is_of_session: bool,
}

/// The source of the text: the API writes English, the pages write the visitor's language.
#[derive(Clone, Debug)]
pub(crate) enum Said {
    Api(String),
    Page(Cow<'static, str>, Cow<'static, str>),
}

impl Said {
    pub(crate) fn text(&self, at: &At) -> &str {
        match self {
            Self::Api(text) => text,
            Self::Page(english, ukrainian) => at.lang.t(english, ukrainian),
        }
    }

    /// The language of the text.
    pub(crate) fn lang(&self, at: &At) -> Lang {
        match self {
            Self::Api(_) => Lang::English,
            Self::Page(..) => at.lang,
        }
    }
}

impl Refused {
    pub(crate) fn new(status: u16, english: impl Into<Cow<'static, str>>, ukrainian: impl Into<Cow<'static, str>>) -> Self {
        Self { status, text: Said::Page(english.into(), ukrainian.into()), fields: Wrong::new(), is_of_session: false }
    }

    /// A form was not made for the visitor's session: it comes from an earlier session, or from another site.
    pub(crate) fn of_session() -> Self {
        let text = Self::new(
            403,
            "This form was not made for your session, so nothing was done",
            "Ця форма не з вашого сеансу, тому нічого не зроблено",
        );
        Self { is_of_session: true, ..text }
    }

    /// A form with errors in these fields.
    pub(crate) fn of_fields(fields: Wrong) -> Self {
        Self { fields, ..Self::new(400, "", "") }
    }

    /// A form with an error in one field.
    pub(crate) fn of_field(field: &str, text: String) -> Self {
        Self::of_fields(Wrong::from([(field.to_owned(), text)]))
    }

    /// An address or a form has a name or a value that is not among the known ones, so nothing was done.
    pub(crate) fn unknown(name: &str, given: &str, known: &[&str]) -> Self {
        let (name, given, known) = (shortened(name, SHOWN_CHARS), shortened(given, SHOWN_CHARS), known.join(", "));
        Self::new(
            400,
            format!("{name}: '{given}' is unknown, so nothing was done. Known: {known}"),
            format!("{name}: «{given}» невідоме, тому нічого не зроблено. Відомі: {known}"),
        )
    }

    /// An error of this program.
    pub(crate) fn internal(english: &'static str, ukrainian: &'static str) -> Self {
        Self::new(500, english, ukrainian)
    }

    /// From an error response of the API.
    pub(crate) fn of(status: u16, body: &[u8]) -> Self {
        match serde_json::from_slice(body) {
            Ok(ErrorText { error: Cause::Text(text), .. }) => Self::by_api(status, text.into_owned()),
            Ok(ErrorText { error: Cause::Invalid(invalid), .. }) => {
                Self { fields: by_field(&invalid), ..Self::by_api(status, invalid.line()) }
            }
            Err(_) => Self::new(status, "The server could not answer", "Сервер не зміг відповісти"),
        }
    }

    fn by_api(status: u16, text: String) -> Self {
        Self { status, text: Said::Api(text), fields: Wrong::new(), is_of_session: false }
    }

    pub(crate) fn title(&self, at: &At) -> &'static str {
        let lang = at.lang;
        match self.status {
            400 => lang.t("This can't be read", "Запит не розпізнано"),
            401 => lang.t("You are signed out", "Ви не ввійшли"),
            403 => lang.t("This is not allowed", "Це не дозволено"),
            404 | 405 => lang.t("There is no such page", "Такої сторінки немає"),
            408 | 429 => lang.t("Too much at once", "Забагато запитів"),
            409 => lang.t("This is not possible now", "Зараз це неможливо"),
            413 => lang.t("This is too large", "Завеликий обсяг даних"),
            502 | 503 => lang.t("This does not work now", "Зараз це не працює"),
            status if status < 500 => lang.t("This is not possible", "Це неможливо"),
            _ => lang.t("The server has failed", "Помилка сервера"),
        }
    }

    /// What to do next.
    pub(crate) fn advice(&self, at: &At) -> &'static str {
        let lang = at.lang;
        match self.status {
            _ if self.is_of_session => lang.t(
                "Go back, load the page again, and send the form again. The page needs cookies of this server.",
                "Поверніться, перезавантажте сторінку й надішліть форму ще раз. Сторінці потрібні файли cookie цього сервера.",
            ),
            401 => lang.t("Sign in with a key of this server.", "Увійдіть із ключем цього сервера."),
            403 => lang.t(
                "If your key does not allow it, ask a person with an admin key to do it, or to give you a key that may.",
                "Якщо ваш ключ цього не дозволяє, попросіть зробити це того, хто має ключ адміністратора, або попросіть у нього інший ключ.",
            ),
            404 | 405 => lang.t(
                "What you look for may have been removed. The lists have what there is.",
                "Можливо, те, що ви шукаєте, вилучено. Усе наявне є у списках.",
            ),
            409 => lang.t(
                "Go back and load the page again: it shows the present state.",
                "Поверніться й перезавантажте сторінку: вона покаже поточний стан.",
            ),
            429 => lang.t("Wait a minute, then load the page again.", "Зачекайте хвилину й перезавантажте сторінку."),
            500 => lang.t(
                "The server's log has the cause. Load the page again; if it stays, tell the person who runs the server.",
                "Причина є в журналі сервера. Перезавантажте сторінку; якщо не допоможе, повідомте адміністратора сервера.",
            ),
            502..=599 => lang.t("Load the page again in a moment.", "Перезавантажте сторінку за мить."),
            _ => lang.t("Go back, correct it, and send it again.", "Поверніться, виправте й надішліть знову."),
        }
    }

    /// Whether another key might help.
    pub(crate) fn is_of_key(&self) -> bool {
        matches!(self.status, 401 | 403) && !self.is_of_session
    }
}

impl From<askama::Error> for Refused {
    fn from(_: askama::Error) -> Self {
        Self::internal("The page could not be made", "Сторінку не вдалося створити")
    }
}

/// `errors_as_pages` makes the page, because it knows the language of the request.
impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let mut response = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR).into_response();
        response.extensions_mut().insert(self);
        response
    }
}
