//! What administrators ask, as JSON over HTTP: over a local socket, whose file says who may, and over
//! the server's own address, with an API key or from the page.
//!
//! ```text
//!   socket of commands ──┐
//!   listeners ── http ───┴─ admit (checks rights) ── routes ─┬─ own ──────────┬─ Desk::run ──► network, audit
//!                                                            └─ headscale's ──┘
//! ```
//!
//! Headscale's API runs the same commands: its routes convert requests and answers.

mod admit;
mod answer;
mod api_keys;
mod audit;
mod auth;
mod desk;
mod headscale;
mod health;
mod keys;
mod lock;
mod nodes;
mod openapi;
mod policy;
mod routes;
mod shown;
mod socket;
mod users;
mod why;

pub use self::{
    admit::{Arrival, Refused, is_from_here, session_of},
    auth::words as words_of_login,
    routes::{listed, router},
    socket::{bind, serve},
};

/// What all paths begin with.
pub const BASE: &str = "/api/";
/// What the own paths begin with.
pub const ROOT: &str = "/api/linerate/v1/";
/// What headscale's paths begin with.
pub const HEADSCALES: &str = "/api/v1/";
/// The longest request, in bytes: a policy of 4 MiB as JSON.
const LONGEST: usize = 8 << 20;
