//! Checks that an index is used to read the pages of a namespace and of a project, pages of contexts, and tasks by their end, however many
//! tasks of others come first.

use bloom_test_support::{janitor, postgres, waiting::run};
use sqlx::{Connection as _, PgConnection, SqliteConnection};

use crate::reads::contexts::{
    COUNTED_TASKS, COUNTS, COUNTS_OF_KEY, COUNTS_OF_TEAM, FACTS, FACTS_OF_KEY, FACTS_OF_TEAM, PAGE, PAGE_OF_KEY, PAGE_OF_PROJECT,
    PAGE_OF_TEAM, RECENT, RECENT_OF_KEY, RECENT_OF_PROJECT, RECENT_OF_TEAM,
};
use crate::reads::lists::{Start, TaskFilter, Wanted};
use crate::reads::page::Page;
use crate::reads::teams::CONTEXTS;
use crate::replicas::queue::{
    READY_OF_AGENT_IN_NAMESPACE, READY_OF_AGENT_IN_NAMESPACE_AND_PROJECT, READY_OF_AGENT_IN_PROJECT, READY_OF_NAMESPACE,
    READY_OF_NAMESPACE_AND_PROJECT, READY_OF_PROJECT,
};
use crate::sql::args::Args;
use crate::sql::cells::Cells;
use crate::sql::dialect::{Kind, Sql};
use crate::{Store, StoreOptions, all};
use bloom_core::api_key::Owner;
use bloom_core::cache::{Part, Projects, Scope};
use bloom_core::ids::TaskId;
use bloom_core::task::Status;

const CROWD: i64 = 10_000;
const NEWEST: Start = Start::Newest { before: None };

/// Executes a statement on a connection of its own, because the readers of a store can't write to SQLite.
async fn execute(store: &Store, url: &str, sql: impl Fn(Kind) -> String) {
    let text = sqlx::AssertSqlSafe(sql(store.kind()));
    match store.kind() {
        Kind::Sqlite => drop(sqlx::raw_sql(text).execute(&mut SqliteConnection::connect(url).await.unwrap()).await.unwrap()),
        Kind::Postgres => drop(sqlx::raw_sql(text).execute(&mut PgConnection::connect(url).await.unwrap()).await.unwrap()),
    }
}

/// Inserts many ready tasks of the namespace and the project `crowd`, followed by one of `team`, and one without a project in each
/// namespace.
async fn fill(store: &Store, url: &str) {
    let (columns, values) = (
        "id, context_id, agent_slug, rank, max_attempts, timeout_sec, has_dependencies, status, updated_at, attempts, infra_retries, \
        lease_count, cancel_requested, has_dependents, event_count, event_seq, session, namespace, project",
        "'c', 'coder', 4, 3, 120, false, 'queued', 1, 0, 0, 0, false, false, 0, -1, 'none'",
    );
    let insert = |from: i64, to: i64, namespace: &'static str, project: &'static str| {
        move |kind| {
            let id = match kind {
                Kind::Sqlite => "randomblob(16)",
                Kind::Postgres => "gen_random_uuid()",
            };
            format!(
                "WITH RECURSIVE n (i) AS (SELECT {from} UNION ALL SELECT i + 1 FROM n WHERE i < {to}) \
                INSERT INTO task_state ({columns}) SELECT {id}, {values}, '{namespace}', '{project}' FROM n"
            )
        }
    };
    execute(store, url, insert(1, CROWD, "crowd", "crowd")).await;
    for (namespace, project) in [("team", "team"), ("team", ""), ("crowd", "")] {
        execute(store, url, insert(1, 1, namespace, project)).await;
    }
    execute(store, url, |_| "UPDATE task_state SET rank = 9 WHERE namespace = 'team' OR project = ''".to_owned()).await;
    execute(store, url, |kind| if kind == Kind::Postgres { "ANALYZE task_state" } else { "SELECT 1" }.to_owned()).await;
}

