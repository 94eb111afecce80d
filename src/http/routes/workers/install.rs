//! The script that installs the agent on a machine.

use axum::body::Bytes;
use axum::http::{HeaderValue, StatusCode};
use url::Url;

use crate::identity::policy::RoutePolicy;
use crate::messages::answer::{HandlerResult, typed};
use crate::messages::error::Error;
use crate::messages::representations::Query;
use crate::routes::tasks::dispatch::RuntimeUrl;
use bloom_api::install::InstallParams;

const TEXT: &str = include_str!("agent-install.sh");
/// The files of the services, by the names of the functions of the script that print them.
const FILES: [(&str, &str); 4] = [
    ("systemd_service", include_str!("../../../../manifests/systemd/bloom-agent.service")),
    ("openrc_service", include_str!("../../../../manifests/alpine/bloom-agent.initd")),
    ("openrc_functions", include_str!("../../../../manifests/alpine/openrc.sh")),
    ("logrotate", include_str!("../../../../manifests/alpine/bloom-agent.logrotate")),
];
/// The line that ends a file in the script; no file has such a line.
const END: &str = "END OF THE FILE";
const CONTENT_TYPE: HeaderValue = HeaderValue::from_static("text/x-shellscript; charset=utf-8");
const MAX_NAME_CHARS: usize = 128;
const MAX_URL_BYTES: usize = 2048;

pub(crate) const SCRIPT: RoutePolicy = RoutePolicy::READ;

/// Returns a script that installs an agent.
///
/// A shell script that installs the agent as a service (systemd or OpenRC). It contains no secret and asks for the key when run.
#[utoipa::path(
    get, path = "/api/runtime/agent-install-script", operation_id = "getAgentInstallScript", tag = "agents", params(InstallParams),
    responses((status = 200, description = "The script.", body = String, content_type = "text/x-shellscript"))
)]
pub(crate) async fn script(RuntimeUrl(here): RuntimeUrl, Query(params): Query) -> HandlerResult {
    let name = params.get("node_id").unwrap_or_default();
    let server = params.get("server_url").unwrap_or(&here);
    if name.chars().any(char::is_control) || name.chars().count() > MAX_NAME_CHARS {
        return Err(Error::field("node_id", format!("Expected a name of at most {MAX_NAME_CHARS} characters in one line")));
    }
    if !is_server_url(server) {
        return Err(Error::field(
            "server_url",
            "Invalid url: must be an http or https address such as http://127.0.0.1:5000, without a key",
        ));
    }
    let port = params.get("port").filter(|port| !port.is_empty());
    if !port.is_none_or(|port| port.bytes().all(|byte| byte.is_ascii_digit()) && port.parse::<u16>().is_ok_and(|port| port > 0)) {
        return Err(Error::field("port", "Expected the number of a port, from 1 to 65535"));
    }
    // The values come first, each quoted as one word, so that no value can be executed as a part of the script.
    let values = format!(
        "NODE_ID={}\nSERVER_URL={}\nPORT={}\n",
        quoted(name),
        quoted(server.trim_end_matches('/')),
        quoted(port.unwrap_or_default())
    );
    let files: String = FILES.iter().map(|(name, text)| format!("{name}() {{\n\tcat <<'{END}'\n{text}{END}\n}}\n")).collect();
    let script = format!("#!/bin/sh\n{values}\n{files}\n{TEXT}");
    Ok(typed(StatusCode::OK, CONTENT_TYPE, Bytes::from(script)))
}

fn is_server_url(text: &str) -> bool {
    let fits = text.len() <= MAX_URL_BYTES && !text.chars().any(|c| c.is_control() || c == ' ');
    let is_plain =
        |url: Url| matches!(url.scheme(), "http" | "https") && url.has_host() && url.username().is_empty() && url.password().is_none();
    fits && Url::parse(text).is_ok_and(is_plain)
}

/// Quotes the text as one word of a POSIX shell: between single quotes, only a single quote has a meaning.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_stays_one() {
        assert_eq!(quoted("a b"), "'a b'");
        assert_eq!(quoted("'; rm -rf / #$(x)`y`"), r"''\''; rm -rf / #$(x)`y`'");
    }

    #[test]
    fn files_end_where_the_script_says() {
        for (name, text) in FILES {
            assert!(text.ends_with('\n') && !text.lines().any(|line| line == END), "{name}");
        }
    }

    #[test]
    fn only_addresses_of_servers_pass() {
        for right in ["http://h:5000", "https://bloom.example/base/"] {
            assert!(is_server_url(right), "{right}");
        }
        for wrong in ["", "h:5000", "ftp://h", "http://u:p@h", "http://h/\n", "http://h x"] {
            assert!(!is_server_url(wrong), "{wrong}");
        }
    }
}
