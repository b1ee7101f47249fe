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
mod connected;
mod frame;
mod hostinfo;
mod identity;
mod import;
mod loading;
mod lock;
mod log;
mod merged;
mod names;
mod nodes;
pub mod object;
mod places;
mod policies;
mod presence;
mod refusal;
mod register;
mod request;
mod routes;
pub mod secret;
mod session;
mod settings;
mod shown;
mod sign_in;
mod slow_hash;
mod ssh_checks;
mod state;
mod telling;
mod time;
mod timers;
mod undo;
mod waiting;
mod why;
mod witnesses;

pub use self::{
    addresses::{Allocation, Prefixes},
    admin::NewKey,
    audit::{
        AuditHash, ChainFault, KEPT as KEPT_AUDIT, check_chain, read_line as read_audit_line,
        shown as audit_line,
    },
    blocks::Block,
    cache::Cache,
    frame::{Frame, FrameKey, Part},
    hostinfo::Hostinfo,
    identity::is_same_issuer,
    import::{Changed, Import, Imported, Skipped},
    loading::LoadError,
    lock::{Asked as LockAsked, LockStatus, Refusal as LockRefusal},
    names::is_label,
    policies::Judged,
    presence::StreamId,
    refusal::Refusal,
    register::{Admission, Registered, Registering, Waiting},
    request::{MapRequest, RegisterRequest},
    session::{Polled, Session},
    settings::{Dns, Settings},
    sign_in::Profile,
    slow_hash::Unproved,
    ssh_checks::{SshLogin, SshOutcome},
    state::{NodeView, State},
    time::{NO_TIME, Time},
    undo::Redo,
    why::Step,
    witnesses::{Watched, Witness},
};
