//! What a certificate says about itself.

use std::net::IpAddr;

use jiff::Timestamp;
use rustls::pki_types::CertificateDer;
use x509_cert::der::{Decode, Encode};
use x509_cert::ext::pkix::name::GeneralName;
use x509_cert::ext::pkix::{BasicConstraints, SubjectAltName};
use x509_cert::time::Time;

/// The names of a server's certificate, and when it is valid.
#[derive(Clone, Debug, PartialEq)]
pub struct Certificate {
    /// The host names and addresses for which the certificate is valid; a name may begin with `*.`.
    pub names: Vec<String>,
    /// The beginning of its validity.
    pub not_before: Timestamp,
    /// The end of its validity.
    pub not_after: Timestamp,
    /// Whether it is the certificate of an authority (CA:TRUE).
    pub is_authority: bool,
}

/// A certificate of a chain, with the names that link it to the others.
pub(super) struct Link {
    pub certificate: Certificate,
    subject: Vec<u8>,
    issuer: Vec<u8>,
}

impl Link {
    /// # Errors
    /// The data is not a certificate; the text says why.
    pub(super) fn parse(der: &CertificateDer<'_>) -> Result<Self, String> {
        let parsed = x509_cert::Certificate::from_der(der).map_err(|error| error.to_string())?;
        let content = parsed.tbs_certificate();
        let names = content.get_extension::<SubjectAltName>().map_err(|error| error.to_string())?;
        let names = names.into_iter().flat_map(|(_, SubjectAltName(names))| names).filter_map(|name| shown(&name)).collect();
        let constraints = content.get_extension::<BasicConstraints>().map_err(|error| error.to_string())?;
        let is_authority = constraints.is_some_and(|(_, constraints)| constraints.ca);
        let validity = content.validity();
        let name = |name: &x509_cert::name::Name| name.to_der().map_err(|error| error.to_string());
        let (not_before, not_after) = (timestamp(&validity.not_before)?, timestamp(&validity.not_after)?);
        let certificate = Certificate { names, not_before, not_after, is_authority };
        Ok(Self { certificate, subject: name(content.subject())?, issuer: name(content.issuer())? })
    }

    /// Whether `other` may have issued this certificate.
    pub(super) fn is_issued_by(&self, other: &Self) -> bool {
        self.issuer == other.subject
    }
}

impl Certificate {
    /// Why clients would refuse the certificate at this time, and what to do; `None` if they would accept it.
    pub(super) fn warning(&self, now: Timestamp) -> Option<String> {
        if now > self.not_after {
            Some(format!("the certificate expired at {}, so clients refuse it: renew it", self.not_after))
        } else if now < self.not_before {
            Some(format!(
                "the certificate is not valid before {}, so clients refuse it: check this machine's clock, or use another certificate",
                self.not_before
            ))
        } else if self.is_authority {
            Some(
                "the certificate is that of an authority (CA:TRUE), which agents and the command line refuse as that of a server: make one \
                 with CA:FALSE, such as by openssl req -x509 with -addext basicConstraints=critical,CA:FALSE"
                    .to_owned(),
            )
        } else {
            None
        }
    }
}

fn timestamp(time: &Time) -> Result<Timestamp, String> {
    let seconds = i64::try_from(time.to_unix_duration().as_secs()).map_err(|error| error.to_string())?;
    Timestamp::from_second(seconds).map_err(|error| error.to_string())
}

fn shown(name: &GeneralName) -> Option<String> {
    match name {
        GeneralName::DnsName(name) => Some(name.as_str().to_owned()),
        GeneralName::IpAddress(bytes) => {
            let bytes = bytes.as_bytes();
            let v4 = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
            v4.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from)).ok().map(|address| address.to_string())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_valid_certificate_causes_no_warning() {
        let at = |text: &str| text.parse::<Timestamp>().unwrap();
        let (not_before, not_after) = (at("2026-01-01T00:00:00Z"), at("2026-04-01T00:00:00Z"));
        let certificate = Certificate { names: Vec::new(), not_before, not_after, is_authority: false };
        assert_eq!(certificate.warning(at("2026-02-01T00:00:00Z")), None);
        let early = certificate.warning(at("2025-12-31T23:59:59Z")).unwrap();
        assert!(early.contains("not valid before 2026-01-01T00:00:00Z"), "{early}");
        let late = certificate.warning(at("2026-04-01T00:00:01Z")).unwrap();
        assert!(late.contains("expired at 2026-04-01T00:00:00Z") && late.contains("renew"), "{late}");
        let authority = Certificate { is_authority: true, ..certificate }.warning(at("2026-02-01T00:00:00Z")).unwrap();
        assert!(authority.contains("CA:FALSE"), "{authority}");
    }
}
