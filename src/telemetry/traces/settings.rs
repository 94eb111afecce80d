//! The settings of traces, in the formats of OpenTelemetry.

use std::time::Duration;

use opentelemetry_sdk::trace::Sampler;
use percent_encoding::percent_decode_str;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use url::Url;

/// Where and how traces are sent.
#[derive(Clone, Debug)]
pub struct TraceSettings {
    /// The URL to which spans are posted.
    pub url: Url,
    /// Headers of every call. Their values are secret.
    pub headers: HeaderMap,
    /// The time limit of one call.
    pub timeout: Duration,
    /// The name of this program in traces.
    pub service_name: String,
    /// Further attributes of the resource.
    pub attributes: Vec<(String, String)>,
    /// Decides which traces are recorded.
    pub sampler: Sampler,
}

/// The names of samplers.
pub const SAMPLERS: [&str; 6] =
    ["always_on", "always_off", "traceidratio", "parentbased_always_on", "parentbased_always_off", "parentbased_traceidratio"];

/// The sampler with this name; `None` if there is none. Samplers with a ratio record this share of all traces.
pub fn sampler(name: &str, ratio: f64) -> Option<Sampler> {
    let root = match name.strip_prefix("parentbased_").unwrap_or(name) {
        "always_on" => Sampler::AlwaysOn,
        "always_off" => Sampler::AlwaysOff,
        "traceidratio" => Sampler::TraceIdRatioBased(ratio),
        _ => return None,
    };
    Some(if name.starts_with("parentbased_") { Sampler::ParentBased(Box::new(root)) } else { root })
}

/// Headers from `name=value` pairs, separated by commas; values are percent-encoded.
///
/// # Errors
/// The text says what is expected, and does not quote the values.
pub fn headers(text: &str) -> Result<HeaderMap, String> {
    let mut headers = HeaderMap::new();
    for (name, value) in pairs(text)? {
        let name = HeaderName::try_from(&name).map_err(|_| format!("{name:?} is not the name of a header"))?;
        let mut value = HeaderValue::try_from(&value).map_err(|_| format!("the value of {name} has characters that no header may have"))?;
        value.set_sensitive(true);
        headers.insert(name, value);
    }
    Ok(headers)
}

/// Attributes from `name=value` pairs, separated by commas; values are percent-encoded.
///
/// # Errors
/// The text says what is expected.
pub fn attributes(text: &str) -> Result<Vec<(String, String)>, String> {
    pairs(text)
}

fn pairs(text: &str) -> Result<Vec<(String, String)>, String> {
    let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
    parts
        .enumerate()
        .map(|(n, part)| {
            let wrong = || format!("must be name=value pairs, separated by commas, with other commas as %2C; pair {} is not one", n + 1);
            let (name, value) = part.split_once('=').ok_or_else(wrong)?;
            let value = percent_decode_str(value.trim()).decode_utf8().map_err(|_| wrong())?;
            let name = name.trim();
            if name.is_empty() { Err(wrong()) } else { Ok((name.to_owned(), value.into_owned())) }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_decoded() {
        let read = attributes("deployment.environment.name=a%2Cb, team = x=y,").unwrap();
        assert_eq!(read, [("deployment.environment.name".to_owned(), "a,b".to_owned()), ("team".to_owned(), "x=y".to_owned())]);
        for wrong in ["a", "=b", "a=b,c", "a=%ff"] {
            assert!(attributes(wrong).unwrap_err().contains("name=value"), "{wrong}");
        }
    }

    #[test]
    fn values_of_headers_are_never_shown() {
        let read = headers("Authorization=Bearer%20secret").unwrap();
        assert_eq!(read.get("authorization").unwrap(), "Bearer secret");
        assert!(!format!("{read:?}").contains("secret"));
        for wrong in ["a b=secret", "a=secret%0A", "secret"] {
            assert!(!headers(wrong).unwrap_err().contains("secret"), "{wrong}");
        }
    }

    #[test]
    fn every_sampler_has_a_name() {
        assert!(SAMPLERS.iter().all(|name| sampler(name, 0.5).is_some()));
        assert!(sampler("parentbased_sometimes", 0.5).is_none() && sampler("", 0.5).is_none());
    }
}
