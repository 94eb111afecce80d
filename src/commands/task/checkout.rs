//! `task checkout`: brings what a run changed into the repository where the person works.

use std::path::PathBuf;

use clap::Args;
use clap_complete::ArgValueCompleter;

use super::artifacts;
use crate::CommandError;
use crate::local_repository::{LocalRepository, Place};
use crate::server_calls::{Server, read};
use crate::{ids, shell_completion, term};
use bloom_api::results::TaskResult;
use bloom_api::tasks::Task;
use bloom_core::project::{PushMode, is_commit_id};

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
pub(crate) async fn run(args: CheckoutArgs, server: &Server) -> Result<(), CommandError> {
    let id = ids::task(server, &args.id).await?;
    let repository = LocalRepository::of(&args.dir).await?;
    let told = server.get(&ids::path(&id, "")).await.map_err(|failure| failure.about(&id))?;
    let task: Task<'_> = read(&told)?;
    let Some(project) = &task.project else {
        return Err(format!("task {id} has no project, so its run changed no repository: bloom-runtime task result {id}").into());
    };
    let told = server.get(&ids::path(&id, "/result")).await.map_err(|failure| match failure.message.as_str() {
        "Result not found" => format!("task {id} has no result yet, it is {}: bloom-runtime task wait {id}", task.status).into(),
        _ => failure.about(&id),
    })?;
    let result: TaskResult<'_> = read(&told)?;
    let (Some(theirs), Some(commit)) = (result.branch.as_deref(), result.commit.as_deref()) else {
        return Err(format!("task {id} has no commit, for the reason in: bloom-runtime task describe {id}").into());
    };
    if !is_commit_id(commit) {
        return Err(format!("the server names a commit that is none: {}", commit.escape_debug()).into());
    }
    let place = repository.project(server, Some(project)).await?.place;
    let branch = args.branch.unwrap_or_else(|| format!("task/{}", &id[id.len().saturating_sub(SHORT)..]));
    repository
        .git(&["check-ref-format", "--branch", &branch])
        .await
        .map_err(|_| CommandError::usage(format!("--branch: {} is not the name of a branch", branch.escape_debug())))?;
    let now = repository.checked_out().await?;
    let is_changed = repository.changed().await? > 0;
    // Changes in the index that an earlier run of the same command left there are not changes of the person.
    let is_done = now.branch.as_ref() == Some(&branch)
        && if is_changed { has_only_the_patch(&repository, &id, server).await } else { now.commit == commit };
    if is_done {
        term::info(&format!("Task {id} is already checked out as {branch}."));
        return Ok(());
    }
    if is_changed {
        let text = "files here have changes that are not committed: commit them, or put them aside (git stash)";
        return Err(text.to_owned().into());
    }

    let back = match &now.branch {
        Some(branch) => format!("git switch {branch}"),
        None => format!("git switch --detach {}", now.commit.get(..12).unwrap_or(&now.commit)),
    };
    let at = format!("refs/heads/{branch}");
    let known = repository.git(&["rev-parse", "--verify", "--quiet", &at]).await.ok();
    let unfetched = fetch(&repository, &place, theirs, commit).await;
    if unfetched.is_none() {
        must_be_free(&repository, commit).await?;
        let switch = ["switch", "--quiet", "--no-overwrite-ignore"];
        match known {
            Some(known) if known == commit => repository.git(&[&switch[..], &["--", &branch]].concat()).await?,
            Some(_) => return Err(in_the_way(&branch)),
            None => repository.git(&[&switch[..], &["--no-track", "--create", &branch, commit]].concat()).await?,
        };
        term::info(&format!("On branch {branch}, at the commit of task {id}. Back to where you were: {back}"));
        return Ok(());
    }
    if known.is_some() {
        return Err(in_the_way(&branch));
    }
    let why = unfetched.filter(|_| task.push == PushMode::Branch).map(|why| format!("{theirs} can't be fetched ({why})"));
    let why = why.unwrap_or_else(|| format!("what task {id} changed was not pushed"));
    let patch = artifacts::newest_diff(&id, server).await?;
    let tree = repository.patched(&patch).await.map_err(|failure| {
        format!(
            "{why}, and its patch does not fit onto what is checked out here: check out the branch that the task began with. Tasks of the same \
             context that ran before it may have changed the same: check these out first, or submit with --push. git says: {failure}"
        )
    })?;
    must_be_free(&repository, &tree).await?;
    repository.read_tree(&tree, true).await?;
    repository.git(&["switch", "--quiet", "--create", &branch]).await?;
    repository.read_tree(&tree, false).await?;
    term::info(&format!(
        "On the new branch {branch}: {why}, so its changes are in the index and not committed yet (git commit). Back to where you were, \
         after that: {back}"
    ));
    Ok(())
}

/// Whether what is not committed here is what the patch of this task makes, and nothing else. What can't be told is not.
async fn has_only_the_patch(repository: &LocalRepository, id: &str, server: &Server) -> bool {
    let compared = async {
        let made = repository.patched(&artifacts::newest_diff(id, server).await?).await?;
        repository.git(&["diff", "--quiet", "--ignore-submodules=all"]).await?;
        Ok::<_, CommandError>(repository.git(&["write-tree"]).await? == made)
    };
    compared.await.unwrap_or(false)
}

/// Fetches the commit of a run unless it is here. `None`: it is here now; otherwise why it is not.
async fn fetch(repository: &LocalRepository, place: &Place, branch: &str, commit: &str) -> Option<String> {
    let has_commit = async || repository.git(&["cat-file", "-e", &format!("{commit}^{{commit}}")]).await.is_ok();
    if has_commit().await {
        return None;
    }
    let Place::Remote(remote) = place else { return Some("it is not in this repository".into()) };
    let refspec = format!("refs/heads/{branch}");
    let fetched = match repository.git(&["check-ref-format", &refspec]).await {
        Ok(_) => repository.git(&["fetch", "--quiet", "--no-tags", "--", remote, &refspec]).await,
        Err(_) => return Some("the server names a branch that is none".into()),
    };
    match fetched {
        _ if has_commit().await => None,
        Ok(_) => Some(format!("{remote} has it at another commit")),
        Err(failure) => Some(failure.to_string()),
    }
}

/// # Errors
/// Files would be overwritten that git does not look at.
async fn must_be_free(repository: &LocalRepository, of: &str) -> Result<(), CommandError> {
    const SHOWN: usize = 10;
    let names = repository.in_the_way(of).await?;
    if names.is_empty() {
        return Ok(());
    }
    let more = names.len().checked_sub(SHOWN).filter(|more| *more > 0).map(|more| format!(" and {more} more")).unwrap_or_default();
    let shown = names.iter().take(SHOWN).map(|name| name.escape_debug().to_string()).collect::<Vec<_>>().join(", ");
    Err(format!("git would overwrite these files, which it ignores or was told to take as unchanged: {shown}{more}: move them away").into())
}

fn in_the_way(branch: &str) -> CommandError {
    format!("a branch {branch} exists here and is not at the commit of the task: give the new one another name (--branch NAME)").into()
}
