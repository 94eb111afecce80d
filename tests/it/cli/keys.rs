//! `key`: the key alone goes to standard output, and nothing else shows it.

use super::*;
use crate::keys::{ADMIN, keyed};

#[test]
fn keys_are_created_listed_and_revoked() {
    let server = keyed(Database::Sqlite);
    run(async {
        let user = User::at(&server).with("BLOOM_KEY", ADMIN);
        let made = user.does(&["key", "create", "ci", "--scope", "submit", "--expires", "90d"]).ends(0);
        let key = made.out.trim_end_matches('\n').to_owned();
        assert!(key.starts_with("bloom_") && !key.contains(char::is_whitespace), "{}", made.out);
        assert!(made.err.contains("not shown again") && !made.err.contains(&key), "{}", made.err);
        let own = User::at(&server).with("BLOOM_KEY", &key);
        let task = own.does(&["task", "submit", "--agent", "nobody", "Say hello"]).ok();
        assert_eq!(own.does(&["task", "list", "-o", "name"]).ok(), task);
        // What the key may not read is left out.
        let described = own.does(&["task", "describe", task.trim_end()]).ok();
        assert!(described.contains("Say hello") && !described.contains("History"), "{described}");
        assert_eq!(own.does(&["task", "describe", "-o", "json", task.trim_end()]).json()["leases"], json!([]));
        assert_eq!(own.does(&["lease", "list", "--task", short(task.trim_end()), "-o", "json"]).json(), json!([]));
        own.does(&["key", "list"]).complains(1);
        own.does(&["stats"]).complains(1);

        let whole = user.does(&["key", "create", "w", "--scope", "worker", "--worker", "w1", "-o", "json"]).json();
        assert_eq!((&whole["name"], &whole["worker"], &whole["expires_at"]), (&json!("w"), &json!("w1"), &json!(null)));
        let listed = user.does(&["key", "list"]).ok();
        for word in ["NAME", "SCOPE", "EXPIRES", "submit", "w1", "never", "in 8"] {
            assert!(listed.contains(word), "{word}: {listed}");
        }
        assert_eq!(user.does(&["key", "list", "-o", "name"]).ok(), "ci\nw\n");
        assert_eq!(user.does(&["key", "list", "-o", "json"]).json(), server.with_key(ADMIN).get("keys").await.ok());

        let limited =
            ["key", "create", "t", "--scope", "worker", "--worker", "w8", "--namespace", "team-a", "--namespace", "team-b", "-o", "json"];
        assert_eq!(user.does(&limited).json()["namespaces"], json!(["team-a", "team-b"]));
        let wide = user.does(&["key", "list", "-o", "wide"]).ok();
        assert!(wide.contains("NAMESPACES") && wide.contains("team-a,team-b"), "{wide}");
        let said = user.does(&["key", "create", "x", "--scope", "read", "--namespace", "a"]).complains(2);
        assert!(said.contains("--namespace"), "{said}");
        user.does(&["key", "create", "x", "--scope", "join", "--namespace", "Team"]).complains(2);
        user.does(&["key", "revoke", "t", "--yes"]).ends(0);

        let again = user.does(&["key", "create", "ci", "--scope", "read"]).complains(1);
        assert!(again.contains("revoke it first") && again.contains("bloom-runtime key rotate ci"), "{again}");
        user.does(&["key", "create", "x", "--scope", "root"]).complains(2);
        let said = user.does(&["key", "create", "x", "--scope", "worker"]).complains(2);
        assert!(said.contains("--worker: Required"), "{said}");
        let revoked = user.does(&["key", "revoke", "--yes", "ci", "w"]).ends(0);
        assert_eq!(revoked.out, "");
        let told = "ci is revoked. 1 waiting and 0 running tasks that it created stay, and run as before";
        assert!(
            revoked.err.contains(told) && revoked.err.contains("\nw is revoked. The server refuses the agent of w1"),
            "{}",
            revoked.err
        );
        own.does(&["task", "list"]).complains(1);
        user.does(&["key", "revoke", "ci"]).complains(1);

        let token = user.does(&["key", "create", "join", "--scope", "join"]).ok();
        let machine = User::at(&server).with("BLOOM_KEY", token.trim_end());
        let own = machine.does(&["key", "enroll", "w2"]).ok();
        server.with_key(own.trim_end()).post("workers", json!({ "name": "w2" })).await.created();
        machine.does(&["key", "enroll", "w3"]).complains(1);

        user.does(&["key", "create", "deploy-bot", "--scope", "submit"]).ends(0);
        let said = user.does(&["key", "revoke", "deploy-bott"]).complains(1);
        assert!(said.contains("Key not found (did you mean deploy-bot?)"), "{said}");
        let said = user.does(&["task", "list", "--owner", "deploy-bott"]).ends(0).err;
        assert!(said.contains("No key has the name deploy-bott now (did you mean deploy-bot?)"), "{said}");
    });
}

