//! The agent's access to its machine: it starts and ends processes, makes cgroups, and reads and removes directories in which runs may have
//! written anything. Nothing here knows about tasks.

pub(crate) mod boot_clock;
pub(crate) mod cgroup;
pub(crate) mod cgroup_check;
pub(crate) mod command;
pub(crate) mod disk_size;
pub(crate) mod environment;
pub(crate) mod host_info;
pub(crate) mod open_below;
pub(crate) mod process;
pub mod program;
pub(crate) mod removal;
pub(crate) mod reserve;
pub(crate) mod walk;
