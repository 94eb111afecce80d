//! The git repository in which a person works, and which project of the server it is.
//!
//! Git runs as the person does: with their settings, credentials and hooks.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;
use url::Url;

use super::connect::Server;
use super::{show, term};
use crate::CommandError;
use bloom_api::projects::Project;
use bloom_core::project::MAX_PROJECTS;

/// The longest time of a git command; fetching a large repository takes minutes.
const LIMIT: Duration = Duration::from_secs(600);

/// The worktree of a repository.
pub struct LocalRepository {
    top: PathBuf,
}

/// Where the project's repository is, seen from this one.
#[derive(Clone, Debug, PartialEq)]
pub enum Place {
    /// It is this repository: what runs push arrives here.
    Here,
    /// The name of the remote.
    Remote(String),
}

/// A project whose repository is this one, or a remote of it.
pub struct Found {
    pub project: String,
    pub place: Place,
}

impl LocalRepository {
    /// The repository of this directory, or of one above it.
    ///
    /// # Errors
    /// There is none, or no git.
    pub async fn of(directory: &Path) -> Result<Self, CommandError> {
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
    /// Git is missing, takes too long, or fails; the error has its words.
    pub async fn git(&self, words: &[&str]) -> Result<String, CommandError> {
        self.git_with(words, &[]).await
    }

    /// As [`git`](Self::git), with this on its standard input.
    ///
    /// # Errors
    /// As [`git`](Self::git).
    pub async fn git_with(&self, words: &[&str], input: &[u8]) -> Result<String, CommandError> {
        let mut command = Command::new("git");
        command.args(words).current_dir(&self.top).kill_on_drop(true);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|error| format!("git can't be started, which this needs: {error}"))?;
        let stdin = child.stdin.take();
        let ended = async {
            let write = async {
                // Git closes it early if it needs no input, or fails; its own words tell that.
                if let Some(mut stdin) = stdin {
                    let _ = stdin.write_all(input).await;
                }
            };
            tokio::join!(write, child.wait_with_output()).1
        };
        let ended = tokio::time::timeout(LIMIT, ended)
            .await
            .map_err(|_| format!("git {} takes longer than {} minutes", words.join(" "), LIMIT.as_secs() / 60))?
            .map_err(|error| format!("git {} failed: {error}", words.join(" ")))?;
        if ended.status.success() {
            return Ok(String::from_utf8_lossy(&ended.stdout).trim_end_matches('\n').to_owned());
        }
        Err(String::from_utf8_lossy(&ended.stderr).trim().to_owned().into())
    }

    /// The project of this name or id; without one, the project of the server whose repository is this one, or a remote of it (`origin`
    /// before others).
    ///
    /// # Errors
    /// There is none; or the key may not list projects.
    pub async fn project(&self, server: &Server, named: Option<&str>) -> Result<Found, CommandError> {
        let mut places = vec![(Place::Here, place_of(&self.top.display().to_string()))];
        let mut remotes = self.git(&["remote"]).await?.lines().map(str::to_owned).collect::<Vec<_>>();
        remotes.sort_by_key(|remote| remote != "origin");
        let mut shown = Vec::new();
        for remote in remotes {
            // As it is written, and as the person's settings rewrite it (url.BASE.insteadOf).
            let written = self.git(&["config", "--get", &format!("remote.{remote}.url")]).await?;
            let rewritten = self.git(&["remote", "get-url", "--", &remote]).await?;
            places.extend([&written, &rewritten].map(|url| (Place::Remote(remote.clone()), place_of(url))));
            shown.push(written);
        }
        let rows = match (server.list("api/runtime/projects", &[], MAX_PROJECTS).await, named) {
            (Ok((rows, _)), _) => rows,
            // A submit key is not told where repositories are.
            (Err(error), Some(named)) if error.status() == Some(403) => {
                let (place, _) = places.swap_remove(usize::from(places.len() > 1));
                return Ok(Found { project: named.to_owned(), place });
            }
            (Err(error), None) if error.status() == Some(403) => {
                return Err(CommandError::usage("this key may not list projects: name the one of this repository, too (--project NAME)"));
            }
            (Err(error), _) => return Err(super::connect::failed(error)),
        };
        let projects: Vec<Project<'_>> = show::read_all(&rows)?;
        let is_meant = |project: &&Project<'_>| named.is_none_or(|named| project.name == named || project.id.to_string() == named);
        let wanted: Vec<&Project<'_>> = projects.iter().filter(is_meant).collect();
        for (place, known) in &places {
            if let Some(project) = wanted.iter().find(|project| place_of(&project.repo_url) == *known) {
                return Ok(Found { project: project.name.to_string(), place: place.clone() });
            }
        }
        let top = self.top.display();
        Err(CommandError::usage(match (named, wanted.first(), shown.first()) {
            (Some(named), None, _) => format!("there is no project '{named}': bloom-runtime project list shows those that exist"),
            (Some(named), Some(project), _) => {
                format!("{top} is not the repository of the project {named}, and has no remote that is: {}", project.repo_url)
            }
            (None, _, Some(url)) => format!("no project of the server is the repository {top}: bloom-runtime project add NAME {url}"),
            (None, _, None) => format!("no project of the server is the repository {top}: bloom-runtime project add NAME {top}"),
        }))
    }

    /// The branch or commit that is checked out, for runs that begin there.
    ///
    /// # Errors
    /// The project's repository does not have it, or not all of it.
    pub async fn begin(&self, place: &Place) -> Result<String, CommandError> {
        let branch = self.git(&["symbolic-ref", "--short", "--quiet", "HEAD"]).await.ok();
        let head = self.git(&["rev-parse", "--verify", "--quiet", "HEAD"]).await;
        let head = head
            .map_err(|_| CommandError::usage("this repository has no commit yet: the runs of the task would have nothing to begin with"))?;
        if let Place::Remote(remote) = place {
            let at = format!("refs/remotes/{remote}/{}", branch.as_deref().unwrap_or_default());
            let missing = match &branch {
                None => self.git(&["rev-list", "--count", &head, "--not", &format!("--remotes={remote}")]).await?,
                Some(branch) => match self.git(&["rev-parse", "--verify", "--quiet", &at]).await {
                    Ok(known) => self.git(&["rev-list", "--count", &format!("{known}..{head}")]).await?,
                    Err(_) => {
                        return Err(CommandError::usage(format!(
                            "{remote} has no branch {branch}, and the worker fetches from there: git push -u {remote} {branch}, or give --ref"
                        )));
                    }
                },
            };
            if missing != "0" {
                let at = branch.as_deref().unwrap_or("the commit that is checked out");
                return Err(CommandError::usage(format!(
                    "{missing} commits of {at} are not in {remote}, and the worker fetches from there: push them, or give --ref"
                )));
            }
        }
        let changed = self.changed().await?;
        if changed > 0 {
            term::info(&format!("{changed} files have changes that are not committed: the run does not see them."));
        }
        Ok(branch.unwrap_or(head))
    }

    /// How many tracked files have changes that are not committed.
    ///
    /// # Errors
    /// As [`git`](Self::git).
    pub async fn changed(&self) -> Result<usize, CommandError> {
        Ok(self.git(&["status", "--porcelain", "--untracked-files=no", "--ignore-submodules=all"]).await?.lines().count())
    }
}

/// What URLs of one repository have in common: host and path, however they are reached. For a directory its path.
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
    // As git has it: a colon before the first slash is behind a host.
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
