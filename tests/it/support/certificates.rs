//! An authority of certificates, made by openssl, and the certificates that it issues.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::{janitor, unique};

/// openssl's own configuration would make authorities of all certificates.
const CONFIG: &str = "[req]\ndistinguished_name = dn\n[dn]\n";

/// PEM files of an authority.
pub struct Authority {
    dir: PathBuf,
}

/// PEM files of a certificate and its key.
#[derive(Clone)]
pub struct Issued {
    pub certificate: PathBuf,
    pub key: PathBuf,
}

impl Authority {
    pub fn new() -> Self {
        let dir = janitor::new_path("authority");
        std::fs::create_dir_all(&dir).expect("a directory");
        std::fs::write(dir.join("openssl.cnf"), CONFIG).expect("the configuration");
        let authority = Self { dir };
        let rest = ["-days", "30", "-addext", "basicConstraints=critical,CA:TRUE"];
        authority.openssl(
            &[
                &["req", "-x509"],
                &NEW_KEY[..],
                &["-keyout", "ca.key", "-out", "ca.pem", "-subj", &format!("/CN={}", unique("authority"))],
                &rest,
            ]
            .concat(),
        );
        authority
    }

    pub fn file(&self) -> PathBuf {
        self.dir.join("ca.pem")
    }

    /// A certificate for this machine's loopback address, and for this host name.
    pub fn issue(&self, name: &str) -> Issued {
        self.issue_for(name, 10)
    }

    /// As [`issue`](Self::issue), valid for so many days; with -1, it expired yesterday.
    pub fn issue_for(&self, name: &str, days: i32) -> Issued {
        let [key, request, certificate, names] = ["key", "csr", "pem", "names"].map(|end| format!("{name}.{end}"));
        std::fs::write(self.dir.join(&names), format!("subjectAltName=IP:127.0.0.1,DNS:{name}\n")).expect("the names");
        self.openssl(&[&["req", "-new"], &NEW_KEY[..], &["-keyout", &key, "-out", &request, "-subj", "/CN=A program"]].concat());
        let days = days.to_string();
        let ca = ["-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial"];
        self.openssl(&[&["x509", "-req", "-in", &request, "-out", &certificate, "-days", &days, "-extfile", &names], &ca[..]].concat());
        Issued { certificate: self.dir.join(certificate), key: self.dir.join(key) }
    }

    fn openssl(&self, arguments: &[&str]) {
        let mut command = Command::new("openssl");
        command.args(arguments).current_dir(&self.dir).stdin(Stdio::null());
        let output = command.output().expect("openssl");
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

const NEW_KEY: [&str; 7] = ["-config", "openssl.cnf", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"];

impl Drop for Authority {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

impl Issued {
    /// Copies both files to this directory, as a program does that renews certificates: each file is replaced at once.
    pub fn install(&self, dir: &Path) {
        self.install_certificate(dir);
        replace(&self.key, &dir.join("tls.key"));
    }

    pub fn install_certificate(&self, dir: &Path) {
        replace(&self.certificate, &dir.join("tls.crt"));
    }

    /// The certificate in the form in which servers send it.
    pub fn der(&self) -> Vec<u8> {
        use rustls::pki_types::pem::PemObject;
        rustls::pki_types::CertificateDer::from_pem_file(&self.certificate).expect("a certificate").to_vec()
    }
}

fn replace(from: &Path, to: &Path) {
    std::fs::create_dir_all(to.parent().expect("a directory")).expect("the directory");
    let new = to.with_extension("new");
    std::fs::copy(from, &new).expect("a copy");
    std::fs::rename(new, to).expect("it is replaced");
}
