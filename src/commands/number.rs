//! Whole numbers within a range, as values of flags.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::str::FromStr;

/// Parses a whole number of this range. Unlike clap's own parser, the error names the range even if the text is not a number.
pub fn within<T>(range: RangeInclusive<T>) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static
where
    T: Clone + Display + FromStr + PartialOrd + Send + Sync + 'static,
{
    move |text| {
        let number = text.parse().ok().filter(|number| range.contains(number));
        number.ok_or_else(|| format!("expected a whole number from {} to {}", range.start(), range.end()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_range_is_told() {
        let parse = within(1..=10_u8);
        assert_eq!((parse("1"), parse("10")), (Ok(1), Ok(10)));
        for wrong in ["0", "11", "-1", "x", "", "1.5", "300"] {
            assert_eq!(parse(wrong), Err("expected a whole number from 1 to 10".into()), "{wrong}");
        }
    }
}
