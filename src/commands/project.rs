//! `project`: repositories that workers clone.

use std::path::Path;
use std::time::Duration;

use clap::Subcommand;
use clap::builder::NonEmptyStringValueParser;
use reqwest::Method;
use serde_json::Value;
use uuid::Uuid;

use super::confirm::confirm;
use super::records::{self, Limit};
use super::server_calls::{Server, read};
use super::show::{self, Form, Shown};
use super::{columns, term};
use crate::CommandError;
use bloom_api::git_names::BranchPrefix;
use bloom_api::problem_texts::NO_NODE;
use bloom_api::projects::{NewClone, NewProject, Project, ProjectEdit, ProjectName, Propagated, Propagation, TargetPath};
use bloom_api::repository::RepoUrl;
use bloom_api::values::{ShortName, Text};
use bloom_client::part;
use bloom_core::command::UNKNOWN_PROJECT;
use bloom_core::masked_urls::masked_url;
use bloom_core::project::{MAX_PROJECTS, is_project_name};
use bloom_core::similar::did_you_mean;

/// How many projects are searched for a name: a server has no more.
const MAX_SEARCHED: usize = MAX_PROJECTS;
/// An agent gives a clone 10 minutes.
const CLONE_LIMIT: Duration = Duration::from_secs(660);
/// How a server says that an agent refuses its key.
const KEY_REFUSED: &str = "Agent returned 401";
/// What a server says of a name that another project has.
const EXISTS: &str = "' exists: ";
/// Workers clone several at a time.
const PROPAGATE_LIMIT: Duration = Duration::from_secs(2 * 60 * 60);

pub(crate) const EXAMPLES: &str = "\
Examples:
  bloom-runtime project add docs https://git.example.com/team/docs.git --worker worker-1
  bloom-runtime project add site ~/src/site
  bloom-runtime project add .
  bloom-runtime project edit site --branch-prefix bots
  bloom-runtime project clone docs
  bloom-runtime project propagate docs
  bloom-runtime project rm docs";

#[derive(Debug, Subcommand)]
pub enum ProjectCommand {
    /// List projects, newest first
    #[command(alias = "ls")]
    List {
        #[command(flatten)]
        limit: Limit,
    },
    /// Add a project; this clones nothing yet
    #[command(alias = "create")]
    Add {
        /// Its name, which no other project has: letters, digits, spaces and . _ -; without it, the repository is the only argument, and the
        /// name is the end of its URL or that of its directory
        name: String,
        /// The repository: https://… or ssh://… without a password, or git@HOST:PATH, because workers use their own git credentials; or a
        /// directory of this machine, for workers that run on it and fetch by `file` (--git-protocols; the one of `dev` does)
        #[arg(value_name = "URL|DIR")]
        repo_url: Option<String>,
        /// Where workers put the clone, below their directory of projects [default: the name of the project]
        #[arg(long, value_name = "PATH")]
        path: Option<String>,
        /// The worker that clones it if `project clone` names none
        #[arg(long, value_name = "NAME")]
        worker: Option<String>,
        /// What the branches of its contexts begin with: PREFIX/CONTEXT [default: bloom]
        #[arg(long, value_name = "PREFIX")]
        branch_prefix: Option<String>,
    },
    /// Change a project; a branch that was pushed keeps its name
    Edit {
        /// Its name or id
        #[arg(value_name = "PROJECT", value_parser = NonEmptyStringValueParser::new())]
        project: String,
        /// What the branches of its contexts begin with from now on: PREFIX/CONTEXT
        #[arg(long, value_name = "PREFIX")]
        branch_prefix: String,
    },
    /// Show a project, and which workers have cloned it
    #[command(visible_aliases = ["describe", "get"])]
    Show {
        /// Its name or id
        #[arg(value_name = "PROJECT", value_parser = NonEmptyStringValueParser::new())]
        project: String,
    },
    /// Order a worker that listens for pushes to clone a project
    Clone {
        /// Its name or id
        #[arg(value_name = "PROJECT", value_parser = NonEmptyStringValueParser::new())]
        project: String,
        /// The worker [default: the project's own]
        #[arg(long, value_name = "NAME")]
        worker: Option<String>,
    },
    /// Order all workers that listen for pushes and lack a project to clone it
    Propagate {
        /// Its name or id
        #[arg(value_name = "PROJECT", value_parser = NonEmptyStringValueParser::new())]
        project: String,
        /// Only this worker; may be repeated
        #[arg(long = "worker", value_name = "NAME")]
        workers: Vec<String>,
    },
    /// Delete projects
    #[command(aliases = ["delete", "remove"])]
    Rm {
        /// Do not ask
        #[arg(short, long)]
        yes: bool,
        /// Names or ids
        #[arg(required = true, value_name = "PROJECT", value_parser = NonEmptyStringValueParser::new())]
        projects: Vec<String>,
    },
}

