//! Times, as people write and read them: on the command line and on the pages.

use std::time::Duration;

use jiff::civil::Date;
use jiff::tz::TimeZone;
use jiff::{Span, SpanRelativeTo, Timestamp, Unit};

use bloom_core::{DAY_MS, Ms};

const FORMS: &str = "a time like 2026-02-25T10:00:00Z, a day like 2026-02-25 (UTC), or milliseconds since the epoch";

/// In March 1973. No task is older, and a smaller number is rather meant as seconds.
const FIRST_LIKELY: Ms = 100_000_000_000;

/// `90`, `90s`, `5m`, `1h30m`, `2d`, and whatever else jiff reads as whole seconds; seconds unless a unit is given.
///
/// # Errors
/// The text is not of this form; the error says what is expected.
pub fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || "expected a time like 90, 90s, 5m, 1h30m or 2d".to_owned();
    if let Ok(seconds) = text.parse::<u64>() {
        return Ok(Duration::from_secs(seconds));
    }
    // A day always has 24 hours here, wherever the command is given.
    let duration = text.parse::<Span>().and_then(|span| span.to_duration(SpanRelativeTo::days_are_24_hours()));
    let duration: Option<Duration> = duration.ok().and_then(|duration| duration.try_into().ok());
    duration.filter(|duration| duration.subsec_nanos() == 0).ok_or_else(wrong)
}

/// As [`duration`], but a number alone is refused, where nobody can know whether it means seconds or days.
///
/// # Errors
/// As [`duration`].
fn duration_with_unit(text: &str) -> Result<Duration, String> {
    if is_bare_number(text) {
        return Err(format!("{text} what? With a unit: {text}d, {text}h, {text}m"));
    }
    duration(text)
}

/// How many seconds something lasts from now on: a time like `90d`, years of 365 days like `1y`, or until a day or a time.
///
/// # Errors
/// The text is neither, or the time is past; the error says what is expected.
pub fn seconds_until(text: &str, now: Ms) -> Result<u64, String> {
    let years = text.strip_suffix('y').and_then(|years| years.parse::<u64>().ok());
    if let Some(seconds) = years.and_then(|years| years.checked_mul(365 * 86_400)) {
        return Ok(seconds);
    }
    if text.contains('-') {
        let seconds = (future(text, now)? - now) / 1_000;
        return u64::try_from(seconds).ok().filter(|seconds| *seconds > 0).ok_or_else(|| format!("{text} is past"));
    }
    Ok(duration_with_unit(text)?.as_secs())
}

/// Parses a time in the past: how long ago, `today` or `yesterday` (their beginning, UTC), or an absolute time.
///
/// # Errors
/// The text is neither; the error says what is expected.
pub fn past(text: &str, now: Ms) -> Result<Ms, String> {
    not_too_early(text, |text| format!("{text}s is {text} seconds ago"))?;
    let ago = || Some(now.saturating_sub(span(text)?));
    let by_name = || Some(now - now.rem_euclid(DAY_MS) - DAY_MS * ["today", "yesterday"].iter().position(|day| *day == text)? as Ms);
    moment(text).or_else(ago).or_else(by_name).ok_or_else(|| format!("expected how long ago, like 2h, today, yesterday, or {FORMS}"))
}

/// Parses a time in the future: how long from now, with or without a plus, `tomorrow` (its beginning, UTC), or an absolute time.
///
/// # Errors
/// The text is neither; the error says what is expected.
pub fn future(text: &str, now: Ms) -> Result<Ms, String> {
    not_too_early(text, |text| format!("+{text}s is {text} seconds from now"))?;
    let later = || Some(now.saturating_add(span(text.strip_prefix('+').unwrap_or(text))?));
    let by_name = || (text == "tomorrow").then_some(now - now.rem_euclid(DAY_MS) + DAY_MS);
    moment(text).or_else(later).or_else(by_name).ok_or_else(|| format!("expected how long from now, like +10m, tomorrow, or {FORMS}"))
}

/// Refuses a number that is hardly meant as milliseconds since the epoch; `meant` says how to give it in seconds.
fn not_too_early(text: &str, meant: impl FnOnce(&str) -> String) -> Result<(), String> {
    let month = Some(text).filter(|text| is_bare_number(text)).and_then(|text| too_early(text.parse().ok()?));
    month.map_or(Ok(()), |month| Err(format!("{text} would be in {month}; {}", meant(text))))
}

/// The month of a time that is so early that it is hardly meant as milliseconds since the epoch.
pub fn too_early(at: Ms) -> Option<String> {
    let at = Timestamp::from_millisecond(at).ok().filter(|_| (0..FIRST_LIKELY).contains(&at))?;
    Some(at.to_zoned(TimeZone::UTC).strftime("%B %Y").to_string())
}