#[test]
fn a_team_that_no_key_has_is_told() {
    let server = keyed(Database::Sqlite);
    run(async {
        let user = User::at(&server).with("BLOOM_KEY", ADMIN);
        let create = |name: &str, team: &str| user.does(&["key", "create", name, "--scope", "member", "--team", team]).ends(0);
        assert!(!create("ann", "web").err.contains("has the team"), "it is the first team");
        assert!(!create("bob", "web").err.contains("has the team"));
        let made = create("frank", "wbe");
        assert!(made.err.contains("No other key has the team wbe (did you mean web?)"), "{}", made.err);
        for look in [&["usage", "--team"][..], &["task", "list", "--team"]] {
            let said = user.does(&[look, &["webb"]].concat()).ends(0).err;
            assert!(said.contains("No key has the team webb (did you mean web?)"), "{said}");
            assert!(!user.does(&[look, &["web"]].concat()).ends(0).err.contains("has the team"));
            // Only admins are told of the teams.
            let ann = User::at(&server).with("BLOOM_KEY", create(&format!("ann-{}", look.len()), "web").out.trim_end());
            assert!(!ann.does(&[look, &["webb"]].concat()).err.contains("has the team"));
        }
    });
}

#[test]
fn tasks_of_keys_without_an_owner_are_found_otherwise() {
    let server = keyed(Database::Sqlite);
    run(async {
        let user = User::at(&server).with("BLOOM_KEY", ADMIN);
        let key = user.does(&["key", "create", "boss", "--scope", "admin"]).ok();
        user.does(&["key", "create", "ci", "--scope", "submit"]).ok();
        let boss = User::at(&server).with("BLOOM_KEY", key.trim_end());
        let of_boss = boss.does(&["task", "submit", "--agent", "nobody", "Say hello"]).ok();
        let of_first = user.does(&["task", "submit", "--agent", "nobody", "Say hello"]).ok();
        for (owner, actor, id) in [("boss", "key:boss", of_boss.clone()), ("key:boss", "key:boss", of_boss), ("admin", "api", of_first)] {
            let told = format!("bloom-runtime audit --actor {actor} --action task_created");
            for look in [&["task", "list"][..], &["task", "cancel", "--yes"]] {
                let said = user.does(&[look, &["--owner", owner]].concat()).ends(0).err;
                assert!(said.contains("only tasks of submit and member keys have an owner") && said.contains(&told), "{said}");
            }
            let created = user.does(&["audit", "--actor", actor, "--action", "task_created", "-o", "json"]).json();
            assert_eq!(created[0]["entity_id"], id.trim_end(), "{created}");
        }
        let said = user.does(&["task", "list", "--owner", "ci"]).ends(0).err;
        assert!(!said.contains("have an owner"), "{said}");
        assert!(user.does(&["usage", "--creator", "admin"]).ends(0).err.contains("--creator api"));
    });
}