pub(crate) async fn run(command: ProjectCommand, server: &Server, shown: Shown) -> Result<(), CommandError> {
    match command {
        ProjectCommand::List { limit } => records::pages(server, "api/runtime/projects", &[], limit, shown, &columns::PROJECTS).await,
        ProjectCommand::Add { name, repo_url, path, worker, branch_prefix } => {
            let is_named = repo_url.is_some();
            let (name, repo_url) = match repo_url {
                Some(repo_url) => (name, repo_url),
                None => (name_of(&name)?, name),
            };
            let new = NewProject {
                name: ProjectName(name.clone()),
                repo_url: RepoUrl(url_of(&repo_url)?),
                target_path: path.map(TargetPath),
                primary_node_id: worker.map(ShortName::from),
                branch_prefix: branch_prefix.clone().map(BranchPrefix).unwrap_or_default(),
            };
            let added = match server.post("api/runtime/projects", &new).await {
                Ok(added) => added,
                Err(failure) => {
                    let is_taken = failure.message.contains(EXISTS);
                    let before = if is_taken { named(server, &name).await?.1 } else { None };
                    let Some(before) = before else { return Err(failure.about(&name)) };
                    must_be_same(&read(&before)?, &new.repo_url.0, branch_prefix.as_deref())?;
                    show::one(shown.form_or(Form::Table), &columns::PROJECTS, &before)?;
                    term::info(&format!("{name} exists already, with this repository; nothing was changed"));
                    return Ok(());
                }
            };
            show::one(shown.form_or(Form::Table), &columns::PROJECTS, &added)?;
            if !is_named {
                term::info(&format!("The name of the project is {name}."));
            }
            if git_in(&repo_url, &["rev-list", "--max-count=1", "--all"]).await.is_some_and(|commit| commit.is_empty()) {
                term::info("The repository has no commit yet: its tasks fail until it has one.");
            }
            if is_url(&repo_url) {
                term::info(&format!(
                    "Nothing was checked yet: the first run fetches it. To try that: bloom-runtime task submit --project {name} --wait \
                     \"What is in this repository?\""
                ));
            }
            if let Some(origin) = origin_of(&repo_url).await {
                term::info(&format!(
                    "Only workers on this machine can fetch it, and --push goes into this directory. Its origin is {origin}: for that, \
                     bloom-runtime project rm {name} and bloom-runtime project add {name} {origin}"
                ));
            }
            Ok(())
        }
        ProjectCommand::Edit { project, branch_prefix } => {
            let edit = ProjectEdit { branch_prefix: BranchPrefix(branch_prefix) };
            let edited = server.patch(&path(server, &project, "").await?, &edit).await.map_err(|failure| failure.about(&project))?;
            show::one(shown.form_or(Form::Table), &columns::PROJECTS, &edited)
        }
        ProjectCommand::Show { project } => {
            let found = server.get(&path(server, &project, "").await?).await.map_err(|failure| failure.about(&project))?;
            match shown.form() {
                Some(form @ (Form::Json | Form::Yaml)) => return show::as_it_came(form, &found),
                // A program gets only the project, without a list of its clones.
                Some(form) if form.is_data() || form == Form::Name => return show::one(form, &columns::PROJECTS, &found),
                _ => show::one(shown.form_or(Form::Table), &columns::PROJECTS, &found)?,
            }
            let nodes = found["nodes"].as_array().map(Vec::as_slice).unwrap_or_default();
            if nodes.is_empty() {
                term::info(&format!(
                    "Workers fetch it when they run its tasks. To clone it before, on a worker that listens for pushes: bloom-runtime project \
                     clone {project} --worker NAME"
                ));
                return Ok(());
            }
            show::list(shown.form_or(Form::Table), &columns::PROJECT_NODES, nodes)
        }
        ProjectCommand::Clone { project, worker } => {
            let body = NewClone { node_id: worker.map(Text) };
            let answer = server.change(Method::POST, &path(server, &project, "/clone").await?, &body, CLONE_LIMIT).await;
            let told = |failure: CommandError| match failure.message.as_str() {
                NO_NODE => format!("{project} names no worker of its own: give --worker NAME").into(),
                text => CommandError { message: with_agent_key(text), ..failure }.about(&project),
            };
            print(&answer.map_err(told)?, shown, |answer| {
                format!("{project} is cloned on worker {}.", answer["node"].as_str().unwrap_or_default())
            })
        }
        ProjectCommand::Propagate { project, workers } => {
            let body = Propagation { node_ids: (!workers.is_empty()).then(|| workers.into_iter().collect()) };
            let answer = server.change(Method::POST, &path(server, &project, "/propagate").await?, &body, PROPAGATE_LIMIT).await;
            let answer = answer.map_err(|failure| failure.about(&project))?;
            let told: Propagated<'_> = read(&answer)?;
            let failed = told.results.iter().flatten().filter(|one| one.error.is_some()).count();
            for one in told.results.iter().flatten() {
                match &one.error {
                    Some(error) => term::info(&format!("{}: {}", one.node_id, term::line(&with_agent_key(error)))),
                    None => term::info(&format!("{}: cloned", one.node_id)),
                }
            }
            // A server says the same if all listening workers have the project and if there are none.
            let listens = told.message.is_none() || a_worker_listens(server).await;
            print(&answer, shown, |answer| {
                let nothing =
                    |message: &str| format!("{message}, as far as they listen for pushes. Others fetch it when they run its tasks.");
                match answer["message"].as_str() {
                    Some(_) if !listens => "No worker listens for pushes. Workers fetch it when they run its tasks.".to_owned(),
                    Some(message) => nothing(message),
                    None => format!("{project}: {}", told.status),
                }
            })?;
            match failed {
                0 => Ok(()),
                1 => Err(format!("1 worker could not clone {project}").into()),
                _ => Err(format!("{failed} workers could not clone {project}").into()),
            }
        }
        ProjectCommand::Rm { yes, projects } => {
            // The user is asked for confirmation only if all projects exist.
            for project in &projects {
                server.get(&path(server, project, "").await?).await.map_err(|failure| failure.about(project))?;
            }
            let count = if projects.len() == 1 { "1 project".to_owned() } else { format!("{} projects", projects.len()) };
            if !yes && !confirm("delete", &count).await? {
                term::info("Nothing was changed.");
                return Ok(());
            }
            for project in &projects {
                server.delete(&path(server, project, "").await?).await.map_err(|failure| failure.about(project))?;
                term::info(&format!(
                    "{project} is deleted. Contexts that have worked on it do not work on a project that is added under its name: they have \
                     the worktrees of this one."
                ));
            }
            Ok(())
        }
    }
}

