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
    is_refused(&url.replacen("bloom@", &format!("{role}@"), 1), "read-only in PostgreSQL (default_transaction_read_only)");
}

/// By a start and by `doctor`, for this reason.
fn is_refused(url: &str, why: &str) {
    let said = refusal(url);
    assert!(said.contains(why), "{why}: {said}");
    let doctor = Server::on_url(url).command(&["doctor"]).output().expect("it runs");
    let said = String::from_utf8_lossy(&doctor.stdout).into_owned();
    let is_it = |line: &str| line.starts_with("wrong") && line.contains(why);
    assert!(!doctor.status.success() && said.lines().any(is_it), "{why}: {said}");
}

#[test]
fn rights_that_are_missing_are_named() {
    let (url, role) = (postgres::database(), unique("app").replace('-', "_"));
    postgres::execute(&url, &format!("CREATE ROLE {role} LOGIN"));
    let as_role = url.replacen("bloom@", &format!("{role}@"), 1);
    is_refused(&as_role, &format!("has no tables yet, and the user {role} may not create them: GRANT CREATE ON SCHEMA public TO {role}"));
    is_refused(&format!("{url}?options[search_path]=nowhere"), "(nowhere) has no schema that exists");
    assert!(Server::on_url(&url).command(&["migrate", "up"]).status().expect("it runs").success());
    is_refused(&as_role, &format!("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {role}"));
    postgres::execute(&url, &format!("GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role}"));
    is_refused(&as_role, "GRANT DELETE, INSERT, UPDATE ON api_key_uses, api_keys, audit");
    postgres::execute(&url, &format!("GRANT INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {role}"));
    postgres::execute(&url, &format!("REVOKE UPDATE ON tasks FROM {role}"));
    is_refused(&as_role, &format!("GRANT UPDATE ON tasks TO {role}"));
}

#[test]
fn connections_that_postgresql_refuses_are_explained() {
    let (url, role) = (postgres::database(), unique("few").replace('-', "_"));
    postgres::execute(&url, &format!("CREATE ROLE {role} LOGIN CONNECTION LIMIT 0"));
    is_refused(&url.replacen("bloom@", &format!("{role}@"), 1), "raise max_connections, the CONNECTION LIMIT of the role");
    is_refused(&format!("{url}?sslmode=require"), "does not support TLS; check ssl in postgresql.conf, and sslmode");
}