#[test]
fn usage_of_a_creator_is_found_by_the_name_of_the_key() {
    let server = keyed(Database::Sqlite);
    run(async {
        let user = User::at(&server).with("BLOOM_KEY", ADMIN);
        let key = user.does(&["key", "create", "alice", "--scope", "submit"]).ok();
        let api = server.with_key(key.trim_end());
        let admin = server.with_key(ADMIN);
        let crew = admin.crew();
        let task = Crew { api: &api, slug: crew.slug.clone() }.task().create().await;
        let worker = crew.worker().register().await;
        let run = Run::claimed_by(&worker).await;
        assert_eq!(run.task.id, task.id);
        let usage = json!({ "input_tokens": 7, "output_tokens": 8, "cost_usd": 0.25 });
        let end = json!({ "status": "success", "output": "done", "lease_id": run.lease, "metrics": { "duration_ms": 5 }, "usage": usage });
        run.task.complete(end).await.ok();
        for creator in ["alice", "key:alice"] {
            let rows = user.does(&["usage", "--creator", creator, "--by", "person", "-o", "json"]).json();
            assert_eq!((rows.as_array().map(Vec::len), &rows[0]["key"]), (Some(1), &json!("key:alice")), "{rows}");
        }
        let said = user.does(&["usage", "--creator", "alise"]).ends(0).err;
        assert!(said.contains("No key has the name alise now (did you mean alice?)"), "{said}");
    });
}

#[test]
fn a_member_key_is_shown_a_worker_without_its_leases() {
    let server = keyed(Database::Sqlite);
    run(async {
        let user = User::at(&server).with("BLOOM_KEY", ADMIN);
        let ann = user.does(&["key", "create", "ann", "--scope", "member", "--team", "web"]).ok();
        let admin = server.with_key(ADMIN);
        let worker = admin.crew().worker().register().await;
        let said = User::at(&server).with("BLOOM_KEY", ann.trim_end()).does(&["worker", "describe", &worker.name]).ok();
        for part in [&worker.name, "online", "Last leases: not open to this key", "History: not open to this key"] {
            assert!(said.contains(part), "{part}:\n{said}");
        }
    });
}

#[test]
fn a_misspelt_actor_of_the_audit_trail_is_told() {
    let server = keyed(Database::Sqlite);
    run(async {
        let user = User::at(&server).with("BLOOM_KEY", ADMIN);
        user.does(&["key", "create", "alice", "--scope", "submit"]).ok();
        let said = user.does(&["audit", "--actor", "key:alicee"]).ends(0).err;
        assert!(said.contains("No key has the name alicee now (did you mean alice?)"), "{said}");
        let said = user.does(&["usage", "--by", "persn"]).complains(2);
        assert!(said.contains("person") && said.contains("(did you mean person?)"), "{said}");
    });
}

#[test]
fn nobody_revokes_a_key_by_mistake() {
    let server = keyed(Database::Sqlite);
    run(async {
        let user = User::at(&server).with("BLOOM_KEY", ADMIN);
        let key = user.does(&["key", "create", "boss", "--scope", "admin"]).ok();
        user.does(&["key", "create", "ci", "--scope", "submit"]).ends(0);
        let boss = User::at(&server).with("BLOOM_KEY", key.trim_end());
        let asks = boss.does(&["key", "revoke", "ci"]).complains(2);
        assert!(asks.contains("this would revoke ci") && asks.contains("--yes") && !asks.contains("locked out"), "{asks}");
        assert!(asks.contains("ci: No task that it created is waiting or running."), "{asks}");
        let asks = boss.does(&["key", "revoke", "boss"]).complains(2);
        assert!(asks.contains("boss is the key of this call: you will be locked out"), "{asks}");
        let missing = boss.does(&["key", "revoke", "ci", "nope"]).complains(1);
        assert!(missing.contains("nope: Key not found") && !missing.contains("this would"), "{missing}");
        assert_eq!(boss.does(&["key", "list", "-o", "name"]).ok(), "boss\nci\n", "nothing was revoked");
        let done = boss.does(&["key", "revoke", "--yes", "boss"]).ends(0);
        assert!(done.err.contains("locked out") && done.err.contains("boss is revoked. Tasks that it created stay"), "{}", done.err);
        assert!(done.err.contains("audit --actor key:boss --action task_created"), "{}", done.err);
        boss.does(&["key", "list"]).complains(1);
    });
}

