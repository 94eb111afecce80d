//! Every interleaving of a small control plane: two tasks, two workers with one slot each, two replicas that look up rows before they lock
//! them, at most two crashes, and workers whose messages arrive late, twice or never.
//!
//! Commands that look up ids before they lock rows (claims, lease calls, creation, re-evaluation) take two steps: `Begin` looks up,
//! `Finish` locks and decides on what was found; anything may happen in between. Other commands only read what they lock, so they take one
//! step. A worker may send what it knows at any time and as often as it likes, which covers late and duplicated messages.

mod choices;
mod print;
mod state;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex};

use stateright::{Checker, Model, Property};

use self::state::{Act, Ask, Given, State};
use bloom_core::ids::TaskId;
use bloom_core::task::{Outcome, Session, Status, TaskSpec, TaskState};
use bloom_test_world::world::{SESSION_WAIT_MS, START, spec, world};

const WORKERS: [&str; 2] = ["w0", "w1"];

/// The events that a model allows. Each option adds states.
struct Setting {
    first: TaskSpec,
    second: TaskSpec,
    /// The second task depends on the first.
    depends: bool,
    crashes: u8,
    /// Clients may cancel a task.
    cancels: bool,
    /// Clients may send lease calls.
    calls: bool,
    /// A leader pushes tasks to workers.
    pushes: bool,
    /// Runs may fail retryably.
    failures: bool,
    /// Clients may requeue one task.
    requeues: bool,
    /// Clients may postpone one task.
    edits: bool,
    /// Clients may suspend one task, and then resume it.
    suspends: bool,
    /// The next task of a session is reserved for the worker that has the session.
    reserves: bool,
    graph: Mutex<Graph>,
}

/// The explored states, by their prints.
#[derive(Default)]
struct Graph {
    seen: HashSet<u64>,
    /// The number of all transitions except crashes.
    steps: Vec<(u64, u64)>,
    /// The number of states in which every task is finished.
    ends: HashSet<u64>,
}

#[derive(Clone, Debug, PartialEq)]
enum Action {
    Begin(usize, Ask),
    Finish(usize),
    /// The process dies after its commit, so nobody gets the reply.
    FinishUnheard(usize),
    Do(Act),
    DoUnheard(Act),
}

impl Setting {
    fn new(first: TaskSpec, second: TaskSpec) -> Self {
        // Both replicas may get the request to create it.
        let second = TaskSpec { idempotency_key: Some("once".into()), ..second };
        Self {
            first,
            second,
            depends: false,
            crashes: 0,
            cancels: false,
            calls: false,
            pushes: false,
            failures: false,
            requeues: false,
            edits: false,
            suspends: false,
            reserves: false,
            graph: Mutex::default(),
        }
    }

    /// Explores all states, and checks that an end state can be reached from each of them without a crash.
    fn check(self) {
        let checker = self.checker().threads(2).spawn_bfs().join();
        checker.assert_properties();
        let graph = checker.model().graph.lock().unwrap();
        let mut back: HashMap<u64, Vec<u64>> = HashMap::new();
        for (from, to) in &graph.steps {
            back.entry(*to).or_default().push(*from);
        }
        let mut leads_on = graph.ends.clone();
        let mut open: Vec<u64> = leads_on.iter().copied().collect();
        while let Some(to) = open.pop() {
            open.extend(back.remove(&to).unwrap_or_default().into_iter().filter(|from| leads_on.insert(*from)));
        }
        let stuck = graph.seen.difference(&leads_on).count();
        assert!(stuck == 0 && !graph.ends.is_empty(), "no end state can be reached from {stuck} states");
    }
}

