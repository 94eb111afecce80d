//! Parses values from text. An error says what would be valid, and is the end of a message such as `port = "x" (flag --port): …`.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use ipnet::IpNet;
use rustix::fs::{Access, access};
use secrecy::SecretString;
use url::{Host, Url};

use super::postgres;
use bloom_core::Ms;
use bloom_core::namespace::is_namespace;
use bloom_telemetry::{LogFormat, traces};

pub(crate) fn host(text: &str) -> Result<String, String> {
    let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
    if bare.parse::<IpAddr>().is_ok() {
        return Ok(bare.to_owned());
    }
    let name = !text.is_empty()
        && text.len() <= 253
        && text.split('.').all(|label| !label.is_empty() && label.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_'));
    // "127.0.0" or "300.1.2.3" would otherwise pass as a host name.
    let numeric = text.chars().all(|c| c.is_ascii_digit() || c == '.');
    if name && !numeric {
        return Ok(text.to_owned());
    }
    Err("must be an IP address or a host name, without scheme or port, such as 127.0.0.1".to_owned())
}

/// A whole number between two bounds, both included.
pub(crate) fn whole<T>(least: T, most: T) -> impl Fn(&str) -> Result<T, String>
where
    T: FromStr + PartialOrd + std::fmt::Display + Copy,
{
    move |text| match text.parse::<T>() {
        Ok(number) if number >= least && number <= most => Ok(number),
        _ => Err(format!("must be a whole number from {least} to {most}")),
    }
}

/// Whole seconds, as a duration.
pub(crate) fn seconds(least: u64, most: u64) -> impl Fn(&str) -> Result<Duration, String> {
    move |text| whole(least, most)(text).map(Duration::from_secs)
}

/// Whole seconds, in milliseconds.
pub(crate) fn seconds_in_ms(least: Ms, most: Ms) -> impl Fn(&str) -> Result<Ms, String> {
    move |text| whole(least, most)(text).map(|seconds| seconds * 1_000)
}

/// The host of an object store, or its URL.
pub(crate) fn endpoint(text: &str) -> Result<String, String> {
    let url = if text.contains("://") { text.to_owned() } else { format!("http://{text}") };
    match Url::parse(&url) {
        Ok(url)
            if matches!(url.scheme(), "http" | "https")
                && url.host().is_some()
                && url.path() == "/"
                && url.query().is_none()
                && url.fragment().is_none()
                && url.username().is_empty()
                && url.password().is_none() =>
        {
            Ok(text.to_owned())
        }
        _ => {
            Err("must be a host name or an http or https URL without a path or a user, such as minio or https://minio.example:9000"
                .to_owned())
        }
    }
}

pub(crate) fn bucket(text: &str) -> Result<String, String> {
    let is_name = (3..=63).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'.'))
        && text.starts_with(|first: char| first.is_ascii_alphanumeric())
        && text.ends_with(|last: char| last.is_ascii_alphanumeric());
    if is_name {
        Ok(text.to_owned())
    } else {
        Err("must be the name of a bucket: 3 to 63 small letters, digits, dashes and dots".to_owned())
    }
}

pub(crate) fn region(text: &str) -> Result<String, String> {
    let is_name = (1..=64).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    if is_name { Ok(text.to_owned()) } else { Err("must be the name of a region, such as eu-central-1".to_owned()) }
}

pub(crate) fn http_url(text: &str) -> Result<Url, String> {
    url_like(text, "http://127.0.0.1:8000")
}

/// Its path begins links of pages, and is a part of the names of cookies.
pub(crate) fn public_url(text: &str) -> Result<Url, String> {
    let url = http_url(text)?;
    let path = url.path();
    let is_plain = path.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"/-._~%".contains(&byte)) && !path.contains("//");
    if is_plain && url.query().is_none() && url.fragment().is_none() {
        Ok(url)
    } else {
        Err("must end with its path, of letters, digits, - . _ ~ % and single slashes, such as https://example.com/bloom/".to_owned())
    }
}

/// The URL of a collector of traces.
pub(crate) fn otlp_url(text: &str) -> Result<Url, String> {
    url_like(text, "http://127.0.0.1:4318")
}

fn url_like(text: &str, example: &str) -> Result<Url, String> {
    match Url::parse(text) {
        Ok(url) if matches!(url.scheme(), "http" | "https") && url.host().is_some() => Ok(url),
        _ => Err(format!("must be an http or https URL, such as {example}")),
    }
}

pub(crate) fn directory(text: &str) -> Result<PathBuf, String> {
    if text.is_empty() { Err("must be the path of a directory".to_owned()) } else { Ok(PathBuf::from(text)) }
}

pub(crate) fn file(text: &str) -> Result<PathBuf, String> {
    if text.is_empty() { Err("must be the path of a file".to_owned()) } else { Ok(PathBuf::from(text)) }
}

/// Host names and addresses, separated by commas.
pub(crate) fn hosts(text: &str) -> Result<Vec<Host>, String> {
    let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
    parts
        .map(|part| {
            let bare = host(part).map_err(|_| format!("{part:?} must be a host name or an IP address, without scheme or port"))?;
            // Hosts are compared in the form of the URL standard: in lower case, IPv6 in its shortest form.
            let written = if bare.contains(':') { format!("[{bare}]") } else { bare };
            Host::parse(&written).map_err(|error| format!("{part:?} is not a host: {error}"))
        })
        .collect()
}

pub(crate) fn truth(text: &str) -> Result<bool, String> {
    text.parse().map_err(|_| "must be true or false".to_owned())
}