#[test]
fn a_revocation_says_what_happens_to_tasks_and_runs() {
    let server = keyed(Database::Sqlite);
    run(async {
        let user = User::at(&server).with("BLOOM_KEY", ADMIN);
        let key = user.does(&["key", "create", "ci", "--scope", "submit"]).ok();
        let api = server.with_key(key.trim_end());
        let admin = server.with_key(ADMIN);
        let crew = admin.crew();
        let own = Crew { api: &api, slug: crew.slug.clone() };
        let (running, _waiting) = (own.task().create().await, own.task().create().await);
        let worker = crew.worker().register().await;
        let run = Run::claimed_by(&worker).await;
        assert_eq!(run.task.id, running.id);
        user.does(&["key", "create", "of-worker", "--scope", "worker", "--worker", &worker.name]).ends(0);

        let told =
            "1 waiting and 1 running tasks that it created stay, and run as before; to cancel them: bloom-runtime task cancel --owner ci";
        let asks = user.does(&["key", "revoke", "ci"]).complains(2);
        assert!(asks.contains(&format!("ci: {told}")), "{asks}");
        let done = user.does(&["key", "revoke", "ci", "--yes"]).ends(0);
        assert_eq!(done.err, format!("ci is revoked. {told}\n"));

        let now = user.does(&["key", "rotate", "of-worker", "--overlap", "0"]).ends(0).err;
        assert!(now.contains("needs the new secret now") && now.contains("It runs 1 task"), "{now}");
        let done = user.does(&["key", "revoke", "of-worker", "--yes"]).ends(0).err;
        let runs = format!("refuses the agent of {} that uses it. It runs 1 task ({})", worker.name, short(&running.id));
        assert!(done.contains(&runs) && done.contains(&format!("--scope worker --worker {} --out FILE", worker.name)), "{done}");
    });
}

#[test]
fn a_key_is_rotated_with_its_old_secret_beside_the_new_one() {
    let server = keyed(Database::Sqlite);
    run(async {
        let user = User::at(&server).with("BLOOM_KEY", ADMIN);
        let former = user.does(&["key", "create", "ci", "--scope", "submit"]).ok();
        let rotated = user.does(&["key", "rotate", "ci", "--overlap", "15m"]).ends(0);
        assert!(rotated.err.contains("ci is rotated") && rotated.err.contains("The secret that it had is valid until"), "{}", rotated.err);
        let wide = user.does(&["key", "list", "-o", "wide"]).ok();
        let until = rotated.err.split("valid until ").nth(1).unwrap().trim_end().trim_end_matches('.');
        assert!(wide.contains("FORMER UNTIL") && wide.contains(until), "{wide}");
        assert!(!rotated.err.contains("agent"), "{}", rotated.err);
        user.does(&["key", "create", "w", "--scope", "worker", "--worker", "w-1"]).ok();
        let of_worker = user.does(&["key", "rotate", "w"]).ends(0).err;
        assert!(of_worker.contains("key create w-1-again --scope join --worker w-1"), "{of_worker}");
        for key in [&former, &rotated.out] {
            User::at(&server).with("BLOOM_KEY", key.trim_end()).does(&["task", "list"]).ends(0);
        }
        let done = user.does(&["key", "rotate", "ci", "--overlap", "0", "--expires", "90d", "--out", "new.key"]).ends(0);
        assert!(done.out.is_empty() && done.err.contains("is refused from now on"), "{done:?}");
        User::at(&server).with("BLOOM_KEY", former.trim_end()).does(&["task", "list"]).complains(1);
        let listed = user.does(&["key", "list"]).ok();
        assert!(listed.contains("USED") && listed.contains("in 89d"), "{listed}");
        user.does(&["key", "rotate", "nobody"]).complains(1);
        let said = user.does(&["key", "rotate", "ci", "--overlap", "31d"]).complains(2);
        assert!(said.contains("--overlap"), "{said}");
    });
}

