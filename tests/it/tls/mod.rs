//! A server that speaks https itself.

mod clients;
mod connections;
mod reload;
mod settings;

use std::path::PathBuf;

use reqwest::tls::TlsInfo;

use crate::cli::User;
use crate::support::certificates::{Authority, Issued};
use crate::support::client;
use crate::support::server::Plan;
use crate::support::*;

/// The directory of a server's files, as an operator or Kubernetes lays them out.
struct Place(PathBuf);

impl Place {
    fn with(issued: &Issued) -> Self {
        let place = Self(janitor::new_path("tls"));
        issued.install(&place.0);
        place
    }

    fn certificate(&self) -> PathBuf {
        self.0.join("tls.crt")
    }

    fn key(&self) -> PathBuf {
        self.0.join("tls.key")
    }

    /// A server with these files.
    fn server(&self) -> Plan {
        Server::on(Database::Sqlite).env("TLS_CERT_FILE", self.certificate().display()).env("TLS_KEY_FILE", self.key().display())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A client that trusts the authority, and tells which certificate the server has. Each one has connections of its own.
fn trusting(authority: &Authority) -> reqwest::ClientBuilder {
    let ca = reqwest::Certificate::from_pem(&std::fs::read(authority.file()).unwrap()).unwrap();
    client::builder().tls_certs_only([ca]).tls_info(true)
}

/// The server, called by a new client that trusts the authority.
fn api(server: &Server, authority: &Authority) -> Api {
    server.with_client(trusting(authority).build().unwrap())
}

fn user(server: &Server, authority: &Authority) -> User {
    User::at(server).with("BLOOM_CA_FILE", authority.file().to_str().unwrap())
}

/// The certificate that the server has for a new connection.
async fn presented(server: &Server, authority: &Authority) -> Vec<u8> {
    let answer = api(server, authority).request(reqwest::Method::GET, "/healthz").send().await.unwrap();
    answer.extensions().get::<TlsInfo>().and_then(TlsInfo::peer_certificate).unwrap().to_vec()
}

#[test]
fn commands_and_agents_work_over_https() {
    run(async {
        let authority = Authority::new();
        let place = Place::with(&authority.issue("bloom.example"));
        let server = place.server().start();
        assert!(server.base().starts_with("https://"), "{}", server.log());
        eventually("the log has the certificate", || async {
            let log = server.log();
            (log.contains("127.0.0.1, bloom.example") && log.contains("not_after=")).then_some(())
        })
        .await;
        let _agent = server.agent("box").env("BLOOM_CA_FILE", authority.file().display()).echo().start();
        let user = user(&server, &authority);
        let watching = api(&server, &authority);
        let mut stream = sse::open(&watching, "watch", None).await;
        assert_eq!(user.does(&["task", "submit", "--wait", "Say hello"]).ok(), "Say hello\n");
        stream.find(|event| event.kind == "task" && event.json()["status"] == "completed").await;
        let id = user.does(&["task", "submit", "Say more"]).ok();
        assert!(user.does(&["task", "logs", "-f", id.trim()]).ok().contains("Say more"));

        let api = api(&server, &authority);
        let metrics = api.get("/metrics").await.expect(200).text;
        let expiry = metrics.lines().find_map(|line| line.strip_prefix("bloom_tls_certificate_expiry_timestamp_seconds ")).unwrap();
        let days = (expiry.parse::<f64>().unwrap() - now_ms() as f64 / 1e3) / 86_400.0;
        assert!((9.5..10.5).contains(&days), "it is valid for 10 days: {days}");
        let script = api.get("agent-install-script").await.expect(200).text;
        assert!(script.contains(&format!("SERVER_URL='{}'", server.base())), "{script}");
        assert!(server.stop().success());
    });
}

#[test]
fn a_certificate_of_an_unknown_authority_is_refused_with_a_hint() {
    let authority = Authority::new();
    let place = Place::with(&authority.issue("bloom.example"));
    let server = place.server().start();
    let said = User::at(&server).does(&["task", "list"]).complains(1);
    assert!(said.contains("UnknownIssuer") && said.contains("--ca-file") && said.contains("BLOOM_CA_FILE"), "{said}");
    let other = Authority::new();
    let said = user(&server, &other).does(&["task", "list"]).complains(1);
    assert!(said.contains("--ca-file"), "{said}");
    let said = User::at(&server).does(&["task", "list", "--ca-file", "/nowhere"]).complains(2);
    assert!(said.contains("/nowhere") && said.contains("--ca-file"), "{said}");
    let said = User::at(&server).does(&["task", "list", "--ca-file", place.key().to_str().unwrap()]).complains(2);
    assert!(said.contains("has no certificate"), "{said}");
}

#[test]
fn a_context_keeps_the_authority_of_its_server() {
    let authority = Authority::new();
    let place = Place::with(&authority.issue("bloom.example"));
    let server = place.server().start();
    let user = User::new();
    let ca = authority.file().display().to_string();
    user.does(&["context", "set", "home", "--server", server.base(), "--ca-file", &ca]).ok();
    user.does(&["task", "list"]).ok();
    // A change of another part keeps it, another server does not.
    user.does(&["context", "set", "home", "--key", "some-key"]).ok();
    user.does(&["task", "list"]).ok();
    user.does(&["context", "set", "home", "--server", &server.base().replace("127.0.0.1", "localhost")]).ok();
    let said = user.does(&["task", "list"]).complains(1);
    assert!(said.contains("--ca-file"), "{said}");
}

#[test]
fn dev_stays_plain() {
    let authority = Authority::new();
    let place = Place::with(&authority.issue("bloom.example"));
    let (certificate, key) = (place.certificate(), place.key());
    let user = User::new().with("TLS_CERT_FILE", certificate.to_str().unwrap()).with("TLS_KEY_FILE", key.to_str().unwrap());
    let said = user.does(&["dev", "--port", "0"]).complains(2);
    assert!(said.contains("plain http") && said.contains("TLS_CERT_FILE"), "{said}");
}

#[test]
fn doctor_looks_at_a_server_that_speaks_https() {
    let authority = Authority::new();
    let place = Place::with(&authority.issue("bloom.example"));
    let server = place.server().start();
    let port = server.base().rsplit(':').next().unwrap();
    let doctor = |more: &[(&str, &str)]| {
        let mut command = server.plan().command(&["doctor"]);
        let output = command.env("PORT", port).envs(more.iter().copied()).output().unwrap();
        String::from_utf8([output.stdout, output.stderr].concat()).unwrap()
    };
    let ca = authority.file().display().to_string();
    let said = doctor(&[("BLOOM_CA_FILE", &ca)]);
    assert!(said.contains(&format!("it is ready at {}", server.base())), "{said}");
    let said = doctor(&[]);
    assert!(said.contains("wrong") && said.contains("BLOOM_CA_FILE"), "{said}");
    let public = format!("https://localhost:{port}");
    let said = doctor(&[("BLOOM_CA_FILE", &ca), ("PUBLIC_URL", &public)]);
    assert!(said.contains(&public) && said.contains("other names"), "{said}");
}
