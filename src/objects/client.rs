//! Calls to the object store, with their limits.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bloom_config::ObjectStore as ObjectStoreSettings;
use bloom_core::Ms;
use bloom_core::file::FileId;
use bloom_core::ids::TaskId;
use bloom_core::run_result::StoredObject;
use bloom_telemetry::Metrics;
use futures_util::stream::BoxStream;
use futures_util::{FutureExt as _, StreamExt, TryStreamExt};
use object_store::aws::{AmazonS3, AmazonS3Builder};
use object_store::path::Path;
use object_store::{
    ClientOptions, Error, GetOptions, GetRange, ObjectMeta, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload, RetryConfig,
};
use secrecy::ExposeSecret;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};
use uuid::Uuid;

/// The largest file that a server keeps in memory to write it by one call.
pub const MAX_WHOLE: usize = PART;
/// The time limit of a call without content, and of each wait for more bytes of a read.
pub const CALL_LIMIT: Duration = Duration::from_secs(10);
/// The speed, in bytes per second, at which the content of a write extends its time limit.
const SLOWEST: u64 = 128 << 10;
const CONNECT_LIMIT: Duration = Duration::from_secs(3);
/// The time limit of a whole download.
const READ_LIMIT: Duration = Duration::from_secs(600);
/// How long completions do not try to write after a failed write.
const PAUSE: Duration = Duration::from_secs(5);
/// How many characters of an output the database keeps.
const PREVIEW_CHARS: usize = 4096;
/// Larger files are written in parts of this size. S3 accepts no parts below 5 MiB.
pub(super) const PART: usize = 8 << 20;
/// The object that says which database writes to the bucket.
const OWNER: &str = "bloom-runtime/database";
const PROBE: &str = "bloom-runtime/probe";
/// The largest page of a list of objects.
pub(super) const LISTED: usize = 1000;

/// The kind of the objects below a prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Prefix {
    /// Outputs: `artifacts/TASK/ARTIFACT`.
    Outputs,
    /// Files: `files/ARTIFACT`.
    Files,
}

impl Prefix {
    fn as_str(self) -> &'static str {
        match self {
            Self::Outputs => "artifacts",
            Self::Files => "files",
        }
    }
}

/// The content of an object, piece by piece. An error ends it.
pub type Stream = BoxStream<'static, Result<Vec<u8>, Failure>>;

/// Why a call failed, for people. The text contains no keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// What failed and why.
    pub text: String,
    cause: Cause,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    /// The bucket or the object does not exist.
    Missing,
    /// The database failed, not the object store.
    Database,
    Other,
}

impl Failure {
    fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), cause: Cause::Other }
    }

    fn is_missing(&self) -> bool {
        self.cause == Cause::Missing
    }

    pub(super) fn of_another() -> Self {
        Self::new("another database writes to this bucket: give each installation a bucket of its own")
    }

    pub(super) fn of_file() -> Self {
        Self { text: "the database could not deliver the file".into(), cause: Cause::Database }
    }

    pub(super) fn of_database() -> Self {
        Self { text: "the database could not tell whether the bucket is its own".into(), cause: Cause::Database }
    }
}

/// The object store. Clones share its state.
#[derive(Clone)]
pub struct Objects(Arc<Inner>);

struct Inner {
    store: AmazonS3,
    settings: ObjectStoreSettings,
    metrics: Metrics,
    paused_until: Mutex<Option<Instant>>,
    is_owned: AtomicBool,
}

