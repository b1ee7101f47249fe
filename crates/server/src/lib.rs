//! The server of a network, or of several: sockets and files around the crate `coordinator`.
//!
//! ```text
//!                                networks (which is asked?)
//!   listeners (TLS, plain) ── http ──┬─ ts2021 ── HTTP/2 ── machine ── stream ──┐
//!                                    ├─ oidc                                    ├─ network ── store
//!                                    └─ derp                                    │
//!   routers, data_paths ── pings ── questions to clients, by their streams ─────┤
//!   socket of commands ── api ──────────────────────────────────────────────────┘
//!   stun
//!   metrics ── counted, health
//! ```

#![forbid(unsafe_code)]

mod acme;
mod address;
pub mod api;
mod body;
mod certificates;
mod clock;
pub mod commands;
pub mod configuration;
mod counted;
mod data_paths;
mod derp;
mod fair_turns;
mod fetch;
mod files;
mod health;
mod http;
pub mod import;
pub mod life;
mod listen;
mod lock;
pub mod log;
mod machine;
mod metrics;
pub mod network;
mod networks;
mod oidc;
mod own_address;
mod own_certificate;
mod page;
mod pings;
pub mod policy;
pub mod program;
mod remote_url;
mod roots;
mod routers;
pub mod sandbox;
pub mod serve;
mod sessions;
mod slow_hash;
pub mod store;
mod stream;
mod stun;
mod tls;
mod trusted;
mod ts2021;
mod visitors;
mod web_socket;
