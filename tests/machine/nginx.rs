//! A real nginx with each of the configurations, in which only addresses, ports and the paths of certificates are replaced.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU8, Ordering};

use bloom_config::SETTINGS;
use reqwest::Method;

use crate::support::{Api, Database, Server, janitor, json, nginx, run, sse};

const PLAIN: &str = include_str!("../../manifests/nginx/bloom-runtime.conf");
const TLS: &str = include_str!("../../manifests/nginx/bloom-runtime-tls.conf");

struct Nginx {
    dir: PathBuf,
    _process: nginx::Nginx,
    http: u16,
    https: u16,
}

impl Nginx {
    /// Starts nginx in front of the server.
    fn start(configuration: &str, server: &Server) -> Self {
        let dir = janitor::new_path("nginx");
        fs::create_dir_all(&dir).unwrap();
        let (http, https) = (janitor::free_port(), janitor::free_port());
        let at = |port: u16, rest: &str| (format!("listen 127.0.0.1:{port} {rest}"), format!("listen [::1]:{port} {rest}"));
        let (http4, http6) = at(http, "default_server;");
        let (https4, https6) = at(https, "ssl http2 default_server;");
        let site = configuration
            .replace("server 127.0.0.1:5000;", &format!("server {};", server.base().trim_start_matches("http://")))
            .replace("listen 80 default_server;", &http4)
            .replace("listen [::]:80 default_server;", &http6)
            .replace("listen 443 ssl http2 default_server;", &https4)
            .replace("listen [::]:443 ssl http2 default_server;", &https6)
            .replace("/etc/letsencrypt/live/bloom.example", &dir.display().to_string());
        let is_loopback = |line: &str| line.contains("127.0.0.1:") || line.contains("[::1]:");
        assert!(site.lines().filter(|line| line.trim().starts_with("listen ")).all(is_loopback) && !site.contains(":5000"), "{site}");
        if configuration == TLS {
            certificate(&dir);
        }
        let process = nginx::Nginx::start(&dir, &site, http);
        Self { dir, _process: process, http, https }
    }

    fn api(&self) -> Api {
        Api::new(&format!("http://127.0.0.1:{}", self.http))
    }

    /// Calls `https://bloom.example` with curl, which speaks HTTP/2, and checks the certificate.
    fn curl(&self, path: &str, options: &[&str]) -> String {
        let port = self.https;
        let mut command = Command::new("curl");
        command.args(["--silent", "--show-error", "--include", "--max-time", "60", "--cacert"]).arg(self.dir.join("fullchain.pem"));
        command.arg("--resolve").arg(format!("bloom.example:{port}:127.0.0.1")).args(options);
        let done =
            command.arg(format!("https://bloom.example:{port}{path}")).env_clear().env("PATH", "/usr/bin:/bin").output().expect("curl");
        assert!(done.status.success(), "{done:?}");
        String::from_utf8(done.stdout).unwrap().replace('\r', "")
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- the log of nginx\n{}", fs::read_to_string(self.dir.join("error.log")).unwrap_or_default());
        }
    }
}

fn certificate(dir: &Path) {
    let mut command = Command::new("openssl");
    command.args([
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-nodes",
        "-days",
        "1",
        "-subj",
        "/CN=bloom.example",
    ]);
    command.args(["-addext", "subjectAltName=DNS:bloom.example", "-keyout"]).arg(dir.join("privkey.pem"));
    let done = command.arg("-out").arg(dir.join("fullchain.pem")).output().expect("openssl");
    assert!(done.status.success(), "{done:?}");
}

fn behind_nginx() -> Server {
    Server::on(Database::Sqlite)
        .env("TRUSTED_PROXIES", "127.0.0.1")
        .env("ALLOWED_HOSTS", "bloom.example")
        .env("RATE_LIMIT_PER_MINUTE", 30)
        .start()
}

/// A request from an address of this machine, with an entry of X-Forwarded-For that it has made up.
async fn stats_from(client: &str, api: &Api) -> u16 {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    let made_up = format!("192.0.2.{}", NEXT.fetch_add(1, Ordering::Relaxed));
    let http = reqwest::Client::builder().no_proxy().local_address(Some(client.parse().unwrap())).build().unwrap();
    let request = http.get(format!("{}/api/runtime/stats", api.base())).header("x-forwarded-for", made_up);
    request.send().await.unwrap().status().as_u16()
}

