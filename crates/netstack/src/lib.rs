//! Floor 1: TCP, UDP and ICMP in the process, as an IP side of the data plane, for where
//! there is no TUN device.
//!
//! ```text
//!   TcpStream, TcpListener, UdpSocket      tokio's traits, no runtime of its own
//!        Stack                             flows, listeners, turns, timers
//!         | tcp::Connection                a state machine without clock and I/O
//!   StackRecv, StackSend                   packet's half-traits, for the engine
//! ```
//!
//! What leaves are super-packets of up to 64 KiB with the offload that a TUN device
//! would give; what arrives is coalesced first. So both cost once what else is paid for
//! each of 47 segments.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod budget;
mod ip;
mod net;
mod stack;
mod tcp;
mod time;

pub use net::{OwnedReadHalf, OwnedWriteHalf, ReuniteError, TcpListener, TcpStream, UdpSocket};
pub use stack::{Clock, Config, CongestionControl, Counters, Stack, StackRecv, StackSend};
pub use tcp::Keepalive;
