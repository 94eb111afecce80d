//! The git repository in which a person works, and the project of the server that it belongs to.
//!
//! Git runs with the person's settings, credentials and hooks.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;
use url::Url;
use uuid::Uuid;

use super::server_calls::Server;
use super::{project, show, term};
use crate::CommandError;
use bloom_api::projects::Project;
use bloom_core::project::{MAX_PROJECTS, is_commit_id};
use bloom_core::similar::did_you_mean;

/// The time limit of a git command. Fetching a large repository takes minutes.
const LIMIT: Duration = Duration::from_secs(600);

/// The worktree of a repository.
pub(crate) struct LocalRepository {
    top: PathBuf,
}

/// The place of the project's repository, relative to this repository.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Place {
    /// It is this repository, so whatever runs push arrives here.
    Here,
    /// The name of the remote.
    Remote(String),
}

/// What is checked out.
pub(crate) struct CheckedOut {
    /// `None` if a commit is checked out without a branch.
    pub branch: Option<String>,
    pub commit: String,
}

/// A project whose repository is this one, or a remote of it.
pub(crate) struct Found {
    pub project: String,
    pub place: Place,
}

impl LocalRepository {
    /// Finds the repository of this directory or of one of its parents.
    ///
    /// # Errors
    /// There is none, or git is missing.
    pub(crate) async fn of(directory: &Path) -> Result<Self, CommandError> {
        if !directory.is_dir() {
            return Err(CommandError::usage(format!("there is no directory {}", directory.display())));
        }
        let outside = Self { top: directory.to_owned() };
        let top = outside.git(&["rev-parse", "--show-toplevel"]).await.map_err(|failure| {
            let message = format!("{} is not in the worktree of a git repository: {failure}", directory.display());
            CommandError::usage(message)
        })?;
        Ok(Self { top: top.into() })
    }

    /// Runs git, and returns what it prints, without the last line break.
    ///
    /// # Errors
    /// Git is missing, takes too long, or fails. The error contains git's message.
    pub(crate) async fn git(&self, words: &[&str]) -> Result<String, CommandError> {
        self.run(self.command(words), &[]).await
    }

