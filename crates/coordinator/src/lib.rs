//! The state of a network, and the maps that its nodes receive. The crate does no I/O: time is passed as values,
//! and the caller makes secrets and random numbers.
//!
//! ```text
//!   commands ──► State ──► writes    the store must have them before changes are published
//!                  │  └──► Log       changes, in order
//!                  ▼
//!   Session: one stream of maps. Reads the log from its last position, and has the set of known peers
//!                  └──► Frame: parts of JSON, each rendered once and shared by all streams
//! ```
//!
//! A command is a method of [`State`]. [`State::take_writes`] returns the objects to store. Streams see the
//! changes after [`State::publish`], which the caller calls when the objects are stored.
//! [`State::handle_timeout`] does the work that is due at a time.

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
