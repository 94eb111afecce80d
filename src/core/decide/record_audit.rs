//! Records actions outside the database.

use crate::audit::{Action, Actor, EntityType};
use crate::operation::{Operation, Urgency};
use crate::working_set::{Halt, WorkingSet};

/// Only writes an audit entry, for an action outside the database.
#[derive(Clone, Debug)]
pub struct RecordAudit {
    /// What happened.
    pub action: Action,
    /// The kind of object that the entry is about.
    pub entity_type: EntityType,
    /// Which object the entry is about: its id or its name.
    pub entity_id: String,
    /// Who did it. If the request used a named key, the entry names the key instead.
    pub actor: Actor,
    /// Further details for people; may be empty.
    pub detail: String,
}

impl Operation for RecordAudit {
    type Reply = ();

    fn urgency(&self) -> Urgency {
        Urgency::Bulk
    }

    fn decide(&self, set: &mut WorkingSet) -> Result<(), Halt> {
        set.audit(self.action, self.entity_type, &self.entity_id, &self.actor, self.detail.clone());
        Ok(())
    }
}
