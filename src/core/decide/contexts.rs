//! Contexts: a client ends the conversation of one.

use crate::audit::{Action, Actor, EntityType};
use crate::operation::Operation;
use crate::row_keys::RowKeys;
use crate::working_set::{Halt, WorkingSet};

/// Makes the next run of a context begin a new session. A run that already has its lease goes on with its session.
#[derive(Clone, Debug)]
pub struct ResetContext {
    /// The context whose conversation ends. It does not need to have any tasks.
    pub context_id: String,
}

impl Operation for ResetContext {
    type Reply = ();

    fn is_placement(&self) -> bool {
        true
    }

    fn add_keys(&self, keys: &mut RowKeys) {
        keys.resets.insert(self.context_id.clone());
    }

    fn decide(&self, set: &mut WorkingSet) -> Result<(), Halt> {
        // Agents compare this time with the time of the session that they keep, so two resets of a context must not have the same time.
        let before = set.loaded.context_resets.get(&self.context_id);
        let reset_at = before.map_or(set.now(), |before| set.now().max(before + 1));
        set.audit(Action::ContextReset, EntityType::Context, &self.context_id, &Actor::Api, "");
        set.loaded.context_resets.insert(self.context_id.clone(), reset_at);
        set.dirty.context_resets.insert(self.context_id.clone());
        Ok(())
    }
}
