//! The server of a network: sockets and files around the crate `coordinator`.
//!
//! ```text
//!   listeners (TLS, plain) ── http ──┬─ ts2021 ── HTTP/2 ── machine ── stream ──┐
//!                                    ├─ oidc                                    ├─ network ── store
//!                                    └─ derp                                    │
//!   socket of commands ── api ──────────────────────────────────────────────────┘
//!   stun
//! ```

#![forbid(unsafe_code)]

mod address;
pub mod api;
mod body;
mod clock;
pub mod commands;
pub mod configuration;
mod derp;
mod files;
mod http;
pub mod import;
mod listen;
mod machine;
mod network;
mod oidc;
mod own_address;
mod own_certificate;
mod page;
pub mod policy;
pub mod serve;
mod sessions;
mod slow_hash;
mod store;
mod stream;
mod stun;
mod ts2021;
mod visitors;
mod web_socket;
