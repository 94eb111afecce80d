//! Small charts of one value over time: of the last days, or of the last hour.

use bloom_core::{DAY_MS, Ms};
use bloom_http::Moment;
use jiff::Timestamp;

use super::lang::Lang;
use super::times::day;

/// A chart with fewer bars than this is of no use.
pub(crate) const LEAST_BARS: usize = 3;
/// In units of the SVG image.
const HEIGHT: f64 = 60.0;
const STEP: usize = 20;
/// Bars of an hour, one for each two minutes; the last one is the present.
const HOUR: usize = 31;

pub(crate) struct Bar {
    pub x: usize,
    pub y: String,
    pub height: String,
    /// The value of the bar, in words.
    pub title: String,
}

pub(crate) struct Chart {
    pub name: &'static str,
    /// The name, and the total of all bars or the value of the last one.
    pub caption: String,
    pub bars: Vec<Bar>,
    /// How many bars have a value above zero, and so are more than a line.
    pub filled: usize,
    pub width: usize,
}

impl Chart {
    /// `values`: each value and its text, in the order of time. `room`: the number of bars that fit; the last value is at the right edge.
    fn new(name: &'static str, told: &str, values: Vec<(f64, String)>, room: usize) -> Self {
        let empty = room.saturating_sub(values.len());
        let most = values.iter().map(|(value, _)| *value).fold(0.0, f64::max);
        let filled = values.iter().filter(|(value, _)| *value > 0.0).count();
        let bar = |(at, (value, title)): (usize, (f64, String))| {
            // A value of zero is drawn as a line, so that its time is visible.
            let height = if most > 0.0 { (value / most * HEIGHT).max(1.0) } else { 1.0 };
            Bar { x: (empty + at) * STEP, y: format!("{:.1}", HEIGHT - height), height: format!("{height:.1}"), title }
        };
        let bars: Vec<Bar> = values.into_iter().enumerate().map(bar).collect();
        Self { name, caption: format!("{name}: {told}"), filled, width: (empty + bars.len()) * STEP, bars }
    }

    /// A chart of the last days. Today is the last bar.
    pub(crate) fn per_day(
        lang: Lang,
        name: &'static str,
        now: Ms,
        days: Ms,
        value_of: impl Fn(&str) -> Option<f64>,
        words: impl Fn(f64) -> String,
    ) -> Self {
        let mut values = Vec::new();
        let mut sum = 0.0;
        for ago in (0..days).rev() {
            let day = day(now - ago * DAY_MS);
            let value = value_of(&day).unwrap_or_default().max(0.0);
            sum += value;
            values.push((value, format!("{day}: {}", words(value))));
        }
        let span = lang.count(days, ["day", "days"], ["день", "дні", "днів"]);
        let told = lang.t(format!("{} in {span}", words(sum)), format!("{} за {span}", words(sum)));
        Self::new(name, &told, values, 0)
    }

    /// A chart of the last hour. The last bar is the present. `value_of` gets a moment and the moment before it.
    pub(crate) fn of_hour(
        lang: Lang,
        name: &'static str,
        moments: &[Moment],
        value_of: fn(&Moment, &Moment) -> i64,
        words: impl Fn(i64) -> String,
    ) -> Self {
        let before = moments.first().into_iter().chain(moments);
        let values: Vec<i64> = moments.iter().zip(before).map(|(moment, before)| value_of(moment, before).max(0)).collect();
        let now = words(values.last().copied().unwrap_or_default());
        let most = words(values.iter().copied().max().unwrap_or_default());
        let told = lang.t(format!("{now} now, at most {most} in the last hour"), format!("зараз {now}, найбільше за годину {most}"));
        let title = |moment: &Moment, value: i64| {
            let at = Timestamp::from_millisecond(moment.at).map(|at| at.strftime("%H:%M UTC").to_string()).unwrap_or_default();
            format!("{at}: {}", words(value))
        };
        let bars = moments.iter().zip(values).map(|(moment, value)| (value as f64, title(moment, value))).collect();
        Self::new(name, &told, bars, HOUR)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(chart: &Chart) -> Vec<(usize, &str, &str, &str)> {
        chart.bars.iter().map(|bar| (bar.x, bar.y.as_str(), bar.height.as_str(), bar.title.as_str())).collect()
    }

    #[test]
    fn bars_are_in_proportion_and_today_is_the_last() {
        let value_of = |day: &str| match day {
            "2026-02-25" => Some(4.0),
            "2026-02-24" => Some(1.0),
            _ => None,
        };
        let chart = Chart::per_day(Lang::English, "Runs per day", 1_772_000_000_000, 3, value_of, |value| value.to_string());
        let expected = [(0, "59.0", "1.0", "2026-02-23: 0"), (20, "45.0", "15.0", "2026-02-24: 1"), (40, "0.0", "60.0", "2026-02-25: 4")];
        assert_eq!(shown(&chart), expected);
        assert_eq!((chart.width, chart.filled, chart.caption.as_str()), (60, 2, "Runs per day: 5 in 3 days"));
    }

    #[test]
    fn what_grows_is_shown_by_how_much_it_has_grown() {
        let moment = |minute: Ms, runs| Moment { at: minute * 60_000, queued: 0, runs, waited_ms: None };
        let moments = [moment(0, 100), moment(1, 102), moment(2, 106), moment(3, 90)];
        let chart =
            Chart::of_hour(Lang::English, "Runs begun", &moments, |moment, before| moment.runs - before.runs, |value| value.to_string());
        let expected = [
            (540, "59.0", "1.0", "00:00 UTC: 0"),
            (560, "30.0", "30.0", "00:01 UTC: 2"),
            (580, "0.0", "60.0", "00:02 UTC: 4"),
            (600, "59.0", "1.0", "00:03 UTC: 0"),
        ];
        assert_eq!(shown(&chart), expected);
        assert_eq!(chart.caption, "Runs begun: 0 now, at most 4 in the last hour");
    }
}
