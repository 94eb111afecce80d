//! Checks and masks the URL of a PostgreSQL database, and warns if its connections are not encrypted.

use std::fs::File;
use std::net::IpAddr;

use url::{Host, ParseError, Url};

use bloom_core::masked_urls::masked_url;
use bloom_core::similar::similar;

const ESCAPES: &str = "characters such as @ : / ? # in user or password must be percent-encoded (@ is %40, # is %23)";
const MODES: &str = "verify-full, verify-ca, require, prefer, allow or disable";

const FILES: [&[&str]; 3] = [&["sslrootcert", "ssl-root-cert", "ssl-ca"], &["sslcert", "ssl-cert"], &["sslkey", "ssl-key"]];
/// The other parameters that the driver knows. It ignores all others, so a misspelt sslmode would leave the connection without encryption.
const OTHERS: [&str; 11] = [
    "sslmode",
    "ssl-mode",
    "host",
    "hostaddr",
    "port",
    "dbname",
    "user",
    "password",
    "application_name",
    "options",
    "statement-cache-capacity",
];

/// Checks the URL. An error never quotes it, because it may contain a password.
pub(crate) fn check(text: &str) -> Result<(), String> {
    if has_several_hosts(text) {
        return Err("names several hosts, but can have only one: write a name or an address that always leads to the primary".into());
    }
    let url = Url::parse(text).map_err(|error| match error {
        ParseError::EmptyHost => {
            format!("has no host; write postgres://USER:PASSWORD@HOST/DATABASE, or postgres:///DATABASE?host=/run/postgresql&user=USER for a Unix socket; {ESCAPES}")
        }
        error => format!("is not a URL: {error}; {ESCAPES}"),
    })?;
    // If these occur behind the host, a character in the password was not percent-encoded.
    if url.fragment().is_some() || url.path().contains('@') {
        return Err(format!("has an @ or # after its host; {ESCAPES}"));
    }
    if url.username().is_empty() && last(&url, &["user"]).is_none() {
        return Err(format!("does not name a user; write postgres://USER:PASSWORD@HOST/DATABASE; {ESCAPES}"));
    }
    if let Some((name, _)) = url.query_pairs().find(|(name, _)| !is_known(name)) {
        // If an @ follows, the name may be a part of a password.
        let is_shown = url.query().is_some_and(|query| !query.contains('@'));
        return Err(unknown(if is_shown { Some(&name) } else { None }));
    }
    let mode = mode(&url);
    if !matches!(&*mode, "verify-full" | "verify-ca" | "require" | "prefer" | "allow" | "disable") {
        return Err(format!("has an unknown sslmode; it must be {MODES}"));
    }
    // The driver reads the certificates in every mode, but uses them to check the server only in these two.
    if !mode.starts_with("verify-") && last(&url, &["sslrootcert", "ssl-root-cert", "ssl-ca"]).is_some() {
        return Err(format!(
            "names an sslrootcert, but sslmode={mode} does not check certificates: write sslmode=verify-full, or verify-ca to leave the host \
             name unchecked"
        ));
    }
    // The driver reads them only when it connects, and tells then only of the connection.
    for names in FILES {
        if let (Some(name), Some(path)) = (names.first(), last(&url, names)) {
            File::open(&path).map_err(|error| format!("the file of {name} can't be read: {error}"))?;
        }
    }
    Ok(())
}

/// Other drivers try one host after the other.
fn has_several_hosts(text: &str) -> bool {
    let Some((_, rest)) = text.split_once("://") else { return false };
    let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
    let hosts = place.rsplit_once('@').map_or(place, |(_, hosts)| hosts);
    let hosts = hosts.split('/').next().unwrap_or_default();
    let named =
        url::form_urlencoded::parse(query.as_bytes()).any(|(name, value)| matches!(&*name, "host" | "hostaddr") && value.contains(','));
    named || hosts.contains(',') || hosts.to_ascii_lowercase().contains("%2c")
}

fn known() -> impl Iterator<Item = &'static str> {
    OTHERS.into_iter().chain(FILES.into_iter().flatten().copied())
}

fn is_known(name: &str) -> bool {
    // `options[NAME]=VALUE` sets a parameter of the session.
    known().any(|known| known == name) || (name.starts_with("options[") && name.ends_with(']'))
}

fn unknown(name: Option<&str>) -> String {
    let known = known().collect::<Vec<_>>();
    let Some(name) = name else { return format!("has an unknown parameter; there are: {}, options[NAME]", known.join(", ")) };
    let meant = match name {
        // What other drivers call it.
        "ssl" | "tls" => Some("sslmode"),
        _ => similar(&name.to_ascii_lowercase(), known.iter().copied()),
    };
    let advice = meant.map(|meant| format!("; did you mean {meant}?")).unwrap_or_default();
    format!("{} is not a parameter of DATABASE_URL{advice}; there are: {}, options[NAME]", name.escape_debug(), known.join(", "))
}

/// The URL as programs of PostgreSQL take it: without the password, and without the parameters that only this program's driver knows.
/// `None`: the URL is of another kind.
pub(crate) fn without_password(text: &str) -> Option<String> {
    let mut url = Url::parse(text).ok().filter(|url| matches!(url.scheme(), "postgres" | "postgresql"))?;
    // Refused only if there is no host, and then there is no password.
    let _ = url.set_password(None);
    let kept: Vec<(String, String)> = url
        .query_pairs()
        .filter(|(name, _)| {
            matches!(&**name, "sslmode" | "sslrootcert" | "sslcert" | "sslkey" | "host" | "hostaddr" | "port" | "dbname" | "user")
        })
        .map(|(name, value)| (name.into_owned(), value.into_owned()))
        .collect();
    url.set_query(None);
    if !kept.is_empty() {
        url.query_pairs_mut().extend_pairs(kept);
    }
    Some(url.into())
}