impl Objects {
    /// Creates a client, without connecting yet.
    ///
    /// # Errors
    /// The settings can't be used; the text says why.
    pub fn new(settings: ObjectStoreSettings, metrics: Metrics) -> Result<Self, String> {
        bloom_outbound::install_tls_provider();
        let options = ClientOptions::new().with_connect_timeout(CONNECT_LIMIT).with_timeout(READ_LIMIT).with_allow_http(true);
        let retry = RetryConfig { max_retries: 1, retry_timeout: CALL_LIMIT, ..RetryConfig::default() };
        let mut builder = AmazonS3Builder::new()
            .with_bucket_name(&settings.bucket)
            .with_region(&settings.region)
            .with_access_key_id(settings.access_key.expose_secret())
            .with_secret_access_key(settings.secret_key.expose_secret())
            .with_client_options(options)
            .with_allow_http(true)
            .with_retry(retry);
        if let Some(endpoint) = &settings.endpoint {
            builder = builder.with_endpoint(endpoint.as_str().trim_end_matches('/')).with_virtual_hosted_style_request(false);
        }
        let store = builder.build().map_err(|error| format!("the object store can't be set up: {error}"))?;
        Ok(Self(Arc::new(Inner { store, settings, metrics, paused_until: Mutex::default(), is_owned: AtomicBool::default() })))
    }

    /// How old an object without an artifact must be before it is removed.
    pub fn grace(&self) -> Duration {
        self.0.settings.grace
    }

    /// The same as [`grace`](Self::grace), in milliseconds.
    pub fn grace_ms(&self) -> Ms {
        Ms::try_from(self.grace().as_millis()).unwrap_or(Ms::MAX)
    }

    /// The metrics of this process.
    pub fn metrics(&self) -> &Metrics {
        &self.0.metrics
    }

    /// Whether a write failed a moment ago.
    pub async fn is_paused(&self) -> bool {
        self.0.paused_until.lock().await.is_some_and(|until| Instant::now() < until)
    }

    /// Whether the last write failed.
    pub(super) async fn has_failed(&self) -> bool {
        self.0.paused_until.lock().await.is_some()
    }

    /// Must be called when a caller has given up a write that took too long.
    pub async fn was_late(&self) {
        self.pause().await;
    }

    /// Must be called when a write has failed, so that completions do not try for a while.
    pub(super) async fn pause(&self) {
        *self.0.paused_until.lock().await = Some(Instant::now() + PAUSE);
        self.0.metrics.objects().failed("write");
    }

    pub(super) fn is_owned(&self) -> bool {
        self.0.is_owned.load(Ordering::Relaxed)
    }

    pub(super) fn set_owned(&self, is_owned: bool) {
        self.0.is_owned.store(is_owned, Ordering::Relaxed);
    }

    /// Writes an output under the id of its artifact. A repeated call writes the same object.
    pub async fn write_output(&self, task: TaskId, artifact: Uuid, output: &str) -> Result<StoredObject, Failure> {
        let key = format!("{}/{task}/{artifact}", Prefix::Outputs.as_str());
        self.write("artifact", &key, output.as_bytes().to_vec()).await?;
        Ok(StoredObject {
            url: self.url(&key),
            bytes: i64::try_from(output.len()).unwrap_or(i64::MAX),
            preview: output.chars().take(PREVIEW_CHARS).collect(),
        })
    }

    fn url(&self, key: &str) -> String {
        let ObjectStoreSettings { bucket, .. } = &self.0.settings;
        format!("{}://{bucket}/{key}", self.0.settings.scheme())
    }

    /// Writes a file of at most [`MAX_WHOLE`] bytes under its id. Returns its URL.
    pub async fn write_file(&self, id: FileId, content: Vec<u8>) -> Result<String, Failure> {
        let key = format!("{}/{id}", Prefix::Files.as_str());
        self.write("file", &key, content).await?;
        Ok(self.url(&key))
    }

    /// Like [`write_file`](Self::write_file), for larger files, whose parts arrive one after the other. Nothing is left of the parts after
    /// an error.
    pub(super) async fn write_parts(&self, id: FileId, mut parts: BoxStream<'_, Result<Vec<u8>, Failure>>) -> Result<String, Failure> {
        let key = format!("{}/{id}", Prefix::Files.as_str());
        let mut upload = limited(self.0.store.put_multipart(&Path::from(key.as_str()))).await?;
        let mut bytes = 0;
        let written = async {
            while let Some(part) = parts.try_next().await? {
                let size = part.len();
                bytes += size;
                within(limit_of(size), upload.put_part(PutPayload::from(part))).await?;
            }
            limited(upload.complete()).await
        };
        if let Err(failure) = written.await {
            // If this fails too, the bucket's rule for incomplete uploads removes the parts.
            let _ = limited(upload.abort()).await;
            if failure.cause != Cause::Database {
                self.pause().await;
            }
            return Err(failure);
        }
        self.0.metrics.objects().written("file", bytes);
        Ok(self.url(&key))
    }

