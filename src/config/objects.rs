//! The object store that the settings name.

use std::time::Duration;

use secrecy::SecretString;
use url::Url;

/// Where large outputs and the audit trail are stored.
#[derive(Clone, Debug)]
pub struct ObjectStore {
    /// `None`: Amazon S3.
    pub endpoint: Option<Url>,
    /// The region of the bucket, which is a part of the signature of calls.
    pub region: String,
    /// The bucket, which belongs to this installation alone.
    pub bucket: String,
    /// The access key of the object store.
    pub access_key: SecretString,
    /// The secret key that belongs to the access key.
    pub secret_key: SecretString,
    /// Objects without an artifact are removed when they are older than this.
    pub grace: Duration,
}

impl ObjectStore {
    /// The scheme of the URLs of artifacts.
    pub const fn scheme(&self) -> &'static str {
        if self.endpoint.is_some() { "minio" } else { "s3" }
    }

    /// The place for people: the endpoint and the bucket.
    pub fn place(&self) -> String {
        match &self.endpoint {
            Some(endpoint) => format!("bucket {} at {}", self.bucket, endpoint.as_str().trim_end_matches('/')),
            None => format!("bucket {} of Amazon S3 in {}", self.bucket, self.region),
        }
    }
}
