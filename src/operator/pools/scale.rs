//! Decides how many pods a pool should have, and what to do with its present pods. All functions are pure.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use bloom_core::ids::TaskId;

/// The most pods that are created at a time.
const BATCH: usize = 16;

/// A pool shrinks only if two counts allow it that are this far apart. A single count misses a task that has left the queue and of whose
/// lease this replica has not heard yet.
const COUNTED_AGAIN_AFTER: Duration = Duration::from_secs(1);

/// Why a pod is being drained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Drain {
    /// There are more pods than wanted.
    Surplus,
    /// The pod does not match the current template of the pool.
    Outdated,
}

impl Drain {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Surplus => "surplus",
            Self::Outdated => "outdated",
        }
    }

    pub(crate) fn read(word: &str) -> Self {
        if word == "outdated" { Self::Outdated } else { Self::Surplus }
    }
}

/// The stage of a pod's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Its worker is not online (yet).
    Starting,
    /// Its worker is online.
    Online,
    /// It has ended, and does not start again by itself.
    Ended,
    /// It is being deleted.
    Terminating,
    /// It should have been gone for a while, so its node does not answer.
    Stuck,
}

/// The relevant properties of a pod.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PodState {
    pub ordinal: u32,
    pub phase: Phase,
    /// Whether it was made from the current template.
    pub is_current: bool,
    pub drain: Option<Drain>,
    pub leases: usize,
    /// Whether its worker gets new tasks.
    pub is_open: bool,
}

impl PodState {
    pub(crate) fn is_online(&self) -> bool {
        self.phase == Phase::Online
    }

    fn is_alive(&self) -> bool {
        matches!(self.phase, Phase::Starting | Phase::Online)
    }

    /// Whether the pod stays, or is replaced by another one with its number.
    pub(crate) fn is_kept(&self) -> bool {
        self.phase != Phase::Stuck && self.drain != Some(Drain::Surplus)
    }
}

/// One step towards the desired state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Create(u32),
    /// Drain the pod.
    Drain(u32, Drain),
    /// Cordon the worker of a pod that is being drained. It registered since, or somebody uncordoned it.
    Cordon(u32),
    /// Take the pod back into service.
    Keep(u32),
    /// Delete the pod, unless its worker has a task after all.
    Remove(u32),
    /// Delete a pod that has ended by itself.
    Clear(u32),
}

/// The steps towards `desired` running pods of the current template.
pub(crate) fn steps(desired: usize, pods: &[PodState]) -> Vec<Step> {
    let kept: Vec<&PodState> = pods.iter().filter(|pod| pod.is_kept()).collect();
    let alive: Vec<&PodState> = kept.iter().filter(|pod| pod.is_alive()).copied().collect();
    let mut steps: Vec<Step> = pods.iter().filter(|pod| pod.phase == Phase::Ended).map(|pod| Step::Clear(pod.ordinal)).collect();
    if alive.len() > desired {
        steps.extend(surplus(&alive, alive.len() - desired));
    } else if kept.len() < desired {
        let back = drained(pods, desired - kept.len());
        let created = desired - kept.len() - back.len();
        steps.extend(back);
        steps.extend(free_ordinals(pods).take(created.min(BATCH)).map(Step::Create));
    } else if kept.len() == desired {
        steps.extend(replacements(&kept));
    }
    let is_drained = |pod: &&PodState| pod.is_alive() && pod.drain.is_some() && !steps.contains(&Step::Keep(pod.ordinal));
    let of_drained: Vec<Step> = pods.iter().filter(is_drained).filter_map(of_drained).collect();
    steps.extend(of_drained);
    steps
}

fn of_drained(pod: &PodState) -> Option<Step> {
    match (pod.leases, pod.is_open) {
        (0, _) => Some(Step::Remove(pod.ordinal)),
        (_, true) => Some(Step::Cordon(pod.ordinal)),
        (_, false) => None,
    }
}