    pub(super) async fn write(&self, kind: &'static str, key: &str, content: Vec<u8>) -> Result<(), Failure> {
        let bytes = content.len();
        let written = within(limit_of(bytes), self.0.store.put(&Path::from(key), PutPayload::from(content))).await;
        if written.is_ok() {
            *self.0.paused_until.lock().await = None;
            self.0.metrics.objects().written(kind, bytes);
        } else {
            self.pause().await;
        }
        written.map(drop)
    }

    /// Writes a small object, to find out whether writes succeed.
    pub async fn probe(&self) -> Result<(), Failure> {
        self.write("probe", PROBE, Vec::new()).await
    }

    /// Writes, reads, lists and removes an object, as the server does.
    pub async fn check(&self) -> Result<(), (&'static str, Failure)> {
        let key = Path::from(format!("bloom-runtime/check-{}", Uuid::now_v7()));
        limited(self.0.store.put(&key, PutPayload::from_static(b"check"))).await.map_err(|failure| ("write", failure))?;
        let read = async { limited(self.0.store.head(&key)).await.map_err(|failure| ("read", failure)) }.await;
        let listed = self.listed(Prefix::Outputs, None).await.map_err(|failure| ("list", failure));
        limited(self.0.store.delete(&key)).await.map_err(|failure| ("remove", failure))?;
        read?;
        listed.map(drop)
    }

    /// Reads a range of an output or of a file.
    pub async fn read(&self, url: &str, range: std::ops::Range<u64>) -> Result<Stream, Failure> {
        let key = self.key(url)?;
        if range.is_empty() {
            return Ok(futures_util::stream::empty().boxed());
        }
        let options = GetOptions { range: Some(GetRange::Bounded(range)), ..GetOptions::default() };
        let got = limited(self.0.store.get_opts(&key, options)).await.inspect_err(|_| self.0.metrics.objects().failed("read"))?;
        let metrics = self.0.metrics.clone();
        let pieces = futures_util::stream::unfold(got.into_stream(), |mut rest| async move {
            let piece = within(CALL_LIMIT, rest.next().map(Option::transpose)).await.transpose()?;
            Some((piece, rest))
        });
        Ok(pieces.map_ok(|bytes| bytes.to_vec()).inspect_err(move |_| metrics.objects().failed("read")).boxed())
    }

    /// Whether the failure means that only the object is gone, not the whole bucket.
    pub async fn is_gone(&self, failure: &Failure) -> bool {
        failure.is_missing() && matches!(self.known_owner().await, Ok(Some(_)))
    }

    /// Reads a whole output.
    pub async fn text(&self, object: &StoredObject) -> Result<String, Failure> {
        let size = usize::try_from(object.bytes).unwrap_or_default();
        let mut stream = self.read(&object.url, 0..size as u64).await?;
        let mut content = Vec::with_capacity(size);
        let all = async {
            while let Some(piece) = stream.try_next().await? {
                content.extend_from_slice(&piece);
            }
            Ok(())
        };
        timeout(READ_LIMIT, all).await.unwrap_or_else(|_| Err(late(READ_LIMIT)))?;
        if content.len() != size {
            return Err(Failure::new(format!("{} has {} bytes instead of {size}", object.url, content.len())));
        }
        String::from_utf8(content).map_err(|_| Failure::new(format!("{} is not UTF-8", object.url)))
    }

    fn key(&self, url: &str) -> Result<Path, Failure> {
        let bucket = &self.0.settings.bucket;
        let place = url.split_once("://").and_then(|(_, rest)| rest.split_once('/'));
        match place {
            Some((named, key)) if named == bucket => Ok(Path::from(key)),
            _ => Err(Failure::new(format!("it is at {}, and this server reads the bucket {bucket}", url))),
        }
    }

