//! Dev only: simulated networks in memory, with virtual time and a seed.
//!
//! ```text
//!   test -> Port -> PortRecv | engine | NetSend -> Network -> NetRecv | engine | PortSend -> Port -> test
//!   test that drives a protocol -> send -> Network -> poll_arrival -> test
//!   test of paths -> Socket -> box -> Network -> box -> Socket -> test
//! ```
//!
//! No call blocks: a receive without data returns an empty batch, so a test steps its halves in one
//! thread.
#![forbid(unsafe_code)]
#![allow(missing_docs)]

mod link;
mod nat;
mod network;
mod port;
mod socket;

pub use link::{Datagram, Link};
pub use nat::{Dependence, Nat, Ports, Timeouts};
pub use network::{Network, Realm};
pub use port::{Port, PortRecv, PortSend};
pub use socket::{NetRecv, NetSend, Socket};
