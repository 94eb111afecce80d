//! Delays by the times in the database and in the answers, compared with the time of a commit in the same run.
//!
//! A delay may be as long as promised, plus some commits of that run, because both grow on a busy machine. The median and a high quantile
//! are compared with the same quantiles of the commits, so that one slow moment of the machine is no failure, but repeated slowness is.
//! That nothing happens early is checked for each value.

use std::collections::HashMap;

use super::checker::{ClaimTime, ClientLog, Link, SHARED_CONTEXT, plain};

/// While a claim is open, a ready task is leased within this many milliseconds.
const CLAIM_MS: i64 = 250;
/// The leader queries the database this often, independent of the feed.
const POLL_MS: i64 = 1_000;
/// Dependents are ready before the completion is answered, or at the leader's next run if the replica died before that.
const DEPENDENT_MS: i64 = POLL_MS;
/// The number of commits that a delay may take in addition: a due object may wait for others, and for a busy leader.
const COMMITS: i64 = 20;
/// The quantiles that are compared, in percent.
const QUANTILES: [usize; 2] = [50, 90];
/// After a fault, leases have a grace (here their TTL of two seconds), and a new leader is elected.
const SETTLES_MS: i64 = 2_000 + 3_000;
/// Fewer values than these are not compared.
const ENOUGH: usize = 5;

/// Delays in milliseconds.
#[derive(Debug, Default)]
pub struct Delays {
    commits: Vec<i64>,
    claims: Vec<i64>,
    expiries: Vec<i64>,
    timers: Vec<i64>,
    dependents: Vec<i64>,
}

/// A task that became ready once and was leased once.
struct Ready {
    agent: String,
    from: i64,
    until: i64,
}

pub async fn read(url: &str, told: &ClientLog) -> Delays {
    let mut link = Link::open(url).await;
    let calm = |from: i64, until: i64| told.fault_times.iter().all(|(begin, end)| until < *begin || from > end.saturating_add(SETTLES_MS));
    let commits = told.commits.iter().filter(|(from, until)| calm(*from, *until)).map(|(from, until)| until - from);
    let mut delays = Delays { commits: commits.collect(), ..Delays::default() };
    let expired = "SELECT CAST(expires_at AS TEXT), CAST(ended_at AS TEXT) FROM leases WHERE status = 'expired'";
    let timed = "SELECT CAST(not_before AS TEXT), CAST(ready_at AS TEXT), {hex:id} FROM task_state WHERE not_before IS NOT NULL \
        AND ready_at IS NOT NULL AND lease_count = 1";
    for row in link.rows(expired).await {
        let (from, until) = (number(&row[0]), number(&row[1]));
        delays.expiries.extend(calm(from, until).then_some(until - from));
    }
    for row in link.rows(timed).await {
        let (from, until) = (number(&row[0]), number(&row[1]));
        let was_made_before = created_at(&row[2]) < from;
        delays.timers.extend((was_made_before && calm(from, until)).then_some(until - from));
    }
    let dependents = "SELECT CAST(max(p.finished_at) AS TEXT), CAST(max(s.ready_at) AS TEXT), {hex:s.id} FROM task_deps d \
        JOIN task_state s ON s.id = d.task_id JOIN task_state p ON p.id = d.dep_id \
        WHERE s.ready_at IS NOT NULL AND s.lease_count = 1 AND s.exclusive_key IS NULL GROUP BY s.id";
    for row in link.rows(dependents).await {
        let (from, until) = (number(&row[0]), number(&row[1]));
        let was_made_before = created_at(&row[2]) < from;
        delays.dependents.extend((was_made_before && calm(from, until)).then_some(until - from));
    }
    let leased_once = format!(
        "SELECT s.agent_slug, CAST(s.ready_at AS TEXT), CAST(l.started_at AS TEXT) FROM task_state s JOIN leases l ON l.task_id = s.id \
         WHERE s.lease_count = 1 AND s.ready_at IS NOT NULL AND s.exclusive_key IS NULL AND s.context_id NOT LIKE '{SHARED_CONTEXT}%'"
    );
    let rows = link.rows(&leased_once).await;
    let ready = rows.iter().map(|row| Ready { agent: row[0].clone().expect("an agent"), from: number(&row[1]), until: number(&row[2]) });
    delays.claims = waits(&told.claims, &ready.collect::<Vec<_>>(), calm);
    delays
}

fn number(value: &Option<String>) -> i64 {
    value.as_deref().expect("a value").parse().expect("a number")
}

/// The creation time, with which an id begins.
fn created_at(id: &Option<String>) -> i64 {
    i64::from_str_radix(&plain(id.as_deref().expect("an id"))[..12], 16).expect("hex digits")
}

