//! A whole network on virtual time: what administrators and machines do, and what each is told.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on ends")]

mod histories;
mod joining;
mod lifecycle;
mod names;
mod policy;
mod policy_review;
mod reachability;
mod resuming;
mod revoking;
mod routing;
mod servers;
mod sign_in;
mod simulation;
mod ssh_checks;
mod tka;
mod updates;
