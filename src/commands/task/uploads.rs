//! `--file`: files for a task, which are uploaded before the task is submitted.

use std::fs::File;
use std::io::{Read as _, Seek as _};
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::CommandError;
use crate::progress::Progress;
use crate::server_calls::{Again, Server, failed, with_query};
use bloom_api::results::Artifact;
use bloom_core::file::{MAX_INPUTS, path_problem};

/// Files of at least this size get a progress bar.
const LARGE: u64 = 1 << 20;

/// The maximum number of bytes that are read from a pipe: 1 GiB.
const MAX_PIPED: u64 = 1 << 30;

/// A file, and the path at which the run will find it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct FileOfTask {
    name: String,
    path: PathBuf,
}

/// `PATH`, or `NAME=PATH`.
pub(crate) fn file_of_task(text: &str) -> Result<FileOfTask, String> {
    let (name, path) = match text.split_once('=') {
        Some((name, path)) => (name.to_owned(), Path::new(path)),
        None => {
            let name = Path::new(text).file_name().and_then(|name| name.to_str());
            (name.ok_or("no file name at its end: give NAME=PATH")?.to_owned(), Path::new(text))
        }
    };
    match path_problem(&name) {
        None => Ok(FileOfTask { name, path: path.to_owned() }),
        Some(wrong) => Err(format!("the name {} {wrong}", name.escape_debug())),
    }
}

struct Opened<'a> {
    file: &'a FileOfTask,
    content: File,
    bytes: u64,
    sha256: String,
}

impl Opened<'_> {
    fn wrong(file: &FileOfTask, why: impl std::fmt::Display) -> CommandError {
        CommandError::usage(format!("--file {}: {why}", file.path.display()))
    }
}

/// Uploads the files, and returns the field `inputs` of the task. All files are opened and read before the first one is sent.
///
/// # Errors
/// A file can't be read, or a call failed.
pub(crate) async fn upload(server: &Server, files: &[FileOfTask]) -> Result<Vec<Value>, CommandError> {
    if files.len() > MAX_INPUTS {
        return Err(CommandError::usage(format!("--file: {} files are given; a task has at most {MAX_INPUTS}", files.len())));
    }
    let opened = files.iter().map(open).collect::<Result<Vec<_>, _>>()?;
    let bytes = opened.iter().map(|file| file.bytes).sum();
    let progress = (bytes >= LARGE).then(|| Progress::new(bytes));
    let mut inputs = Vec::new();
    for Opened { file, content, bytes, sha256 } in &opened {
        let path = with_query("api/runtime/artifacts", &[("name", file.name.clone()), ("sha256", sha256.clone())]);
        // If an upload is repeated, an unused copy may stay on the server, which removes it.
        let send = || async {
            let content = content.try_clone().map_err(|error| bloom_client::Error::Usage(error.to_string()))?;
            (&content).rewind().map_err(|error| bloom_client::Error::Usage(error.to_string()))?;
            server.client.upload(&path, content_type(&file.name), content.into(), *bytes).await?.json::<Artifact<'static>>()
        };
        let artifact = server.call(Again::Passing, send).await.map_err(|error| failed(error).about(&file.path.to_string_lossy()))?;
        inputs.push(json!({ "artifact_id": artifact.id, "path": file.name }));
        if let Some(progress) = &progress {
            progress.add(*bytes);
        }
    }
    Ok(inputs)
}

fn open(file: &FileOfTask) -> Result<Opened<'_>, CommandError> {
    let wrong = |error: std::io::Error| Opened::wrong(file, error);
    let mut content = File::open(&file.path).map_err(wrong)?;
    let kind = content.metadata().map_err(wrong)?.file_type();
    if kind.is_fifo() {
        content = kept(content).map_err(wrong)?;
    } else if !kind.is_file() {
        return Err(Opened::wrong(file, "it is no file: pack a directory into an archive first"));
    }
    let (mut hash, mut bytes, mut piece) = (Sha256::new(), 0, vec![0; 256 << 10]);
    loop {
        let read = content.read(&mut piece).map_err(wrong)?;
        if read == 0 {
            break;
        }
        hash.update(&piece[..read]);
        bytes += read as u64;
    }
    Ok(Opened { file, content, bytes, sha256: hex::encode(hash.finalize()) })
}

/// Stores the content of a pipe, such as that of `<(command)`, in a file: the content is read twice, and its size is sent first.
fn kept(pipe: File) -> std::io::Result<File> {
    let mut file = tempfile::tempfile()?;
    if std::io::copy(&mut pipe.take(MAX_PIPED + 1), &mut file)? > MAX_PIPED {
        return Err(std::io::Error::other(format!("more than {MAX_PIPED} bytes came out of the pipe: write them to a file")));
    }
    file.rewind()?;
    Ok(file)
}

/// The content type of a file, by the extension of its name.
fn content_type(name: &str) -> &'static str {
    let end = name.rsplit_once('.').map_or("", |(_, end)| end).to_ascii_lowercase();
    match end.as_str() {
        "txt" | "log" => "text/plain",
        "md" => "text/markdown",
        "csv" => "text/csv",
        "html" | "htm" => "text/html",
        "diff" | "patch" => "text/x-diff",
        "json" => "application/json",
        "yaml" | "yml" => "application/yaml",
        "pdf" => "application/pdf",
        "zip" => "application/zip",
        "gz" | "tgz" => "application/gzip",
        "tar" => "application/x-tar",
        "png" => "image/png",
        "jpg" | "jpeg" => "image/jpeg",
        "gif" => "image/gif",
        "svg" => "image/svg+xml",
        "webp" => "image/webp",
        _ => "application/octet-stream",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_have_names() {
        let of = |name: &str, path: &str| Ok(FileOfTask { name: name.into(), path: path.into() });
        assert_eq!(file_of_task("some/dir/a.txt"), of("a.txt", "some/dir/a.txt"));
        assert_eq!(file_of_task("in/b=/tmp/a=1"), of("in/b", "/tmp/a=1"));
        for wrong in ["..", "dir/..", "../x=a", "=a", "/x=a", ".git/config=a"] {
            assert!(file_of_task(wrong).is_err(), "{wrong}");
        }
        assert_eq!((content_type("a/B.PNG"), content_type("x")), ("image/png", "application/octet-stream"));
    }
}