    /// A git command that does not recurse into submodules, whatever the person's settings say. Changes in submodules are ignored.
    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new("git");
        command.args(["-c", "submodule.recurse=false"]).args(words).current_dir(&self.top);
        command
    }

    /// Runs the command with this input on its standard input.
    async fn run(&self, mut command: Command, input: &[u8]) -> Result<String, CommandError> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().map_err(|error| format!("git can't be started, which this needs: {error}"))?;
        let stdin = child.stdin.take();
        let ended = async {
            let write = async {
                // Git closes its input early if it needs none, or if it fails; its own message then says why.
                if let Some(mut stdin) = stdin {
                    let _ = stdin.write_all(input).await;
                }
            };
            tokio::join!(write, child.wait_with_output()).1
        };
        let ended = tokio::time::timeout(LIMIT, ended)
            .await
            .map_err(|_| format!("git takes longer than {} minutes", LIMIT.as_secs() / 60))?
            .map_err(|error| format!("git failed: {error}"))?;
        if ended.status.success() {
            return Ok(String::from_utf8_lossy(&ended.stdout).trim_end_matches('\n').to_owned());
        }
        Err(String::from_utf8_lossy(&ended.stderr).trim().to_owned().into())
    }

    /// The tree that results if this patch is applied to what is checked out. Only objects are added to the repository.
    ///
    /// # Errors
    /// The patch does not apply.
    pub(crate) async fn patched(&self, patch: &[u8]) -> Result<String, CommandError> {
        let index = format!("{}/bloom-runtime-{}", self.git(&["rev-parse", "--absolute-git-dir"]).await?, Uuid::now_v7());
        let in_index = |words: &[&str]| {
            let mut command = self.command(words);
            command.env("GIT_INDEX_FILE", &index);
            command
        };
        let made = async {
            self.run(in_index(&["read-tree", "HEAD"]), &[]).await?;
            self.run(in_index(&["apply", "--cached", "--3way", "-"]), patch).await?;
            self.run(in_index(&["write-tree"]), &[]).await
        };
        let made = made.await;
        let _ = std::fs::remove_file(&index);
        made
    }

    /// Replaces the index and the worktree by this tree. With `try_only`, only checks whether that is possible.
    ///
    /// # Errors
    /// Untracked files are in the way.
    pub(crate) async fn read_tree(&self, tree: &str, try_only: bool) -> Result<(), CommandError> {
        let mut command = self.command(&["read-tree", "-m", "-u"]);
        command.args(try_only.then_some("-n")).args(["HEAD", tree]);
        // Files of git-lfs that were not pushed are only on the worker, so they stay pointers here.
        command.env("GIT_LFS_SKIP_SMUDGE", "1");
        self.run(command, &[]).await.map(drop)
    }

    /// Files that git would silently overwrite if it replaced what is checked out by this commit or tree: ignored files, and files that it
    /// was told to assume unchanged.
    ///
    /// # Errors
    /// As [`git`](Self::git).
    pub(crate) async fn in_the_way(&self, of: &str) -> Result<Vec<String>, CommandError> {
        let differ = async |filter: &str| {
            self.git(&["diff-tree", "-r", "-z", "--name-only", "--no-renames", "--no-commit-id", filter, "HEAD", of]).await
        };
        let names = |text: String| text.split('\0').filter(|name| !name.is_empty()).map(str::to_owned).collect::<Vec<_>>();
        let mut found: Vec<String> = names(differ("--diff-filter=A").await?);
        found.retain(|name| self.is_taken(name));
        let flagged = self.git(&["ls-files", "-v", "-z"]).await?;
        let flagged: BTreeSet<&str> = flagged
            .split('\0')
            .filter(|line| line.starts_with(|flag: char| flag.is_ascii_lowercase() || flag == 'S'))
            .filter_map(|line| line.get(2..))
            .collect();
        if !flagged.is_empty() {
            found.extend(names(differ("--diff-filter=a").await?).into_iter().filter(|name| flagged.contains(&**name)));
        }
        Ok(found)
    }

    /// Whether something exists at the path of this new file, or in the place of one of its parent directories.
    fn is_taken(&self, name: &str) -> bool {
        let path = self.top.join(name);
        let about = |path: &Path| path.symlink_metadata().ok();
        let above = path.ancestors().skip(1).take_while(|above| **above != *self.top);
        about(&path).is_some() || above.filter_map(about).any(|about| !about.is_dir())
    }

    /// The places of this repository: itself and each remote, `origin` first; and the URLs of the remotes as they are configured.
    async fn places(&self) -> Result<(Vec<(Place, String)>, Vec<String>), CommandError> {
        let mut places = vec![(Place::Here, place_of(&self.top.display().to_string()))];
        let mut remotes = self.git(&["remote"]).await?.lines().map(str::to_owned).collect::<Vec<_>>();
        remotes.sort_by_key(|remote| remote != "origin");
        let mut shown = Vec::new();
        for remote in remotes {
            // The configured URL, and the URL after the person's rewrite rules (url.BASE.insteadOf).
            let written = self.git(&["config", "--get", &format!("remote.{remote}.url")]).await?;
            let rewritten = self.git(&["remote", "get-url", "--", &remote]).await?;
            places.extend([&written, &rewritten].map(|url| (Place::Remote(remote.clone()), place_of(url))));
            shown.push(written);
        }
        Ok((places, shown))
    }

    /// The name of the server's project that this repository belongs to, for a hint. `None` if there is none, or more than one, or if it
    /// can't be determined.
    pub(crate) async fn known_as(&self, server: &Server) -> Option<String> {
        let (places, _) = self.places().await.ok()?;
        // Uses one call that prints nothing if it fails.
        let rows: Vec<Value> = server.client.get(&format!("api/runtime/projects?limit={MAX_PROJECTS}")).await.ok()?;
        let projects: Vec<Project<'_>> = show::read_all(&rows).ok()?;
        let at = |place: &str| projects.iter().filter(|project| place_of(&project.repo_url) == place).collect::<Vec<_>>();
        match places.iter().map(|(_, place)| at(place)).find(|found| !found.is_empty())?.as_slice() {
            [project] => Some(project.name.to_string()),
            _ => None,
        }
    }

    /// The project with this name or id. Without a name, the project of the server whose repository is this one or one of its remotes,
    /// `origin` first.
    ///
    /// # Errors
    /// There is none, or the key may not list projects.
    pub(crate) async fn project(&self, server: &Server, named: Option<&str>) -> Result<Found, CommandError> {
        let (mut places, shown) = self.places().await?;
        let rows = match (server.list("api/runtime/projects", &[], MAX_PROJECTS).await, named) {
            (Ok((rows, _)), _) => rows,
            // A submit key may not see the addresses of repositories.
            (Err(error), Some(named)) if error.status() == Some(403) => {
                let (place, _) = places.swap_remove(usize::from(places.len() > 1));
                return Ok(Found { project: named.to_owned(), place });
            }
            (Err(error), None) if error.status() == Some(403) => {
                return Err(CommandError::usage("this key may not list projects: name the one of this repository, too (--project NAME)"));
            }
            (Err(error), _) => return Err(super::server_calls::failed(error)),
        };
        let projects: Vec<Project<'_>> = show::read_all(&rows)?;
        let is_meant = |project: &&Project<'_>| named.is_none_or(|named| project.name == named || project.id.to_string() == named);
        let wanted: Vec<&Project<'_>> = projects.iter().filter(is_meant).collect();
        for (place, known) in &places {
            let of_place: Vec<_> = wanted.iter().filter(|project| place_of(&project.repo_url) == *known).collect();
            match of_place.as_slice() {
                [] => {}
                [project] => return Ok(Found { project: project.name.to_string(), place: place.clone() }),
                several => {
                    let names: Vec<&str> = several.iter().map(|project| &*project.name).collect();
                    let text = format!("several projects have this repository ({}): name one (--project NAME)", names.join(", "));
                    return Err(CommandError::usage(text));
                }
            }
        }
        let top = self.top.display();
        Err(CommandError::usage(match (named, wanted.first(), shown.first()) {
            (Some(named), None, _) => project::unknown(named, &projects),
            (Some(named), Some(project), _) => {
                format!(
                    "{top} is not the repository of the project {named}, and has no remote that is: {}",
                    project::without_password(&project.repo_url)
                )
            }
            (None, _, url) => {
                let is_here = std::env::current_dir().is_ok_and(|here| here == self.top);
                let local = || if is_here { ".".to_owned() } else { top.to_string() };
                let place = url.map_or_else(local, |url| project::without_password(url));
                let place = if is_plain(&place) { &place } else { "URL|DIR" };
                format!("no project of the server is the repository {top}: bloom-runtime project add {place}")
            }
        }))
    }

    /// What is checked out: a branch, or a commit.
    ///
    /// # Errors
    /// Nothing is committed there.
    pub(crate) async fn checked_out(&self) -> Result<CheckedOut, CommandError> {
        let branch = self.git(&["symbolic-ref", "--short", "--quiet", "HEAD"]).await.ok();
        match self.git(&["rev-parse", "--verify", "--quiet", "HEAD"]).await {
            Ok(commit) => Ok(CheckedOut { branch, commit }),
            Err(_) => Err(CommandError::usage("nothing is committed on what is checked out here")),
        }
    }

    /// The branch or commit that is checked out, for runs that begin there.
    ///
    /// # Errors
    /// The project's repository lacks the branch, or some of its commits.
    pub(crate) async fn begin(&self, place: &Place) -> Result<String, CommandError> {
        let now = self.checked_out().await?;
        let begins = match (place, &now.branch) {
            (Place::Here, Some(branch)) => branch.clone(),
            (Place::Here, None) => now.commit,
            (Place::Remote(remote), Some(branch)) => self.pushed(remote, branch, &now.commit).await?,
            (Place::Remote(remote), None) => {
                let known = format!("--remotes={remote}");
                let missing = self.git(&["rev-list", "--count", &now.commit, "--not", &known, "--tags"]).await?;
                check_pushed(&missing, "the commit that is checked out", remote)?;
                now.commit
            }
        };
        let changed = self.changed().await?;
        if changed > 0 {
            let files = if changed == 1 { "1 file has".to_owned() } else { format!("{changed} files have") };
            term::info(&format!("{files} changes that are not committed: the run does not see them."));
        }
        Ok(begins)
    }

    /// Checks that a given ref exists here, or else in the remote, which may have branches that were not fetched.
    ///
    /// # Errors
    /// Neither has it. The error suggests a similar one.
    pub(crate) async fn must_have(&self, given: &str, place: &Place) -> Result<(), CommandError> {
        let is_here = async |name: &str| self.git(&["rev-parse", "--verify", "--quiet", &format!("{name}^{{commit}}")]).await.is_ok();
        if is_here(given).await {
            return Ok(());
        }
        let mut known = self.names("refs/heads").await?;
        known.extend(self.names("refs/tags").await?);
        let who = match place {
            Place::Here => format!("{} has no", self.top.display()),
            Place::Remote(remote) => {
                let fetched = format!("refs/remotes/{remote}");
                // Only a run can tell whether a commit exists, or what a remote has that can't be reached from here.
                if is_commit_id(given)
                    || is_here(&format!("{fetched}/{given}")).await
                    || !self.git(&["ls-remote", "--", remote, given]).await.is_ok_and(|found| found.is_empty())
                {
                    return Ok(());
                }
                known.extend(self.names(&fetched).await?);
                format!("neither {} nor {remote} has a", self.top.display())
            }
        };
        let meant = did_you_mean(given, known.iter().map(String::as_str));
        Err(CommandError::usage(format!("--ref: {who} branch, tag or commit {given}{meant}")))
    }

    /// The names of the refs below this prefix, without the prefix.
    async fn names(&self, below: &str) -> Result<Vec<String>, CommandError> {
        let depth = below.split('/').count();
        let names = self.git(&["for-each-ref", &format!("--format=%(refname:lstrip={depth})"), below]).await?;
        Ok(names.lines().map(str::to_owned).collect())
    }

    /// The name of this branch in the remote. The remote is asked for it.
    ///
    /// # Errors
    /// The remote does not have the branch, or lacks some of its commits.
    async fn pushed(&self, remote: &str, branch: &str, head: &str) -> Result<String, CommandError> {
        let setting = async |name: &str| self.git(&["config", "--get", &format!("branch.{branch}.{name}")]).await.ok();
        let own = format!("refs/heads/{branch}");
        let there = if setting("remote").await.as_deref() == Some(remote) { setting("merge").await.unwrap_or(own) } else { own };
        let found = self.git(&["ls-remote", "--", remote, &there]).await.map_err(|failure| {
            CommandError::usage(format!("{remote}, from which the worker fetches, can't be asked for {branch}: {failure}"))
        })?;
        let Some((tip, _)) = found.split_once('\t') else {
            return Err(CommandError::usage(format!(
                "{remote} has no branch {branch}, and the worker fetches from there: git push -u {remote} {branch}, or give --ref"
            )));
        };
        let name = there.strip_prefix("refs/heads/").unwrap_or(&there).to_owned();
        if self.git(&["cat-file", "-e", &format!("{tip}^{{commit}}")]).await.is_err() {
            let known = format!("--remotes={remote}");
            check_pushed(&self.git(&["rev-list", "--count", head, "--not", &known]).await?, branch, remote)?;
            term::info(&format!("{name} of {remote} has commits that are not here (git fetch): the run begins with them."));
            return Ok(name);
        }
        check_pushed(&self.git(&["rev-list", "--count", &format!("{tip}..{head}")]).await?, branch, remote)?;
        if tip != head {
            term::info(&format!("{name} of {remote} is ahead of what is checked out here: the run begins with it."));
        }
        Ok(name)
    }

    /// The number of tracked files with uncommitted changes.
    ///
    /// # Errors
    /// As [`git`](Self::git).
    pub(crate) async fn changed(&self) -> Result<usize, CommandError> {
        Ok(self.git(&["status", "--porcelain", "--untracked-files=no", "--ignore-submodules=all"]).await?.lines().count())
    }
}

