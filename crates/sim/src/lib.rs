//! Dev only: both sides of a data plane in memory, on virtual time.
//!
//! ```text
//!   test -> Port -> PortRecv | engine | NetSend -> Network -> NetRecv | engine | PortSend -> Port -> test
//! ```
//!
//! Nothing here waits: a receive without anything to receive returns an empty
//! batch, so that a test steps its halves in one thread.
#![forbid(unsafe_code)]

mod network;
mod port;

pub use network::{Link, NetRecv, NetSend, Network};
pub use port::{Port, PortRecv, PortSend};