/// How PostgreSQL finds the rows, as one text.
async fn plan(store: &Store, statement: &Sql, args: Args<'_>) -> String {
    let sql = Sql::new(|kind| format!("EXPLAIN {}", statement.text(kind).as_str()));
    let lines: Vec<String> = all(&store.pool().fetch(&sql, args).await.unwrap(), |row| row.take()).unwrap();
    lines.join("\n")
}

async fn check(url: String) {
    let store = Store::open(&StoreOptions { url: url.clone(), max_connections: 2 }).await.unwrap();
    store.migrate().await.unwrap();
    fill(&store, &url).await;
    let named = |name: &str| Projects::One(name.into());
    for (namespace, projects, number) in [
        (Some("team"), Projects::All, 2),
        (Some("team"), Projects::None, 1),
        (Some("team"), named("team"), 1),
        (None, Projects::None, 2),
        (None, named("team"), 1),
        (Some("crowd"), named("team"), 0),
    ] {
        let part = Part { namespace: namespace.map(str::to_owned), projects };
        for agent in [None, Some("coder")] {
            let scope = Scope::of(part.clone(), agent);
            assert_eq!(store.ready_page(&scope, None, 9).await.unwrap().len(), number, "{scope:?}");
        }
    }
    // For SQLite, the statements name their index, and could not be prepared if it was not usable.
    if store.kind() == Kind::Postgres {
        let args = || Args::new().int(-1).uuid(TaskId::nil()).int(100);
        let (team, none, both) = (|| args().text("team"), || args().text(""), || args().text("team").text(""));
        for (statement, args, index) in [
            (&READY_OF_NAMESPACE, team(), "task_state_ready_of_namespace"),
            (&READY_OF_AGENT_IN_NAMESPACE, team().text("coder"), "task_state_ready_of_agent_in_namespace"),
            (&READY_OF_PROJECT, none(), "task_state_ready_of_project"),
            (&READY_OF_AGENT_IN_PROJECT, none().text("coder"), "task_state_ready_of_agent_in_project"),
            (&READY_OF_NAMESPACE_AND_PROJECT, both(), "task_state_ready_of_namespace_and_project"),
            (&READY_OF_AGENT_IN_NAMESPACE_AND_PROJECT, both().text("coder"), "task_state_ready_of_agent_in_namespace_and_project"),
        ] {
            let plan = plan(&store, statement, args).await;
            assert!(plan.contains(&format!("{index} ")) && plan.contains("Index Cond") && !plan.contains("Sort"), "{plan}");
        }
    }
    store.close().await;
}

/// Inserts very many tasks of the context `b`, and one each of `a` and `c`. All of these belong to one project, one key and one team. The
/// task of the context `d` belongs to none.
async fn fill_contexts(store: &Store, url: &str) {
    let insert = |context: &'static str, number: i64, of: &'static str| {
        move |kind| {
            let id = if kind == Kind::Sqlite { "randomblob(16)" } else { "gen_random_uuid()" };
            format!(
                "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {number}) INSERT INTO tasks (id, context_id, \
                agent_slug, prompt, context_hints, timeout_sec, budget, desired_format, max_attempts, priority, depends_on, labels, session, \
                project, owner, team) SELECT {id}, '{context}', 'coder', 'p', '[]', 120, 0, 'text', 3, 5, '[]', '{{}}', 'none', {of} FROM n"
            )
        }
    };
    for (context, number) in [("a", 1), ("b", CROWD), ("c", 1)] {
        execute(store, url, insert(context, number, "'p', 'k', 't'")).await;
    }
    execute(store, url, insert("d", 1, "NULL, NULL, NULL")).await;
    execute(store, url, |_| {
        "INSERT INTO task_state (id, context_id, agent_slug, rank, max_attempts, timeout_sec, has_dependencies, status, updated_at, attempts, \
        infra_retries, lease_count, cancel_requested, has_dependents, event_count, event_seq, session) SELECT id, context_id, agent_slug, 4, \
        3, 120, false, 'queued', 1, 0, 0, 0, false, false, 0, -1, 'none' FROM tasks"
            .to_owned()
    })
    .await;
    execute(store, url, |kind| if kind == Kind::Postgres { "ANALYZE tasks; ANALYZE task_state" } else { "SELECT 1" }.to_owned()).await;
}

