//! A whole network on virtual time: what administrators and machines do, and what each is told.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on ends")]

mod histories;
mod joining;
mod judging;
mod life;
mod lock;
mod names;
mod policy;
mod resuming;
mod revoking;
mod routing;
mod servers;
mod sign_in;
mod ssh_checks;
mod telling;
mod why;
mod world;
