//! The result of loading the settings: every setting with its origin, all mistakes, and warnings.

use super::serve::Serve;

/// A setting with the value that is in force.
#[derive(Clone, Debug)]
pub struct Row {
    /// The key of the setting, its name in the TOML file.
    pub setting: &'static str,
    /// Secrets are masked; `None` = not set.
    pub value: Option<String>,
    /// Where the value is from: a flag, an environment variable, a file or the default.
    pub origin: String,
}

/// A value that can't be used.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{text}")]
pub struct Mistake {
    text: String,
}

impl Mistake {
    /// `value` is left out for secrets.
    pub fn new(setting: &str, value: Option<&str>, origin: &str, problem: String) -> Self {
        let value = value.map(|value| format!(" = {value:?}")).unwrap_or_default();
        Self { text: format!("{setting}{value} ({origin}): {problem}") }
    }
}

/// The outcome of [`load`](super::load). The server starts only without mistakes, and then `serve` is set.
#[derive(Debug)]
pub struct Report {
    /// Every setting, in the order of `SETTINGS`.
    pub rows: Vec<Row>,
    /// The values that can't be used.
    pub mistakes: Vec<Mistake>,
    /// Texts for people about settings that are allowed but may be unwise.
    pub warnings: Vec<String>,
    pub(super) serve: Option<Serve>,
}

impl Report {
    /// The settings, or every mistake.
    pub fn into_serve(self) -> Result<Serve, Vec<Mistake>> {
        match self.serve {
            Some(serve) if self.mistakes.is_empty() => Ok(serve),
            _ => Err(self.mistakes),
        }
    }

    /// The settings as a text table: name, value, origin.
    pub fn table(&self) -> String {
        let shown = |row: &Row| row.value.clone().unwrap_or_else(|| "-".to_owned());
        let name_width = self.rows.iter().map(|row| row.setting.len()).max().unwrap_or(0);
        let value_width = self.rows.iter().map(|row| shown(row).chars().count()).max().unwrap_or(0).min(60);
        let line = |name: &str, value: &str, origin: &str| format!("{name:name_width$}  {value:value_width$}  {origin}\n");
        let mut table = line("SETTING", "VALUE", "FROM");
        for row in &self.rows {
            table.push_str(&line(row.setting, &shown(row), &row.origin));
        }
        table
    }

    /// The settings, the warnings and the mistakes as JSON. Secrets are masked.
    pub fn json(&self) -> serde_json::Value {
        let rows = self.rows.iter().map(|row| serde_json::json!({ "setting": row.setting, "value": row.value, "from": row.origin }));
        serde_json::json!({
            "settings": rows.collect::<Vec<_>>(),
            "warnings": self.warnings,
            "mistakes": self.mistakes.iter().map(ToString::to_string).collect::<Vec<_>>(),
        })
    }
}
