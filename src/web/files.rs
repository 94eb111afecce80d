//! Files of tasks: their rows, their downloads, and what a run changed in its repository.

use axum::extract::Path;
use axum::http::{Method, header};
use axum::response::Response;
use http_body_util::{BodyExt as _, Limited};
use uuid::Uuid;

use crate::diff::Changes;
use crate::lang::Lang;
use crate::refused::Refused;
use crate::times::shortened;
use crate::visit::Visit;
use bloom_api::results::Artifact;
use bloom_api::tasks::Task;
use bloom_core::file::FileKind;

/// The maximum number of files on the page of a task.
const FILES: usize = 100;
/// How many bytes of a diff are read, and how many characters are shown if it is not a diff of git.
const DIFF_BYTES: usize = 256 << 10;
const DIFF_CHARS: usize = 6_000;
const KIB: i64 = 1 << 10;
const MIB: i64 = 1 << 20;

pub(crate) struct FileRow {
    pub id: Uuid,
    pub name: String,
    pub size: String,
    pub kind: String,
}

impl FileRow {
    /// `None` if the artifact is not a file, but the output of a run.
    pub(crate) fn of(lang: Lang, artifact: &Artifact<'_>) -> Option<Self> {
        let (name, bytes) = (artifact.name.as_deref()?, artifact.bytes?);
        Some(Self { id: artifact.id, name: shortened(name, 200), size: size(lang, bytes), kind: artifact.r#type.to_string() })
    }
}

pub(crate) fn size(lang: Lang, bytes: i64) -> String {
    let (unit, name) = match bytes {
        ..KIB => return lang.count(bytes, ["byte", "bytes"], ["байт", "байти", "байтів"]),
        KIB..MIB => (KIB, lang.t("KiB", "КіБ")),
        _ => (MIB, lang.t("MiB", "МіБ")),
    };
    let (whole, tenths) = (bytes / unit, bytes % unit * 10 / unit);
    let number = if whole >= 10 || tenths == 0 { whole.to_string() } else { format!("{whole}.{tenths}") };
    format!("{} {name}", lang.t(number.clone(), number.replace('.', ",")))
}

/// The changes of the newest run, as far as the page shows them.
pub(crate) struct Diff {
    pub id: Uuid,
    pub changes: Changes,
    /// The number of changed files, in words.
    pub count: String,
    /// The text to show if no changes were found in it.
    pub text: String,
    pub is_cut: bool,
}

/// The files of a task: the inputs of its runs, their outputs, and the newest diff.
pub(crate) struct Files {
    pub inputs: Vec<FileRow>,
    pub outputs: Vec<FileRow>,
    pub diff: Option<Diff>,
}

impl Files {
    /// # Errors
    /// The API refuses a call.
    pub(crate) async fn of(visit: &Visit, task: &Task<'_>) -> Result<Self, Refused> {
        let lang = visit.layout.at.lang;
        let inputs = task.inputs.iter().map(|input| FileRow {
            id: input.artifact_id,
            name: shortened(&input.path, 200),
            size: size(lang, input.bytes),
            kind: FileKind::Input.to_string(),
        });
        let listed =
            visit.list(&format!("artifacts?task_id={}&limit={FILES}", task.id), |artifact: Artifact| FileRow::of(lang, &artifact)).await?;
        let mut outputs: Vec<FileRow> = listed.rows.into_iter().flatten().collect();
        let diff = match outputs.iter().find(|file| file.kind == FileKind::GitDiff.as_str()) {
            Some(file) => diff(visit, file.id).await,
            None => None,
        };
        // The diff has a link of its own.
        outputs.retain(|file| diff.as_ref().is_none_or(|shown| shown.id != file.id));
        Ok(Self { inputs: inputs.collect(), outputs, diff })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.inputs.is_empty() && self.outputs.is_empty()
    }
}

/// The beginning of a diff; `None` if it can't be read now, and the page goes without it.
async fn diff(visit: &Visit, id: Uuid) -> Option<Diff> {
    let response = visit.send(Method::GET, &format!("artifacts/{id}/content"), String::new()).await;
    if !response.status().is_success() {
        return None;
    }
    let mut body = Limited::new(response.into_body(), DIFF_BYTES);
    let (mut bytes, mut is_cut) = (Vec::new(), false);
    while let Some(frame) = body.frame().await {
        match frame {
            Ok(frame) => bytes.extend_from_slice(&frame.into_data().unwrap_or_default()),
            Err(_) => {
                is_cut = true;
                break;
            }
        }
    }
    let whole = String::from_utf8_lossy(&bytes);
    let changes = Changes::parse(&whole);
    let text = if changes.files.is_empty() { shortened(&whole, DIFF_CHARS) } else { String::new() };
    let is_text_cut = !text.is_empty() && text.len() != whole.len();
    let files = i64::try_from(changes.files.len()).unwrap_or(i64::MAX);
    let count = visit.layout.at.lang.count(files, ["file", "files"], ["файл", "файли", "файлів"]);
    Some(Diff { id, count, is_cut: is_cut || changes.is_cut || is_text_cut, changes, text })
}

/// A file, as a download.
pub(crate) async fn content(Path(id): Path<String>, visit: Visit) -> Result<Response, Refused> {
    let response = visit.send(Method::GET, &format!("artifacts/{}/content", crate::call::path_part(&id)), String::new()).await;
    if !response.status().is_success() {
        return Err(crate::call::refused(response).await);
    }
    let mut response = response;
    let headers = response.headers_mut();
    // A file that a run wrote must never run as a page of this server, whatever its type is.
    headers.insert(header::CONTENT_SECURITY_POLICY, header::HeaderValue::from_static("default-src 'none'; sandbox"));
    headers.insert(header::CACHE_CONTROL, header::HeaderValue::from_static("no-store"));
    Ok(response)
}
