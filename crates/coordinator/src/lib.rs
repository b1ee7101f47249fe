//! A network's state and what its members are told of it: pure. Time comes in as values, and what is
//! secret or random was made outside.
//!
//! ```text
//!   commands ──► State ──► writes    what the store must have before anybody is told
//!                  │  └──► Log       what changed, in order
//!                  ▼
//!   Session: one stream of maps. Reads the log from where it was, by the set of those it knows
//!                  └──► Frame: parts of JSON, each made once and shared by all that are told it
//! ```
//!
//! A command is a method of [`State`]; what it wants kept is taken by [`State::take_writes`], and
//! followers see what changed once [`State::publish`] says that it is kept. What time does is
//! [`State::handle_timeout`]'s.

#![forbid(unsafe_code)]

mod access;
mod addresses;
mod admin;
mod api_keys;
mod audit;
mod blocks;
mod cache;
mod connections;
mod frame;
mod hostinfo;
mod identity;
mod import;
mod load;
mod log;
mod merged_changes;
mod names;
mod node_index;
mod node_json;
mod node_updates;
mod nodes;
pub mod object;
mod pending;
mod policies;
mod presence;
mod reachability;
mod refusal;
mod register;
mod request;
mod router_probes;
mod routes;
pub mod secret;
mod session;
mod settings;
mod sign_in;
mod slow_hash;
mod ssh_checks;
mod state;
mod time;
mod timers;
mod tka;
mod undo;

pub use self::{
    addresses::{Allocation, Prefixes},
    admin::NewKey,
    audit::{
        AuditHash, ChainError, RECENT_ENTRIES as RECENT_AUDIT_ENTRIES, check_chain,
        parse_line as parse_audit_line, to_line as audit_line,
    },
    blocks::Block,
    cache::Cache,
    frame::{Frame, FrameKey, Part},
    hostinfo::Hostinfo,
    identity::is_same_issuer,
    import::{Adjustment, Import, ImportOutcome, SkipReason},
    load::LoadError,
    names::is_label,
    policies::PolicyReview,
    presence::StreamId,
    reachability::ReachabilityStep,
    refusal::Refusal,
    register::{Admission, PendingRegistration, RegisterCommand, RegisterResponse},
    request::{MapRequest, RegisterRequest},
    router_probes::{ProbedRouter, Prober},
    session::{PollResult, Session},
    settings::{Dns, Settings},
    sign_in::Profile,
    slow_hash::UnverifiedKey,
    ssh_checks::{SshLogin, SshOutcome},
    state::{NodeView, State},
    time::{Time, ZERO_TIME},
    tka::{TkaRefusal, TkaRequest, TkaStatus},
    undo::Redo,
};