/// What the server says of a clone, and what to do if the agent refuses the server's key.
fn with_agent_key(told: &str) -> String {
    let to_do = "; the server's MEMBRIDGE_AGENT_KEY is not the key of the agent: set it to the key of the agent's --agent-key-file, and start \
                 the server again";
    if told.contains(KEY_REFUSED) { format!("{told}{to_do}") } else { told.to_owned() }
}

/// Whether a worker may be ordered to clone; also if the workers can't be listed.
async fn a_worker_listens(server: &Server) -> bool {
    let listed = server.list("api/runtime/workers", &[], MAX_SEARCHED).await;
    listed.map_or(true, |(workers, more)| more || workers.iter().any(|worker| worker["url"].as_str().is_some_and(|url| !url.is_empty())))
}

/// What git prints in the directory. `None`: it fails, or a URL was given.
async fn git_in(given: &str, words: &[&str]) -> Option<String> {
    if is_url(given) {
        return None;
    }
    let git = tokio::process::Command::new("git").args(["-C", given]).args(words).output().await.ok()?;
    String::from_utf8(git.stdout).ok().filter(|_| git.status.success()).map(|text| text.trim().to_owned())
}

/// What the directory was cloned from, if it is a clone.
async fn origin_of(given: &str) -> Option<String> {
    let origin = git_in(given, &["remote", "get-url", "origin"]).await?;
    Some(without_password(&term::line(&origin))).filter(|origin| !origin.is_empty())
}

/// The address of a repository without user and password; `git@` is none.
pub(crate) fn without_password(url: &str) -> String {
    if url.starts_with("git@") { url.to_owned() } else { masked_url(url) }
}

fn is_url(given: &str) -> bool {
    given.starts_with("git@") || given.contains("://")
}

/// The name of a project of which only the repository was given: the name of its directory, or the end of its URL.
fn name_of(given: &str) -> Result<String, CommandError> {
    let end = if is_url(given) {
        let path = given.trim_end_matches('/');
        path.rsplit(['/', ':']).next().map(|end| end.strip_suffix(".git").unwrap_or(end).to_owned())
    } else if Path::new(given).is_dir() {
        std::fs::canonicalize(given).ok().and_then(|dir| Some(dir.file_name()?.to_string_lossy().into_owned()))
    } else {
        return Err(CommandError::usage(format!(
            "{given} is neither a URL nor a directory here: give a name and the repository, bloom-runtime project add NAME URL|DIR"
        )));
    };
    end.filter(|end| is_project_name(end)).ok_or_else(|| {
        let shown = without_password(given);
        CommandError::usage(format!(
            "{shown} ends with no name for a project (letters, digits, spaces and . _ -): give one, bloom-runtime project add NAME {shown}"
        ))
    })
}

