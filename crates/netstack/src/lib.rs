//! Floor 1: TCP, UDP and ICMP in the process, as an IP side of the data plane without a TUN device.
//!
//! ```text
//!   TcpStream, TcpListener, UdpSocket      tokio's traits, without a runtime
//!        Stack                             flows, listeners, turns, timers
//!         | tcp::Connection                a state machine without clock and I/O
//!   StackRecv, StackSend                   packet's half-traits, for the engine
//! ```
//!
//! The stack sends super-packets of up to 64 KiB with the offload of a TUN device, and coalesces
//! received packets first. Both directions then pay once for work that otherwise is done for each
//! of 47 segments.
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
