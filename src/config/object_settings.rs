//! The settings of the object store: those of MinIO, or those of Amazon S3.

use url::Url;

use super::objects::ObjectStore;
use super::resolve::{Resolver, mistake};
use super::setting::Setting;
use super::settings::{self as s, ObjectSettings};

impl Resolver<'_> {
    /// `Some(None)`: there is no object store. `None`: a setting is wrong; the mistake is recorded.
    pub(super) fn objects(&mut self) -> Option<Option<ObjectStore>> {
        let before = self.mistakes.len();
        let found = ObjectSettings::read(self)?;
        if self.mistakes.len() > before {
            return None;
        }
        let ObjectSettings { region, grace, .. } = found;
        let store = match (found.minio_endpoint, found.s3_bucket) {
            (None, None) => return Some(None),
            (Some(_), Some(_)) => {
                self.wrong(&s::AWS_S3_BUCKET, "MINIO_ENDPOINT is set, too: choose one of the two");
                return None;
            }
            (Some(host), None) => {
                let access_key =
                    self.needed(found.minio_access_key, &s::MINIO_ENDPOINT, "needs MINIO_ACCESS_KEY and MINIO_SECRET_KEY: set them, too");
                let secret_key = if access_key.is_some() {
                    self.needed(found.minio_secret_key, &s::MINIO_ENDPOINT, "needs MINIO_SECRET_KEY: set it, too")
                } else {
                    None
                };
                let endpoint = address(host, found.minio_port, found.minio_use_ssl);
                let endpoint = self.needed(endpoint, &s::MINIO_ENDPOINT, "must be a host name, or an http or https URL")?;
                ObjectStore {
                    endpoint: Some(endpoint),
                    region,
                    bucket: found.minio_bucket,
                    access_key: access_key?,
                    secret_key: secret_key?,
                    grace,
                }
            }
            (None, Some(bucket)) => {
                let keys = found.s3_access_key.zip(found.s3_secret_key);
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
