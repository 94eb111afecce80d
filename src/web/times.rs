//! Times and amounts, for people.

use std::fmt;

use askama::filters::HtmlSafe;
use bloom_api::time_text::in_largest_unit;
use bloom_api::usage::{Usage, in_ten_thousandths};
use bloom_core::{DAY_MS, Ms};
use jiff::Timestamp;

use super::lang::Lang;

/// A time as a `time` element: relative, with the absolute time on hover. The page's script keeps it up to date.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Time {
    at: Ms,
    now: Ms,
    lang: Lang,
}

impl Time {
    pub(crate) fn new(at: Ms, now: Ms, lang: Lang) -> Self {
        Self { at, now, lang }
    }
}

// The output contains only digits and fixed words.
impl HtmlSafe for Time {}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stamp = Timestamp::from_millisecond(self.at).unwrap_or(Timestamp::UNIX_EPOCH);
        let absolute = stamp.strftime("%Y-%m-%d %H:%M:%S UTC");
        let machine = stamp.strftime("%Y-%m-%dT%H:%M:%SZ");
        write!(
            f,
            "<time datetime=\"{machine}\" title=\"{absolute}\" data-at=\"{}\">{}</time>",
            self.at,
            relative(self.lang, self.at, self.now)
        )
    }
}

const TWO_DAYS_MS: Ms = 2 * DAY_MS;

fn relative(lang: Lang, at: Ms, now: Ms) -> String {
    match now - at {
        -1_999..=1_999 => lang.t("now", "щойно").into(),
        DAY_MS..TWO_DAYS_MS => lang.t("yesterday", "вчора").into(),
        past @ 0.. => {
            let span = duration(lang, past);
            lang.t(format!("{span} ago"), format!("{span} тому"))
        }
        future => {
            let span = duration(lang, -future);
            lang.t(format!("in {span}"), format!("за {span}"))
        }
    }
}

/// The error about a text that is not a duration, in Ukrainian.
pub(crate) const NO_TIME: &str = "очікується час, як-от 90, 90s, 5m, 1h30m або 2d";

/// Two units at most: `3 min 5 s`.
pub(crate) fn duration(lang: Lang, ms: Ms) -> String {
    let seconds = ms.max(0) / 1_000;
    let (minutes, hours, days) = (seconds / 60, seconds / 3_600, seconds / 86_400);
    let (h, min, s) = (lang.t("h", "год"), lang.t("min", "хв"), lang.t("s", "с"));
    match (days, hours, minutes) {
        (2.., ..) => lang.count(days, ["day", "days"], ["день", "дні", "днів"]),
        (_, 1.., _) => format!("{hours} {h} {} {min}", minutes % 60),
        (.., 1..) => format!("{minutes} {min} {} {s}", seconds % 60),
        _ if ms < 1_000 => format!("{} {}", ms.max(0), lang.t("ms", "мс")),
        _ => format!("{seconds} {s}"),
    }
}

/// The day in UTC, in the format of the usage: `2026-02-25`.
pub(crate) fn day(at: Ms) -> String {
    Timestamp::from_millisecond(at).unwrap_or_default().strftime("%Y-%m-%d").to_string()
}

/// A time limit, in the largest unit in which it is a whole number: `30 min`.
pub(crate) fn limit(lang: Lang, seconds: i64) -> String {
    let (count, unit) = in_largest_unit(seconds);
    let unit = match unit {
        'h' => lang.t("h", "год"),
        'm' => lang.t("min", "хв"),
        _ => lang.t("s", "с"),
    };
    format!("{count} {unit}")
}

/// A number with separated thousands if it is large: `24 000`. Both languages allow narrow spaces, and no reader mistakes them for a
/// decimal sign.
pub(crate) fn number(number: i64) -> String {
    let digits = number.to_string();
    if number.abs() < 10_000 {
        return digits;
    }
    let mut told = String::new();
    for (at, digit) in digits.char_indices() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) && !told.ends_with('-') {
            told.push('\u{202f}');
        }
        told.push(digit);
    }
    told
}

/// A number of what was counted, and whether there may be more.
pub(crate) fn at_least(lang: Lang, count: i64, is_more: bool) -> String {
    let count = number(count);
    if is_more { lang.t(format!("{count} or more"), format!("{count} чи більше")) } else { count }
}

