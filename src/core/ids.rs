//! Identifiers. They are UUIDs of version 7, so that ids sort in the order of creation.

use uuid::{Builder, Uuid};

use super::Ms;

/// Identifies a task. It is never reused.
pub type TaskId = Uuid;
/// Identifies a lease: the fencing token of the run.
pub type LeaseId = Uuid;
/// A worker's id is its name.
pub type WorkerId = String;
/// Identifies an agent since its first start. It is kept as long as the agent's directory stays in place and its machine runs.
pub type InstanceId = Uuid;
/// Identifies a question of a run. The agent chooses it.
pub type QuestionId = Uuid;

/// Makes ids for one batch, in ascending order, from the batch's time and from random bits that the caller provides.
///
/// Ids of one source in the same millisecond differ by a counter; ids of two sources differ by their random bits.
#[derive(Clone, Debug)]
pub struct IdSource {
    now_ms: Ms,
    seed: u64,
    counter: u32,
}

/// How many ids one source can make per millisecond: its counter has 20 bits.
const PER_MS: u32 = 1 << 20;

impl IdSource {
    /// A source for a batch that begins at this time. `seed` must be random, and must differ between batches.
    pub fn new(now_ms: Ms, seed: u64) -> Self {
        Self { now_ms, seed, counter: 0 }
    }

    /// The next id, which sorts after all ids that the source has made.
    pub fn next_id(&mut self) -> Uuid {
        if self.counter == PER_MS {
            self.now_ms += 1;
            self.counter = 0;
        }
        let counter = self.counter;
        self.counter += 1;
        let random = self.draw();
        // The upper bits of the counter follow the time, then come its lower bits, then random bits. Ids of a batch therefore sort in the
        // order of creation.
        let mut tail = [0u8; 10];
        tail[0] = (counter >> 16) as u8 & 0x0f;
        tail[1] = (counter >> 8) as u8;
        tail[2] = (counter >> 2) as u8 & 0x3f;
        tail[3] = ((counter & 0x03) << 6) as u8 | (random >> 58) as u8;
        tail[4..10].copy_from_slice(&random.to_be_bytes()[2..8]);
        let millis = u64::try_from(self.now_ms).unwrap_or(0);
        Builder::from_unix_timestamp_millis(millis, &tail).into_uuid()
    }

    /// The time of the next id. It is later than the clock if an earlier change was stamped by a clock that was ahead.
    pub fn stamp(&self) -> Ms {
        self.now_ms
    }

    /// Makes later ids sort after this id, even if it was made in the same millisecond or by a clock that was ahead.
    pub fn rise_above(&mut self, id: Uuid) {
        // An imported id of another version would move the clock by thousands of years.
        if !has_time(id) {
            return;
        }
        let (made_at, counter) = (created_at(id), counter_of(id));
        if (made_at, counter) >= (self.now_ms, self.counter) {
            self.now_ms = made_at;
            self.counter = counter + 1;
        }
    }

    /// Makes later ids sort after all ids that the other source has made.
    pub fn rise_above_source(&mut self, other: &Self) {
        if (other.now_ms, other.counter) > (self.now_ms, self.counter) {
            self.now_ms = other.now_ms;
            self.counter = other.counter;
        }
    }

    /// Makes later ids have a time after this one.
    pub fn rise_past(&mut self, at: Ms) {
        if at >= self.now_ms {
            self.now_ms = at + 1;
            self.counter = 0;
        }
    }

    /// The next number of a well-mixed pseudorandom sequence (SplitMix64), for ids and for jitter.
    pub fn draw(&mut self) -> u64 {
        self.seed = self.seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.seed;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

/// Whether the id contains the time of its creation. The ids of imported rows may not.
pub fn has_time(id: Uuid) -> bool {
    id.get_version_num() == 7
}

/// The creation time that the id contains; `None` if it contains none.
pub fn time_of(id: Uuid) -> Option<Ms> {
    has_time(id).then(|| created_at(id))
}

/// The creation time that a version 7 id contains.
pub fn created_at(id: Uuid) -> Ms {
    (id.as_u128() >> 80) as Ms
}

/// The counter of the source that made the id. It is an arbitrary number for ids that another program made.
fn counter_of(id: Uuid) -> u32 {
    let bytes = id.as_bytes();
    u32::from(bytes[6] & 0x0f) << 16 | u32::from(bytes[7]) << 8 | u32::from(bytes[8] & 0x3f) << 2 | u32::from(bytes[9] >> 6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_rise_and_tell_their_time() {
        let mut ids = IdSource::new(1_700_000_000_123, 7);
        let mut last = ids.next_id();
        for _ in 0..100_000 {
            let id = ids.next_id();
            assert!(id > last, "{last} then {id}");
            assert_eq!(created_at(id), 1_700_000_000_123);
            assert_eq!(id.get_version_num(), 7);
            last = id;
        }
    }

    #[test]
    fn ids_rise_above_those_of_others() {
        let other = IdSource::new(1_700_000_000_200, 8).next_id();
        let mut ids = IdSource::new(1_700_000_000_123, 7);
        ids.rise_above(other);
        assert!(ids.next_id() > other);
        ids.rise_above(IdSource::new(1, 9).next_id());
        assert!(ids.next_id() > other);
        ids.rise_above(Uuid::from_u128(0xf47a_c10b_58cc_4372_a567_0e02_b2c3_d479));
        assert_eq!(ids.stamp(), 1_700_000_000_200, "an id without a time");
    }

    #[test]
    fn a_thousand_that_rise_above_each_other_stay_in_their_millisecond() {
        let mut ids = IdSource::new(1_700_000_000_123, 7);
        let mut last = ids.next_id();
        for _ in 0..1_000 {
            ids.rise_above(last);
            let id = ids.next_id();
            assert!(id > last);
            last = id;
        }
        assert_eq!(created_at(last), 1_700_000_000_123);
    }

    #[test]
    fn a_full_millisecond_runs_over_into_the_next() {
        let mut ids = IdSource::new(5, 7);
        ids.counter = PER_MS - 1;
        let last = ids.next_id();
        let next = ids.next_id();
        assert!(next > last);
        assert_eq!((created_at(last), created_at(next)), (5, 6));
        ids.rise_past(6);
        assert_eq!(ids.stamp(), 7);
    }
}