fn is_bare_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

fn span(text: &str) -> Option<Ms> {
    let span = duration(text).ok().filter(|_| !is_bare_number(text))?;
    Ms::try_from(span.as_millis()).ok()
}

fn moment(text: &str) -> Option<Ms> {
    if is_bare_number(text) {
        return text.parse().ok();
    }
    let by_day = || Some(text.parse::<Date>().ok()?.to_zoned(TimeZone::UTC).ok()?.timestamp());
    let at = if text.contains(['T', 't', ':']) { text.parse().ok() } else { by_day() };
    at.map(|at: Timestamp| at.as_millisecond()).filter(|at| *at >= 0)
}

/// A limit of time in its largest unit that has no rest: `(30, 'm')`; the units are `h`, `m` and `s`.
pub fn in_largest_unit(seconds: i64) -> (i64, char) {
    match (seconds % 3_600, seconds % 60) {
        (0, _) if seconds > 0 => (seconds / 3_600, 'h'),
        (_, 0) if seconds > 0 => (seconds / 60, 'm'),
        _ => (seconds, 's'),
    }
}

/// A limit of time, as people give it: `30m`.
pub fn limit_text(seconds: i64) -> String {
    let (count, unit) = in_largest_unit(seconds);
    format!("{count}{unit}")
}

/// The length of a time span in one unit: `45s`, `5m`, `3h`, `12d`.
pub fn span_text(ms: Ms) -> String {
    let seconds = ms.abs() / 1000;
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7200 => format!("{}m", seconds / 60),
        7200..172_800 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// `2026-02-25T10:00:00Z`
pub fn time_text(at: Ms) -> String {
    let time = Timestamp::from_millisecond(at).and_then(|at| at.round(Unit::Second));
    time.map_or_else(|_| at.to_string(), |at| at.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Ms = 1_772_000_000_000;

    #[test]
    fn durations() {
        let read = |text: &str| duration(text).ok().map(|duration| duration.as_secs());
        assert_eq!(read("90"), Some(90));
        assert_eq!(read("1h30m"), Some(5400));
        assert_eq!(read("2d"), Some(172_800));
        assert_eq!(read("1.5h"), Some(5400));
        for wrong in ["", "m", "5x", "5m3", "-5m", "500ms", "5m ago", "2mo", "99999999999999999999s", "999999999999999999d"] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn moments() {
        assert_eq!(past("2026-02-25", NOW), Ok(1_771_977_600_000));
        assert_eq!(future("2026-02-25T10:00:00Z", NOW), Ok(1_772_013_600_000));
        assert_eq!(future("2026-02-25T11:00:00+01:00", NOW), Ok(1_772_013_600_000));
        assert_eq!(past("1772013600000", NOW), Ok(1_772_013_600_000));
        assert_eq!(time_text(1_772_013_600_000), "2026-02-25T10:00:00Z");
        assert_eq!(past("2h", NOW), Ok(NOW - 7_200_000));
        assert_eq!([future("+10m", NOW), future("10m", NOW)], [Ok(NOW + 600_000), Ok(NOW + 600_000)]);
        assert_eq!([past("today", NOW), past("yesterday", NOW)], [Ok(1_771_977_600_000), Ok(1_771_891_200_000)]);
        assert_eq!(future("tomorrow", NOW), Ok(1_772_064_000_000));
        for wrong in ["", "soon", "2026-13-01", "2026-02-25T25:00:00Z", "+", "10:00"] {
            assert!(past(wrong, NOW).is_err() && future(wrong, NOW).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_small_number_is_no_time() {
        assert_eq!(future("60", NOW), Err("60 would be in January 1970; +60s is 60 seconds from now".into()));
        assert_eq!(past("5", NOW), Err("5 would be in January 1970; 5s is 5 seconds ago".into()));
        assert!(past("99999999999", NOW).unwrap_err().starts_with("99999999999 would be in March 1973"));
        assert_eq!((past("100000000000", NOW), future("100000000000", NOW)), (Ok(100_000_000_000), Ok(100_000_000_000)));
        assert_eq!(duration_with_unit("90"), Err("90 what? With a unit: 90d, 90h, 90m".into()));
        assert_eq!(duration_with_unit("90d"), duration("90d"));
    }

    #[test]
    fn spans() {
        let check = |seconds: Ms, text: &str| assert_eq!(span_text(seconds * 1000), text);
        check(0, "0s");
        check(-119, "119s");
        check(300, "5m");
        check(7200, "2h");
        check(172_800, "2d");
    }
}
