//! Tests of what people install on a machine of their own: the static program, the services of OpenRC and systemd, and nginx in front.
//! `tests/run machine` builds and installs what they need.
// A failing test should panic right where it fails.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

// Tools that only the other tests use are not dead.
#[allow(dead_code, unused_imports)]
#[path = "../it/support/mod.rs"]
mod support;

mod alpine;
mod chroot;
mod nginx;
mod openrc;
mod packages;
mod program;
mod readme;
mod systemd;
