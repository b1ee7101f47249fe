//! Server for one or several networks: sockets and files around the crate `coordinator`.
//!
//! ```text
//!                                 tenants (selects the network)
//!   listeners (TLS, plain) ── http ──┬─ ts2021 ── HTTP/2 ── machine ── map_stream ──┐
//!                                    ├─ oidc                                        ├─ network ── store
//!                                    └─ derp                                        │
//!   router_health, data_paths ── pings ── requests to clients, in their streams ────┤
//!   socket of commands ── api ──────────────────────────────────────────────────────┘
//!   stun
//!   metrics ── counters, health
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
mod connections;
mod counters;
mod data_paths;
mod derp;
mod fair_semaphore;
mod fetch;
mod files;
mod health;
mod http;
pub mod import;
mod listen;
pub mod log;
mod machine;
mod map_stream;
mod metrics;
pub mod network;
mod oidc;
mod own_address;
mod own_certificate;
mod page;
mod pings;
pub mod policy;
pub mod process;
pub mod program;
mod remote_url;
mod roots;
mod router_health;
pub mod sandbox;
pub mod serve;
mod sessions;
mod slow_hash;
pub mod store;
mod stun;
mod tenants;
mod tka;
mod tls;
mod trusted_proxies;
mod ts2021;
mod web_socket;
