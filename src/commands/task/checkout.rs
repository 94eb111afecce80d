//! `task checkout`: brings what a run changed into the repository where the person works.

use std::path::PathBuf;

use clap::Args;
use clap_complete::ArgValueCompleter;

use super::super::connect::{Server, read};
use super::super::local_repository::{LocalRepository, Place};
use super::super::{ids, shell_completion, term};
use super::artifacts;
use crate::CommandError;
use bloom_api::results::TaskResult;
use bloom_api::tasks::Task;
use bloom_core::project::PushMode;

/// How much of a task's id is in the name of its branch.
const SHORT: usize = 8;

#[derive(Args, Debug)]
pub struct CheckoutArgs {
    /// The task's id
    #[arg(value_name = "ID", add = ArgValueCompleter::new(shell_completion::tasks))]
    id: String,
    /// The repository [default: the one of the current directory]
    #[arg(long, value_name = "DIR", default_value = ".", hide_default_value = true)]
    dir: PathBuf,
    /// The new branch [default: task/ and the end of the task's id]
    #[arg(long, value_name = "NAME", allow_hyphen_values = true)]
    branch: Option<String>,
}

/// # Errors
/// The task has no result of this repository, something here is in the way, or a call failed.
pub async fn run(args: CheckoutArgs, server: &Server) -> Result<(), CommandError> {
    let id = ids::task(server, &args.id).await?;
    let repository = LocalRepository::of(&args.dir).await?;
    let told = server.get(&ids::path(&id, "")).await.map_err(|failure| failure.about(&id))?;
    let task: Task<'_> = read(&told)?;
    let Some(project) = &task.project else {
        return Err(format!("task {id} has no project, so its run changed no repository: bloom-runtime task result {id}").into());
    };
    let told = server.get(&ids::path(&id, "/result")).await.map_err(|failure| failure.about(&id))?;
    let result: TaskResult<'_> = read(&told)?;
    let (Some(theirs), Some(commit)) = (result.branch.as_deref(), result.commit.as_deref()) else {
        return Err(format!("task {id} has no commit: its run changed nothing, see: bloom-runtime task describe {id}").into());
    };
    if !matches!(commit.len(), 40 | 64) || !commit.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err(format!("the server names a commit that is none: {}", commit.escape_debug()).into());
    }
    let place = repository.project(server, Some(project)).await?.place;
    let branch = args.branch.unwrap_or_else(|| format!("task/{}", &id[id.len().saturating_sub(SHORT)..]));
    repository
        .git(&["check-ref-format", "--branch", &branch])
        .await
        .map_err(|_| CommandError::usage(format!("--branch: {} is not the name of a branch", branch.escape_debug())))?;
    if repository.changed().await? > 0 {
        let text = "files here have changes that are not committed: commit them, or put them aside (git stash)";
        return Err(text.to_owned().into());
    }

    let has_commit = async || repository.git(&["cat-file", "-e", &format!("{commit}^{{commit}}")]).await.is_ok();
    if let Place::Remote(remote) = &place
        && !has_commit().await
    {
        // A run without --push leaves no branch there, which is no failure: its patch is applied then.
        let refspec = format!("refs/heads/{theirs}");
        if repository.git(&["check-ref-format", &refspec]).await.is_ok()
            && let Err(failure) = repository.git(&["fetch", "--quiet", "--no-tags", "--", remote, &refspec]).await
            && task.push == PushMode::Branch
        {
            return Err(format!("the branch {theirs} can't be fetched from {remote}: {failure}").into());
        }
    }
    let at = format!("refs/heads/{branch}");
    let known = repository.git(&["rev-parse", "--verify", "--quiet", &at]).await.ok();
    if has_commit().await {
        match known {
            Some(known) if known == commit => repository.git(&["switch", "--quiet", "--", &branch]).await?,
            Some(_) => return Err(in_the_way(&branch)),
            None => repository.git(&["switch", "--quiet", "--no-track", "--create", &branch, commit]).await?,
        };
        term::info(&format!("On branch {branch}, at the commit of task {id}. Back to where you were: git switch -"));
        return Ok(());
    }
    if known.is_some() {
        return Err(in_the_way(&branch));
    }
    let patch = artifacts::newest_diff(&id, server).await?;
    repository.git(&["switch", "--quiet", "--create", &branch]).await?;
    if let Err(failure) = repository.git_with(&["apply", "--index", "--3way", "-"], &patch).await {
        // Nothing of a patch that does not fit stays. The branch is where this began, and goes, too.
        repository.git(&["reset", "--quiet", "--hard"]).await?;
        repository.git(&["switch", "--quiet", "-"]).await?;
        repository.git(&["branch", "--quiet", "--delete", "--force", "--", &branch]).await?;
        return Err(format!(
            "what task {id} changed was not pushed, and does not fit onto what is checked out here: check out the branch that the task \
             began with, or submit with --push. git says: {failure}"
        )
        .into());
    }
    term::info(&format!(
        "On the new branch {branch}: what task {id} changed was not pushed, so it is in the index and not committed yet (git commit)."
    ));
    Ok(())
}

fn in_the_way(branch: &str) -> CommandError {
    format!("a branch {branch} exists here and is not at the commit of the task: give the new one another name (--branch NAME)").into()
}