async fn check_contexts(url: String) {
    let store = Store::open(&StoreOptions { url: url.clone(), max_connections: 2 }).await.unwrap();
    store.migrate().await.unwrap();
    fill_contexts(&store, &url).await;
    let (key, team) = (Owner::Key("k".to_owned()), Owner::Team("t".to_owned()));
    for (after, project, owner, expected) in [
        ("", None, None, &["a", "b", "c"][..]),
        ("b", None, None, &["c", "d"]),
        ("", Some("p"), None, &["a", "b", "c"]),
        ("a", Some("p"), None, &["b", "c"]),
        ("", None, Some(&key), &["a", "b", "c"]),
        ("", None, Some(&team), &["a", "b", "c"]),
        ("", Some("none"), None, &[]),
    ] {
        assert_eq!(store.context_ids(after, 3, project, owner).await.unwrap(), expected, "{after} {project:?} {owner:?}");
    }
    for owner in [None, Some(&key), Some(&team)] {
        let found = store.contexts(&["c".into(), "b".into(), "e".into()], owner).await.unwrap();
        let counted: Vec<_> = found.iter().map(|row| (row.context_id.as_str(), row.tasks.values().sum::<i64>())).collect();
        assert_eq!(counted, [("c", 1), ("b", COUNTED_TASKS)], "{owner:?}");
    }
    if store.kind() == Kind::Postgres {
        let (page, ids, recent) = (|| Args::new().text("").int(3), || Args::new().texts(["a", "b"]), || Args::new().int(20));
        for (statement, args, index) in [
            (&PAGE, page(), "tasks_context"),
            (&PAGE_OF_PROJECT, page().text("p"), "tasks_context_of_project"),
            (&PAGE_OF_KEY, page().text("k"), "tasks_context_of_owner"),
            (&PAGE_OF_TEAM, page().text("t"), "tasks_context_of_team"),
            (&RECENT, recent(), "tasks_pkey"),
            (&RECENT_OF_PROJECT, recent().text("p"), "tasks_project"),
            (&RECENT_OF_KEY, recent().text("k"), "tasks_owner"),
            (&RECENT_OF_TEAM, recent().text("t"), "tasks_team"),
            (&FACTS, ids(), "tasks_context"),
            (&FACTS_OF_KEY, ids().text("k"), "tasks_context_of_owner"),
            (&FACTS_OF_TEAM, ids().text("t"), "tasks_context_of_team"),
            (&COUNTS, ids(), "tasks_context"),
            (&COUNTS_OF_KEY, ids().text("k"), "tasks_context_of_owner"),
            (&COUNTS_OF_TEAM, ids().text("t"), "tasks_context_of_team"),
            (&CONTEXTS, ids().text("t"), "tasks_context_of_team"),
            (&CONTEXTS, ids().text("t"), "tasks_context_teams"),
        ] {
            let plan = plan(&store, statement, args).await;
            let is_scan = ["Seq Scan on tasks", "Seq Scan on task_state"].iter().any(|scan| plan.contains(scan));
            assert!(plan.contains(&format!("{index} ")) && !is_scan, "{plan}");
        }
    }
    store.close().await;
}

