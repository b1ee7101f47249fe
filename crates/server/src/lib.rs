//! Server for one or several networks: sockets and files around the crate `coordinator`.
//!
//! ```text
//!   serve ── starts the tenants, opens the listeners (tls, net)
//!
//!                      tenants (selects the network)
//!                         │
//!   http: listen ── router ──┬─ clients: ts2021 ── HTTP/2 ── machine ── map_stream ──┐
//!                            ├─ oidc (logins)                                        │
//!                            ├─ derp (relay)                                         ├─ network ── store
//!                            └─ admin: page, api ────────────────────────────────────┤
//!   socket of commands ───────────────── api                                         │
//!   clients: router_health, data_paths ── pings ── requests to clients ──────────────┘
//! ```
//!
//! `commands` and `program` are the command line, `configuration` the file, and `process` what surrounds
//! the server: sandbox, signals, log.

#![forbid(unsafe_code)]

pub mod admin;
mod clients;
mod clock;
mod commands;
pub mod configuration;
mod derp;
mod http;
mod net;
pub mod network;
mod oidc;
mod process;
pub mod program;
mod random;
pub mod serve;
pub mod store;
mod tenants;
mod tls;
