//! Policies for a small network.

#![expect(clippy::unwrap_used, reason = "a test ends with the first error")]

#[path = "small/changes.rs"]
mod changes;
#[path = "small/filters.rs"]
mod filters;
#[path = "small/forms.rs"]
mod forms;
#[path = "small/guards.rs"]
mod guards;
#[path = "small/logins.rs"]
mod logins;
#[path = "small/naive.rs"]
mod naive;
#[path = "small/network.rs"]
mod network;
#[path = "small/refusals.rs"]
mod refusals;