/// US dollars. Most runs cost cents.
pub(crate) fn dollars(lang: Lang, usd: f64) -> String {
    let amount = if usd >= 100.0 || usd <= 0.0 {
        format!("{usd:.0}")
    } else if usd >= 1.0 {
        format!("{usd:.2}")
    } else {
        format!("{:.4}", in_ten_thousandths(usd))
    };
    lang.t(format!("${amount}"), format!("{}\u{a0}$", amount.replace('.', ",")))
}

/// US dollars, with `~` if a part of them is estimated.
pub(crate) fn cost(lang: Lang, usd: f64, is_estimated: bool) -> String {
    format!("{}{}", if is_estimated { "~" } else { "" }, dollars(lang, usd))
}

/// The cost and the tokens of runs.
pub(crate) fn used(lang: Lang, usage: &Usage) -> String {
    let about = if usage.cost_estimated { lang.t("about ", "приблизно ") } else { "" };
    let (cost, read, written) = (dollars(lang, usage.cost_usd), number(usage.input_tokens), number(usage.output_tokens));
    lang.t(
        format!("{about}{cost} for {read} tokens in, {written} out"),
        format!("{about}{cost}; токенів: вхідних {read}, вихідних {written}"),
    )
}

/// The beginning of a text, in one line.
pub(crate) fn beginning(text: &str, most: usize) -> String {
    let words = text.split_whitespace().fold(String::new(), |line, word| match line.chars().count() > most {
        true => line,
        false if line.is_empty() => word.to_owned(),
        false => format!("{line} {word}"),
    });
    shortened(&words, most)
}

/// The beginning of a text, with its line breaks.
pub(crate) fn shortened(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}…", &text[..end]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_relative_with_the_absolute_on_hover() {
        let html = Time::new(1_772_000_000_000, 1_772_000_185_000, Lang::English).to_string();
        assert_eq!(
            html,
            "<time datetime=\"2026-02-25T06:13:20Z\" title=\"2026-02-25 06:13:20 UTC\" data-at=\"1772000000000\">3 min 5 s ago</time>"
        );
        assert_eq!(relative(Lang::English, 5_000, 0), "in 5 s");
        assert_eq!([7_200, 1_800, 90, 0].map(|seconds| limit(Lang::English, seconds)), ["2 h", "30 min", "90 s", "0 s"]);
        let numbers = [0, 9_999, 24_000, 1_234_567, -123_456].map(number);
        assert_eq!(numbers, ["0", "9999", "24\u{202f}000", "1\u{202f}234\u{202f}567", "-123\u{202f}456"]);
        assert_eq!(relative(Lang::English, 0, 1_000), "now");
        assert_eq!(
            [DAY_MS - 1, DAY_MS, TWO_DAYS_MS - 1, TWO_DAYS_MS].map(|now| relative(Lang::English, 0, now)),
            ["23 h 59 min ago", "yesterday", "yesterday", "2 days ago"]
        );
        assert_eq!(relative(Lang::Ukrainian, 0, DAY_MS), "вчора");
        assert_eq!(relative(Lang::English, DAY_MS, 0), "in 24 h 0 min");
        assert_eq!(relative(Lang::Ukrainian, 5_000, 0), "за 5 с");
        assert_eq!(relative(Lang::Ukrainian, 0, 185_000), "3 хв 5 с тому");
    }

    #[test]
    fn durations_have_two_units() {
        let told = |lang| [999, 59_000, 61_000, 3_661_000, 90_000_000, 900_000_000, 1_900_000_000].map(|ms| duration(lang, ms));
        assert_eq!(told(Lang::English), ["999 ms", "59 s", "1 min 1 s", "1 h 1 min", "25 h 0 min", "10 days", "21 days"]);
        assert_eq!(told(Lang::Ukrainian), ["999 мс", "59 с", "1 хв 1 с", "1 год 1 хв", "25 год 0 хв", "10 днів", "21 день"]);
    }

    #[test]
    fn amounts_are_written_as_the_language_does() {
        assert_eq!([123.4, 1.5, 0.1834, 0.0].map(|usd| dollars(Lang::English, usd)), ["$123", "$1.50", "$0.1834", "$0"]);
        assert_eq!([123.4, 1.5, 0.1834].map(|usd| dollars(Lang::Ukrainian, usd)), ["123\u{a0}$", "1,50\u{a0}$", "0,1834\u{a0}$"]);
    }

    #[test]
    fn texts_are_shortened_between_characters() {
        assert_eq!(beginning("  ї\n\tї  ї ", 3), "ї ї…");
        assert_eq!(shortened("a\nb", 3), "a\nb");
    }
}
