//! The memory of a project on this machine: the files below a directory. A snapshot of it is a tar archive that depends only on the files,
//! so its digest shows whether they have changed.

use std::io::{self, Read, Write};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;
use std::{fs, mem};

use axum::Json;
use axum::extract::rejection::JsonRejection;
use axum::extract::{Path as UrlPath, State};
use axum::http::StatusCode;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use cap_std::ambient_authority;
use cap_std::fs::Dir;
use parking_lot::Mutex;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use serde::Deserialize;
use serde_json::json;
use sha2::{Digest, Sha256};
use uuid::Uuid;

use crate::Agent;
use crate::home;
use crate::machine::open_below::open_below;
use crate::machine::removal::remove_all;
use crate::push::response::{PushResponse, refuse};
use bloom_core::control_plane::MAX_MEMORY_BYTES;

const MAX_FILES: usize = 10_000;
const MAX_DEPTH: usize = 32;
/// How many bytes the archive adds to each file.
const OF_A_FILE: usize = 1024;

pub(crate) struct Memory {
    pub project: String,
    pub canonical_id: String,
    dir: PathBuf,
    /// The last reading, with the files from which it was made.
    read: Mutex<Option<(Vec<Stat>, Reading)>>,
    /// One snapshot or delivery at a time.
    turn: tokio::sync::Mutex<()>,
}

/// What heartbeats report about a memory.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Reading {
    /// The number of files.
    pub obs_count: usize,
    /// The digest of its snapshot; empty if there are no files.
    pub sha256: String,
}

/// The metadata that shows whether a file may have changed, without reading it.
#[derive(Clone, Debug, PartialEq)]
struct Stat {
    path: PathBuf,
    bytes: u64,
    modified: SystemTime,
}

