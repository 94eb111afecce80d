//! Small charts of one value per day.

use bloom_core::Ms;
use jiff::Timestamp;

const DAY_MS: Ms = 24 * 3_600_000;
/// Units of the picture.
const HEIGHT: f64 = 60.0;
const STEP: usize = 20;

pub struct Bar {
    pub x: usize,
    pub y: String,
    pub height: String,
    pub day: String,
    pub value: f64,
}

pub struct Chart {
    pub bars: Vec<Bar>,
    pub width: usize,
    pub sum: f64,
}

impl Chart {
    /// The last days, today as the last one.
    pub fn per_day(now: Ms, days: Ms, value_of: impl Fn(&str) -> Option<f64>) -> Option<Self> {
        let mut values = Vec::new();
        for ago in (0..days).rev() {
            let day = Timestamp::from_millisecond(now - ago * DAY_MS).ok()?.strftime("%Y-%m-%d").to_string();
            values.push((value_of(&day).unwrap_or_default().max(0.0), day));
        }
        let most = values.iter().map(|(value, _)| *value).fold(0.0, f64::max);
        let sum = values.iter().map(|(value, _)| value).sum();
        let bar = |(at, (value, day)): (usize, (f64, String))| {
            // A day without any has a line, so that the days are seen.
            let height = if most > 0.0 { (value / most * HEIGHT).max(1.0) } else { 1.0 };
            Bar { x: at * STEP, y: format!("{:.1}", HEIGHT - height), height: format!("{height:.1}"), day, value }
        };
        let bars: Vec<Bar> = values.into_iter().enumerate().map(bar).collect();
        Some(Self { width: bars.len() * STEP, bars, sum })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_in_proportion_and_today_is_the_last() {
        let chart = Chart::per_day(1_772_000_000_000, 3, |day| match day {
            "2026-02-25" => Some(4.0),
            "2026-02-24" => Some(1.0),
            _ => None,
        });
        let chart = chart.unwrap();
        let shown: Vec<_> = chart.bars.iter().map(|bar| (bar.x, bar.y.as_str(), bar.height.as_str(), bar.day.as_str())).collect();
        assert_eq!(shown, [(0, "59.0", "1.0", "2026-02-23"), (20, "45.0", "15.0", "2026-02-24"), (40, "0.0", "60.0", "2026-02-25")]);
        assert_eq!((chart.width, chart.sum), (60, 5.0));
    }
}
