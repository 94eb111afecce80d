//! Clients with certificates of their own.

use super::*;

const NEEDED: &str = "need a client certificate";

/// A server whose workers need a certificate of this authority.
fn guarded(place: &Place, clients: &Authority) -> Server {
    place
        .server()
        .env("TLS_CLIENT_CA_FILE", clients.file().display())
        .env("RUNTIME_API_KEY", "admin-key")
        .env("RUNTIME_WORKER_KEY", "worker-key")
        .start()
}

fn with_certificate(server: &Server, authority: &Authority, issued: &Issued) -> Api {
    let pem = [&issued.certificate, &issued.key].map(|path| std::fs::read(path).unwrap()).concat();
    server.with_client(trusting(authority).identity(reqwest::Identity::from_pem(&pem).unwrap()).build().unwrap())
}

#[test]
fn workers_need_a_certificate_and_others_do_not() {
    run(async {
        let (authority, clients) = (Authority::new(), Authority::new());
        let place = Place::with(&authority.issue("bloom.example"));
        let server = guarded(&place, &clients);
        let issued = clients.issue("box.example");
        let (without, with) = (api(&server, &authority), with_certificate(&server, &authority, &issued));

        let admin = without.with_key("admin-key");
        let task = admin.crew().task().prompt("env").create().await;
        for key in ["admin-key", "worker-key"] {
            let register = without.with_key(key).post("workers", json!({"name": "box"})).await.error(403);
            assert!(register.contains(NEEDED) && register.contains("--tls-cert-file"), "{register}");
        }
        let beat = without.with_key("worker-key").post("workers/box/claim", json!({"max": 1})).await.error(403);
        assert!(beat.contains(NEEDED), "{beat}");
        // The certificate replaces no key.
        without.post("workers", json!({"name": "box"})).await.expect(401);
        with.post("workers", json!({"name": "box"})).await.expect(401);
        admin.get("workers/box").await.expect(404);
        let refusals = admin.get("/metrics").await.expect(200).text;
        assert!(refusals.contains("bloom_http_refused_total{reason=\"no_client_certificate\"} 3"), "{refusals}");

        let agent = server.agent("box").env("BLOOM_KEY", "worker-key").env("BLOOM_CA_FILE", authority.file().display()).shell();
        let agent = agent.env("BLOOM_TLS_CERT_FILE", issued.certificate.display()).env("BLOOM_TLS_KEY_FILE", issued.key.display()).start();
        task.reaches("completed").await;
        let environment = admin.get(&task.path("/result")).await.ok()["output"].as_str().unwrap().to_owned();
        assert!(environment.contains("BLOOM_TASK_ID="), "{environment}");
        let key = issued.key.to_str().unwrap();
        assert!(!environment.contains(key) && !environment.contains("TLS_KEY_FILE"), "{environment}");
        assert!(!agent.log().contains("ERROR"), "{}", agent.log());
        with.with_key("worker-key").post("workers", json!({"name": "second"})).await.created();
    });
}

#[test]
fn an_agent_without_a_certificate_is_told_what_it_needs() {
    run(async {
        let (authority, clients) = (Authority::new(), Authority::new());
        let place = Place::with(&authority.issue("bloom.example"));
        let server = guarded(&place, &clients);
        let agent = || server.agent("box").env("BLOOM_KEY", "worker-key").env("BLOOM_CA_FILE", authority.file().display()).echo();
        let told = agent().start();
        eventually("it says so", || async { told.log().contains(NEEDED).then_some(()) }).await;
        drop(told);

        let issued = clients.issue("box.example");
        for (given, missing) in [("BLOOM_TLS_CERT_FILE", "--tls-key-file"), ("BLOOM_TLS_KEY_FILE", "--tls-cert-file")] {
            let (code, said) = agent().env(given, issued.certificate.display()).start_in_vain();
            assert!(code == Some(2) && said.contains(missing), "{code:?}: {said}");
        }
        let (code, said) =
            agent().env("BLOOM_TLS_CERT_FILE", issued.certificate.display()).env("BLOOM_TLS_KEY_FILE", "/nowhere").start_in_vain();
        assert!(code == Some(2) && said.contains("/nowhere") && said.contains("--tls-key-file"), "{code:?}: {said}");
    });
}

#[test]
fn a_certificate_of_another_authority_opens_nothing() {
    run(async {
        let (authority, clients, others) = (Authority::new(), Authority::new(), Authority::new());
        let place = Place::with(&authority.issue("bloom.example"));
        let server = guarded(&place, &clients);
        let wrong = with_certificate(&server, &authority, &others.issue("box.example"));
        assert!(wrong.with_key("admin-key").try_get("stats").await.is_err(), "the handshake fails");
        let expired = with_certificate(&server, &authority, &clients.issue_for("late.example", -1));
        assert!(expired.with_key("admin-key").try_get("stats").await.is_err(), "the handshake fails");
        api(&server, &authority).with_key("admin-key").get("stats").await.ok();
        let issued = others.issue("agent.example");
        let agent = server.agent("box").env("BLOOM_KEY", "worker-key").env("BLOOM_CA_FILE", authority.file().display()).echo();
        let agent = agent.env("BLOOM_TLS_CERT_FILE", issued.certificate.display()).env("BLOOM_TLS_KEY_FILE", issued.key.display()).start();
        eventually("it says so", || async { agent.log().contains("refused this program's certificate").then_some(()) }).await;
    });
}

#[test]
fn a_running_agent_takes_renewed_files() {
    run(async {
        let (authority, clients, others) = (Authority::new(), Authority::new(), Authority::new());
        let place = Place::with(&authority.issue("bloom.example"));
        let server = guarded(&place, &clients);
        let own = Place::with(&others.issue("box.example"));
        let trusted = own.0.join("ca.pem");
        std::fs::copy(others.file(), &trusted).unwrap();
        let agent = server.agent("box").env("BLOOM_KEY", "worker-key").env("BLOOM_CA_FILE", trusted.display()).echo();
        let agent = agent.env("BLOOM_TLS_CERT_FILE", own.certificate().display()).env("BLOOM_TLS_KEY_FILE", own.key().display()).start();
        eventually("it does not trust the server", || async { agent.log().contains("--ca-file").then_some(()) }).await;
        std::fs::copy(authority.file(), &trusted).unwrap();
        eventually("it is not trusted", || async { agent.log().contains("refused this program's certificate").then_some(()) }).await;

        std::fs::remove_file(own.key()).unwrap();
        eventually("the missing file is logged", || async { agent.log().contains("can't be used").then_some(()) }).await;
        clients.issue("box.example").install(&own.0);
        let admin = api(&server, &authority).with_key("admin-key");
        admin.crew().task().prompt("hello").create().await.reaches("completed").await;
        assert_eq!(agent.log().matches("can't be used").count(), 1, "{}", agent.log());
    });
}
