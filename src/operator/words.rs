//! Texts and times in the form that Kubernetes uses.

use bloom_core::Ms;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;

/// Kubernetes stores times in whole seconds. With fractions, each comparison would find a difference.
pub(crate) fn time(at: Ms) -> Time {
    Time(Timestamp::from_second(at.div_euclid(1000)).unwrap_or(Timestamp::UNIX_EPOCH))
}

/// At most `max` bytes of the text, in whole characters.
pub(crate) fn cut(text: &str, max: usize) -> &str {
    text.get(..text.floor_char_boundary(max)).unwrap_or(text)
}

/// `no_worker` → `NoWorker`.
pub(crate) fn camel(word: &str) -> String {
    let mut first = true;
    word.chars()
        .filter_map(|letter| {
            let is_first = std::mem::replace(&mut first, letter == '_');
            (letter != '_').then(|| if is_first { letter.to_ascii_uppercase() } else { letter })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_texts() {
        assert_eq!([camel("no_worker"), camel("online"), camel("")], ["NoWorker", "Online", ""]);
        assert_eq!([cut("grün", 3), cut("grün", 4), cut("grün", 9)], ["gr", "grü", "grün"]);
        assert_eq!(time(1_999).0.as_millisecond(), 1_000);
    }
}