/// The URL of a repository that was given as a URL, or as a directory of this machine.
fn url_of(given: &str) -> Result<String, CommandError> {
    if is_url(given) {
        return Ok(given.to_owned());
    }
    let dir = std::fs::canonicalize(given)
        .map_err(|error| CommandError::usage(format!("{given} is neither a URL nor a directory here: {error}")))?;
    let has_objects = ["objects", ".git"].iter().any(|inside| dir.join(inside).exists());
    let url = url::Url::from_file_path(&dir).map(String::from);
    url.ok()
        .filter(|_| has_objects)
        .ok_or_else(|| CommandError::usage(format!("{given} is no git repository: give the top of one, or a URL")))
}

fn print(answer: &Value, shown: Shown, line: impl FnOnce(&Value) -> String) -> Result<(), CommandError> {
    if let Some(form @ (Form::Json | Form::Yaml)) = shown.form() {
        return show::as_it_came(form, answer);
    }
    term::info(&line(answer));
    Ok(())
}

/// The path of a call about the project of this name or id.
async fn path(server: &Server, project: &str, call: &str) -> Result<String, CommandError> {
    let id = match project.parse::<Uuid>() {
        Ok(id) => id.to_string(),
        Err(_) => id_of(server, project).await?,
    };
    Ok(format!("api/runtime/projects/{}{call}", part(&id)))
}

async fn id_of(server: &Server, name: &str) -> Result<String, CommandError> {
    let (projects, found) = named(server, name).await?;
    let id = found.as_ref().and_then(|project| project["id"].as_str()).map(str::to_owned);
    id.ok_or_else(|| unknown(name, &projects).into())
}

/// All projects, and the one of this name.
async fn named(server: &Server, name: &str) -> Result<(Vec<Project<'static>>, Option<Value>), CommandError> {
    let (rows, _) = server.list("api/runtime/projects", &[], MAX_SEARCHED).await.map_err(super::server_calls::failed)?;
    Ok((show::read_all(&rows)?, rows.into_iter().find(|project| project["name"] == name)))
}

/// # Errors
/// The project that has the name is another one than that which was to be added.
fn must_be_same(before: &Project<'_>, repo_url: &str, branch_prefix: Option<&str>) -> Result<(), CommandError> {
    let Project { name, repo_url: repository, branch_prefix: prefix, .. } = before;
    if repository != repo_url {
        return Err(format!(
            "{name}: a project of this name exists, with the repository {repository}: choose another name; or, if nobody needs that one, \
             delete it: bloom-runtime project rm {name}"
        )
        .into());
    }
    match branch_prefix {
        Some(wanted) if prefix != wanted => Err(format!(
            "{name} exists already, with this repository and the prefix {prefix}; to change it: bloom-runtime project edit {name} \
             --branch-prefix {wanted}"
        )
        .into()),
        _ => Ok(()),
    }
}

/// Says so if no project has the name of a filter. Not every key may list the projects; others are told nothing.
pub(crate) async fn tell_if_unknown(server: &Server, name: &str) {
    if let Ok((projects, None)) = named(server, name).await {
        let meant = did_you_mean(name, projects.iter().map(|project| &*project.name));
        term::info(&format!("No project has the name {name} now{meant}: check the spelling."));
    }
}

/// The failure of a task whose project the server does not know, with the project that may be meant.
pub(crate) async fn with_meant(failure: CommandError, server: &Server) -> CommandError {
    let named_in = |text: &str| Some(text.split_once(UNKNOWN_PROJECT)?.1.split('\'').nth(1)?.to_owned());
    let Some(name) = named_in(&failure.message) else { return failure };
    let Ok((projects, None)) = named(server, &name).await else { return failure };
    let meant = did_you_mean(&name, projects.iter().map(|project| &*project.name));
    let message = failure.message.replacen(&format!("{UNKNOWN_PROJECT} '{name}'"), &format!("{UNKNOWN_PROJECT} '{name}'{meant}"), 1);
    CommandError { message, ..failure }
}

pub(crate) fn unknown(name: &str, known: &[Project<'_>]) -> String {
    let meant = did_you_mean(name, known.iter().map(|project| &*project.name));
    format!("there is no project '{name}'{meant}: bloom-runtime project list shows those that exist")
}

#[cfg(test)]
mod tests {
    use super::name_of;

    #[test]
    fn the_end_of_a_repository_is_a_name() {
        for url in ["https://git.example.com/team/site.git", "https://git.example.com/team/site/", "git@git.example.com:site.git"] {
            assert_eq!(name_of(url).unwrap(), "site", "{url}");
        }
        assert_eq!(name_of(concat!(env!("CARGO_MANIFEST_DIR"), "/.")).unwrap(), "commands");
        assert!(name_of("https://git.example.com/~x").unwrap_err().message.contains("project add NAME https://git.example.com/~x"));
        assert!(name_of("docs-of-nobody").unwrap_err().message.contains("neither a URL nor a directory"));
    }
}