/// For each claim, the longest time during which it was open and a task for it was ready.
fn waits(claims: &[ClaimTime], ready: &[Ready], calm: impl Fn(i64, i64) -> bool) -> Vec<i64> {
    let mut of_agent: HashMap<&str, Vec<&Ready>> = HashMap::new();
    for task in ready {
        of_agent.entry(&task.agent).or_default().push(task);
    }
    let longest = |claim: &ClaimTime| {
        let fitting = claim.agents.iter().flat_map(|agent| of_agent.get(agent.as_str()).into_iter().flatten());
        fitting.map(|task| task.until.min(claim.answered) - task.from.max(claim.sent)).filter(|both| *both > 0).max()
    };
    claims.iter().filter(|claim| calm(claim.sent, claim.answered)).filter_map(longest).collect()
}

impl Delays {
    /// Whether there are enough values of each kind.
    pub fn are_enough(&self) -> bool {
        [&self.commits, &self.claims, &self.expiries, &self.timers, &self.dependents].iter().all(|delays| delays.len() >= ENOUGH)
    }

    /// Checks that nothing happens early and that what is due happens soon.
    pub fn are_short(&self) {
        for (what, delays) in [("leases", &self.expiries), ("timers", &self.timers), ("dependents", &self.dependents)] {
            assert!(delays.iter().all(|delay| *delay >= 0), "{what} before their time: {delays:?}");
        }
        self.check("ready tasks with a claim open", &self.claims, CLAIM_MS);
        self.check("leases past their end", &self.expiries, POLL_MS);
        self.check("tasks whose time has come", &self.timers, POLL_MS);
        self.check("tasks whose dependencies are done", &self.dependents, DEPENDENT_MS);
    }

    fn check(&self, what: &str, delays: &[i64], promised: i64) {
        assert!(delays.len() >= ENOUGH, "{what}: only {} values to compare", delays.len());
        for percent in QUANTILES {
            let (is, commit) = (quantile(delays, percent), quantile(&self.commits, percent).max(1));
            let limit = promised + COMMITS * commit;
            assert!(is <= limit, "{what}: {percent} % take up to {is} ms, and may take {limit} where a commit takes {commit}: {delays:?}");
        }
    }
}

fn quantile(values: &[i64], percent: usize) -> i64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    sorted.get((sorted.len() * percent / 100).min(sorted.len().saturating_sub(1))).copied().unwrap_or_default()
}

/// Tests of the comparison: it must find these faults.
mod finds {
    use super::*;

    fn short() -> Delays {
        Delays { commits: vec![2; 9], claims: vec![5; 9], expiries: vec![5; 9], timers: vec![5; 9], dependents: vec![0; 9] }
    }

    #[test]
    fn nothing_where_all_is_quick_but_once() {
        short().are_short();
        let mut delays = short();
        delays.claims.extend([5, 5, 60_000]);
        delays.are_short();
    }

    #[test]
    #[should_panic(expected = "ready tasks with a claim open: 50 % take")]
    fn claims_that_are_slow_as_a_rule() {
        Delays { claims: vec![5, 5, 5, 2_000, 2_000, 2_000, 2_000], ..short() }.are_short();
    }

    #[test]
    fn nothing_where_the_machine_is_slow() {
        Delays { commits: vec![90; 9], claims: vec![2_000; 9], ..short() }.are_short();
    }

    #[test]
    #[should_panic(expected = "leases past their end: 90 % take")]
    fn leases_that_linger_now_and_then() {
        Delays { expiries: vec![5, 5, 5, 5, 9_000], ..short() }.are_short();
    }

    #[test]
    #[should_panic(expected = "timers before their time")]
    fn a_timer_that_is_early() {
        Delays { timers: vec![5, 5, 5, 5, 5, -1], ..short() }.are_short();
    }

    #[test]
    #[should_panic(expected = "tasks whose dependencies are done: only 0")]
    fn that_there_was_nothing_to_judge() {
        Delays { dependents: Vec::new(), ..short() }.are_short();
    }

    #[test]
    fn how_long_a_claim_stood_beside_a_ready_task() {
        let claim = |agent: &str, sent, answered| ClaimTime { agents: vec![agent.into()], sent, answered };
        let ready = [Ready { agent: "a".into(), from: 100, until: 400 }];
        let claims = [claim("a", 0, 50), claim("a", 0, 250), claim("a", 200, 900), claim("b", 0, 900)];
        assert_eq!(waits(&claims, &ready, |_, _| true), [150, 200]);
        assert_eq!(waits(&claims, &ready, |from, _| from > 100), [200]);
    }
}
