//! The administrators' API: JSON over HTTP. It is served on a local socket, with access by file
//! permissions, and on the server's address, with an API key or a session of the page.
//!
//! ```text
//!   socket of commands ──┐
//!   listeners ── http ───┴─ admit (checks rights) ── routes ─┬─ own ──────────┬─ Admin::run ──► network, audit
//!                                                            └─ headscale's ──┘
//! ```
//!
//! Headscale's API runs the same commands: its routes convert requests and answers.

mod admit;
mod answer;
mod api_keys;
mod audit;
mod extract;
mod headscale;
mod health;
mod keys;
mod nodes;
mod openapi;
mod policy;
mod route;
mod routes;
mod socket;
mod ssh_logins;
mod tka;
mod users;
mod views;
mod why;

pub use self::{
    admit::{AccessRefusal, is_same_origin, session_of},
    routes::{listed_routes, router},
    socket::{bind, serve},
    ssh_logins::describe as describe_login,
};

/// Prefix of all paths.
pub const BASE: &str = "/api/";
/// Prefix of linerate's own paths.
pub const ROOT: &str = "/api/linerate/v1/";
/// Prefix of headscale's paths.
pub const HEADSCALE_ROOT: &str = "/api/v1/";
/// Maximum size of a request, in bytes: a policy of 4 MiB as JSON.
const LONGEST: usize = 8 << 20;
