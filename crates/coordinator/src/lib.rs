//! A network's state and what its members are told of it: pure. Time comes in as values, and what is
//! secret or random was made outside.
//!
//! ```text
//!   commands ──► State ──► writes    what the store must have before anybody is told
//!                  │  └──► Log       what changed, in order
//!                  ▼
//!   Session: one stream of maps. Reads the log from where it was, by the bits of those it knows
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
mod bits;
mod blocks;
mod hostinfo;
mod import;
mod log;
mod names;
mod nodes;
pub mod object;
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
mod state;
mod telling;
mod time;
mod waiting;
mod why;

pub use self::{
    addresses::Prefixes,
    admin::NewKey,
    audit::KEPT as KEPT_AUDIT,
    blocks::Block,
    hostinfo::Hostinfo,
    import::{Import, Skipped},
    names::label,
    policies::Judged,
    presence::StreamId,
    refusal::Refusal,
    register::{Admission, Registered, Registering, Waiting},
    request::{MapRequest, RegisterRequest},
    session::{Frame, FrameKey, Part, Polled, Session},
    settings::{Dns, Settings},
    sign_in::Profile,
    slow_hash::Unproved,
    state::{LoadError, NodeView, State},
    time::{NO_TIME, Time},
    why::Step,
};
