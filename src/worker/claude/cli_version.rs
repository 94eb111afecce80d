//! Versions of the Claude CLI, and their differences.

use std::fmt;

/// The first version whose conversations keep the system prompt of their first run, unless an option says otherwise. Versions between this
/// one and the previous one that was examined may know the option, too.
const KEEPS_SYSTEM_PROMPT: Version = Version([2, 1, 265]);
/// The first version that waits for its background tasks, as long as it is told to.
const KEEPS_BACKGROUND: Version = Version([2, 1, 292]);
/// Faults of older versions, each with the first version without the fault.
const FAULTS: [(Version, &str); 6] = [
    (Version([2, 1, 206]), "the permission tool is missing at a cold start"),
    (Version([2, 1, 214]), "streams are cut, results are missing, and costs count twice"),
    (Version([2, 1, 217]), "the budget does not stop sub-agents in the background"),
    (Version([2, 1, 221]), "MCP servers are not connected in the first turn"),
    (Version([2, 1, 225]), "after a 401, CLAUDE_CODE_OAUTH_TOKEN is no longer used"),
    (KEEPS_BACKGROUND, "tasks in the background are ended about five seconds after the answer, and what they did is lost"),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version([u32; 3]);

impl Version {
    /// Parses the output of `claude --version`: `2.1.332 (Claude Code)`.
    pub fn parse(printed: &str) -> Option<Self> {
        let word = printed.strip_suffix("(Claude Code)")?.trim();
        let mut numbers = word.split(['-', '+']).next()?.split('.').map(str::parse);
        let version = [numbers.next()?.ok()?, numbers.next()?.ok()?, numbers.next()?.ok()?];
        numbers.next().is_none().then_some(Self(version))
    }

    /// Parses the version in the stream: `2.1.332`.
    pub fn told(version: &str) -> Option<Self> {
        Self::parse(&format!("{version} (Claude Code)"))
    }

    /// The first version that waits for tasks in the background, if this one does not.
    pub fn ends_background(self) -> Option<Self> {
        (self < KEEPS_BACKGROUND).then_some(KEEPS_BACKGROUND)
    }

    pub fn keeps_system_prompt(self) -> bool {
        self >= KEEPS_SYSTEM_PROMPT
    }

    /// The faults of this version, and the oldest version without any of them; `None`: no fault is known.
    pub fn faults(self) -> Option<(Self, String)> {
        let faults = FAULTS.iter().filter(|(mended, _)| self < *mended);
        let (oldest, _) = FAULTS.last()?;
        let told = faults.map(|(mended, fault)| format!("{fault} (before {mended})")).collect::<Vec<_>>().join("; ");
        (!told.is_empty()).then_some((*oldest, told))
    }
}

impl fmt::Display for Version {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self([major, minor, patch]) = self;
        write!(to, "{major}.{minor}.{patch}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_what_the_cli_prints() {
        let parse = |text: &str| Version::parse(text).map(|version| version.to_string());
        assert_eq!(parse("2.1.332 (Claude Code)").as_deref(), Some("2.1.332"));
        assert_eq!(parse("3.0.0-beta.1 (Claude Code)").as_deref(), Some("3.0.0"));
        for other in ["", "2.1 (Claude Code)", "2.1.x (Claude Code)", "2.1.3.4 (Claude Code)", "GNU bash 5.2.1", "{\"type\":\"system\"}"] {
            assert_eq!(parse(other), None, "{other}");
        }
    }

    #[test]
    fn what_old_versions_do_wrong_is_told() {
        let faults = |patch| Version([2, 1, patch]).faults();
        let (oldest, told) = faults(214).unwrap();
        assert_eq!(oldest.to_string(), "2.1.292");
        assert!(
            told.starts_with("the budget does not stop sub-agents in the background (before 2.1.217); MCP") && !told.contains("2.1.214")
        );
        assert_eq!((faults(292), faults(332)), (None, None));
        assert!(faults(291).unwrap().1.starts_with("tasks in the background"));
        assert!(faults(197).unwrap().1.contains("costs count twice (before 2.1.214)"));
    }
}