/// The URL without its password. If it is not certain where the password begins, the user is left out, too.
pub(crate) fn masked(text: &str) -> String {
    if text.starts_with("sqlite:") {
        return text.to_owned();
    }
    let masked = masked_url(text);
    let userinfo = text.split_once("://").and_then(|(_, rest)| rest.rsplit_once('@')).map_or("", |(userinfo, _)| userinfo);
    let shown = match userinfo.split_once(':') {
        _ if userinfo.is_empty() || userinfo.contains(['/', '?', '#']) => masked,
        Some((user, _)) => masked.replacen("****@", &format!("{user}:****@"), 1),
        None => masked.replacen("****@", &format!("{userinfo}@"), 1),
    };
    match shown.split_once('?') {
        Some((place, query)) if !query.split('&').all(is_harmless) => format!("{place}?****"),
        _ => shown,
    }
}

/// Whether a parameter of the URL is known and not secret.
fn is_harmless(parameter: &str) -> bool {
    const NAMES: [&str; 8] = ["sslmode", "sslrootcert", "host", "hostaddr", "port", "dbname", "user", "application_name"];
    parameter.split_once('=').is_some_and(|(name, _)| NAMES.contains(&name))
}

/// A warning if others on the network could read the data and the password.
pub(crate) fn warning(text: &str) -> Option<String> {
    let url = Url::parse(text).ok().filter(|url| url.scheme() != "sqlite")?;
    let mode = mode(&url);
    if is_local(&url) || mode.starts_with("verify-") || mode == "require" {
        return None;
    }
    let why = if mode == "prefer" { "is encrypted only if the database offers it" } else { "is not encrypted" };
    Some(format!(
        "the connection to PostgreSQL on another machine {why} (sslmode={mode} in DATABASE_URL): write sslmode=verify-full, or require to \
         encrypt without checking the certificate"
    ))
}

fn mode(url: &Url) -> String {
    last(url, &["sslmode", "ssl-mode"]).map_or_else(|| "prefer".to_owned(), |mode| mode.to_ascii_lowercase())
}

/// Whether the database is on this machine: over loopback or a Unix socket.
fn is_local(url: &Url) -> bool {
    if let Some(host) = last(url, &["host", "hostaddr"]) {
        return host.starts_with('/') || host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
    }
    match url.host() {
        // For schemes other than those of the web, the URL parser keeps the host as it is written.
        Some(Host::Domain(name)) => {
            name.is_empty()
                || name == "localhost"
                || name.to_ascii_lowercase().starts_with("%2f")
                || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
        }
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address.is_loopback(),
        None => true,
    }
}

/// The value of a parameter that has one of these names. The last one counts, as in the driver.
fn last(url: &Url, names: &[&str]) -> Option<String> {
    url.query_pairs().filter(|(name, _)| names.contains(&&**name)).last().map(|(_, value)| value.into_owned())
}

#[cfg(test)]
mod tests {
    use super::{masked, without_password};

    #[test]
    fn other_programs_get_a_url_without_secrets_and_with_what_they_know() {
        for (url, expected) in [
            ("sqlite:a@b", None),
            ("postgres://me:hid%40den@db:1/x", Some("postgres://me@db:1/x")),
            ("postgres://me:hidden@db/x?sslmode=verify-full&statement-cache-capacity=3", Some("postgres://me@db/x?sslmode=verify-full")),
            ("postgresql:///x?host=/run&user=me&password=hidden", Some("postgresql:///x?host=%2Frun&user=me")),
            ("postgres://me@db/x?ssl-mode=require&options[a]=b", Some("postgres://me@db/x")),
        ] {
            assert_eq!(without_password(url).as_deref(), expected);
        }
    }

    #[test]
    fn a_url_is_shown_without_its_password() {
        for (url, shown) in [
            ("sqlite:a@b", "sqlite:a@b"),
            ("postgres://me@db/x", "postgres://me@db/x"),
            ("postgres://me:hidden@db:1/x?sslmode=require", "postgres://me:****@db:1/x?sslmode=require"),
            ("postgres://me:hid@den@db/x", "postgres://me:****@db/x"),
            ("postgres://me:hidden%40db/x", "postgres://****@db/x"),
            ("postgres://me:12#34@db/x", "postgres://****@db/x"),
            ("postgres://me:1/2@db/x", "postgres://****@db/x"),
            ("postgres://me:1?2@db/x", "postgres://****@db/x"),
            ("postgres://db/x?user=me&password=hid@den", "postgres://****@den"),
            ("postgres://db/x?user=me&password=hidden", "postgres://db/x?****"),
            ("postgres://db/x?user=me&pass%77ord=hidden", "postgres://db/x?****"),
            ("postgres://db/x?sslmode=require&PASSWORD=hidden", "postgres://db/x?****"),
            ("postgres://db/x?sslmode=require&passfile=f", "postgres://db/x?****"),
            ("postgres://me@db/x?sslmode=require&host=/run", "postgres://me@db/x?sslmode=require&host=/run"),
        ] {
            assert_eq!(masked(url), shown);
        }
    }
}
