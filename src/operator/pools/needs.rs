//! What pods need to start: a valid key, and profiles.

use std::time::Instant;

use super::observe::{Seen, is_running};
use super::pod::Setup;
use super::scale::Phase;
use super::{LOOK_AFTER_PODS, Memory, Pools, Problem};
use crate::object::Error;

impl Pools {
    /// Checks every few seconds what pods need that are not online, and remembers what is missing. Online pods are left alone, because
    /// their agents have already read their keys and profiles.
    pub(super) async fn check_needs(&self, setup: &Setup<'_>, seen: &Seen, memory: &mut Memory) -> Result<(), Error> {
        if memory.checked.as_ref().is_some_and(|(at, _)| at.elapsed() < LOOK_AFTER_PODS) {
            return Ok(());
        }
        let mut problem = if setup.has_keys { self.mend_keys(setup, seen).await? } else { None };
        if problem.is_none() && seen.states.iter().any(|pod| pod.phase == Phase::Starting) {
            problem = self.agents(setup).await?.err();
        }
        memory.checked = Some((Instant::now(), problem));
        Ok(())
    }

    /// Repairs the keys of starting pods. Returns the problem if one can't be repaired.
    async fn mend_keys(&self, setup: &Setup<'_>, seen: &Seen) -> Result<Option<Problem>, Error> {
        let mut problem = None;
        for pod in seen.states.iter().filter(|pod| pod.phase == Phase::Starting && pod.is_current && pod.leases == 0) {
            match self.ensure_key(setup, pod.ordinal).await? {
                // An agent reads its key when it starts.
                Ok(true) => {
                    if let Some(running) = seen.pod(pod.ordinal).filter(|pod| is_running(pod)) {
                        self.delete(setup.identity, running).await?;
                    }
                }
                Ok(false) => {}
                Err(wrong) => problem = Some(wrong),
            }
        }
        Ok(problem)
    }
}