#[test]
fn the_api_works_through_it_and_clients_are_told_apart() {
    run(async {
        let server = behind_nginx();
        let nginx = Nginx::start(PLAIN, &server);
        let api = nginx.api();
        let task = api.post("llm-tasks", json!({ "context_id": "c", "agent_slug": "a", "prompt": "p" })).await.expect(201);
        assert!(server.get("llm-tasks").await.expect(200).text.contains("\"prompt\":\"p\""), "{}", task.text);
        // Upstream connections are used again; a POST never meets one that the server has closed.
        for worker in 0..20 {
            api.post("workers", json!({ "name": format!("w{worker}") })).await.expect(201);
        }

        let mut statuses = Vec::new();
        for _ in 0..31 {
            statuses.push(stats_from("127.0.0.2", &api).await);
        }
        assert_eq!((statuses[29], statuses[30]), (200, 429), "{statuses:?}");
        assert_eq!(stats_from("127.0.0.3", &api).await, 200, "another client has a limit of its own");
        // It has the address of the proxy, which the server trusts, and has made 21 calls.
        for _ in 0..10 {
            statuses.push(stats_from("127.0.0.1", &api).await);
        }
        assert_eq!(statuses.last(), Some(&429), "a client beside the proxy can't choose its address: {statuses:?}");
        server.kill9();
        tells(&api, 502, "does not answer").await;
    });
}

/// What nginx itself answers has the form of the server's errors, and is a page for browsers.
async fn tells(api: &Api, status: u16, text: &str) {
    let answer = api.request(Method::GET, "stats").send().await.unwrap();
    assert_eq!((answer.status().as_u16(), answer.headers()["content-type"].to_str().unwrap()), (status, "application/json"));
    let error: crate::support::Value = answer.json().await.unwrap();
    assert!(error["code"] == "unavailable" && error["error"].as_str().unwrap().contains(text), "{error}");
    let page = api.request(Method::GET, "stats").header("accept", "text/html,*/*;q=0.8").send().await.unwrap();
    assert_eq!((page.status().as_u16(), page.headers()["content-type"].to_str().unwrap()), (status, "text/html"));
    let page = page.text().await.unwrap();
    assert!(page.contains("<h1>") && page.contains(text), "{page}");
}

#[test]
fn a_server_that_is_late_is_told() {
    run(async {
        let server = behind_nginx();
        let nginx = Nginx::start(&PLAIN.replace("proxy_read_timeout 3660s", "proxy_read_timeout 1s"), &server);
        server.pause();
        tells(&nginx.api(), 504, "did not answer in time").await;
        server.resume();
    });
}

#[test]
fn events_arrive_while_the_stream_is_open_and_claims_wait() {
    run(async {
        let server = behind_nginx();
        let nginx = Nginx::start(PLAIN, &server);
        let api = nginx.api();
        let mut events = sse::open(&api, "watch", None).await;
        api.post("workers", json!({ "name": "w", "capabilities": { "agents": ["a"] } })).await.expect(201);
        let waiting = api.clone();
        let claim = crate::support::beside(async move { waiting.post("workers/w/claim", json!({ "max": 1, "wait_sec": 60 })).await });
        server.post("llm-tasks", json!({ "context_id": "c", "agent_slug": "a", "prompt": "of the stream" })).await.expect(201);
        // The stream never ends, so a proxy that waits for its end would show nothing.
        events.find(|event| event.data.contains("of the stream")).await;
        let claimed = claim.await.unwrap().expect(200);
        assert!(claimed.text.contains("of the stream"), "{}", claimed.text);
    });
}

#[test]
fn bodies_have_the_limit_of_the_server() {
    run(async {
        let server = behind_nginx();
        let nginx = Nginx::start(PLAIN, &server);
        let api = nginx.api();
        let mib = 1 << 20;
        let refused = api.post_bytes("llm-tasks", vec![b' '; 2 * mib]).await.expect(413);
        assert!(refused.text.contains("MAX_BODY_BYTES"), "the server has refused it: {}", refused.text);
        // The largest body that a completion may have passes; the server finds that it is no JSON.
        let path = format!("llm-tasks/{}/complete", crate::support::NO_ID);
        let refused = api.post_bytes(&path, vec![b' '; 49 * mib]).await;
        assert!(refused.status != 413, "{}", refused.text);
        // So does the largest file.
        let file = api.post_bytes("artifacts?name=largest", vec![b' '; 64 * mib]).await.expect(201).json();
        assert_eq!(file["bytes"], json!(64 * mib));
        let refused = api.post_bytes("artifacts?name=larger", vec![b' '; 64 * mib + 1]).await.expect(413);
        assert!(refused.text.contains("client_max_body_size"), "nginx has refused it: {}", refused.text);
    });
}

