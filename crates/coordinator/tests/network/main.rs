//! A whole network on virtual time: actions of administrators and machines, and the maps of each client.

#![expect(clippy::unwrap_used, reason = "a test ends with the first error")]

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
