//! The settings of the object store: those of MinIO, or those of Amazon S3.

use std::time::Duration;

use url::Url;

use super::objects::ObjectStore;
use super::parse;
use super::resolve::{Resolver, mistake};
use super::settings::{self as s, Setting};

/// In seconds. Half of it is more than the writes of a completion may take, the other half is more than a commit may.
const SHORTEST_GRACE: u64 = 30;

impl Resolver<'_> {
    /// `Some(None)`: there is no object store. `None`: a setting is wrong; the mistake is recorded.
    pub(super) fn objects(&mut self) -> Option<Option<ObjectStore>> {
        let before = self.mistakes.len();
        let host = self.optional(&s::MINIO_ENDPOINT, parse::endpoint);
        let port = self.optional(&s::MINIO_PORT, parse::whole(1_u16, u16::MAX));
        let use_ssl = self.required(&s::MINIO_USE_SSL, parse::truth);
        let minio_key = self.optional(&s::MINIO_ACCESS_KEY, parse::key);
        let minio_secret = self.optional(&s::MINIO_SECRET_KEY, parse::key);
        let minio_bucket = self.required(&s::MINIO_ARTIFACT_BUCKET, parse::bucket);
        let s3_bucket = self.optional(&s::AWS_S3_BUCKET, parse::bucket);
        let region = self.required(&s::AWS_REGION, parse::region);
        let s3_key = self.optional(&s::AWS_ACCESS_KEY_ID, parse::key);
        let s3_secret = self.optional(&s::AWS_SECRET_ACCESS_KEY, parse::key);
        let grace = self.required(&s::OBJECT_GRACE_SECONDS, parse::whole(SHORTEST_GRACE, 366 * 86_400));
        if self.mistakes.len() > before {
            return None;
        }
        let (region, grace) = (region?, Duration::from_secs(grace?));
        let store = match (host, s3_bucket) {
            (None, None) => return Some(None),
            (Some(_), Some(_)) => {
                self.wrong(&s::AWS_S3_BUCKET, "MINIO_ENDPOINT is set, too: choose one of the two");
                return None;
            }
            (Some(host), None) => {
                let access_key = self.needed(minio_key, &s::MINIO_ENDPOINT, "needs MINIO_ACCESS_KEY and MINIO_SECRET_KEY: set them, too");
                let secret_key = if access_key.is_some() {
                    self.needed(minio_secret, &s::MINIO_ENDPOINT, "needs MINIO_SECRET_KEY: set it, too")
                } else {
                    None
                };
                let endpoint = address(host, port, use_ssl?);
                let endpoint = self.needed(endpoint, &s::MINIO_ENDPOINT, "must be a host name, or an http or https URL")?;
                ObjectStore {
                    endpoint: Some(endpoint),
                    region,
                    bucket: minio_bucket?,
                    access_key: access_key?,
                    secret_key: secret_key?,
                    grace,
                }
            }
            (None, Some(bucket)) => {
                let keys = s3_key.zip(s3_secret);
                let (access_key, secret_key) =
                    self.needed(keys, &s::AWS_S3_BUCKET, "needs AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY: set them, too")?;
                ObjectStore { endpoint: None, region, bucket, access_key, secret_key, grace }
            }
        };
        Some(Some(store))
    }

    fn needed<T>(&mut self, value: Option<T>, setting: &'static Setting, problem: &str) -> Option<T> {
        if value.is_none() {
            self.wrong(setting, problem);
        }
        value
    }

    fn wrong(&mut self, setting: &'static Setting, problem: &str) {
        self.mistakes.push(mistake(&self.rows, setting, problem.to_owned()));
    }
}

/// The URL of MinIO. A URL in the setting of the host counts with its scheme and port.
fn address(host: String, port: Option<u16>, use_ssl: bool) -> Option<Url> {
    let is_url = host.contains("://");
    let scheme = if use_ssl { "https" } else { "http" };
    let mut url = Url::parse(&if is_url { host } else { format!("{scheme}://{host}") }).ok()?;
    match (port, is_url) {
        (Some(port), _) => url.set_port(Some(port)).ok()?,
        (None, false) if url.port().is_none() => url.set_port(Some(9000)).ok()?,
        _ => {}
    }
    Some(url)
}