impl Memory {
    pub(crate) fn new(project: &str, canonical_id: String, dir: PathBuf) -> Self {
        Self { project: project.to_owned(), canonical_id, dir, read: Mutex::default(), turn: tokio::sync::Mutex::default() }
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    pub(crate) fn exists(&self) -> bool {
        self.dir.is_dir()
    }

    /// # Errors
    /// The directory can't be read, or is larger than a snapshot may be.
    pub(crate) async fn read(self: &Arc<Self>) -> Result<Reading, String> {
        let _turn = self.turn.lock().await;
        self.on_a_thread(|memory| {
            let Some(dir) = memory.open()? else { return Ok(Reading::default()) };
            let files = files_of(&dir)?;
            if let Some((_, reading)) = memory.read.lock().as_ref().filter(|(known, _)| *known == files) {
                return Ok(reading.clone());
            }
            let reading = reading_of(&files, &archive(&dir, &files)?);
            *memory.read.lock() = Some((files, reading.clone()));
            Ok(reading)
        })
        .await
    }

    async fn on_a_thread<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Self) -> io::Result<T> + Send + 'static,
    ) -> Result<T, String> {
        let memory = self.clone();
        let done = tokio::task::spawn_blocking(move || work(&memory)).await.map_err(|error| error.to_string())?;
        done.map_err(|error| format!("{}: {error}", self.dir.display()))
    }

    /// Opens the directory. `None` if it does not exist yet.
    fn open(&self) -> io::Result<Option<Dir>> {
        match Dir::open_ambient_dir(&self.dir, ambient_authority()) {
            Ok(dir) => Ok(Some(dir)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Replaces the directory atomically by the files of this archive. A link to the directory stays.
    fn replace(&self, archive: &[u8]) -> io::Result<usize> {
        let dir = match fs::canonicalize(&self.dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => self.dir.clone(),
            found => found?,
        };
        let parent = dir.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        fs::create_dir_all(parent)?;
        let fresh = parent.join(format!(".memory-{}", Uuid::now_v7()));
        home::private_dir(&fresh)?;
        let placed = unpack(archive, &fresh).and_then(|count| {
            match renameat_with(CWD, &fresh, CWD, &dir, RenameFlags::EXCHANGE) {
                Ok(()) => {}
                Err(rustix::io::Errno::NOENT) => fs::rename(&fresh, &dir)?,
                Err(error) => return Err(error.into()),
            }
            fs::File::open(parent)?.sync_all()?;
            Ok(count)
        });
        // After the exchange, this directory contains the previous files.
        if fresh.exists() {
            remove_all(&fresh)?;
        }
        *self.read.lock() = None;
        placed
    }
}

fn reading_of(files: &[Stat], archive: &[u8]) -> Reading {
    let sha256 = if files.is_empty() { String::new() } else { hex::encode(Sha256::digest(archive)) };
    Reading { obs_count: files.len(), sha256 }
}

fn too_large() -> io::Error {
    let text =
        format!("the memory is too large: at most {MAX_FILES} files with {MAX_MEMORY_BYTES} bytes are kept, {MAX_DEPTH} levels deep");
    io::Error::new(io::ErrorKind::FileTooLarge, text)
}

/// The regular files below the directory, by path. Symbolic links are left out, because they may lead anywhere.
fn files_of(dir: &Dir) -> io::Result<Vec<Stat>> {
    let mut found = Vec::new();
    let mut bytes = 0;
    let mut left = vec![(PathBuf::new(), 0)];
    while let Some((below, depth)) = left.pop() {
        let listed = if depth == 0 { dir.entries()? } else { dir.read_dir(&below)? };
        for entry in listed {
            let entry = entry?;
            let (path, kind) = (below.join(entry.file_name()), entry.file_type()?);
            if kind.is_dir() {
                if depth + 1 >= MAX_DEPTH || left.len() >= MAX_FILES {
                    return Err(too_large());
                }
                left.push((path, depth + 1));
            } else if kind.is_file() {
                let of_file = entry.metadata()?;
                bytes += usize::try_from(of_file.len()).unwrap_or(usize::MAX).saturating_add(OF_A_FILE);
                if found.len() >= MAX_FILES || bytes > MAX_MEMORY_BYTES {
                    return Err(too_large());
                }
                found.push(Stat { path, bytes: of_file.len(), modified: of_file.modified()?.into_std() });
            }
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(found)
}

/// The archive of these files. It has no times or owners, so it depends only on names and contents.
fn archive(dir: &Dir, files: &[Stat]) -> io::Result<Vec<u8>> {
    let mut archive = tar::Builder::new(Vec::new());
    for file in files {
        let mut content = Vec::new();
        let most = u64::try_from(MAX_MEMORY_BYTES).unwrap_or(u64::MAX);
        match open_below(dir, &file.path) {
            Ok(open) => open.take(most + 1).read_to_end(&mut content)?,
            // The file was removed after it was listed.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        if archive.get_ref().len() + content.len() > MAX_MEMORY_BYTES {
            return Err(too_large());
        }
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(0o600);
        header.set_mtime(0);
        archive.append_data(&mut header, &file.path, &content[..])?;
    }
    archive.into_inner()
}

/// Writes the files of the archive below a new directory. Returns the number of files.
fn unpack(archive: &[u8], fresh: &Path) -> io::Result<usize> {
    let wrong = |why: &str| io::Error::new(io::ErrorKind::InvalidData, format!("the snapshot is not a sound archive: {why}"));
    let mut count = 0;
    for entry in tar::Archive::new(archive).entries()? {
        let mut entry = entry?;
        let path = entry.path()?.into_owned();
        let is_below = path.components().all(|part| matches!(part, Component::Normal(_))) && path.components().next().is_some();
        if !entry.header().entry_type().is_file() || !is_below || path.components().count() > MAX_DEPTH {
            return Err(wrong("it has something else than files below the directory"));
        }
        count += 1;
        if count > MAX_FILES {
            return Err(too_large());
        }
        let target = fresh.join(path);
        home::private_dir(target.parent().unwrap_or(fresh))?;
        let mut file = fs::OpenOptions::new().write(true).create_new(true).open(&target)?;
        io::copy(&mut entry, &mut file)?;
        file.flush()?;
        file.sync_all()?;
    }
    Ok(count)
}

/// A snapshot in the form in which it is sent and received.
#[derive(Deserialize)]
pub(crate) struct Delivery {
    sha256: String,
    content: String,
}

fn unknown() -> PushResponse {
    refuse(StatusCode::NOT_FOUND, "This agent keeps no memory of this project: start it with --memory PROJECT=DIR")
}

fn memory_of(agent: &Agent, canonical_id: &str) -> Option<Arc<Memory>> {
    agent.membridge.as_ref()?.memory(canonical_id)
}

/// Answers with a snapshot of the memory.
pub(crate) async fn fetch(State(agent): State<Arc<Agent>>, UrlPath(canonical_id): UrlPath<String>) -> PushResponse {
    let Some(memory) = memory_of(&agent, &canonical_id) else { return unknown() };
    let _turn = memory.turn.lock().await;
    let taken = memory.on_a_thread(|memory| {
        let Some(dir) = memory.open()? else {
            return Err(io::Error::new(io::ErrorKind::NotFound, "there is no such directory yet"));
        };
        let files = files_of(&dir)?;
        let archive = archive(&dir, &files)?;
        Ok((files.len(), hex::encode(Sha256::digest(&archive)), archive.len(), STANDARD.encode(&archive)))
    });
    match taken.await {
        Ok((obs_count, sha256, bytes, content)) => {
            (StatusCode::OK, Json(json!({ "sha256": sha256, "bytes": bytes, "obs_count": obs_count, "content": content })))
        }
        Err(why) => refuse(StatusCode::CONFLICT, &why),
    }
}

/// Replaces the memory with a snapshot.
pub(crate) async fn deliver(
    State(agent): State<Arc<Agent>>,
    UrlPath(canonical_id): UrlPath<String>,
    body: Result<Json<Delivery>, JsonRejection>,
) -> PushResponse {
    let mut delivery = match body {
        Ok(Json(delivery)) => delivery,
        Err(rejection) => return refuse(rejection.status(), &rejection.body_text()),
    };
    let Some(memory) = memory_of(&agent, &canonical_id) else { return unknown() };
    let (content, sha256) = (mem::take(&mut delivery.content), delivery.sha256);
    // Spawned, so that the replacement is completed even if the caller disconnects.
    let replaced = tokio::spawn(async move {
        let _turn = memory.turn.lock().await;
        memory
            .on_a_thread(move |memory| {
                let damaged = || io::Error::new(io::ErrorKind::InvalidData, "the snapshot is damaged: its digest does not match");
                let archive = STANDARD.decode(&content).map_err(|_| damaged())?;
                if hex::encode(Sha256::digest(&archive)) != sha256 {
                    return Err(damaged());
                }
                memory.replace(&archive)
            })
            .await
    });
    match replaced.await {
        Ok(Ok(files)) => (StatusCode::OK, Json(json!({ "status": "replaced", "files": files }))),
        Ok(Err(why)) => refuse(StatusCode::CONFLICT, &why),
        Err(error) => refuse(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory(dir: PathBuf) -> Memory {
        Memory::new("p", "id".into(), dir)
    }

    #[test]
    fn a_snapshot_depends_on_names_and_contents_alone() {
        let root = tempfile::tempdir().unwrap();
        let (one, other) = (root.path().join("one"), root.path().join("other"));
        fs::create_dir_all(one.join("sub")).unwrap();
        fs::write(one.join("sub/a.md"), "remember").unwrap();
        fs::write(one.join("b.md"), "this").unwrap();
        std::os::unix::fs::symlink("/etc/hostname", one.join("link")).unwrap();
        let taken = |path: &Path| {
            let dir = memory(path.to_owned()).open().unwrap().unwrap();
            let files = files_of(&dir).unwrap();
            (files.len(), archive(&dir, &files).unwrap())
        };
        let (count, first) = taken(&one);
        assert_eq!(count, 2, "links are left out");
        assert_eq!(memory(other.clone()).replace(&first).unwrap(), 2);
        assert_eq!(taken(&other), (2, first.clone()));
        fs::write(other.join("more.md"), "x").unwrap();
        assert_ne!(taken(&other).1, first);
        memory(other.clone()).replace(&first).unwrap();
        assert!(!other.join("more.md").exists(), "what the snapshot lacks is gone");
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 2, "nothing is left beside them");
    }

    #[test]
    fn an_archive_writes_nothing_outside() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("memory");
        fs::create_dir(&dir).unwrap();
        fs::write(dir.join("kept.md"), "kept").unwrap();
        let with = |path: &str, kind: tar::EntryType| {
            let mut header = tar::Header::new_gnu();
            header.as_gnu_mut().unwrap().name[..path.len()].copy_from_slice(path.as_bytes());
            header.set_entry_type(kind);
            header.set_size(0);
            header.set_mode(0o600);
            header.set_cksum();
            let mut builder = tar::Builder::new(Vec::new());
            builder.append(&header, io::empty()).unwrap();
            builder.into_inner().unwrap()
        };
        for archive in [
            with("../outside", tar::EntryType::Regular),
            with("/outside", tar::EntryType::Regular),
            with("link", tar::EntryType::Symlink),
            b"not an archive at all".repeat(100),
        ] {
            assert!(memory(dir.clone()).replace(&archive).is_err());
        }
        assert_eq!(fs::read_to_string(dir.join("kept.md")).unwrap(), "kept");
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 1);
    }
}
