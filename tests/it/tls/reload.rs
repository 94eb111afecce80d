//! Files that are replaced while the server runs.

use std::os::unix::fs::symlink;

use super::*;

const REFUSED: &str = "the TLS files have changed and can't be used";

async fn takes(server: &Server, authority: &Authority, issued: &Issued) {
    let wanted = issued.der();
    eventually("new connections get the new certificate", || async { (presented(server, authority).await == wanted).then_some(()) }).await;
}

#[test]
fn new_connections_get_the_new_certificate_and_old_ones_go_on() {
    run(async {
        let authority = Authority::new();
        let first = authority.issue("first.example");
        let place = Place::with(&first);
        let server = place.server().start();
        assert_eq!(presented(&server, &authority).await, first.der());
        let old = api(&server, &authority);
        let mut stream = sse::open(&old, "watch", None).await;
        let second = authority.issue_for("second.example", 20);
        second.install(&place.0);
        takes(&server, &authority, &second).await;
        let new = api(&server, &authority);
        let task = new.crew().task().create().await;
        stream.find(|event| event.kind == "task" && event.json()["id"] == json!(task.id)).await;
        eventually("it is logged", || async { server.log().contains("second.example").then_some(()) }).await;
        assert!(!server.log().contains(REFUSED), "{}", server.log());
        let metrics = new.get("/metrics").await.expect(200).text;
        let expiry = metrics.lines().find_map(|line| line.strip_prefix("bloom_tls_certificate_expiry_timestamp_seconds ")).unwrap();
        assert!(expiry.parse::<f64>().unwrap() > now_ms() as f64 / 1e3 + 15.0 * 86_400.0, "{expiry}");
    });
}

#[test]
fn a_certificate_without_its_key_is_not_taken() {
    run(async {
        let authority = Authority::new();
        let first = authority.issue("first.example");
        let place = Place::with(&first);
        let server = place.server().start();
        let second = authority.issue("second.example");
        second.install_certificate(&place.0);
        eventually("it is logged", || async { server.log().contains(REFUSED).then_some(()) }).await;
        let log = server.log();
        assert!(log.contains("is not the key of any certificate") && log.contains("put both in place together"), "{log}");
        assert_eq!(presented(&server, &authority).await, first.der());
        // The file that can't be read is another fault, which is logged after more than one look at the one before.
        std::fs::remove_file(place.key()).unwrap();
        eventually("the missing key is logged", || async {
            server.log().contains("the file of the private key can't be read").then_some(())
        })
        .await;
        let log = server.log();
        assert_eq!(log.matches(REFUSED).count(), 2, "each fault is logged once: {log}");
        assert_eq!(presented(&server, &authority).await, first.der());
        second.install(&place.0);
        takes(&server, &authority, &second).await;
    });
}

#[test]
fn links_that_lead_to_other_files_are_followed() {
    run(async {
        let authority = Authority::new();
        let (first, second) = (authority.issue("first.example"), authority.issue("second.example"));
        // As Kubernetes mounts a Secret: the names are links through `..data`, which is replaced by another link.
        let place = Place(janitor::new_path("tls"));
        first.install(&place.0.join("..1"));
        second.install(&place.0.join("..2"));
        symlink("..1", place.0.join("..data")).unwrap();
        for name in ["tls.crt", "tls.key"] {
            symlink(format!("..data/{name}"), place.0.join(name)).unwrap();
        }
        let server = place.server().start();
        assert_eq!(presented(&server, &authority).await, first.der());
        symlink("..2", place.0.join("..new")).unwrap();
        std::fs::rename(place.0.join("..new"), place.0.join("..data")).unwrap();
        takes(&server, &authority, &second).await;
        assert!(!server.log().contains(REFUSED), "{}", server.log());
    });
}
