//! The plan of a run, which follows from its seed.

use crate::shared::{Dice, FaultRates};

#[derive(Clone, Debug)]
pub struct Plan {
    pub seed: u64,
    pub replicas: usize,
    pub workers: usize,
    pub creators: usize,
    /// The length of the phase of faults, in seconds.
    pub fault_phase_sec: u64,
    pub fault_rates: FaultRates,
    /// The average time between two faults of each kind, in seconds; `None` if the kind does not occur.
    pub freezes: Option<u64>,
    pub kills: Option<u64>,
    pub outages: Option<u64>,
    pub clock_steps: Option<u64>,
    pub row_locks: Option<u64>,
    pub operators: Option<u64>,
    pub session_wait_ms: i64,
    pub named_agent_wait_ms: i64,
}

impl Plan {
    pub fn of(seed: u64) -> Self {
        let mut dice = Dice::new(seed ^ 0x5851_f42d_4c95_7f2d);
        let mut often = |percent: u64, low: u64, high: u64| {
            let is_there = dice.chance(percent);
            let every = dice.between(low, high);
            is_there.then_some(every)
        };
        let (freezes, kills, outages) = (often(45, 3, 10), often(35, 6, 15), often(30, 8, 20));
        let (clock_steps, operators) = (often(25, 8, 20), often(70, 1, 4));
        let fault_rates = FaultRates {
            latency_ms: *dice.pick(&[1, 2, 10, 40]),
            slow_percent: *dice.pick(&[0, 0, 1, 4]),
            doubt_per_mille: *dice.pick(&[0, 0, 5, 40]),
            lost_percent: *dice.pick(&[0, 30, 100]),
        };
        Self {
            seed,
            replicas: dice.between(1, 3) as usize,
            workers: dice.between(2, 5) as usize,
            creators: dice.between(1, 3) as usize,
            fault_phase_sec: dice.between(8, 25),
            fault_rates,
            freezes,
            kills,
            outages,
            clock_steps,
            operators,
            session_wait_ms: *dice.pick(&[0, 3_000]),
            named_agent_wait_ms: *dice.pick(&[0, 3_000]),
            row_locks: dice.chance(30).then(|| dice.between(3, 10)),
        }
    }

    /// The same plan with one replica and without row locks, for a database that is not shared.
    pub fn alone(self) -> Self {
        Self { replicas: 1, row_locks: None, ..self }
    }
}
