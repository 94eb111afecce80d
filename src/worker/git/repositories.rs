//! Clones repositories below the work directory when a server asks for it.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::extract::rejection::JsonRejection;
use axum::http::StatusCode;
use cap_std::ambient_authority;
use cap_std::fs::Dir;
use serde::Deserialize;
use serde_json::json;
use uuid::Uuid;

use bloom_api::repository::repository_problem;
use bloom_core::project::{is_target_path, path_below};

use crate::Agent;
use crate::git::{GitSettings, bounded, git};
use crate::home;
use crate::machine::command::{output, output_of};
use crate::machine::removal::remove_all;
use crate::push::response::{PushResponse, refuse};

/// How long git may take to read the settings of a clone.
const SETTINGS_LIMIT: Duration = Duration::from_secs(10);
const CLONE_LIMIT: Duration = Duration::from_secs(600);

#[derive(Deserialize)]
pub(crate) struct Wanted {
    repo_url: String,
    project_name: String,
    target_path: Option<String>,
}

/// Clones a repository below the work directory.
pub(crate) async fn clone(State(agent): State<Arc<Agent>>, body: Result<Json<Wanted>, JsonRejection>) -> PushResponse {
    let wanted = match body {
        Ok(Json(wanted)) => wanted,
        Err(rejection) => return refuse(rejection.status(), &rejection.body_text()),
    };
    if let Some(why) = repository_problem(&wanted.repo_url) {
        return refuse(StatusCode::BAD_REQUEST, &format!("repo_url: {why}"));
    }
    let target = wanted.target_path.unwrap_or(wanted.project_name);
    if !is_target_path(&target) {
        return refuse(
            StatusCode::BAD_REQUEST,
            "project_name and target_path must be a path below the work directory, of letters, digits, space . _ - and /",
        );
    }
    let (projects, target) = (agent.home.root().join("projects"), path_below(&target).to_owned());
    // Spawned, so that the clone is not cancelled if the caller disconnects.
    let cloned = tokio::spawn(clone_to(agent.settings.git.clone(), wanted.repo_url, projects.clone(), target.clone())).await;
    match cloned {
        Ok(Ok(())) => (StatusCode::OK, Json(json!({"status": "cloned", "path": projects.join(target)}))),
        Ok(Err((status, why))) => refuse(status, &why),
        Err(error) => refuse(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
    }
}

/// Clones into a temporary directory below `projects`, and moves the complete clone to its place. Symbolic links of earlier clones are
/// followed only if they stay below `projects`.
async fn clone_to(settings: GitSettings, repo_url: String, projects: PathBuf, target: String) -> Result<(), (StatusCode, String)> {
    let unusable = |error: io::Error| (StatusCode::INSUFFICIENT_STORAGE, format!("the directory can't be used: {error}"));
    home::private_dir(&projects).map_err(unusable)?;
    let dir = Dir::open_ambient_dir(&projects, ambient_authority()).map_err(unusable)?;
    let part = format!(".clone-{}", Uuid::now_v7());
    // Checked before the long clone, and again before the move.
    if let Err(taken) = is_free(&dir, &target) {
        // A server that repeats its request, for example because the first answer was lost, gets what it wants.
        return if origin(&dir, &target).await == Some(repo_url) { Ok(()) } else { Err(taken) };
    }
    let mut git = git(&settings.protocols);
    git.args(["clone", "--quiet", "--template=", "--no-recurse-submodules", "--", &repo_url]).arg(projects.join(&part));
    let cloned = bounded(output(git, CLONE_LIMIT), &projects.join(&part), settings.max_bytes)
        .await
        .map_err(|why| (StatusCode::BAD_GATEWAY, format!("git clone failed: {why}")));
    let moved = cloned.and_then(|_| move_to(&dir, &part, &target));
    if moved.is_err() {
        let _ = remove_all(&projects.join(&part));
    }
    moved
}

/// The URL from which the clone at this place was made. The settings are read as a plain file, so that nothing in them takes effect.
async fn origin(dir: &Dir, target: &str) -> Option<String> {
    let settings = dir.open(Path::new(target).join(".git/config")).ok().filter(|file| file.metadata().is_ok_and(|file| file.is_file()))?;
    let mut git = git(&[]);
    git.args(["config", "--file", "-", "--no-includes", "--get", "remote.origin.url"]);
    output_of(git, Stdio::from(settings.into_std()), SETTINGS_LIMIT).await.ok().map(|url| url.trim().to_owned())
}

fn is_free(dir: &Dir, target: &str) -> Result<(), (StatusCode, String)> {
    match dir.symlink_metadata(target) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Ok(_) => Err((StatusCode::CONFLICT, "The target already exists".into())),
        Err(error) => Err((StatusCode::BAD_REQUEST, format!("target_path leads out of the work directory, or can't be used: {error}"))),
    }
}

fn move_to(dir: &Dir, part: &str, target: &str) -> Result<(), (StatusCode, String)> {
    is_free(dir, target)?;
    let parent = Path::new(target).parent().filter(|parent| !parent.as_os_str().is_empty());
    let made = parent.map_or(Ok(()), |parent| dir.create_dir_all(parent));
    made.and_then(|()| dir.rename(part, dir, target)).map_err(|error| (StatusCode::CONFLICT, error.to_string()))
}
