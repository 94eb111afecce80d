//! `task artifacts` and `task diff`: the files that the runs of a task left.

use std::collections::HashSet;
use std::io::{Write, stdout};
use std::path::{Path, PathBuf};

use clap::Args;
use clap_complete::ArgValueCompleter;
use serde_json::Value;

use super::directory::Directory;
use crate::CommandError;
use crate::progress::Progress;
use crate::server_calls::{Again, Server, failed, read};
use crate::show::{self, Form, Shown};
use crate::words::one_of;
use crate::{columns, ids, shell_completion, term};
use bloom_api::results::Artifact;
use bloom_api::tasks::Task;
use bloom_client::Digesting;
use bloom_core::file::{ArtifactKind, FileKind};
use bloom_core::task::{Reason, Status};

/// The most artifacts that are listed: those of many attempts.
const MOST: usize = 10_000;
/// From this many bytes on, a bar shows how far it is.
const LARGE: u64 = 1 << 20;

#[derive(Args, Debug)]
pub struct ArtifactsArgs {
    /// The task's id
    #[arg(value_name = "ID", add = ArgValueCompleter::new(shell_completion::tasks))]
    id: String,
    /// Download the files into this directory, which is made if it does not exist; of files with the same name the newest
    #[arg(long, value_name = "DIR")]
    download: Option<PathBuf>,
    /// Replace files that exist
    #[arg(long, requires = "download")]
    force: bool,
    /// List only answers, or only files
    #[arg(long, value_parser = one_of(ArtifactKind::ALL), conflicts_with = "download")]
    kind: Option<String>,
}

/// # Errors
/// The task does not exist, a call failed, or a file could not be written.
pub(crate) async fn run(args: ArtifactsArgs, server: &Server, shown: Shown) -> Result<(), CommandError> {
    let id = ids::task(server, &args.id).await?;
    let rows = of_task(server, &id, args.kind).await?;
    match args.download {
        None => show::list(shown.form_or(Form::Table), &columns::ARTIFACTS, &rows),
        Some(directory) => download(server, &id, &show::read_all(&rows)?, &directory, args.force).await,
    }
}

/// The largest diff that is printed: it is in memory as a whole.
const MAX_DIFF: u64 = 64 << 20;

/// The artifacts of a task, newest first, or those of a kind. A task that does not exist is told.
async fn of_task(server: &Server, id: &str, kind: Option<String>) -> Result<Vec<Value>, CommandError> {
    server.get(&ids::path(id, "")).await.map_err(|failure| failure.about(id))?;
    let mut query = vec![("task_id", id.to_owned())];
    query.extend(kind.map(|kind| ("kind", kind)));
    let (rows, _) = server.list("api/runtime/artifacts", &query, MOST).await.map_err(failed)?;
    Ok(rows)
}

