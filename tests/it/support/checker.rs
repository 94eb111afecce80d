//! An independent check of the database, and a comparison with what clients were told.
//!
//! It shares no code with the program: it uses plain SQL and the log of the test's clients.

use std::collections::{HashMap, HashSet};

use sqlx::{AssertSqlSafe, Connection, PgConnection, Row, SqliteConnection};

/// The prefix of shared contexts, whose tasks run one after another.
pub const SHARED_CONTEXT: &str = "load-talk";

/// What the clients were told.
#[derive(Clone, Debug, Default)]
pub struct ClientLog {
    /// Tasks whose creation was acknowledged.
    pub created: Vec<String>,
    /// The task, lease and output of each acknowledged completion.
    pub completed: Vec<(String, String, String)>,
    /// The claims of workers without any task, by this machine's clock.
    pub claims: Vec<ClaimTime>,
    /// The start and the end of commits that wait for nothing else.
    pub commits: Vec<(i64, i64)>,
    /// The start and the end of each fault that the test caused.
    pub fault_times: Vec<(i64, i64)>,
}

/// An answered claim.
#[derive(Clone, Debug)]
pub struct ClaimTime {
    pub agents: Vec<String>,
    pub sent: i64,
    pub answered: i64,
}

/// The contents of the tables; ids are 32 hex digits.
#[derive(Debug, Default)]
pub struct Tables {
    pub tasks: HashSet<String>,
    /// By task: status, active lease, worker and slot.
    pub states: HashMap<String, State>,
    /// By lease: task and status.
    pub past_leases: HashMap<String, (String, String)>,
    pub results: Vec<ResultRow>,
}

#[derive(Debug)]
pub struct State {
    pub status: String,
    pub lease: Option<String>,
    pub worker: Option<String>,
    pub slot: Option<i64>,
}

#[derive(Debug)]
pub struct ResultRow {
    pub task: String,
    pub lease: String,
    pub status: String,
    pub output: Option<String>,
}

/// An id without hyphens, as the checker reads it from the database.
pub fn plain(id: &str) -> String {
    id.replace('-', "")
}

/// A connection of the checker's own.
pub enum Link {
    Sqlite(SqliteConnection),
    Postgres(PgConnection),
}

impl Link {
    pub async fn open(url: &str) -> Link {
        if url.starts_with("postgres") {
            Link::Postgres(PgConnection::connect(url).await.expect("PostgreSQL"))
        } else {
            Link::Sqlite(SqliteConnection::connect(url).await.expect("the SQLite file"))
        }
    }

    /// All values as text, so that both dialects are read in the same way. `{hex:id}` reads an id as hex digits.
    pub async fn rows(&mut self, sql: &str) -> Vec<Vec<Option<String>>> {
        let open = if matches!(self, Link::Sqlite(_)) { "lower(hex(" } else { "(replace(" };
        let close = if matches!(self, Link::Sqlite(_)) { "))" } else { "::text, '-', ''))" };
        let mut text = String::new();
        let mut rest = sql;
        while let Some((before, after)) = rest.split_once("{hex:") {
            let (column, tail) = after.split_once('}').expect("a closing brace");
            text.push_str(&format!("{before}CASE WHEN {column} IS NULL THEN NULL ELSE {open}{column}{close} END"));
            rest = tail;
        }
        text.push_str(rest);
        match self {
            Link::Sqlite(link) => {
                let rows = sqlx::query(AssertSqlSafe(text)).fetch_all(link).await.expect("rows");
                rows.iter().map(|row| (0..row.len()).map(|i| row.get(i)).collect()).collect()
            }
            Link::Postgres(link) => {
                let rows = sqlx::query(AssertSqlSafe(text)).fetch_all(link).await.expect("rows");
                rows.iter().map(|row| (0..row.len()).map(|i| row.get(i)).collect()).collect()
            }
        }
    }

    /// The number of rows.
    pub async fn count(&mut self, from_where: &str) -> i64 {
        let rows = self.rows(&format!("SELECT CAST(count(*) AS TEXT) FROM {from_where}")).await;
        rows[0][0].as_deref().expect("a count").parse().expect("a number")
    }
}

pub async fn read(url: &str) -> Tables {
    let mut link = Link::open(url).await;
    let mut tables = Tables::default();
    // Reads one snapshot, because leases end meanwhile.
    link.rows(match link {
        Link::Sqlite(_) => "BEGIN",
        Link::Postgres(_) => "BEGIN ISOLATION LEVEL REPEATABLE READ",
    })
    .await;
    for row in link.rows("SELECT {hex:id} FROM tasks").await {
        tables.tasks.extend(row[0].clone());
    }
    let states = "SELECT {hex:id}, status, {hex:lease_id}, worker_id, CAST(slot AS TEXT) FROM task_state";
    for row in link.rows(states).await {
        let slot = row[4].as_deref().map(|slot| slot.parse().expect("a slot number"));
        // The row keeps the lease and the worker of its last lease. They hold the task only if there is a slot.
        let held = |value: &Option<String>| slot.and(value.clone());
        let state = State { status: row[1].clone().expect("a status"), lease: held(&row[2]), worker: held(&row[3]), slot };
        tables.states.insert(row[0].clone().expect("an id"), state);
    }
    for row in link.rows("SELECT {hex:id}, {hex:task_id}, status FROM leases").await {
        let [lease, task, status] = [0, 1, 2].map(|i| row[i].clone().expect("a value"));
        tables.past_leases.insert(lease, (task, status));
    }
    for row in link.rows("SELECT {hex:task_id}, {hex:lease_id}, status, output FROM results").await {
        let [task, lease, status] = [0, 1, 2].map(|i| row[i].clone().expect("a value"));
        tables.results.push(ResultRow { task, lease, status, output: row[3].clone() });
    }
    tables
}