/// The pods to take out of service: those that are not online, then those that are being replaced anyway, then those with
/// the fewest tasks, then those with the highest numbers.
fn surplus(alive: &[&PodState], count: usize) -> Vec<Step> {
    let mut candidates = alive.to_vec();
    candidates.sort_by_key(|pod| (pod.phase == Phase::Online, pod.drain.is_none(), pod.leases, std::cmp::Reverse(pod.ordinal)));
    candidates.into_iter().take(count).map(|pod| Step::Drain(pod.ordinal, Drain::Surplus)).collect()
}

/// The surplus pods to take back into service: those of the current template, then those that are busy, then those with the lowest numbers.
fn drained(pods: &[PodState], count: usize) -> Vec<Step> {
    let mut candidates: Vec<&PodState> = pods.iter().filter(|pod| pod.is_alive() && pod.drain == Some(Drain::Surplus)).collect();
    candidates.sort_by_key(|pod| (!pod.is_current, pod.leases == 0, pod.ordinal));
    candidates.into_iter().take(count).map(|pod| Step::Keep(pod.ordinal)).collect()
}

/// The pods to replace. Those whose workers are not online are replaced at once. The others are replaced one at a time, and only while all
/// pods are online. A pod that matches the template again is kept.
fn replacements(kept: &[&PodState]) -> Vec<Step> {
    let is_current_again = |pod: &&&PodState| pod.is_alive() && pod.is_current && pod.drain.is_some();
    let mut steps: Vec<Step> = kept.iter().filter(is_current_again).map(|pod| Step::Keep(pod.ordinal)).collect();
    let outdated = || kept.iter().filter(|pod| pod.is_alive() && !pod.is_current && pod.drain.is_none());
    let drain = |pod: &&PodState| Step::Drain(pod.ordinal, Drain::Outdated);
    steps.extend(outdated().filter(|pod| pod.phase == Phase::Starting).map(drain));
    if steps.is_empty() && kept.iter().all(|pod| pod.phase == Phase::Online && pod.drain.is_none()) {
        steps.extend(outdated().min_by_key(|pod| (pod.leases > 0, std::cmp::Reverse(pod.ordinal))).map(drain));
    }
    steps
}

/// The lowest numbers that no pod has.
fn free_ordinals(pods: &[PodState]) -> impl Iterator<Item = u32> + use<> {
    let taken: BTreeSet<u32> = pods.iter().map(|pod| pod.ordinal).collect();
    (0..).filter(move |ordinal| !taken.contains(ordinal))
}

/// The number of tasks that the pool holds or could take. A task may have been leased since the ready tasks were read, and is then in both
/// lists, but counts once.
pub(crate) fn tasks(ready: &[TaskId], leased: impl Iterator<Item = TaskId>) -> i64 {
    let all: BTreeSet<TaskId> = ready.iter().copied().chain(leased).collect();
    i64::try_from(all.len()).unwrap_or(i64::MAX)
}

/// How many pods are enough for this many tasks.
pub(crate) fn recommended(tasks: i64, slots: i64, min: i64, max: i64) -> usize {
    let slots = slots.max(1);
    let enough = tasks.max(0).saturating_add(slots - 1) / slots;
    usize::try_from(enough.min(max).max(min)).unwrap_or(0)
}

/// Since when fewer pods have been enough, and the most pods that were needed since then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Surplus {
    since: Instant,
    most: usize,
}