async fn download(server: &Server, id: &str, artifacts: &[Artifact<'_>], directory: &Path, force: bool) -> Result<(), CommandError> {
    let mut seen = HashSet::new();
    let files: Vec<(&str, &Artifact<'_>)> = artifacts
        .iter()
        .filter_map(|artifact| Some((artifact.name.as_deref()?, artifact)))
        .filter(|(name, _)| seen.insert(*name))
        .collect();
    if files.is_empty() {
        term::info(&format!("The task has no files. Its answer: bloom-runtime task result {id}"));
        return Ok(());
    }
    let directory = Directory::open(directory)?;
    let bytes = files.iter().map(|(_, artifact)| size(artifact)).sum();
    let progress = (bytes >= LARGE).then(|| Progress::new(bytes));
    let mut failures = Vec::new();
    let mut told = Vec::new();
    for (name, artifact) in files {
        match one(server, artifact, name, &directory, force).await {
            Ok(()) => told.push(directory.shown(name)),
            Err(failure) => failures.push(failure.about(name)),
        }
        if let Some(progress) = &progress {
            progress.add(size(artifact));
        }
    }
    drop(progress);
    // Standard output lists only complete downloads.
    CommandError::all(&failures)?;
    told.iter().try_for_each(|path| term::print_foreign(&format!("{path}\n")))
}

fn size(artifact: &Artifact<'_>) -> u64 {
    artifact.bytes.map_or(0, |bytes| bytes.max(0).unsigned_abs())
}

async fn one(server: &Server, artifact: &Artifact<'_>, name: &str, directory: &Directory, force: bool) -> Result<(), CommandError> {
    // This is checked before the download. The file gets its name only if that is still free.
    directory.check(name, force)?;
    let fetch = || async {
        let mut into = Digesting::new(directory.create(name).map_err(bloom_client::Error::Usage)?);
        server.client.download(&content_of(artifact), size(artifact), &mut into).await?;
        Ok(into)
    };
    let (out, came) = server.call(Again::Passing, fetch).await.map_err(failed)?.finish();
    check(artifact, &came)?;
    out.place(force)
}

/// # Errors
/// What came is not what the server says of it.
fn check(artifact: &Artifact<'_>, came: &str) -> Result<(), CommandError> {
    match artifact.sha256.as_deref() {
        Some(named) if named != came => {
            Err(format!("what came has the digest {came} instead of {named}, and was not kept: give the command again").into())
        }
        _ => Ok(()),
    }
}

fn content_of(artifact: &Artifact<'_>) -> String {
    format!("api/runtime/artifacts/{}/content", artifact.id)
}

/// What the newest run changed in its repository, as a patch.
///
/// # Errors
/// There is no such artifact, or a call failed.
pub(crate) async fn newest_diff(id: &str, server: &Server) -> Result<Vec<u8>, CommandError> {
    let artifacts: Vec<Artifact<'_>> = show::read_all(&of_task(server, id, Some(ArtifactKind::File.to_string())).await?)?;
    let Some(newest) = artifacts.iter().find(|artifact| artifact.r#type == FileKind::GitDiff.as_str()) else {
        let task = server.get(&format!("api/runtime/llm-tasks/{id}")).await?;
        let task: Task<'_> = read(&task)?;
        let is_of = |reason: Reason| task.failure.as_ref().is_some_and(|failure| failure.reason == reason);
        let why = if task.project.is_none() {
            "it names no project (task submit --project NAME)"
        } else if task.finished_at.is_none() {
            "no run of it has ended yet"
        } else if task.status == Status::Completed {
            "its runs changed nothing"
        } else if task.started_at.is_none() || is_of(Reason::SpawnFailed) {
            "it ended before its run began"
        } else if is_of(Reason::Project) {
            "it failed before it had the repository, or what it changed could not be committed"
        } else {
            "its runs changed nothing, or it could not be committed"
        };
        return Err(format!("task {id} has no diff: {why}; see: bloom-runtime task describe {id}").into());
    };
    if size(newest) > MAX_DIFF {
        return Err(format!(
            "the diff of task {id} is larger than {} MiB: bloom-runtime task artifacts {id} --download DIR",
            MAX_DIFF >> 20
        )
        .into());
    }
    let fetch = || async {
        let mut into = Digesting::new(Vec::new());
        server.client.download(&content_of(newest), size(newest), &mut into).await?;
        Ok(into)
    };
    let (out, came) = server.call(Again::Passing, fetch).await.map_err(failed)?.finish();
    check(newest, &came)?;
    Ok(out)
}

/// Prints what the newest run changed in its repository.
///
/// # Errors
/// As [`newest_diff`], or the output can't be written.
pub(crate) async fn diff(id: &str, server: &Server) -> Result<(), CommandError> {
    let id = ids::task(server, id).await?;
    match String::from_utf8(newest_diff(&id, server).await?) {
        Ok(text) => term::print_foreign(&text),
        Err(wrong) if term::is_out_terminal() => term::print_foreign(&String::from_utf8_lossy(wrong.as_bytes())),
        // A patch contains the bytes of the files, so it may not be UTF-8.
        Err(wrong) => {
            let mut out = stdout().lock();
            out.write_all(wrong.as_bytes())
                .and_then(|()| out.flush())
                .map_err(|error| format!("the output can't be written: {error}").into())
        }
    }
}