    /// At most [`LISTED`] objects below the prefix, after this key.
    pub(super) async fn listed(&self, prefix: Prefix, after: Option<&Path>) -> Result<Vec<ObjectMeta>, Failure> {
        let prefix = Path::from(prefix.as_str());
        let found = match after {
            Some(after) => self.0.store.list_with_offset(Some(&prefix), after),
            None => self.0.store.list(Some(&prefix)),
        };
        limited(found.take(LISTED).try_collect()).await.inspect_err(|_| self.0.metrics.objects().failed("list"))
    }

    pub(super) async fn remove(&self, key: &Path) -> Result<(), Failure> {
        match limited(self.0.store.delete(key)).await {
            Err(failure) if !failure.is_missing() => {
                self.0.metrics.objects().failed("remove");
                Err(failure)
            }
            _ => Ok(()),
        }
    }

    /// The id of the database that writes to the bucket, if there is one.
    pub async fn known_owner(&self) -> Result<Option<String>, Failure> {
        match self.read_owner().await {
            Ok(owner) => Ok(Some(owner)),
            Err(failure) if failure.is_missing() => Ok(None),
            Err(failure) => Err(failure),
        }
    }

    async fn read_owner(&self) -> Result<String, Failure> {
        let content = limited(async { self.0.store.get(&Path::from(OWNER)).await?.bytes().await }).await?;
        Ok(String::from_utf8_lossy(&content).into_owned())
    }

    /// The id of the database that writes to the bucket. If there is none, the bucket belongs to `own` from now on.
    pub(super) async fn owner(&self, own: &str) -> Result<String, Failure> {
        match self.read_owner().await {
            Err(failure) if failure.is_missing() => {
                let mode = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
                let content = PutPayload::from(own.as_bytes().to_vec());
                match timeout(CALL_LIMIT, self.0.store.put_opts(&Path::from(OWNER), content, mode)).await.map_err(|_| late(CALL_LIMIT))? {
                    Ok(_) => Ok(own.to_owned()),
                    // Another database was faster.
                    Err(Error::AlreadyExists { .. } | Error::Precondition { .. }) => self.read_owner().await,
                    Err(error) => Err(failure_of(&error)),
                }
            }
            found => found,
        }
    }
}

async fn limited<T>(call: impl Future<Output = Result<T, Error>>) -> Result<T, Failure> {
    within(CALL_LIMIT, call).await
}

async fn within<T>(limit: Duration, call: impl Future<Output = Result<T, Error>>) -> Result<T, Failure> {
    match timeout(limit, call).await {
        Ok(done) => done.map_err(|error| failure_of(&error)),
        Err(_) => Err(late(limit)),
    }
}

/// The time limit of a write of this many bytes.
fn limit_of(bytes: usize) -> Duration {
    CALL_LIMIT + Duration::from_secs(bytes as u64 / SLOWEST)
}

fn late(limit: Duration) -> Failure {
    Failure::new(format!("no answer within {} s", limit.as_secs()))
}

/// Converts an error. The answers of the object store may repeat the access key, so their text is not shown.
fn failure_of(error: &Error) -> Failure {
    let text = match error {
        Error::NotFound { .. } => {
            "the bucket or the object does not exist: MINIO_ARTIFACT_BUCKET or AWS_S3_BUCKET names the bucket, which must be made before"
        }
        Error::PermissionDenied { .. } => "access is denied: the policy of the bucket or of the key forbids it, or the secret key is wrong",
        Error::Unauthenticated { .. } => "the access key is not known there",
        Error::Generic { source, .. } => {
            let text = source.to_string();
            let cause = if text.contains("error sending request") || text.contains("HTTP error") {
                "it can't be reached, or broke off the call"
            } else {
                "it answered with an error"
            };
            return Failure::new(cause);
        }
        _ => "the call is not possible there",
    };
    let cause = if matches!(error, Error::NotFound { .. }) { Cause::Missing } else { Cause::Other };
    Failure { text: text.to_owned(), cause }
}
