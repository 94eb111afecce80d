//! Confines the processes of a run: the sandbox that bubblewrap makes, the hosts that a run may reach, and checks at the agent's start that
//! both work on this machine.

pub(crate) mod bubblewrap;
pub(crate) mod check;
pub(crate) mod confinement;
pub(crate) mod egress;
pub(crate) mod hardening;
pub(crate) mod run_command;
pub(crate) mod server_keys;
pub(crate) mod syscall_filter;
