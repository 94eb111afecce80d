//! Suggestions for names that do not exist.

/// The minimum similarity at which one name is considered a misspelling of another.
const ALIKE: f64 = 0.8;

/// The known name that is most similar to this one; `None` if none is similar enough.
pub fn similar<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let near = known.into_iter().map(|known| (likeness(known, name), known)).max_by(|(a, _), (b, _)| a.total_cmp(b));
    near.filter(|(likeness, _)| *likeness > ALIKE).map(|(_, known)| known)
}

/// The similarity of two names. The Jaro-Winkler similarity does not detect two swapped neighbours in a short name, so this case is treated
/// separately.
fn likeness(known: &str, name: &str) -> f64 {
    let is_swapped = strsim::osa_distance(known, name) == 1 && strsim::levenshtein(known, name) == 2;
    if is_swapped { 1.0 } else { strsim::jaro_winkler(known, name) }
}

/// ` (did you mean NAME?)` if a known name is similar to this one; otherwise empty.
pub fn did_you_mean<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    similar(name, known).map_or_else(String::new, |near| format!(" (did you mean {near}?)"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_are_like_are_offered() {
        let known = ["worker-01", "worker-02", "gpu"];
        assert_eq!(did_you_mean("wroker-02", known), " (did you mean worker-02?)");
        assert_eq!(did_you_mean("GPU-9", known), "");
        assert_eq!(did_you_mean("gup", known), " (did you mean gpu?)");
        assert_eq!(did_you_mean("x", []), "");
    }
}
