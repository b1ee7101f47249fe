//! Floor 0: the decisions of a node of a tailnet, as state machines and functions: the coordinator's
//! map becomes peers, paths, a filter, names and the desired state of the host. Time and randomness
//! are arguments. Nothing here opens a socket or a file.
//!
//! ```text
//!   tailnet::map_messages ──► network_map ──► node_settings ──► ipc: peers, filter, DesiredHost
//!                                                  │
//!                        netcheck, portmap ──► peer_paths ──► ipc: the path to each peer
//! ```
//!
//! Both the agent and the steward use this crate. The protocols are in the crate `tailnet`, the
//! messages between the processes of a node in `ipc`.
#![forbid(unsafe_code)]

pub mod backoff;
pub mod desired_host_checks;
pub mod dialing;
pub mod home_relay;
pub mod http_proxy;
pub mod local_json;
pub mod magic_dns;
pub mod nat64;
pub mod netcheck;
pub mod network_map;
pub mod node_settings;
pub mod peer_filter;
pub mod peer_paths;
pub mod peer_relay;
pub mod permitted_addresses;
pub mod portmap;
pub mod prefs;
pub mod registration;
pub mod tka_command;
pub mod tka_follower;
