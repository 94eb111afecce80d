//! Reads PEM files as people write them: with byte order marks, with text between the certificates, in any order.

use std::fmt;

use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// A certificate, and the line of the file in which it begins.
pub(super) struct Found {
    pub line: usize,
    pub certificate: CertificateDer<'static>,
}

/// An error about a line, as the end of a sentence that begins with the name of the file.
fn at(line: usize, why: impl fmt::Display) -> String {
    format!("can't be used, see its line {line}: {why}")
}

const MARK: &[u8] = b"\xef\xbb\xbf";

/// The lines of a file without byte order marks. A file that was concatenated from others may have such a mark in several lines.
fn lines(file: &[u8]) -> impl Iterator<Item = &[u8]> {
    file.split_inclusive(|byte| *byte == b'\n').map(|line| line.strip_prefix(MARK).unwrap_or(line))
}

/// The file without byte order marks.
pub fn without_marks(file: &[u8]) -> Vec<u8> {
    lines(file).flatten().copied().collect()
}

/// # Errors
/// The error is the end of a sentence that begins with the name of the file.
pub(super) fn certificates(file: &[u8]) -> Result<Vec<Found>, String> {
    if matches!(file, [0xff, 0xfe, ..] | [0xfe, 0xff, ..]) {
        return Err("is UTF-16, not PEM: save it as UTF-8".to_owned());
    }
    let mut found = Vec::new();
    // The line in which the current certificate begins, and its text.
    let mut open: Option<(usize, Vec<u8>)> = None;
    for (number, line) in (1..).zip(lines(file)) {
        let starts = line.starts_with(b"-----BEGIN ");
        if let (true, Some((begin, _))) = (starts, &open) {
            return Err(at(*begin, "the certificate that begins there has no end (-----END CERTIFICATE-----)"));
        }
        if line.starts_with(b"-----BEGIN CERTIFICATE-----") {
            open = Some((number, Vec::new()));
        }
        let Some((_, text)) = &mut open else { continue };
        text.extend(line);
        if line.starts_with(b"-----END ")
            && let Some((line, text)) = open.take()
        {
            let certificate = CertificateDer::from_pem_slice(&text)
                .map_err(|_| at(line, "what begins there is no certificate in base64: copy the file again"))?;
            found.push(Found { line, certificate });
        }
    }
    match open {
        Some((begin, _)) => Err(at(begin, "the file ends in the middle of a certificate")),
        None if found.is_empty() => Err("has no certificate in PEM form (-----BEGIN CERTIFICATE-----)".to_owned()),
        None => Ok(found),
    }
}

/// The certificates of authorities.
///
/// # Errors
/// The error is the end of a sentence that begins with the name of the file.
pub fn authorities(file: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let mut roots = RootCertStore::empty();
    let usable = |Found { line, certificate }| {
        let added = roots.add(certificate.clone());
        added.map(|()| certificate).map_err(|error| at(line, format!("the certificate that begins there can't be used: {error}")))
    };
    certificates(file)?.into_iter().map(usable).collect()
}

/// # Errors
/// The error is the end of a sentence that begins with the name of the file.
pub(super) fn key(file: &[u8]) -> Result<PrivateKeyDer<'static>, String> {
    PrivateKeyDer::from_pem_slice(&without_marks(file))
        .map_err(|_| "has no private key in PEM form without a password (-----BEGIN PRIVATE KEY-----)".to_owned())
}