/// Checks a list by end among very many tasks that failed long ago and one that failed just now and is the oldest.
async fn check_ended(url: String) {
    let store = Store::open(&StoreOptions { url: url.clone(), max_connections: 2 }).await.unwrap();
    store.migrate().await.unwrap();
    execute(&store, &url, |kind| {
        let id = if kind == Kind::Sqlite { "randomblob(16)" } else { "gen_random_uuid()" };
        format!(
            "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {CROWD}) INSERT INTO tasks (id, context_id, agent_slug, \
            prompt, context_hints, timeout_sec, budget, desired_format, max_attempts, priority, depends_on, labels, session) \
            SELECT {id}, 'c', 'coder', 'p', '[]', 120, 0, 'text', 3, 5, '[]', '{{}}', 'none' FROM n"
        )
    })
    .await;
    execute(&store, &url, |_| {
        "INSERT INTO task_state (id, context_id, agent_slug, rank, max_attempts, timeout_sec, has_dependencies, status, updated_at, attempts, \
        infra_retries, lease_count, cancel_requested, has_dependents, event_count, event_seq, session, finished_at) SELECT id, context_id, \
        agent_slug, 4, 3, 120, false, 'failed', 1, 0, 0, 0, false, false, 0, -1, 'none', \
        CASE WHEN id = (SELECT id FROM tasks ORDER BY id LIMIT 1) THEN 1000 ELSE 1 END FROM tasks"
            .to_owned()
    })
    .await;
    execute(&store, &url, |kind| if kind == Kind::Postgres { "ANALYZE tasks; ANALYZE task_state" } else { "SELECT 1" }.to_owned()).await;
    let page = Page { limit: 9, before: None };
    for (status, agent) in [(None, None), (Some(Status::Failed), None), (None, Some("coder")), (Some(Status::Failed), Some("coder"))] {
        let filter = TaskFilter { status, agent_slug: agent.map(str::to_owned), finished_after: Some(1), ..TaskFilter::default() };
        assert_eq!(store.task_sizes(&filter, &page).await.unwrap().rows.len(), 1, "{filter:?}");
        assert_eq!(store.task_ids(&filter, &page).await.unwrap().len(), 1, "{filter:?}");
        for wanted in [Wanted::Sizes, Wanted::Ids] {
            let (statement, args) = filter.statement(NEWEST, 9, wanted);
            let text = statement.text(store.kind()).as_str().to_owned();
            match store.kind() {
                // The statement could not be prepared if the index was not usable.
                Kind::Sqlite => assert!(text.contains("INDEXED BY task_state_finished"), "{text}"),
                Kind::Postgres => {
                    let plan = plan(&store, &statement, args).await;
                    assert!(plan.contains("task_state_finished ") && !plan.contains("Seq Scan"), "{plan}");
                }
            }
        }
    }
    for project in ["big", "small"] {
        let ids = if project == "big" { "id > (SELECT id FROM tasks ORDER BY id LIMIT 1)" } else { "project IS NULL" };
        execute(&store, &url, |_| format!("UPDATE tasks SET project = '{project}' WHERE {ids}")).await;
    }
    execute(&store, &url, |kind| if kind == Kind::Postgres { "ANALYZE tasks" } else { "SELECT 1" }.to_owned()).await;
    let filter = TaskFilter { project: Some("small".into()), ..TaskFilter::default() };
    assert_eq!(store.task_ids(&filter, &page).await.unwrap().len(), 1);
    let (statement, args) = filter.statement(NEWEST, 9, Wanted::Sizes);
    let sql = Sql::new(|kind| format!("EXPLAIN QUERY PLAN {}", statement.text(kind).as_str()));
    let plan = match store.kind() {
        Kind::Sqlite => {
            let step = |row: &mut Cells| (0..3).try_for_each(|_| row.take::<i64>().map(drop)).and_then(|()| row.take::<String>());
            all(&store.pool().fetch(&sql, args).await.unwrap(), step).unwrap().join("\n")
        }
        Kind::Postgres => plan(&store, &statement, args).await,
    };
    assert!(plan.contains("tasks_project "), "{plan}");
    store.close().await;
}

fn sqlite() -> String {
    format!("sqlite:{}", janitor::new_path("plans").join("bloom.db").display())
}

#[test]
fn on_sqlite() {
    run(check(sqlite()));
    run(check_contexts(sqlite()));
    run(check_ended(sqlite()));
}

#[test]
#[ignore = "needs PostgreSQL, which tests/run unit installs"]
fn on_postgresql() {
    run(check(postgres::database()));
    run(check_contexts(postgres::database()));
    run(check_ended(postgres::database()));
}
