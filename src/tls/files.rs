//! Reads the files of the settings, and builds the configuration of rustls from them.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use jiff::Timestamp;
use rustls::pki_types::CertificateDer;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::sign::{CertifiedKey, SigningKey};
use rustls::{InconsistentKeys, RootCertStore, ServerConfig};

use super::certificate::{Certificate, Link};
use super::pem::{self, Found};

/// The maximum size of a file. A certificate chain has some kilobytes, a bundle of authorities some hundred.
const MAX_BYTES: u64 = 1 << 20;
/// The permission bits of users who neither own the file nor are in its group.
const OTHERS: u32 = 0o007;

/// The files of a server's TLS, all PEM.
#[derive(Clone, Debug, PartialEq)]
pub struct Files {
    /// The server's certificate, followed by those of the authorities between it and the root.
    pub certificate: PathBuf,
    /// The private key of the certificate, without a password.
    pub key: PathBuf,
    /// The authorities whose certificates clients may present.
    pub client_ca: Option<PathBuf>,
}

/// One of the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The server's certificate, with those of its authorities.
    Certificate,
    /// The private key.
    Key,
    /// The authorities of client certificates.
    ClientCa,
}

/// Why the files can't be used.
#[derive(Clone, Debug, PartialEq)]
pub struct Fault {
    /// The file that can't be used.
    pub part: Part,
    /// The problem and its solution, as the end of a sentence that begins with the name of the file.
    pub text: String,
}

/// The contents of the files. They are never shown, because they include the key.
#[derive(PartialEq)]
pub(super) struct Contents {
    certificate: Vec<u8>,
    key: Vec<u8>,
    client_ca: Option<Vec<u8>>,
}

impl Files {
    /// Checks that the server can use the files. Returns warnings about usable files that clients or the operator may reject.
    ///
    /// # Errors
    /// The first file that can't be used.
    pub fn check(&self) -> Result<Vec<String>, Fault> {
        let (_, certificate) = self.read()?.config()?;
        Ok(certificate.warning(Timestamp::now()).into_iter().chain(self.warning_of_rights()).collect())
    }

    pub(super) fn read(&self) -> Result<Contents, Fault> {
        Ok(Contents {
            certificate: read(&self.certificate, Part::Certificate)?,
            key: read(&self.key, Part::Key)?,
            client_ca: self.client_ca.as_deref().map(|path| read(path, Part::ClientCa)).transpose()?,
        })
    }

    fn warning_of_rights(&self) -> Option<String> {
        let mode = std::fs::metadata(&self.key).ok()?.permissions().mode();
        let path = self.key.display();
        (mode & OTHERS != 0).then(|| format!("every user of this machine may read or change the private key {path}: chmod o-rwx {path}"))
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let file = match self.part {
            Part::Certificate => "the file of the certificate",
            Part::Key => "the file of the private key",
            Part::ClientCa => "the file of the clients' authorities",
        };
        write!(f, "{file} {}", self.text)
    }
}

impl Contents {
    /// # Errors
    /// The first part that can't be used.
    pub(super) fn config(&self) -> Result<(ServerConfig, Certificate), Fault> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let of_key = |text: String| Fault { part: Part::Key, text };
        let key = pem::key(&self.key).map_err(of_key)?;
        let key = provider.key_provider.load_private_key(key).map_err(|error| of_key(format!("has a key that can't be used: {error}")))?;
        let (own, certificate) = chain(&self.certificate, key)?;
        let builder = ServerConfig::builder_with_provider(provider.clone());
        let builder = builder.with_safe_default_protocol_versions().map_err(|error| of_key(error.to_string()))?;
        let builder = match &self.client_ca {
            None => builder.with_no_client_auth(),
            Some(pem) => {
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(authorities(pem)?), provider).allow_unauthenticated();
                let verifier = verifier.build().map_err(|error| Fault { part: Part::ClientCa, text: format!("can't be used: {error}") })?;
                builder.with_client_cert_verifier(verifier)
            }
        };
        let mut config = builder.with_cert_resolver(Arc::new(rustls::sign::SingleCertAndKey::from(own)));
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        if self.client_ca.is_some() {
            // A resumed session would count as verified although its certificate is not verified again.
            config.session_storage = Arc::new(NoServerSessionStorage {});
        }
        Ok((config, certificate))
    }
}

/// The certificate of the key, followed by those of its authorities, whatever their order in the file; and the parsed certificate of the
/// key.
fn chain(file: &[u8], key: Arc<dyn SigningKey>) -> Result<(CertifiedKey, Certificate), Fault> {
    let wrong = |text: String| Fault { part: Part::Certificate, text };
    let mut rest = Vec::new();
    for Found { line, certificate: der } in pem::certificates(file).map_err(wrong)? {
        let unreadable = |why| wrong(format!("has a certificate in line {line} that can't be read: {why}"));
        let said = Link::parse(&der).map_err(unreadable)?;
        rest.push((line, der, said));
    }
    let is_of_key = |der: &CertificateDer<'static>| match CertifiedKey::new(vec![der.clone()], key.clone()).keys_match() {
        // For some kinds of keys the public key can't be determined.
        Ok(()) | Err(rustls::Error::InconsistentKeys(InconsistentKeys::Unknown)) => true,
        Err(_) => false,
    };
    let Some(own) = rest.iter().position(|(_, der, _)| is_of_key(der)) else {
        let text = "is not the key of any certificate in TLS_CERT_FILE: put both in place together";
        return Err(Fault { part: Part::Key, text: text.to_owned() });
    };
    let (line, der, mut last) = rest.remove(own);
    let certificate = last.certificate.clone();
    if certificate.names.is_empty() {
        return Err(wrong(format!(
            "has a certificate without names (subjectAltName) in line {line}, which no client accepts: issue one for the names of this server"
        )));
    }
    let mut chain = vec![der];
    while let Some(next) = rest.iter().position(|(_, _, one)| last.is_issued_by(one)) {
        let (_, der, said) = rest.remove(next);
        chain.push(der);
        last = said;
    }
    // Certificates that do not belong to the chain may still help a client.
    chain.extend(rest.into_iter().map(|(_, der, _)| der));
    Ok((CertifiedKey::new(chain, key), certificate))
}

fn authorities(file: &[u8]) -> Result<RootCertStore, Fault> {
    let wrong = |text: String| Fault { part: Part::ClientCa, text };
    let mut roots = RootCertStore::empty();
    // `pem::authorities` has already checked that each certificate can be used.
    roots.add_parsable_certificates(pem::authorities(file).map_err(wrong)?);
    Ok(roots)
}

fn read(path: &Path, part: Part) -> Result<Vec<u8>, Fault> {
    let wrong = |text: String| Fault { part, text };
    // A pipe is not opened, because that would wait for its writer.
    let about = std::fs::metadata(path).map_err(|error| wrong(format!("can't be read: {error}")))?;
    if !about.is_file() {
        return Err(wrong("is not a regular file".to_owned()));
    }
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(MAX_BYTES + 1).read_to_end(&mut bytes));
    match read {
        Err(error) => Err(wrong(format!("can't be read: {error}"))),
        Ok(length) if length as u64 > MAX_BYTES => Err(wrong(format!("is longer than {MAX_BYTES} bytes"))),
        Ok(_) => Ok(bytes),
    }
}
