//! The state of a network, and the maps that its nodes receive. The crate does no I/O: time is passed as values,
//! and the caller makes secrets and random numbers.
//!
//! ```text
//!   commands ──► State ──► owners of data: Nodes, Directory, Policies, Connections, Tka, …
//!                  └─────► Journal ──► writes    the store must have them before changes are published
//!                             └──────► Log       changes, in order
//!                                       ▼
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
mod api_keys;
mod audit;
mod audit_hash;
mod blocks;
mod cache;
mod change_log;
mod connections;
mod directory;
mod frame;
mod hostinfo;
mod identity;
mod import;
mod journal;
mod map_session;
mod merged_changes;
mod names;
mod node_index;
mod node_json;
mod nodes;
pub mod object;
mod pending;
mod policies;
mod refusal;
mod request;
mod routers;
pub mod secret;
mod settings;
mod ssh_checks;
mod state;
mod stored_object;
mod stream_handle;
mod tags;
mod time;
mod timers;
mod tka;

pub use self::{
    addresses::{Allocation, Prefixes},
    audit::{
        ChainError, RECENT_ENTRIES as RECENT_AUDIT_ENTRIES, check_chain,
        parse_line as parse_audit_line, to_line as audit_line,
    },
    audit_hash::AuditHash,
    blocks::Block,
    cache::Cache,
    connections::StreamId,
    frame::{Frame, FrameKey, Part},
    hostinfo::Hostinfo,
    identity::is_same_issuer,
    import::{Adjustment, Import, ImportOutcome, SkipReason},
    map_session::{PollResult, Session},
    names::is_label,
    nodes::NodeView,
    refusal::Refusal,
    request::{MapRequest, RegisterRequest},
    settings::{Dns, Settings},
    ssh_checks::{SshLogin, SshOutcome},
    state::{
        Admission, NewKey, PendingRegistration, PolicyReview, ProbedRouter, Prober, Profile,
        ReachabilityStep, Redo, RegisterCommand, RegisterResponse, State, TkaStatus, UnverifiedKey,
    },
    stored_object::LoadError,
    time::{Time, ZERO_TIME},
    tka::{TkaRefusal, TkaRequest},
};
