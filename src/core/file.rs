//! Files: uploads of clients for tasks, and uploads of agents from their runs.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::Ms;
use super::ids::{LeaseId, TaskId, WorkerId};
use super::words::words;

words! {
    /// What a file is.
    FileKind {
        /// A client uploaded it, for tasks that are to have it.
        Input = "INPUT",
        /// A run left it, and its task asked for it.
        Output = "OUTPUT",
        /// What a run changed in its repository.
        GitDiff = "GIT_DIFF",
    }
}

words! {
    /// The two sorts of artifacts.
    ArtifactKind {
        /// What a run answered, or that it failed.
        Answer = "answer",
        /// A file: an upload, or one of a run.
        File = "file",
    }
}

/// The id of a file is that of its artifact.
pub type FileId = Uuid;

/// The maximum number of files that one lease uploads.
pub const MAX_FILES_OF_LEASE: usize = 200;
/// The maximum total size of the files of one task, in bytes.
pub const MAX_FILE_BYTES_OF_TASK: i64 = 1 << 30;
/// The maximum number of uploads that no task uses yet, for one submit key or for all other keys together.
pub const MAX_UNUSED_UPLOADS: i64 = 1_000;
/// The maximum total size in bytes of the uploads that no task uses yet, for one submit key or for all other keys together.
pub const MAX_UNUSED_BYTES: i64 = 10 << 30;
/// How long an unused upload is kept.
pub const UNUSED_MS: Ms = 24 * 60 * 60 * 1000;
/// The maximum number of inputs of a task.
pub const MAX_INPUTS: usize = 100;
/// The maximum number of globs with which a task selects the files to keep from its runs.
pub const MAX_OUTPUTS: usize = 32;
/// Characters of one of these globs.
pub const MAX_OUTPUT_CHARS: usize = 255;
/// The maximum length of the name of a file, and of the path of an input.
pub const MAX_PATH_BYTES: usize = 1024;
/// Bytes of the content type of a file.
pub const MAX_CONTENT_TYPE: usize = 255;

/// A file. Its content is stored separately in the database, or in the object store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    /// The file's id, which is also that of its artifact.
    pub id: FileId,
    /// The submit or member key that uploaded it; empty if another key did.
    pub owner: String,
    /// The team of this key; empty if it had none.
    pub team: String,
    /// The task whose run uploaded it; `None`: it is a client's upload.
    pub task_id: Option<TaskId>,
    /// The lease of the run that uploaded it; `None`: it is a client's upload.
    pub lease_id: Option<LeaseId>,
    /// The worker that had this lease; `None`: it is a client's upload.
    pub worker_id: Option<WorkerId>,
    /// A relative path; see [`path_problem`].
    pub name: String,
    /// The media type, as its uploader named it.
    pub content_type: String,
    /// The size of the content in bytes.
    pub bytes: i64,
    /// The SHA-256 digest of the content, in lower-case hexadecimal.
    pub sha256: String,
    /// Whether it is an input of tasks, or comes from a run.
    pub kind: FileKind,
    /// When it was added, which is after all of its content had arrived.
    pub created_at: Ms,
    /// When the upload is removed unless a task uses it. `None`: a task uses it, or it comes from a run.
    pub remove_at: Option<Ms>,
    /// `minio://bucket/key` or `s3://bucket/key`; `None`: the content is in the database.
    pub object_url: Option<String>,
}

/// A file that a task gets: its path for the run, and its metadata.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct Input {
    /// The upload whose content the run gets.
    pub artifact_id: FileId,
    /// The path, relative to the directory of the run; see [`path_problem`].
    pub path: String,
    /// The media type of the file, taken from the upload when the task is created.
    pub content_type: String,
    /// The size of the file in bytes, taken from the upload when the task is created.
    pub bytes: i64,
    /// The digest of the content, in lower-case hexadecimal, taken from the upload when the task is created.
    pub sha256: String,
}

/// Why the text is not a valid path of a file below a directory; `None` if it is valid. A valid path does not lead out of the directory or
/// into git's data.
pub fn path_problem(path: &str) -> Option<&'static str> {
    let is_git = |part: &str| part.eq_ignore_ascii_case(".git");
    if path.is_empty() {
        Some("must not be empty")
    } else if path.len() > MAX_PATH_BYTES {
        Some("must have at most 1024 bytes")
    } else if path.chars().any(char::is_control) {
        Some("must not contain control characters")
    } else if path.starts_with('/') {
        Some("must be relative, without '/' at its beginning")
    } else if path.split('/').any(|part| matches!(part, "" | "." | "..")) {
        Some("must not have an empty part, '.' or '..'")
    } else if path.split('/').any(is_git) {
        Some("must not have a part named '.git'")
    } else {
        None
    }
}

/// Two of the paths that exclude each other, because they are equal or one is a directory of the other.
pub fn path_clash<'a>(paths: impl IntoIterator<Item = &'a str>) -> Option<(&'a str, &'a str)> {
    // With '/' as the smallest character, the paths below a path directly follow it.
    let mut sorted: Vec<&str> = paths.into_iter().collect();
    sorted.sort_unstable_by(|a, b| a.split('/').cmp(b.split('/')));
    let is_within = |(above, below): (&'a str, &'a str)| {
        below.strip_prefix(above).is_some_and(|rest| rest.is_empty() || rest.starts_with('/')).then_some((above, below))
    };
    sorted.windows(2).find_map(|pair| is_within((pair[0], pair[1])))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_stay_below_their_directory() {
        for good in ["a", "a/b.txt", "a b/ü", "..a/b..", ".gitignore", "a/.github/x", "-x", &"x".repeat(1024)] {
            assert_eq!(path_problem(good), None, "{good}");
        }
        for bad in ["", "/a", "a/", "a//b", ".", "..", "a/../b", "./a", ".git", "a/.GIT/config", "a\0b", "a\nb", &"x".repeat(1025)] {
            assert!(path_problem(bad).is_some(), "{bad}");
        }
    }

    #[test]
    fn paths_that_exclude_each_other() {
        assert_eq!(path_clash(["a", "b", "a"]), Some(("a", "a")));
        assert_eq!(path_clash(["a/b", "a!", "a"]), Some(("a", "a/b")));
        assert_eq!(path_clash(["a/b/c", "a-b", "a/b"]), Some(("a/b", "a/b/c")));
        assert_eq!(path_clash(["a/b", "a-b", "ab", "a/c"]), None);
    }
}