#[test]
fn with_tls_it_speaks_http_2_and_leads_to_itself() {
    run(async {
        let server = behind_nginx();
        let nginx = Nginx::start(TLS, &server);
        let created = nginx.curl("/api/runtime/llm-tasks", &["--json", r#"{"context_id":"c","agent_slug":"a","prompt":"p"}"#]);
        assert!(created.starts_with("HTTP/2 201"), "{created}");
        let missing = nginx.curl("/api/runtime/llm-tasks/none", &[]);
        assert!(missing.starts_with("HTTP/2 404"), "{missing}");
        for header in ["strict-transport-security: max-age=31536000", "x-frame-options: DENY", "x-content-type-options: nosniff"] {
            assert_eq!(missing.to_lowercase().matches(&header.to_lowercase()).count(), 1, "{header}: {missing}");
        }
        // With another one, or with two, browsers would leave out the origin of forms, and the server would refuse them.
        let page = nginx.curl("/", &["--header", "Accept: text/html"]).to_lowercase();
        assert!(page.matches("referrer-policy:").count() == 1 && page.contains("referrer-policy: same-origin"), "{page}");
        // The scheme that the client used reaches the server, and what the client says of it does not.
        let script = nginx.curl(
            "/api/runtime/agent-install-script",
            &["--header", "X-Forwarded-Proto: http", "--header", "X-Forwarded-Host: evil.example"],
        );
        assert!(script.contains(&format!("SERVER_URL='https://bloom.example:{}'", nginx.https)), "{script}");
        let old = nginx.curl("/readyz", &["--http1.1", "--tlsv1.2", "--tls-max", "1.2"]);
        assert!(old.starts_with("HTTP/1.1 200"), "{old}");

        let plain = nginx.api();
        let moved = plain.request(Method::POST, "llm-tasks?a=b").body("{}").send().await.unwrap();
        assert_eq!(
            (moved.status().as_u16(), moved.headers()["location"].to_str().unwrap()),
            (308, "https://bloom.example/api/runtime/llm-tasks?a=b")
        );
        let proof = plain.request(Method::GET, "/.well-known/acme-challenge/none").send().await.unwrap();
        assert_eq!(proof.status(), 404, "certbot's proofs are files, not the server's");
    });
}

/// The value of a directive, without its semicolon.
fn value<'a>(configuration: &'a str, directive: &str) -> &'a str {
    let line = configuration.lines().find_map(|line| line.trim().strip_prefix(directive)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {directive}")).trim_end_matches(';')
}

fn seconds(configuration: &str, directive: &str) -> u64 {
    value(configuration, directive).trim_end_matches('s').parse().expect("seconds")
}

#[test]
fn its_limits_are_those_of_the_server() {
    let default = |key: &str| -> u64 { SETTINGS.iter().find(|setting| setting.key == key).unwrap().default.parse().unwrap() };
    // See `body_limit` of the server.
    let largest = default("max_artifact_bytes").max(default("max_body_bytes") + 3 * default("max_output_bytes"));
    for configuration in [PLAIN, TLS] {
        let size: u64 = value(configuration, "client_max_body_size").trim_end_matches('m').parse().unwrap();
        assert_eq!(size << 20, largest);
        // Longer than a request may take by any setting, and than the longest wait of a claim.
        let read = seconds(configuration, "proxy_read_timeout");
        assert!(read > 3600 && read > bloom_api::requests::MAX_WAIT_SEC.unsigned_abs(), "{read}");
        assert!(seconds(configuration, "keepalive_timeout") < bloom_http::server::HEAD_TIMEOUT.as_secs());
        assert_eq!(value(configuration, "proxy_buffering"), "off");
        assert_eq!(value(configuration, "keepalive"), "32");
    }
    // The file with TLS forwards requests, and answers for the server, as the other one does.
    let forwards = |text: &'static str| text.rsplit_once("location / {").unwrap().1;
    assert_eq!(forwards(PLAIN), forwards(TLS));
    let answers = |text: &'static str| text.split_once("error_page 413").unwrap().1.split_once("\n\n").unwrap().0;
    assert_eq!(answers(PLAIN), answers(TLS));
    let upstream = |text: &'static str| text.split_once("upstream ").unwrap().1.split_once("\n\n").unwrap().0;
    assert_eq!(upstream(PLAIN), upstream(TLS));
}