#[test]
fn a_quota_is_given_shown_and_changed() {
    let server = keyed(Database::Sqlite);
    run(async {
        let user = User::at(&server).with("BLOOM_KEY", ADMIN);
        let limits = ["--max-open-tasks", "2", "--max-tasks-per-minute", "9", "--max-stored-mib", "1"];
        let made = user.does(&[&["key", "create", "web", "--scope", "submit"][..], &limits].concat()).ok();
        let own = User::at(&server).with("BLOOM_KEY", made.trim_end());
        own.does(&["task", "submit", "--agent", "nobody", "one"]).ok();
        let listed = user.does(&["key", "list"]).ok();
        assert!(listed.contains("QUOTA") && listed.contains("1/2 open, 9 a minute, 0.0/1 MiB"), "{listed}");
        let told = own.does(&["key", "whoami"]).ok();
        assert!(told.contains("web") && told.contains("submit") && told.contains("1/2 open"), "{told}");
        let whole = own.does(&["key", "whoami", "-o", "json"]).json();
        assert_eq!((&whole["scope"], &whole["key"]["name"], &whole["open"]), (&json!("submit"), &json!("web"), &json!(false)));
        assert!(user.does(&["key", "whoami"]).ok().contains("the scope admin in the server's settings"));
        let changed = user.does(&["key", "quota", "web", "--max-open-tasks", "1"]).ends(0);
        let now = "1/1 open, 9 a minute, 0.0/1 MiB";
        assert!(changed.err.contains(&format!("The quota of web now: {now}")) && changed.out.contains(now), "{changed:?}");
        let said = own.does(&["task", "submit", "--agent", "nobody", "two"]).complains(1);
        assert!(said.contains("The quota of this key is 1 open tasks, and 1 are open"), "{said}");
        let one_less = user.does(&["key", "quota", "web", "--max-tasks-per-minute", "none", "-o", "json"]).json();
        let limit = |name: &str| one_less["quota"][name].clone();
        assert_eq!(
            (limit("max_open_tasks"), limit("max_tasks_per_minute"), limit("max_stored_bytes")),
            (json!(1), json!(null), json!(1 << 20))
        );
        let last = user.does(&["key", "quota", "web", "--max-open-tasks", "none", "--max-stored-mib", "none"]).ends(0);
        assert!(last.err.contains("The quota of web now: no limits"), "{last:?}");
        user.does(&["key", "quota", "web", "--max-open-tasks", "3"]).ok();
        let free = user.does(&["key", "quota", "web", "--none", "-o", "json"]).json();
        assert_eq!(free["quota"], json!(null));
        own.does(&["task", "submit", "--agent", "nobody", "two"]).ok();

        user.does(&["key", "quota", "web"]).complains(2);
        assert!(user.does(&["key", "quota", "web", "--max-open-tasks", "0"]).complains(2).contains("or none"));
        user.does(&["key", "quota", "web", "--none", "--max-open-tasks", "1"]).complains(2);
        let said = user.does(&["key", "create", "r", "--scope", "read", "--max-open-tasks", "1"]).complains(2);
        assert!(said.contains("--max-open-tasks") && said.contains("'submit'"), "{said}");
        user.does(&["key", "quota", "nobody", "--none"]).complains(1);
        let said = user.does(&["key", "quota", "wbe", "--max-open-tasks", "1"]).complains(1);
        assert!(said.contains("did you mean web?"), "{said}");
    });
}
