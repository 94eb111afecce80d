//! Databases on PostgreSQL that could not keep what they are given: the server refuses them at its start, and so does `doctor`.

use crate::support::*;

/// What the server says, which must not start.
pub fn refusal(url: &str) -> String {
    let refused = Server::on_url(url).start_in_vain();
    assert!(!refused.status.success());
    String::from_utf8_lossy(&refused.stderr).into_owned()
}

#[test]
fn a_database_of_another_encoding() {
    let (url, name) = (postgres::database(), unique("latin"));
    postgres::execute(&url, &format!("CREATE DATABASE \"{name}\" ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0"));
    let (server, _) = url.rsplit_once('/').expect("a database");
    let latin = format!("{server}/{name}");
    let said = refusal(&latin);
    assert!(said.contains("has the encoding LATIN1") && said.contains("createdb --encoding=UTF8"), "{said}");
    let doctor = Server::on_url(&latin).command(&["doctor"]).output().expect("it runs");
    assert!(String::from_utf8_lossy(&doctor.stdout).contains("has the encoding LATIN1"), "{doctor:?}");
}

#[test]
fn a_user_who_may_only_read() {
    let (url, role) = (postgres::database(), unique("reader").replace('-', "_"));
    postgres::execute(&url, &format!("CREATE ROLE {role} SUPERUSER LOGIN"));
    postgres::execute(&url, &format!("ALTER ROLE {role} SET default_transaction_read_only = on"));
    let said = refusal(&url.replacen("bloom@", &format!("{role}@"), 1));
    assert!(said.contains("read-only in PostgreSQL (default_transaction_read_only)"), "{said}");
}
