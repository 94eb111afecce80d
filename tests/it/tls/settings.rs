//! Files that the server can't use, and such that it should not.

use std::os::unix::fs::PermissionsExt;

use super::*;

/// What a start with these settings says, which must fail because of this one.
fn refused(plan: Plan, setting: &str) -> String {
    let output = plan.start_in_vain();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{said}");
    let line = said.lines().find(|line| line.trim_start().starts_with(setting)).unwrap_or_else(|| panic!("nothing of {setting}: {said}"));
    line.to_owned()
}

#[test]
fn what_the_server_can_not_use_stops_the_start() {
    let authority = Authority::new();
    let issued = authority.issue("bloom.example");
    let place = Place::with(&issued);

    authority.issue("other.example").install_certificate(&place.0);
    let said = refused(place.server(), "tls_key_file");
    assert!(said.contains("environment TLS_KEY_FILE") && said.contains("is not the key of any certificate"), "{said}");
    issued.install(&place.0);

    let said = refused(place.server().env("TLS_KEY_FILE", ""), "tls_cert_file");
    assert!(said.contains("set TLS_KEY_FILE"), "{said}");
    let said = refused(place.server().env("TLS_CERT_FILE", ""), "tls_key_file");
    assert!(said.contains("set TLS_CERT_FILE"), "{said}");
    let said = refused(Server::on(Database::Sqlite).env("TLS_CLIENT_CA_FILE", authority.file().display()), "tls_client_ca_file");
    assert!(said.contains("set TLS_CERT_FILE and TLS_KEY_FILE"), "{said}");

    for (setting, field) in
        [("TLS_CERT_FILE", "tls_cert_file"), ("TLS_KEY_FILE", "tls_key_file"), ("TLS_CLIENT_CA_FILE", "tls_client_ca_file")]
    {
        let said = refused(place.server().env(setting, "/nowhere"), field);
        assert!(said.contains("/nowhere") && said.contains("can't be read"), "{said}");
        let said = refused(place.server().env(setting, "/"), field);
        assert!(said.contains("is not a regular file"), "{said}");
    }
    let said = refused(place.server().env("TLS_CERT_FILE", place.key().display()), "tls_cert_file");
    assert!(said.contains("has no certificate"), "{said}");
    let whole = std::fs::read_to_string(place.certificate()).unwrap();
    let cut = place.0.join("cut.crt");
    std::fs::write(&cut, &whole[..whole.len() / 2]).unwrap();
    let said = refused(place.server().env("TLS_CERT_FILE", cut.display()), "tls_cert_file");
    assert!(said.contains("line 1: the file ends in the middle of a certificate"), "{said}");
    let said = refused(place.server().env("TLS_KEY_FILE", place.certificate().display()), "tls_key_file");
    assert!(said.contains("has no private key"), "{said}");
    let said = refused(place.server().env("TLS_CLIENT_CA_FILE", place.key().display()), "tls_client_ca_file");
    assert!(said.contains("has no certificate"), "{said}");
}

#[test]
fn config_check_looks_at_the_files() {
    let authority = Authority::new();
    let place = Place::with(&authority.issue_for("bloom.example", -1));
    let rights = |mode| std::fs::set_permissions(place.key(), std::fs::Permissions::from_mode(mode)).unwrap();
    let user = User::new().with("TLS_CERT_FILE", place.certificate().to_str().unwrap()).with("TLS_KEY_FILE", place.key().to_str().unwrap());
    rights(0o644);
    let done = user.does(&["config", "check"]).ends(0);
    assert!(done.err.contains("the certificate expired at") && done.err.contains("renew"), "{}", done.err);
    assert!(done.err.contains("chmod o-rwx") && done.err.contains("tls.key"), "{}", done.err);
    rights(0o640);
    authority.issue("bloom.example").install(&place.0);
    rights(0o640);
    let done = user.does(&["config", "check"]).ends(0);
    assert_eq!(done.err, "");
    authority.issue("other.example").install_certificate(&place.0);
    let done = user.does(&["config", "check"]).ends(1);
    assert!(done.err.contains("tls_key_file") && done.err.contains("put both in place together"), "{}", done.err);
}

fn text(path: &std::path::Path) -> String {
    std::fs::read_to_string(path).unwrap()
}

#[test]
fn files_as_people_make_them_are_used() {
    run(async {
        let authority = Authority::new();
        let issued = authority.issue("bloom.example");
        let place = Place::with(&issued);
        let (own, root, key) = (text(&place.certificate()), text(&authority.file()), text(&place.key()));
        let mark = "\u{feff}";
        for (certificates, key) in [
            (format!("{mark}{own}"), format!("{mark}{key}")),
            (format!("Issued on Monday\r\n{root}\r\n{mark}{own}"), key.clone()),
            (format!("{key}{root}{own}"), key.clone()),
        ] {
            std::fs::write(place.certificate(), certificates).unwrap();
            std::fs::write(place.key(), key).unwrap();
            let server = place.server().env("TLS_CLIENT_CA_FILE", place.certificate().display()).start();
            let ca = place.0.join("ca.pem");
            std::fs::write(&ca, format!("{mark}{root}")).unwrap();
            User::at(&server).with("BLOOM_CA_FILE", ca.to_str().unwrap()).does(&["worker", "list"]).ok();
        }
    });
}

#[test]
fn what_is_wrong_is_named_with_its_file_and_line() {
    let authority = Authority::new();
    let place = Place::with(&authority.issue("bloom.example"));
    let good = text(&authority.file());
    let lines = good.lines().count();
    let file = place.0.join("bad.pem");
    for (content, line, why) in [
        (format!("{good}-----BEGIN CERTIFICATE-----\nbm8=\n-----END CERTIFICATE-----\n"), lines + 1, "can't be"),
        (format!("\n{good}-----BEGIN CERTIFICATE-----\n%%\n-----END CERTIFICATE-----\n"), lines + 2, "base64"),
        (good.replace("-----END CERTIFICATE-----\n", "") + &good, 1, "has no end"),
    ] {
        std::fs::write(&file, content).unwrap();
        for (setting, field) in [("TLS_CLIENT_CA_FILE", "tls_client_ca_file"), ("TLS_CERT_FILE", "tls_cert_file")] {
            let said = refused(place.server().env(setting, file.display()), field);
            assert!(said.contains(file.to_str().unwrap()) && said.contains(&format!("line {line}")) && said.contains(why), "{said}");
        }
        let user = User::new().with("BLOOM_CA_FILE", file.to_str().unwrap()).with("BLOOM_SERVER", "https://127.0.0.1:1");
        let said = user.does(&["worker", "list"]).complains(2);
        assert!(said.contains(file.to_str().unwrap()) && said.contains(&format!("line {line}")), "{said}");
    }
}
