//! Words of a list, as values of flags.

use std::fmt::Display;

use clap::builder::PossibleValuesParser;

/// Accepts one of these words. The help and the error list them.
pub(crate) fn one_of<T: Display>(words: &[T]) -> PossibleValuesParser {
    PossibleValuesParser::new(words.iter().map(ToString::to_string))
}