impl Tables {
    /// Checks the rules that must always hold.
    pub fn are_sound(&self) {
        let mut slots = HashSet::new();
        let mut leases = HashSet::new();
        for (id, state) in &self.states {
            let active = matches!(state.status.as_str(), "leased" | "running");
            assert_eq!(active, state.slot.is_some(), "task {id} has status {} and slot {:?}", state.status, state.slot);
            assert!(self.tasks.contains(id), "task {id} has a state but no spec");
            if let (Some(slot), Some(worker), Some(lease)) = (state.slot, &state.worker, &state.lease) {
                assert!((0..32).contains(&slot), "slot {slot}");
                assert!(slots.insert((worker, slot)), "slot {slot} of {worker} is taken twice");
                assert!(leases.insert(lease), "lease {lease} holds two tasks");
                assert!(!self.past_leases.contains_key(lease), "lease {lease} is active and over");
            }
        }
        assert_eq!(self.tasks.len(), self.states.len(), "every task has a state");
        let mut results = HashSet::new();
        for result in &self.results {
            assert!(results.insert(&result.lease), "lease {} has two results", result.lease);
            assert!(self.states.contains_key(&result.task), "a result without its task {}", result.task);
            let lease = self.past_leases.get(&result.lease);
            assert_eq!(lease.map(|(task, _)| task), Some(&result.task), "a result's lease is of its task");
        }
        let mut successes = HashSet::new();
        for result in self.results.iter().filter(|result| result.status == "success") {
            assert!(successes.insert(&result.task), "task {} succeeded twice", result.task);
            assert_eq!(self.states[&result.task].status, "completed", "task {} succeeded", result.task);
        }
    }

    /// Checks that everything that clients were told is stored.
    pub fn keep_what_was_told(&self, told: &ClientLog) {
        for id in &told.created {
            assert!(self.tasks.contains(&plain(id)), "task {id} was acknowledged and is gone");
        }
        let stored = self.results.iter().map(|result| (result.lease.as_str(), result)).collect::<HashMap<_, _>>();
        for (task, lease, output) in &told.completed {
            let result = stored.get(plain(lease).as_str()).unwrap_or_else(|| panic!("completion of {task} by {lease} is gone"));
            assert_eq!((&result.task, result.status.as_str()), (&plain(task), "success"));
            assert_eq!(result.output.as_ref(), Some(output), "the output of {task}");
        }
    }

    pub fn count(&self, status: &str) -> i64 {
        i64::try_from(self.states.values().filter(|state| state.status == status).count()).expect("few")
    }

    pub fn active_on(&self, worker: &str) -> usize {
        self.states.values().filter(|state| state.worker.as_deref() == Some(worker)).count()
    }
}

/// Tests of the checker: it must find each of these faults.
mod finds {
    use super::*;

    /// One task, completed by one lease, without any fault.
    fn sound() -> Tables {
        let state = State { status: "completed".into(), lease: None, worker: None, slot: None };
        let result = ResultRow { task: "t".into(), lease: "l".into(), status: "success".into(), output: Some("o".into()) };
        Tables {
            tasks: HashSet::from(["t".into()]),
            states: HashMap::from([("t".into(), state)]),
            past_leases: HashMap::from([("l".into(), ("t".into(), "released".into()))]),
            results: vec![result],
        }
    }

    fn held(lease: &str, slot: i64) -> State {
        State { status: "leased".into(), lease: Some(lease.into()), worker: Some("w".into()), slot: Some(slot) }
    }

    #[test]
    fn nothing_where_nothing_is() {
        sound().are_sound();
        let completed = vec![("t".into(), "l".into(), "o".into())];
        sound().keep_what_was_told(&ClientLog { created: vec!["t".into()], completed, ..ClientLog::default() });
    }

    #[test]
    #[should_panic(expected = "was acknowledged and is gone")]
    fn a_lost_task() {
        sound().keep_what_was_told(&ClientLog { created: vec!["u".into()], ..ClientLog::default() });
    }

    #[test]
    #[should_panic(expected = "completion of t by m is gone")]
    fn a_lost_completion() {
        sound().keep_what_was_told(&ClientLog { completed: vec![("t".into(), "m".into(), "o".into())], ..ClientLog::default() });
    }

    #[test]
    #[should_panic(expected = "has two results")]
    fn two_results_of_one_lease() {
        let mut tables = sound();
        let again = ResultRow { task: "t".into(), lease: "l".into(), status: "error".into(), output: None };
        tables.results.push(again);
        tables.are_sound();
    }

    #[test]
    #[should_panic(expected = "is taken twice")]
    fn two_leases_in_one_place() {
        let mut tables = sound();
        for (task, lease) in [("a", "x"), ("b", "y")] {
            tables.tasks.insert(task.into());
            tables.states.insert(task.into(), held(lease, 3));
        }
        tables.are_sound();
    }

    #[test]
    #[should_panic(expected = "holds two tasks")]
    fn two_tasks_of_one_lease() {
        let mut tables = sound();
        for (task, slot) in [("a", 1), ("b", 2)] {
            tables.tasks.insert(task.into());
            tables.states.insert(task.into(), held("x", slot));
        }
        tables.are_sound();
    }

    #[test]
    #[should_panic(expected = "is active and over")]
    fn a_lease_that_is_active_and_over() {
        let mut tables = sound();
        tables.tasks.insert("a".into());
        tables.states.insert("a".into(), held("l", 1));
        tables.are_sound();
    }
}
