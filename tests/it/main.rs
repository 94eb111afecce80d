//! Tests of the built program from outside: by HTTP, by the command line, and by its database.
//!
//! Expectations come from the HTTP contract, never from the code under test. Every test of behavior runs on both databases.
// A failing test should panic right where it fails.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

mod agent;
mod agents;
mod architecture;
mod audit;
mod auth;
mod backup;
mod budgets;
mod bulk;
mod cancel;
mod claim;
mod cli;
mod command_line;
mod completion;
mod concurrency;
mod config;
mod connections;
mod control_plane;
mod cross_site;
mod disk;
mod dispatch;
mod doctor;
mod edit;
mod events;
mod faults;
mod files;
mod ids;
mod install;
mod instances;
mod key_limits;
mod key_namespaces;
mod keys;
mod leases;
mod limits;
mod lists;
mod liveness;
mod liveness_clocks;
mod liveness_load;
mod liveness_replicas;
mod log_file;
mod membridge;
mod membridge_proxy;
mod metrics;
mod moving;
mod objects;
mod open_files;
mod openapi;
mod picking;
mod probes;
mod projects;
mod push;
mod questions;
mod queues;
mod readiness;
mod readme;
mod replicas;
mod reported;
mod requeue;
mod retention;
mod row_locks;
mod sessions;
mod suspend;
mod task_projects;
mod tasks;
mod timers;
mod tls;
mod traces;
mod usage;
mod watch;
mod web;
mod workers;
