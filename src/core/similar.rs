//! What was probably meant by a name that does not exist.

/// How alike two names are, at least, for one to be taken for the other misspelt.
const ALIKE: f64 = 0.8;

/// The known name that is most like this one.
pub fn similar<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let near = known.into_iter().map(|known| (likeness(known, name), known)).max_by(|(a, _), (b, _)| a.total_cmp(b));
    near.filter(|(likeness, _)| *likeness > ALIKE).map(|(_, known)| known)
}

/// Of two neighbours that were swapped in a short name, the likeness of Jaro and Winkler knows nothing.
fn likeness(known: &str, name: &str) -> f64 {
    let is_swapped = strsim::osa_distance(known, name) == 1 && strsim::levenshtein(known, name) == 2;
    if is_swapped { 1.0 } else { strsim::jaro_winkler(known, name) }
}

/// ` (did you mean NAME?)`, if one of the known names is like this one.
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
