//! The languages of the pages. Each text is written once, where it is shown, in English and in Ukrainian: `t("Tasks", "Завдання")`. What
//! comes from the API, such as names and errors, stays in English.

use axum::http::HeaderMap;
use axum::http::header::ACCEPT_LANGUAGE;

/// How many languages of a request are read. Browsers send only a few.
const MOST: usize = 16;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum Lang {
    #[default]
    English,
    Ukrainian,
}

impl Lang {
    pub(crate) const ALL: [Self; 2] = [Self::English, Self::Ukrainian];

    /// The code for the attribute `lang`.
    pub(crate) fn code(self) -> &'static str {
        self.t("en", "uk")
    }

    /// The name of the language in the language itself.
    pub(crate) fn name(self) -> &'static str {
        self.t("English", "Українська")
    }

    /// Returns whichever of the two texts is in this language.
    pub(crate) fn t<T>(self, english: T, ukrainian: T) -> T {
        match self {
            Self::English => english,
            Self::Ukrainian => ukrainian,
        }
    }

    /// A number and its noun: the singular and the plural in English, the forms for 1, 2 and 5 in Ukrainian.
    pub(crate) fn count(self, number: i64, english: [&str; 2], [one, few, many]: [&str; 3]) -> String {
        let [singular, plural] = english;
        let noun = match (self, number % 10, number % 100) {
            (Self::English, ..) if number == 1 => singular,
            (Self::English, ..) => plural,
            (_, _, 11..=14) => many,
            (_, 1, _) => one,
            (_, 2..=4, _) => few,
            _ => many,
        };
        format!("{number} {noun}")
    }

    /// The language that a tag such as `uk-UA` belongs to.
    pub(crate) fn of_tag(tag: &str) -> Option<Self> {
        let primary = tag.split('-').next()?;
        Self::ALL.into_iter().find(|lang| primary.eq_ignore_ascii_case(lang.code()))
    }

    /// The language that the browser prefers; `None` if the pages have none of the languages that it accepts.
    pub(crate) fn accepted(headers: &HeaderMap) -> Option<Self> {
        let ranges = headers.get(ACCEPT_LANGUAGE)?.to_str().ok()?.split(',').take(MOST);
        let weighed = ranges.filter_map(|range| {
            let mut parts = range.split(';').map(str::trim);
            let lang = Self::of_tag(parts.next()?)?;
            let weight = parts.find_map(|part| part.strip_prefix("q=")).map_or(Some(1.0), |weight| weight.parse::<f32>().ok())?;
            (weight > 0.0).then_some((weight, lang))
        });
        // If two have the same weight, the first one wins.
        weighed.reduce(|best, other| if other.0 > best.0 { other } else { best }).map(|(_, lang)| lang)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    #[test]
    fn ukrainian_numbers_have_three_forms() {
        let told = |number| Lang::Ukrainian.count(number, ["day", "days"], ["день", "дні", "днів"]);
        let expected = [
            "0 днів",
            "1 день",
            "2 дні",
            "4 дні",
            "5 днів",
            "11 днів",
            "12 днів",
            "14 днів",
            "21 день",
            "22 дні",
            "25 днів",
            "111 днів",
            "112 днів",
            "101 день",
        ];
        assert_eq!([0, 1, 2, 4, 5, 11, 12, 14, 21, 22, 25, 111, 112, 101].map(told), expected);
        let told = |number| Lang::English.count(number, ["day", "days"], ["день", "дні", "днів"]);
        assert_eq!([0, 1, 2, 21].map(told), ["0 days", "1 day", "2 days", "21 days"]);
    }

    #[test]
    fn the_language_of_the_greatest_weight_is_taken() {
        let of = |text| Lang::accepted(&HeaderMap::from_iter([(ACCEPT_LANGUAGE, HeaderValue::from_static(text))]));
        assert_eq!(of("uk-UA,uk;q=0.9,en-US;q=0.8,en;q=0.7"), Some(Lang::Ukrainian));
        assert_eq!(of("de, en;q=0.5, UK;q=0.8"), Some(Lang::Ukrainian));
        assert_eq!(of("en,uk"), Some(Lang::English));
        assert_eq!(of("uk;q=0, en;q=0.1"), Some(Lang::English));
        for none in ["", "*", "de-DE,fr", "ukr", "uk;q=x", ";;;,,,"] {
            assert_eq!(of(none), None, "{none}");
        }
    }
}
