//! Floor 3: access to a tunnel without an interface on this machine: proxies, forwards and exposed
//! services.
//!
//! ```text
//!  clients here                                            the tunnel
//!  socks_server, http_server, forwards ─► dial ─► Stack ─► TUN ─► engine ─► UDP socket
//!  services here ◄───── exposed ◄──────── accept ◄──┘    (inside | outside)
//! ```
//!
//! With [`KernelStack`] the TCP/IP stack is the kernel's: the TUN and the tunnel-side sockets
//! belong to a private network namespace, listeners and the UDP socket to that of the process. If
//! such a namespace is not permitted, [`InProcessStack`] uses the stack of the crate `netstack` in place
//! of the TUN. The engine's threads are the same; one more thread serves all clients.
//!
//! [`Proxies`] serves all of this for `linerate proxy`. [`TunnelNet`] has only the sockets, for programs
//! with a tunnel in their own process.
#![forbid(unsafe_code)]
// Without the feature `http` many parts are unused.
#![cfg_attr(not(feature = "http"), allow(dead_code))]

mod byte_relay;
mod capacity;
mod connections;
mod dial;
mod eyeballs;
mod half_open;
#[cfg(feature = "http")]
pub mod http;
#[cfg(feature = "http")]
mod http_server;
mod identity;
mod in_process;
mod local;
mod namespace;
#[cfg(feature = "http")]
mod proxies;
mod reach;
mod resolver;
mod serve;
#[cfg(feature = "http")]
mod services;
pub mod socks;
mod socks_server;
mod splice;
mod stack;
#[cfg(test)]
mod test_stack;
mod tunnel_net;
mod udp_associate;
mod udp_flows;
mod udp_relay;
mod users;

pub use identity::Identity;
pub use in_process::InProcessStack;
pub use namespace::KernelStack;
#[cfg(feature = "http")]
pub use proxies::{PeerLookup, Proxies, ProxiesHandle, ProxyRuntime, ProxyThread, TunnelSide};
pub use resolver::dns_message as dns;
#[cfg(feature = "http")]
pub use services::read_users;
pub use stack::Stack;
pub use tunnel_net::TunnelNet;
pub use users::Users;