/// Addresses and networks, separated by commas.
pub(crate) fn networks(text: &str) -> Result<Vec<IpNet>, String> {
    let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
    parts
        .map(|part| match (part.parse::<IpNet>(), part.parse::<IpAddr>()) {
            (Ok(network), _) => Ok(network),
            (_, Ok(address)) => Ok(IpNet::from(address)),
            _ => Err(format!("{part:?} must be an address or a network, such as 10.0.0.0/8")),
        })
        .collect()
}

/// The name of a container image.
pub(crate) fn image(text: &str) -> Result<String, String> {
    if (1..=1024).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic()) {
        Ok(text.to_owned())
    } else {
        Err("must be the name of a container image, such as registry.example/bloom-agent:1.0, without spaces".to_owned())
    }
}

/// The name of a Kubernetes namespace: a label of DNS.
pub fn namespace(text: &str) -> Result<String, String> {
    if is_namespace(text) {
        Ok(text.to_owned())
    } else {
        Err("must be the name of a Kubernetes namespace: small letters, digits and '-'".to_owned())
    }
}

/// Names of namespaces, separated by commas.
pub(crate) fn namespaces(text: &str) -> Result<Vec<String>, String> {
    let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
    parts.map(|part| namespace(part).map_err(|right| format!("{part:?} {right}"))).collect()
}

/// The name of a pod: labels of DNS with dots between them.
pub(crate) fn pod_name(text: &str) -> Result<String, String> {
    let right = || "must be the name of a pod: small letters, digits, '-' and '.'".to_owned();
    if text.len() > 253 {
        return Err(right());
    }
    text.split('.').try_for_each(|label| namespace(label).map(|_| ())).map_err(|_| right()).map(|()| text.to_owned())
}

/// A file that this process can write, or make in its directory.
pub fn log_file(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    let dir = match path.parent() {
        // The parent of a name alone is empty.
        Some(dir) if dir.as_os_str().is_empty() => Path::new("."),
        Some(dir) => dir,
        None => &path,
    };
    if path.is_dir() {
        return Err("must be a file, but it is a directory".to_owned());
    }
    if !dir.is_dir() {
        return Err("must be a file in a directory that exists".to_owned());
    }
    let written = if path.exists() { &path } else { dir };
    match access(written, Access::WRITE_OK) {
        Ok(()) => Ok(path),
        Err(error) => Err(format!(
            "must be a file that this user can write, but {} can't be written: {error}. For a service of systemd, name the directory in \
             ReadWritePaths",
            written.display()
        )),
    }
}

/// The format of the log that this word names.
///
/// # Errors
/// It is another word; the text says which ones are allowed.
pub fn log_format(text: &str) -> Result<LogFormat, String> {
    match text {
        "text" => Ok(LogFormat::Text),
        "json" => Ok(LogFormat::Json),
        _ => Err("must be text or json".to_owned()),
    }
}

/// A level, or levels per module. Checked here because the parser of the log filter takes a mistyped level for the name of a module.
pub(crate) fn log_level(text: &str) -> Result<String, String> {
    const LEVELS: [&str; 6] = ["error", "warn", "info", "debug", "trace", "off"];
    let is_level = |word: &str| LEVELS.contains(&word.to_lowercase().as_str());
    let is_part = |word: &str| !word.is_empty() && word.chars().all(|c| c.is_ascii_alphanumeric() || "_:-".contains(c));
    let right = |directive: &str| match directive.split_once('=') {
        None => is_level(directive),
        Some((part, level)) => is_part(part) && is_level(level),
    };
    if text.split(',').map(str::trim).all(right) {
        Ok(text.to_owned())
    } else {
        Err(format!("must be one of {}, or levels per module such as info,sqlx=warn", LEVELS.join(", ")))
    }
}

/// A key that can be sent in an HTTP header.
pub(crate) fn key(text: &str) -> Result<SecretString, String> {
    if text.is_empty() || text.len() > 4096 || text.trim() != text || text.chars().any(char::is_control) {
        return Err("must be 1 to 4096 characters in one line, without spaces around it".to_owned());
    }
    Ok(SecretString::from(text))
}

pub(crate) fn database_url(text: &str) -> Result<SecretString, String> {
    if let Some(path) = text.strip_prefix("sqlite:") {
        return match path.strip_prefix("//").unwrap_or(path).split('?').next().unwrap_or_default() {
            "" => Err("does not name a file; write sqlite:FILE, such as sqlite:/var/lib/bloom-runtime/bloom.db".to_owned()),
            ":memory:" => Err("would lose everything at a restart; write sqlite:FILE".to_owned()),
            _ => Ok(SecretString::from(text)),
        };
    }
    if !text.starts_with("postgres://") && !text.starts_with("postgresql://") {
        return Err("must begin with sqlite:, postgres:// or postgresql://".to_owned());
    }
    postgres::check(text)?;
    Ok(SecretString::from(text))
}

pub(crate) fn otlp_protocol(text: &str) -> Result<(), String> {
    if text == "http/protobuf" { Ok(()) } else { Err("must be http/protobuf, at the collector's port for HTTP, usually 4318".to_owned()) }
}

pub(crate) fn service_name(text: &str) -> Result<String, String> {
    match text.chars().count() {
        1..=255 if !text.chars().any(char::is_control) => Ok(text.to_owned()),
        _ => Err("must have 1 to 255 characters and no control characters".to_owned()),
    }
}

pub(crate) fn ratio(text: &str) -> Result<f64, String> {
    text.parse().ok().filter(|ratio| (0.0..=1.0).contains(ratio)).ok_or_else(|| "must be a number from 0 to 1, such as 0.1".to_owned())
}

/// The name of a sampler of traces.
pub(crate) fn sampler(name: &str) -> Result<String, String> {
    if traces::SAMPLERS.contains(&name) { Ok(name.to_owned()) } else { Err(format!("must be one of {}", traces::SAMPLERS.join(", "))) }
}
