//! `linerate proxy`: a peer without an interface on this machine, whose tunnel is
//! reached through proxies, forwards and exposed services.
//!
//! ```text
//!  clients here                                            the tunnel
//!  socks_server, http_server, forwards ─► dial ─► Stack ─► TUN ─► engine ─► UDP socket
//!  services here ◄───── exposed ◄──────── accept ◄──┘    (inside | outside)
//! ```
//!
//! With [`namespace`] the stack is the kernel's own: TUN and tunnel-side sockets belong
//! to a private network namespace, listeners and the UDP socket to ours. Where that may
//! not be made, [`in_process`] has the stack of the crate `netstack` in the TUN's place.
//! The engine's threads stay as they are; one thread more serves all clients.
//!
//! [`Inside`] is the same without the proxies, for programs that have a tunnel in their
//! own process.

mod associate;
mod capacity;
mod connections;
mod datagrams;
mod dial;
mod eyeballs;
mod flows;
mod gate;
mod half_open;
pub mod http;
mod http_server;
mod in_process;
mod inside;
mod local;
mod names;
mod namespace;
mod process;
mod reach;
mod relay;
mod services;
pub mod socks;
mod socks_server;
mod splice;
mod stack;
mod target;
#[cfg(test)]
mod testing;
mod users;

pub use inside::Inside;
pub use names::message as dns;
pub use process::{Options, StackChoice, run};
pub use target::{Host, Target};
pub use users::Users;
