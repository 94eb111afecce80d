//! The keys of an agent. Each can be given directly or as a file, and both ways by a flag or by an environment variable.

use std::ffi::OsString;
use std::path::PathBuf;

use secrecy::SecretString;

use bloom_commands::{CommandError, read_key};
use bloom_config::Environment;

/// The value of a flag, and the environment variable that is used if the flag is not given.
pub struct Source {
    variable: &'static str,
    flag: Option<OsString>,
}

impl Source {
    pub fn new(variable: &'static str, flag: Option<impl Into<OsString>>) -> Self {
        Self { variable, flag: flag.map(Into::into) }
    }
}

/// The value of the source that is given, at the position of this source. A flag takes precedence over all variables, because the person
/// who types it may not know what a unit file or a shell profile has set. Empty values count as unset. Flags that exclude each other are
/// reported before this is called.
///
/// # Errors
/// No flag is given, and several variables are set.
pub fn one_of<const N: usize>(sources: [Source; N], environment: &Environment) -> Result<[Option<OsString>; N], CommandError> {
    let variables = sources.each_ref().map(|source| source.variable);
    let flags = sources.map(|source| source.flag.filter(|value| !value.is_empty()));
    if flags.iter().any(Option::is_some) {
        return Ok(flags);
    }
    let set: Vec<_> = variables.into_iter().filter(|name| environment.get(name).is_some()).collect();
    if set.len() > 1 {
        return Err(CommandError::usage(format!("{} are set, and exclude each other; use only one of them", set.join(" and "))));
    }
    Ok(variables.map(|name| environment.get(name).cloned()))
}

/// The key, which is given directly or in a file. Trailing line breaks are removed.
///
/// # Errors
/// The key is not UTF-8 text, or the file contains no key.
pub fn key(value: Option<OsString>, file: Option<PathBuf>) -> Result<Option<SecretString>, CommandError> {
    match (value, file) {
        (None, Some(file)) => read_key(&file).map(Some),
        (Some(value), _) => {
            let text = value.into_string().map_err(|_| CommandError::usage("a key must be UTF-8 text"))?;
            Ok(Some(SecretString::from(text.trim_end_matches(['\r', '\n']))))
        }
        (None, None) => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(flags: [Option<&str>; 2], variables: &[(&str, &str)]) -> Result<[Option<String>; 2], String> {
        let sources = [Source::new("KEY", flags[0]), Source::new("KEY_FILE", flags[1])];
        let chosen = one_of(sources, &variables.iter().copied().collect()).map_err(|failure| failure.to_string())?;
        Ok(chosen.map(|value| value.map(|value| value.into_string().unwrap())))
    }

    #[test]
    fn a_flag_wins_over_both_variables() {
        let both = [("KEY", "k"), ("KEY_FILE", "f")];
        let given = |value: Option<&str>, file: Option<&str>| Ok([value.map(str::to_owned), file.map(str::to_owned)]);
        assert_eq!(chosen([None, Some("own")], &both), given(None, Some("own")));
        assert_eq!(chosen([Some("own"), None], &both), given(Some("own"), None));
        assert_eq!(chosen([None, Some("")], &both[..1]), given(Some("k"), None));
        assert_eq!(chosen([None, None], &[both[1], ("KEY", "")]), given(None, Some("f")));
        let told = chosen([None, None], &both).unwrap_err();
        assert!(told.contains("KEY and KEY_FILE are set"), "{told}");
    }
}
