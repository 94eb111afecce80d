//! The certificates and keys that a client needs for TLS, besides the certificates of the operating system.

use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Read;
use std::path::{Path, PathBuf};

use bloom_tls::pem;
use reqwest::{Certificate, ClientBuilder, Identity};

use super::Error;

const MAX_FILE_BYTES: u64 = 1 << 20;

/// The authorities to trust, and the certificate to present.
#[derive(Clone, Debug, Default)]
pub struct Tls {
    files: Files,
    /// A hash of what the files contained.
    contents: u64,
    authorities: Vec<Certificate>,
    identity: Option<Identity>,
}

/// The PEM files of a client, each of which may be absent.
#[derive(Clone, Debug, Default)]
pub struct Files {
    /// Authorities to trust besides those of the operating system.
    pub authorities: Option<PathBuf>,
    /// The client's own certificate, which the server may ask for.
    pub identity: Option<IdentityFiles>,
}

/// PEM files with a certificate and its private key.
#[derive(Clone, Debug)]
pub struct IdentityFiles {
    /// The certificate, followed by those of the intermediate authorities.
    pub certificate: PathBuf,
    /// The private key of the certificate.
    pub key: PathBuf,
}

impl Tls {
    /// Trusts the authorities in this file, besides those of the operating system.
    ///
    /// # Errors
    /// As [`Tls::read`].
    pub fn trusting(authorities: Option<&Path>) -> Result<Self, Error> {
        Self::read(Files { authorities: authorities.map(Path::to_owned), identity: None })
    }

    /// # Errors
    /// A file can't be read, or does not contain what it should.
    pub fn read(files: Files) -> Result<Self, Error> {
        // The parser of keys needs a TLS provider, which is installed once for the process.
        bloom_outbound::install_tls_provider();
        let mut contents = DefaultHasher::new();
        let mut read = |path: &Path, flag: &str| {
            let bytes = read(path, flag)?;
            bytes.hash(&mut contents);
            Ok(bytes)
        };
        let authorities = match &files.authorities {
            None => Vec::new(),
            Some(path) => {
                let wrong = |why: String| Error::Usage(format!("the file {} of --ca-file {why}", path.display()));
                let found = pem::authorities(&read(path, "--ca-file")?).map_err(wrong)?;
                let found: Result<_, _> = found.iter().map(|der| Certificate::from_der(der)).collect();
                found.map_err(|error| wrong(format!("can't be used: {error}")))?
            }
        };
        let identity = match &files.identity {
            None => None,
            Some(files) => {
                let mut pem = pem::without_marks(&read(&files.certificate, "--tls-cert-file")?);
                pem.push(b'\n');
                pem.extend(pem::without_marks(&read(&files.key, "--tls-key-file")?));
                Some(Identity::from_pem(&pem).map_err(|_| {
                    let (certificate, key) = (files.certificate.display(), files.key.display());
                    Error::Usage(format!(
                        "the files {certificate} of --tls-cert-file and {key} of --tls-key-file must contain a certificate and its private \
                         key without a password, in PEM form"
                    ))
                })?)
            }
        };
        Ok(Self { contents: contents.finish(), files, authorities, identity })
    }

    /// Reads the files again; `None` if they have not changed.
    ///
    /// # Errors
    /// As [`Tls::read`].
    pub fn renewed(&self) -> Result<Option<Self>, Error> {
        let now = Self::read(self.files.clone())?;
        Ok((now.contents != self.contents).then_some(now))
    }

    /// Whether there are files at all.
    pub fn has_files(&self) -> bool {
        self.files.authorities.is_some() || self.files.identity.is_some()
    }

    /// Makes the client of this builder trust the authorities and present its certificate.
    pub fn add_to(&self, builder: ClientBuilder) -> ClientBuilder {
        let builder = builder.tls_certs_merge(self.authorities.iter().cloned());
        match &self.identity {
            Some(identity) => builder.identity(identity.clone()),
            None => builder,
        }
    }
}

/// What to do about a certificate that one of the two sides refused. `None` if the failure has another cause.
pub(super) fn advice(cause: &str) -> Option<&'static str> {
    let has = |words: &[&str]| words.iter().any(|word| cause.contains(word));
    // If another authority has the name of the right one, the signature is wrong: DecryptError.
    if cause.contains("received fatal alert") && has(&["Certificate", "UnknownCA", "DecryptError"]) {
        return Some(
            "the server refused this program's certificate (--tls-cert-file, BLOOM_TLS_CERT_FILE): it must be valid, and come from an \
             authority in the server's TLS_CLIENT_CA_FILE",
        );
    }
    if !cause.contains("invalid peer certificate") {
        return None;
    }
    Some(if has(&["not valid for name"]) {
        "the server's certificate is for other names: call the server by one of them, or give it a certificate for this one"
    } else if has(&["certificate expired"]) {
        "the server's certificate has expired: renew it, or check this machine's clock"
    } else if has(&["not valid yet"]) {
        "the server's certificate is not valid yet: check this machine's clock"
    } else if has(&["CaUsedAsEndEntity"]) {
        "the server's certificate is that of an authority (CA:TRUE), which can't be the certificate of a server: make one with CA:FALSE \
         (openssl req -x509 … -addext basicConstraints=critical,CA:FALSE)"
    } else {
        "the server's certificate does not come from an authority that this machine trusts: if it is the right server, name the file of its \
         authority with --ca-file or BLOOM_CA_FILE"
    })
}

fn read(path: &Path, flag: &str) -> Result<Vec<u8>, Error> {
    let wrong = |why: String| Error::Usage(format!("the file {} of {flag} {why}", path.display()));
    let mut bytes = Vec::new();
    match File::open(path).and_then(|file| file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes)) {
        Err(error) => Err(wrong(format!("can't be read: {error}"))),
        Ok(length) if length as u64 > MAX_FILE_BYTES => Err(wrong(format!("is longer than {MAX_FILE_BYTES} bytes"))),
        Ok(_) => Ok(bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_refusal_has_its_advice() {
        for (cause, expected) in [
            ("invalid peer certificate: UnknownIssuer", "--ca-file"),
            ("invalid peer certificate: certificate not valid for name \"a\"; certificate is only valid for b", "names"),
            ("invalid peer certificate: Other(OtherError(CaUsedAsEndEntity))", "CA:FALSE"),
            ("invalid peer certificate: certificate expired: verification time 2 (UNIX)", "renew"),
            ("received fatal alert: UnknownCA", "TLS_CLIENT_CA_FILE"),
            ("received fatal alert: CertificateExpired", "TLS_CLIENT_CA_FILE"),
            ("received fatal alert: DecryptError", "TLS_CLIENT_CA_FILE"),
        ] {
            assert!(advice(cause).is_some_and(|advice| advice.contains(expected)), "{cause}");
        }
        assert_eq!(advice("Connection refused (os error 111)"), None);
        assert_eq!(advice("received fatal alert: HandshakeFailure"), None);
    }
}
