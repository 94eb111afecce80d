//! Users, schemas and URLs of PostgreSQL that are unusual: they work, or are refused by their cause.

use crate::postgres_refused::refusal;
use crate::support::*;

#[test]
fn a_user_who_may_not_create_tables_serves_what_the_owner_migrated() {
    let (url, role) = (postgres::database(), unique("app").replace('-', "_"));
    postgres::execute(&url, &format!("CREATE ROLE {role} LOGIN"));
    let as_role = url.replacen("bloom@", &format!("{role}@"), 1);
    let said = refusal(&as_role);
    assert!(said.contains(&format!("GRANT CREATE ON SCHEMA public TO {role}")) && said.contains("migrate up"), "{said}");
    let migrated = Server::on_url(&url).command(&["migrate", "up"]).output().expect("it runs");
    assert!(migrated.status.success(), "{migrated:?}");
    postgres::execute(&url, &format!("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {role}"));
    postgres::execute(&url, &format!("GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO {role}"));
    let server = Server::on_url(&as_role).start();
    run(async {
        server.crew().task().create().await;
        server.get("/readyz").await.expect(200);
    });
}

#[test]
fn schemas_of_one_database_are_separate() {
    let url = postgres::database();
    postgres::execute(&url, "CREATE SCHEMA one; CREATE SCHEMA two");
    let first = Server::on_url(&format!("{url}?options=-csearch_path=one,public")).start();
    let second = Server::on_url(&format!("{url}?options[search_path]=two")).start();
    let third = Server::on_url(&url).start();
    let fourth = Server::on_url(&format!("{url}?options=-c%20search_path=two,public")).start();
    run(async {
        let task = first.crew().task().create().await;
        let other = second.crew().task().create().await;
        for (server, known, unknown) in
            [(&first, Some(&task), &other), (&second, Some(&other), &task), (&third, None, &task), (&fourth, Some(&other), &task)]
        {
            if let Some(known) = known {
                server.get(&known.path("")).await.expect(200);
            }
            server.get(&unknown.path("")).await.expect(404);
        }
    });
}

#[test]
fn urls_of_other_forms_work_or_are_refused_by_their_cause() {
    let url = postgres::database();
    let (user, rest) = url.split_once("127.0.0.1").expect("a host");
    for (url, why) in [
        (format!("{user}one,two{rest}"), "names several hosts"),
        (format!("{user}one:5432,two{rest}"), "names several hosts"),
        (format!("{url}?host=one,two"), "names several hosts"),
        ("postgres://bloom@/database".to_owned(), "has no host"),
        ("postgres://bloom@:5432/database".to_owned(), "has no host"),
        (format!("{url}?options=-d%205"), "options=-c NAME=VALUE"),
        (format!("{url}?options[no_such_setting]=5"), "no_such_setting"),
        // Nothing listens there, but it is an address.
        (format!("{user}[::1]{}", ":1/database"), "onnection refused"),
    ] {
        let said = refusal(&url);
        assert!(said.contains(why), "{url}: {said}");
    }
}