impl Model for Setting {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let mut world = WORKERS.iter().fold(world(), |world, worker| world.worker(worker, 1));
        let task = world.create(self.first.clone());
        world.db.audit.clear();
        let state = State {
            db: Arc::new(world.db),
            tasks: vec![task],
            leases: Vec::new(),
            replicas: [None, None],
            crashes: 0,
            cancelled: false,
            requeued: false,
            edited: false,
            suspended: false,
            session_wait_ms: if self.reserves { SESSION_WAIT_MS } else { 0 },
            now: START,
            commits: 0,
            print: 0,
        };
        vec![state.sealed(self)]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        let may_crash = state.crashes < self.crashes;
        for (replica, begun) in state.replicas.iter().enumerate() {
            if begun.is_some() {
                actions.push(Action::Finish(replica));
                if may_crash {
                    actions.push(Action::FinishUnheard(replica));
                }
            } else if !state.is_over() && (replica == 0 || state.replicas[0].is_some()) {
                // The replicas are interchangeable, so the second one begins something only while the first one is busy.
                actions.extend(self.asks(state).into_iter().map(|ask| Action::Begin(replica, ask)));
            }
        }
        if state.is_over() {
            return;
        }
        for act in self.acts(state) {
            actions.push(Action::Do(act.clone()));
            if may_crash {
                actions.push(Action::DoUnheard(act));
            }
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut next = last.clone();
        let crashed = matches!(action, Action::FinishUnheard(_) | Action::DoUnheard(_));
        let took_place = match action {
            Action::Begin(replica, ask) => {
                next.begin(self, replica, &ask);
                true
            }
            Action::Finish(replica) => next.finish(replica, true),
            Action::FinishUnheard(replica) => {
                next.crashes += 1;
                next.finish(replica, false)
            }
            Action::Do(act) => next.act(&act, true),
            Action::DoUnheard(act) => {
                next.crashes += 1;
                next.act(&act, false)
            }
        };
        let next = next.sealed(self);
        if !took_place || next.print == last.print {
            return None;
        }
        if !crashed {
            self.graph.lock().unwrap().steps.push((last.print, next.print));
        }
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("a worker never holds more tasks than its capacity", |_, state: &State| {
                WORKERS.iter().all(|worker| state.db.used(worker).count_ones() <= 1)
            }),
            Property::always("exactly the leased and running tasks have a lease", |_, state: &State| {
                state.db.tasks.values().all(|task| task.lease.is_some() == task.status.is_active())
            }),
            Property::always("an acknowledged completion is never lost", |_, state: &State| {
                let stored = |given: &Given| state.db.results.iter().filter(|result| result.lease_id == given.id).count();
                state
                    .leases
                    .iter()
                    .filter(|given| given.acknowledged)
                    .all(|given| stored(given) == 1 && state.db.past_leases[&given.id].completed)
            }),
            Property::always("a completed task has one success", |_, state: &State| {
                let won = |task: TaskId| {
                    state.db.results.iter().filter(|result| result.task_id == task && result.status == Outcome::Success).count()
                };
                state.db.tasks.values().all(|task| won(task.id) == usize::from(task.status == Status::Completed))
            }),
            Property::always("attempts stay within bounds", |_, state: &State| {
                let within = |attempts: i64, task: &TaskState| attempts >= 0 && attempts <= task.max_attempts;
                state
                    .db
                    .tasks
                    .values()
                    .all(|task| within(task.attempts, task) && (task.status != Status::Queued || task.attempts < task.max_attempts))
            }),
            Property::always("claims and pushes run one task of a session at a time", |_, state: &State| {
                let claimed = |task: &&TaskState| task.lease.as_ref().is_some_and(|lease| lease.origin.is_in_order());
                let mut contexts = BTreeSet::new();
                state
                    .db
                    .active()
                    .filter(claimed)
                    .filter(|task| task.session == Session::Context)
                    .all(|task| contexts.insert(&task.context_id))
            }),
            Property::always("a key is held once", |_, state: &State| {
                let mut keys = BTreeSet::new();
                state.db.active().filter_map(|task| task.exclusive_key.as_ref()).all(|key| keys.insert(key))
            }),
            Property::always("no worker may claim a suspended task", |_, state: &State| {
                let mut suspended = state.db.tasks.values().filter(|task| task.suspend);
                suspended.all(|task| WORKERS.iter().all(|worker| !task.is_open_to(worker)))
            }),
            Property::always("the counts match the tasks", |_, state: &State| {
                state.db.counts.values().sum::<i64>() == state.db.tasks.len() as i64
                    && state.db.counts.iter().all(|((agent, priority, status), count)| {
                        let is_counted = |task: &&TaskState| (&task.agent_slug, task.priority, task.status) == (agent, *priority, *status);
                        *count == state.db.tasks.values().filter(is_counted).count() as i64
                    })
            }),
            Property::sometimes("all tasks complete", |_, state: &State| {
                state.is_over() && state.db.tasks.values().all(|task| task.status == Status::Completed)
            }),
            Property::sometimes("a replica met a conflict", |_, state: &State| state.replicas.iter().flatten().any(|begun| begun.exact)),
            Property::sometimes("a late completion is accepted", |_, state: &State| {
                state.leases.iter().any(|given| {
                    given.acknowledged
                        && state.db.tasks[&given.task].last_lease.as_ref().is_some_and(|last| last.id == given.id)
                        && state.now > START
                })
            }),
        ]
    }
}

