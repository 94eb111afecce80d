//! Times and amounts, for people.

use std::fmt;

use askama::filters::HtmlSafe;
use bloom_core::Ms;
use jiff::Timestamp;

/// A time as the element `time`: relative, with the absolute time on hover. Scripts keep it up to date.
#[derive(Clone, Copy, Debug)]
pub struct Time {
    at: Ms,
    now: Ms,
}

impl Time {
    pub fn new(at: Ms, now: Ms) -> Self {
        Self { at, now }
    }
}

// It contains only digits and fixed words.
impl HtmlSafe for Time {}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stamp = Timestamp::from_millisecond(self.at).unwrap_or(Timestamp::UNIX_EPOCH);
        let absolute = stamp.strftime("%Y-%m-%d %H:%M:%S UTC");
        let machine = stamp.strftime("%Y-%m-%dT%H:%M:%SZ");
        write!(f, "<time datetime=\"{machine}\" title=\"{absolute}\" data-at=\"{}\">{}</time>", self.at, relative(self.at, self.now))
    }
}

fn relative(at: Ms, now: Ms) -> String {
    match now - at {
        -1_999..=1_999 => "now".into(),
        past @ 0.. => format!("{} ago", duration(past)),
        future => format!("in {}", duration(-future)),
    }
}

/// Two units at most: `3 min 5 s`.
pub fn duration(ms: Ms) -> String {
    let seconds = ms.max(0) / 1_000;
    let (minutes, hours, days) = (seconds / 60, seconds / 3_600, seconds / 86_400);
    match (days, hours, minutes) {
        (2.., ..) => format!("{days} days"),
        (_, 1.., _) => format!("{hours} h {} min", minutes % 60),
        (.., 1..) => format!("{minutes} min {} s", seconds % 60),
        _ if ms < 1_000 => format!("{} ms", ms.max(0)),
        _ => format!("{seconds} s"),
    }
}

/// US dollars. Most runs cost cents.
pub fn dollars(usd: impl std::borrow::Borrow<f64>) -> String {
    let usd = *usd.borrow();
    if usd >= 100.0 {
        format!("${usd:.0}")
    } else if usd >= 1.0 {
        format!("${usd:.2}")
    } else {
        format!("${usd:.4}")
    }
}

/// The beginning of a text, in one line.
pub fn beginning(text: &str, most: usize) -> String {
    let words = text.split_whitespace().fold(String::new(), |line, word| match line.chars().count() > most {
        true => line,
        false if line.is_empty() => word.to_owned(),
        false => format!("{line} {word}"),
    });
    shortened(&words, most)
}

/// The beginning of a text, with its lines.
pub fn shortened(text: &str, most: usize) -> String {
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
        let html = Time::new(1_772_000_000_000, 1_772_000_185_000).to_string();
        assert_eq!(
            html,
            "<time datetime=\"2026-02-25T06:13:20Z\" title=\"2026-02-25 06:13:20 UTC\" data-at=\"1772000000000\">3 min 5 s ago</time>"
        );
        assert_eq!(relative(5_000, 0), "in 5 s");
        assert_eq!(relative(0, 1_000), "now");
    }

    #[test]
    fn durations_have_two_units() {
        let told = [999, 59_000, 61_000, 3_661_000, 90_000_000, 900_000_000].map(duration);
        assert_eq!(told, ["999 ms", "59 s", "1 min 1 s", "1 h 1 min", "25 h 0 min", "10 days"]);
    }

    #[test]
    fn texts_are_shortened_between_characters() {
        assert_eq!(beginning("  ї\n\tї  ї ", 3), "ї ї…");
        assert_eq!(shortened("a\nb", 3), "a\nb");
    }
}
