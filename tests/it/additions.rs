//! What someone added to a database besides its schema.

use crate::backup::{does, place, said, text};
use crate::keys::{ADMIN, create, keyed};
use crate::on_both;
use crate::support::*;

/// Makes each new key one of an administrator.
fn trigger(database: Database) -> &'static str {
    match database {
        Database::Sqlite => {
            "CREATE TRIGGER raise AFTER INSERT ON api_keys BEGIN UPDATE api_keys SET scope = 'admin' WHERE name = new.name; END"
        }
        Database::Postgres => {
            "CREATE FUNCTION raise() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN new.scope := 'admin'; RETURN new; END $$; \
             CREATE TRIGGER raise BEFORE INSERT ON api_keys FOR EACH ROW EXECUTE FUNCTION raise()"
        }
    }
}

#[test]
fn a_backup_with_more_than_the_schema_is_not_restored() {
    run(async {
        let server = keyed(Database::Sqlite);
        create(&server.with_key(ADMIN), "ci", "read", json!({})).await;
        let (file, plan) = (place().join("x.db"), server.plan().clone());
        does(&plan, &["backup", text(&file)]).ok();
        server.stop();
        for (added, name) in [
            (trigger(Database::Sqlite), "trigger raise on api_keys"),
            ("CREATE VIEW mine AS SELECT * FROM tasks", "view mine"),
            ("CREATE TABLE filler (x TEXT)", "table filler"),
            ("CREATE INDEX by_x ON tasks (context_id)", "index by_x on tasks"),
            // SQLite takes it for a trigger, although it is neither called nor written like one.
            (
                "PRAGMA writable_schema = on; INSERT INTO sqlite_master VALUES ('TRIGGER', 'sqlite_x', 'api_keys', 0, \
                 'CREATE TRIGGER sqlite_x AFTER INSERT ON api_keys BEGIN UPDATE api_keys SET scope = ''admin''; END')",
                "trigger sqlite_x on api_keys",
            ),
            // A column that compares names without case shows a key the tasks of another one.
            (
                "PRAGMA writable_schema = on; UPDATE sqlite_master SET sql = replace(sql, 'owner TEXT', 'owner TEXT COLLATE NOCASE') \
                 WHERE name = 'tasks'",
                "table tasks",
            ),
            ("ALTER TABLE audit ADD COLUMN hidden AS (CASE actor WHEN 'key:x' THEN NULL ELSE 1 END)", "table audit"),
        ] {
            let changed = file.with_file_name("changed.db");
            std::fs::copy(&file, &changed).unwrap();
            direct::execute(&format!("sqlite:{}", changed.display()), added).await;
            does(&plan, &["restore", "--force", text(&changed)]).refuses(&["changed.db", "what its schema does not have", name, "DROP"]);
        }
        does(&plan, &["restore", "--force", text(&file)]).ok();
        server.start_again();
        server.with_key(ADMIN).get("keys").await.ok();
    });
}

#[test]
fn what_only_reads_is_a_warning() {
    run(async {
        let server = Server::on(Database::Sqlite).start();
        let (url, plan) = (server.database_url(), server.plan().clone().env("PORT", server.base().rsplit(':').next().unwrap()));
        direct::execute(&url, "CREATE VIEW mine AS SELECT * FROM tasks; CREATE INDEX by_x ON tasks (context_id)").await;
        let told = does(&plan, &["doctor"]).ok();
        assert!(told.contains("warning  schema") && told.contains("view mine, index by_x on tasks"), "{told}");
        server.stop();
        server.start_again();
        server.get("/readyz").await.expect(200);
    });
}

on_both! { alone:
    async fn a_trigger_on_the_tables_is_found(database) {
        let server = keyed(database);
        server.with_key(ADMIN).crew().task().create().await;
        let (plan, export) = (server.plan().clone(), place().join("x.export"));
        does(&plan, &["export", text(&export)]).ok();
        server.stop();
        if database == Database::Postgres {
            // Tables of other programs are their own affair.
            direct::execute(&plan.database_url(), "CREATE TABLE others (id INT); CREATE RULE one AS ON INSERT TO others DO ALSO NOTHING; \
                CREATE VIEW of_others AS SELECT * FROM others").await;
        }
        assert!(does(&plan, &["doctor"]).text().contains("all migrations of this program are applied"));
        direct::execute(&plan.database_url(), trigger(database)).await;
        let found = does(&plan, &["doctor"]).text();
        let state = if database == Database::Sqlite { "wrong    schema" } else { "warning  schema" };
        assert!(found.contains(state) && found.contains("trigger raise on api_keys"), "{found}");
        does(&plan, &["import", "--replace", text(&export)]).refuses(&["trigger raise on api_keys"]);
        match database {
            Database::Sqlite => said(plan.start_in_vain()).refuses(&["trigger raise on api_keys"]),
            Database::Postgres => {
                server.start_again();
                assert!(server.log().contains("trigger raise on api_keys"), "{}", server.log());
            }
        }
    }
}