/// The task with this `max_attempts`.
fn tries(max_attempts: i64, spec: TaskSpec) -> TaskSpec {
    TaskSpec { max_attempts, ..spec }
}

fn alone(context: &str) -> TaskSpec {
    TaskSpec { session: Session::None, ..spec(context) }
}

#[test]
fn a_session_and_crashes() {
    Setting { crashes: 2, ..Setting::new(tries(2, spec("c")), tries(2, spec("c"))) }.check();
}

#[test]
fn a_session_with_reservations_and_a_crash() {
    Setting { reserves: true, crashes: 1, ..Setting::new(tries(2, spec("c")), tries(1, spec("c"))) }.check();
}

#[test]
fn a_session_and_failures() {
    Setting { failures: true, ..Setting::new(tries(2, spec("c")), tries(2, spec("c"))) }.check();
}

#[test]
fn a_session_with_lease_calls_a_crash_and_a_cancel() {
    Setting { calls: true, cancels: true, crashes: 1, ..Setting::new(tries(1, spec("c")), tries(1, spec("c"))) }.check();
}

#[test]
fn a_session_with_pushes_and_a_crash() {
    Setting { pushes: true, crashes: 1, ..Setting::new(tries(1, spec("c")), tries(1, spec("c"))) }.check();
}

#[test]
fn a_session_with_failures_a_crash_and_a_requeue() {
    Setting { requeues: true, crashes: 1, failures: true, ..Setting::new(tries(1, spec("c")), tries(1, spec("c"))) }.check();
}

#[test]
fn a_key_and_crashes() {
    let keyed = |context| TaskSpec { exclusive_key: Some("k".into()), ..alone(context) };
    Setting { crashes: 2, ..Setting::new(tries(2, keyed("a")), tries(1, keyed("b"))) }.check();
}

#[test]
fn a_key_in_a_session_with_a_cancel_and_a_crash() {
    let keyed = || TaskSpec { exclusive_key: Some("k".into()), ..spec("c") };
    Setting { cancels: true, crashes: 1, ..Setting::new(tries(1, keyed()), tries(1, keyed())) }.check();
}

#[test]
fn a_dependency_with_failures_and_crashes() {
    Setting { depends: true, crashes: 2, failures: true, ..Setting::new(tries(2, alone("a")), tries(1, alone("b"))) }.check();
}

#[test]
fn a_session_with_an_edit_and_a_crash() {
    Setting { edits: true, crashes: 1, ..Setting::new(tries(1, spec("c")), tries(1, spec("c"))) }.check();
}

#[test]
fn a_key_with_an_edit_and_a_crash() {
    let keyed = |context| TaskSpec { exclusive_key: Some("k".into()), ..alone(context) };
    Setting { edits: true, crashes: 1, ..Setting::new(tries(1, keyed("a")), tries(1, keyed("b"))) }.check();
}

#[test]
fn a_session_with_a_suspension_and_a_crash() {
    Setting { suspends: true, crashes: 1, ..Setting::new(tries(1, spec("c")), tries(1, spec("c"))) }.check();
}

#[test]
fn a_suspended_run_that_fails() {
    Setting { suspends: true, failures: true, ..Setting::new(tries(2, spec("c")), tries(1, spec("c"))) }.check();
}

#[test]
fn a_key_with_a_suspension_and_a_crash() {
    let keyed = |context| TaskSpec { exclusive_key: Some("k".into()), ..alone(context) };
    Setting { suspends: true, crashes: 1, ..Setting::new(tries(1, keyed("a")), tries(1, keyed("b"))) }.check();
}

#[test]
fn a_dependency_with_a_suspension_and_a_cancel() {
    Setting { depends: true, suspends: true, cancels: true, ..Setting::new(tries(1, alone("a")), tries(1, alone("b"))) }.check();
}