/// The number of pods of an autoscaled pool, which grows at once and shrinks after the delay. Also returns when to look again.
pub(crate) fn with_delay(
    recommended: usize,
    current: usize,
    surplus: &mut Option<Surplus>,
    now: Instant,
    delay: Duration,
) -> (usize, Option<Duration>) {
    if recommended >= current {
        *surplus = None;
        return (recommended, None);
    }
    let delay = delay.max(COUNTED_AGAIN_AFTER);
    let seen = surplus.get_or_insert(Surplus { since: now, most: recommended });
    seen.most = seen.most.max(recommended);
    let left = delay.saturating_sub(now.saturating_duration_since(seen.since));
    if !left.is_zero() {
        return (current, Some(left));
    }
    let enough = seen.most;
    // If even fewer pods are enough now, that must also last for the delay.
    *surplus = (enough > recommended).then_some(Surplus { since: now, most: recommended });
    (enough, (enough > recommended).then_some(delay))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(ordinal: u32) -> PodState {
        PodState { ordinal, phase: Phase::Online, is_current: true, drain: None, leases: 0, is_open: true }
    }

    fn busy(ordinal: u32) -> PodState {
        PodState { leases: 1, ..pod(ordinal) }
    }

    fn marked(drain: Drain, pod: PodState) -> PodState {
        PodState { drain: Some(drain), is_open: false, ..pod }
    }

    fn old(pod: PodState) -> PodState {
        PodState { is_current: false, ..pod }
    }

    fn at(phase: Phase, pod: PodState) -> PodState {
        PodState { phase, ..pod }
    }

    #[test]
    fn missing_pods_get_the_lowest_free_numbers() {
        assert_eq!(steps(3, &[pod(1)]), [Step::Create(0), Step::Create(2)]);
        assert_eq!(steps(1_000, &[]).len(), BATCH);
        assert_eq!(steps(0, &[]), []);
    }

    #[test]
    fn pods_with_few_tasks_go_first_then_those_with_high_numbers() {
        assert_eq!(steps(2, &[pod(0), busy(1), busy(2)]), [Step::Drain(0, Drain::Surplus)]);
        assert_eq!(steps(1, &[pod(0), pod(1), busy(2)]), [Step::Drain(1, Drain::Surplus), Step::Drain(0, Drain::Surplus)]);
        assert_eq!(steps(1, &[busy(0), PodState { leases: 2, ..busy(1) }]), [Step::Drain(0, Drain::Surplus)]);
        assert_eq!(steps(1, &[at(Phase::Starting, pod(0)), pod(1)]), [Step::Drain(0, Drain::Surplus)]);
        // Pods that are about to go anyway are counted first.
        for phase in [Phase::Ended, Phase::Terminating, Phase::Stuck] {
            assert!(!steps(1, &[pod(0), at(phase, pod(1))]).contains(&Step::Drain(0, Drain::Surplus)), "{phase:?}");
        }
        let draining = old(marked(Drain::Outdated, busy(0)));
        assert_eq!(steps(1, &[draining, pod(1)]), [Step::Drain(0, Drain::Surplus)]);
    }

    #[test]
    fn a_drained_worker_that_gets_tasks_is_cordoned() {
        let open = PodState { is_open: true, ..marked(Drain::Surplus, busy(1)) };
        assert_eq!(steps(1, &[pod(0), open]), [Step::Cordon(1)]);
    }

    #[test]
    fn a_pod_that_is_current_again_stays() {
        assert_eq!(steps(1, &[marked(Drain::Outdated, busy(0))]), [Step::Keep(0)]);
    }

    #[test]
    fn a_drained_pod_goes_when_it_is_idle() {
        assert_eq!(steps(1, &[pod(0), marked(Drain::Surplus, busy(1))]), []);
        assert_eq!(steps(1, &[pod(0), marked(Drain::Surplus, pod(1))]), [Step::Remove(1)]);
        assert_eq!(steps(0, &[at(Phase::Terminating, marked(Drain::Surplus, pod(1)))]), []);
    }

    #[test]
    fn drained_pods_come_back_before_new_ones_are_created() {
        let pods = [pod(0), marked(Drain::Surplus, pod(1)), marked(Drain::Surplus, busy(2)), old(marked(Drain::Surplus, busy(3)))];
        assert_eq!(steps(2, &pods), [Step::Keep(2), Step::Remove(1)]);
        assert_eq!(steps(5, &pods), [Step::Keep(2), Step::Keep(1), Step::Keep(3), Step::Create(4)]);
    }

    #[test]
    fn outdated_pods_are_replaced_one_at_a_time() {
        assert_eq!(steps(2, &[old(busy(0)), old(pod(1))]), [Step::Drain(1, Drain::Outdated)]);
        // A pod that is being drained keeps its place until it is gone.
        assert_eq!(steps(2, &[old(pod(0)), old(marked(Drain::Outdated, busy(1)))]), []);
        assert_eq!(steps(2, &[old(pod(0)), old(marked(Drain::Outdated, pod(1)))]), [Step::Remove(1)]);
        assert_eq!(steps(2, &[old(pod(0)), at(Phase::Terminating, old(marked(Drain::Outdated, pod(1))))]), []);
        assert_eq!(steps(2, &[old(pod(0))]), [Step::Create(1)]);
        assert_eq!(steps(2, &[old(pod(0)), at(Phase::Starting, pod(1))]), [], "the new one has to work");
        assert_eq!(steps(2, &[old(pod(0)), pod(1)]), [Step::Drain(0, Drain::Outdated)]);
    }

    #[test]
    fn broken_outdated_pods_are_replaced_at_once() {
        let pods = [old(pod(0)), at(Phase::Starting, old(pod(1))), at(Phase::Starting, old(pod(2)))];
        assert_eq!(steps(3, &pods), [Step::Drain(1, Drain::Outdated), Step::Drain(2, Drain::Outdated)]);
    }

    #[test]
    fn a_pod_that_has_ended_is_cleared_and_keeps_its_place() {
        assert_eq!(steps(1, &[at(Phase::Ended, pod(0))]), [Step::Clear(0)]);
        assert_eq!(steps(0, &[at(Phase::Ended, pod(0))]), [Step::Clear(0)]);
    }

    #[test]
    fn a_pod_on_a_lost_node_is_replaced_under_another_number() {
        assert_eq!(steps(2, &[pod(0), at(Phase::Terminating, pod(1))]), []);
        assert_eq!(steps(2, &[pod(0), at(Phase::Stuck, pod(1))]), [Step::Create(2)]);
    }

    #[test]
    fn each_task_is_counted_once() {
        let [one, two, three] = [1, 2, 3].map(TaskId::from_u128);
        assert_eq!(tasks(&[one, two], [two, three].into_iter()), 3);
    }

    #[test]
    fn slots_are_filled() {
        assert_eq!(recommended(0, 1, 0, 10), 0);
        assert_eq!(recommended(5, 2, 0, 10), 3);
        assert_eq!(recommended(5, 2, 4, 10), 4);
        assert_eq!(recommended(i64::MAX, 1, 0, 10), 10);
    }

    #[test]
    fn shrinking_waits() {
        let (start, delay) = (Instant::now(), Duration::from_secs(60));
        let mut surplus = None;
        let mut look =
            |recommended, current, after: u64| with_delay(recommended, current, &mut surplus, start + Duration::from_secs(after), delay);
        assert_eq!(look(5, 2, 0), (5, None), "it grows at once");
        assert_eq!(look(1, 5, 10), (5, Some(delay)));
        assert_eq!(look(3, 5, 40), (5, Some(Duration::from_secs(30))));
        assert_eq!(look(1, 5, 70), (3, Some(delay)), "as many as were needed in the meantime");
        assert_eq!(look(1, 3, 100), (3, Some(Duration::from_secs(30))));
        assert_eq!(look(4, 3, 110), (4, None));
        assert_eq!(look(0, 4, 120), (4, Some(delay)), "it counts from the start again");
    }

    #[test]
    fn one_count_alone_shrinks_no_pool() {
        let start = Instant::now();
        let mut surplus = None;
        let mut look = |recommended, after| with_delay(recommended, 2, &mut surplus, start + after, Duration::ZERO);
        assert_eq!(look(1, Duration::ZERO), (2, Some(COUNTED_AGAIN_AFTER)));
        assert_eq!(look(2, Duration::from_millis(500)), (2, None), "the first count had missed a task");
        assert_eq!(look(1, Duration::from_secs(2)), (2, Some(COUNTED_AGAIN_AFTER)));
        assert_eq!(look(1, Duration::from_secs(3)), (1, None));
    }
}
