//! The reasons why the middleware refuses a request.

use crate::identity::policy::RoutePolicy;
use crate::messages::error::Error;
use bloom_api::error::WRONG_SCOPE;
use bloom_core::api_key::Scope;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    BadHost,
    UnknownHost,
    CrossSite,
    Unauthorized,
    /// The key has this scope, which does not open the route.
    Forbidden(Scope, RoutePolicy),
    /// The key opens the route, but the connection has no client certificate, which workers need here.
    NoClientCertificate,
}

impl Refusal {
    /// The value of the label `reason` in metrics.
    pub(crate) fn reason(self) -> &'static str {
        match self {
            Self::BadHost => "bad_host",
            Self::UnknownHost => "unknown_host",
            Self::CrossSite => "cross_site",
            Self::Unauthorized => "unauthorized",
            Self::Forbidden(..) => "forbidden",
            Self::NoClientCertificate => "no_client_certificate",
        }
    }

    /// Whether the refusal is due to who the client is. Such a refusal counts in the client's rate limit, because the client may be
    /// guessing keys.
    pub(crate) fn is_about_client(self) -> bool {
        matches!(self, Self::Unauthorized | Self::Forbidden(..) | Self::NoClientCertificate)
    }

    pub(crate) fn error(self) -> Error {
        match self {
            Self::BadHost => Error::fixed(400, "The request must name this server in one valid Host header"),
            Self::UnknownHost => Error::fixed(
                403,
                "This server has no keys, so it accepts only its own hosts, and the Host of this request is not one of them: \
                 set RUNTIME_API_KEY, or add the host to ALLOWED_HOSTS, and restart the server",
            ),
            Self::CrossSite => Error::fixed(
                403,
                "A web page of another site sent this request (its Origin or Sec-Fetch-Site says so), so nothing was done. If it is your \
                 own page behind a proxy, set PUBLIC_URL to its address, or name the proxy in TRUSTED_PROXIES; programs leave these \
                 headers out",
            ),
            Self::Unauthorized => Error::fixed(401, "Unauthorized"),
            Self::Forbidden(scope, policy) => {
                let text = format!("{WRONG_SCOPE} {scope}, and this call needs {}", policy.needed());
                Error::Text { status: 403, text: text.into() }
            }
            Self::NoClientCertificate => Error::fixed(
                403,
                "Calls of workers need a client certificate on this server, and this connection has none: give the agent --tls-cert-file \
                 and --tls-key-file (BLOOM_TLS_CERT_FILE, BLOOM_TLS_KEY_FILE), with a certificate of the authority in the server's \
                 TLS_CLIENT_CA_FILE, and let it call the server itself, not a proxy",
            ),
        }
    }
}
