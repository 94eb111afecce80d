//! The git settings of a context's repository. Runs can write anything there, so the agent rewrites the file before its own commands:
//! settings of runs must not influence how they work. Settings that later runs need are kept.

use std::ffi::OsString;
use std::path::Path;

use super::confined::Confined;
use super::repository::{FETCH_LIMIT, settings_of};
use super::trouble::Trouble;
use crate::machine::command::started_by;

/// Prints the settings in a file, if it is a regular file.
const READ: &str = r#"[ -f "$0" ] && [ ! -L "$0" ] || exit 0; exec "$@""#;
/// Writes the settings, and what else git needs to accept the directory as a repository: access to the objects of the project's repository,
/// and a HEAD. A file `commondir` would redirect git to another directory for all of that.
const RENEW: &str = r#"cd -- "$0" && rm -rf -- config config.worktree commondir objects/info/alternates || exit
for dir in objects objects/info refs; do [ -d "$dir" ] || { rm -f -- "$dir" && mkdir -- "$dir"; } || exit; done
printf '%s\n' "$1" >objects/info/alternates || exit
[ -f HEAD ] && grep -Eq '^(ref: *refs/|[0-9a-f]{40})' HEAD || { rm -rf -- HEAD && printf 'ref: %s\n' "$2" >HEAD; } || exit
cat >config"#;
/// The settings that are kept: the section, whether it has a quoted part, and the names in it (none: all). For the agent's commands git
/// uses none of these except filters. Without the filters it would commit what a filter has to remove or encrypt.
const KEPT: [(&str, bool, &[&str]); 9] = [
    ("alias", false, &[]),
    ("branch", true, &["remote", "merge"]),
    ("core", false, &["hookspath"]),
    ("filter", true, &["clean", "smudge", "process", "required"]),
    ("lfs", false, &[]),
    ("pull", false, &["ff", "rebase"]),
    ("remote", true, &["url", "pushurl", "fetch"]),
    ("submodule", true, &["url", "active", "update"]),
    ("user", false, &["name", "email", "signingkey"]),
];
/// A setting with which git leaves files out of the worktree.
const SPARSE: &str = "core.sparsecheckout";
/// The values that git takes for false.
const NO: [&str; 5] = ["false", "no", "off", "0", ""];

/// A setting.
#[derive(Debug, PartialEq)]
struct Setting<'a> {
    section: &'a str,
    part: Option<&'a str>,
    name: &'a str,
    value: &'a str,
}

impl<'a> Setting<'a> {
    /// Parses `SECTION.PART.NAME`, a line feed and the value. A setting without a value has no line feed, and is true. Of the kept
    /// settings, only `required` may have no value.
    fn of(listed: &'a str) -> Option<Self> {
        let (key, value) = listed.split_once('\n').or_else(|| listed.ends_with(".required").then_some((listed, "true")))?;
        let (section, rest) = key.split_once('.')?;
        let (part, name) = rest.rsplit_once('.').map_or((None, rest), |(part, name)| (Some(part), name));
        Some(Self { section, part, name, value })
    }

    fn is_kept(&self) -> bool {
        let named = |(section, has_part, names): &(&str, bool, &[&str])| {
            *section == self.section && *has_part == self.part.is_some() && (names.is_empty() || names.contains(&self.name))
        };
        KEPT.iter().any(named) && (self.section != "filter" || self.part.is_some_and(is_filter_name))
    }

    fn text(&self) -> String {
        let Self { section, part, name, value } = self;
        let part = part.map(|part| format!(" \"{}\"", escaped(part))).unwrap_or_default();
        let value = match (*section, *name) {
            // Git would fail at a value that it does not know.
            ("filter", "required") => (!NO.contains(&value.to_ascii_lowercase().as_str())).to_string(),
            _ => escaped(value).replace('\n', "\\n"),
        };
        format!("[{section}{part}]\n\t{name} = \"{value}\"\n")
    }
}

/// Whether attributes can contain this filter name. A message also contains the name, in a command.
fn is_filter_name(name: &str) -> bool {
    !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || "-_.+:@/".contains(c))
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"")
}

fn settings(listed: &str) -> impl Iterator<Item = Setting<'_>> {
    listed.split('\0').filter_map(Setting::of)
}

impl Confined<'_> {
    /// Repairs the repository of the context, and gives it the agent's settings. This ends a sparse checkout: otherwise the files that it
    /// leaves out would be committed as deleted.
    pub(crate) async fn renew(&mut self) -> Result<(), Trouble> {
        let failed = |why: String| Trouble::of_git("the repository of the context can't be used", &why);
        let own = self.tree.own_git_dir();
        let (of_runs, of_worktree) = (self.listed(&own.join("config")).await, self.listed(&own.join("config.worktree")).await);
        let kept: Vec<Setting<'_>> = settings(&of_runs).filter(Setting::is_kept).collect();
        let text: String = [settings_of(self.tree.repository.format(), false)].into_iter().chain(kept.iter().map(Setting::text)).collect();
        let mut renew = tokio::process::Command::new("sh");
        renew.args(["-c", RENEW]).arg(&own).arg(self.tree.repository.git_dir().join("objects")).arg(self.tree.branch_ref());
        self.answer(&renew, text.into_bytes(), &[0]).await.map_err(failed)?;
        // The filter of git-lfs is the agent's own.
        let filters = kept.iter().filter(|kept| kept.section == "filter").filter_map(|kept| kept.part).filter(|name| *name != "lfs");
        self.filters = filters.map(str::to_owned).collect();
        let is_sparse = [&of_runs, &of_worktree].into_iter().flat_map(|listed| listed.split('\0')).any(|one| {
            let (key, value) = one.split_once('\n').unwrap_or((one, "true"));
            key == SPARSE && !NO.contains(&value)
        });
        if is_sparse {
            let mut end = self.git();
            end.args(["sparse-checkout", "disable"]);
            self.run_within(end, FETCH_LIMIT).await.map_err(failed)?;
        }
        Ok(())
    }

    /// The settings in a file, each terminated by NUL; empty if git can't read the file.
    async fn listed(&self, file: &Path) -> String {
        // The repository's own settings must not prevent this.
        let mut list = self.tree.repository.local(Path::new("/dev/null/none"));
        list.args(["config", "--null", "--list", "--file"]).arg(file);
        let words = [OsString::from("sh"), "-c".into(), READ.into(), file.into()];
        let listed = self.answer(&started_by(words, &list), Vec::new(), &[0]).await.unwrap_or_default();
        String::from_utf8_lossy(&listed).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_says_the_same() {
        let listed = "core.compression\n99\0user.name\nA \"B\" \\ C\nD\0user.useconfigonly\nx\0filter.a.b.required\nxyz\0filter.c.required\0filter.d.required\nNo\0alias.x\0branch.x\ny\0\
                      filter.$(x).clean\nx\0remote.a b.url\n/x";
        let kept: String = settings(listed).filter(Setting::is_kept).map(|kept| kept.text()).collect();
        assert_eq!(
            kept,
            "[user]\n\tname = \"A \\\"B\\\" \\\\ C\\nD\"\n[filter \"a.b\"]\n\trequired = \"true\"\n[filter \"c\"]\n\trequired = \"true\"\n[filter \"d\"]\n\trequired = \"false\"\n[remote \"a b\"]\n\turl = \"/x\"\n"
        );
    }
}