/// Whether a shell takes the text unchanged. It becomes part of a command that people copy.
fn is_plain(place: &str) -> bool {
    place.chars().all(|c| c.is_alphanumeric() || "-._~:/@%+=,".contains(c))
}

/// Fails if this many commits of `of` are missing in the remote.
fn check_pushed(missing: &str, of: &str, remote: &str) -> Result<(), CommandError> {
    if missing == "0" {
        return Ok(());
    }
    let text = format!("{missing} commits of {of} are not in {remote}, and the worker fetches from there: push them, or give --ref");
    Err(CommandError::usage(text))
}

/// A key that all URLs of the same repository share: host and path, whatever the protocol; for a directory, its path.
fn place_of(url: &str) -> String {
    let local = |path: &Path| std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned()).display().to_string();
    let of_host = |host: &str, path: &str| {
        let path = path.trim_matches('/');
        format!("{}/{}", host.to_ascii_lowercase(), path.strip_suffix(".git").unwrap_or(path))
    };
    if let Ok(parsed) = Url::parse(url)
        && url.contains("://")
    {
        return match (parsed.to_file_path(), parsed.host_str()) {
            (Ok(path), _) if parsed.scheme() == "file" => local(&path),
            (_, Some(host)) => of_host(host, parsed.path()),
            _ => url.to_owned(),
        };
    }
    // As in git, a colon before the first slash separates the host from the path.
    match url.split_once(':') {
        Some((host, path)) if !host.contains('/') => of_host(host.rsplit_once('@').map_or(host, |(_, host)| host), path),
        _ => local(Path::new(url)),
    }
}

#[cfg(test)]
mod tests {
    use super::place_of;

    #[test]
    fn a_repository_is_known_by_its_host_and_path() {
        for url in [
            "https://git.example.com/team/site.git",
            "https://me@Git.Example.com/team/site",
            "git@git.example.com:team/site.git",
            "ssh://git@git.example.com:22/team/site.git/",
            "git.example.com:team/site",
        ] {
            assert_eq!(place_of(url), "git.example.com/team/site", "{url}");
        }
        assert_eq!(place_of("file:///"), "/");
        assert_eq!(place_of("/nowhere/site"), "/nowhere/site");
        assert_ne!(place_of("https://git.example.com/team/other.git"), place_of("git@git.example.com:team/site.git"));
    }
}
