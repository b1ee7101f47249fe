//! Floor 2: the data plane around one [`wg::Device`], generic over the half-traits
//! of `packet`; it knows nothing of Linux.
//!
//! ```text
//!   IpRecv ---> Outbound ---> UdpSend        TUN to network, in order
//!   UdpRecv --> Inbound  ---> IpSend         network to TUN, in order
//!                  |  `--- what is not WireGuard's and registered ---> ControlReceiver
//!                  |  handshake messages
//!                  v
//!              Slow path ---> UdpSend        handshakes, timers; wg::Control
//! ```
//!
//! Beside the UDP side stands a [`RelayQueues`], where there is one: runs to relayed endpoints go
//! there instead, and what comes from there is received like what comes from the socket.
//! [`PrefixTable`] are for peers behind a node that passes datagrams on, [`PeerSockets`] for those that
//! are reached from a socket of their own.
//!
//! Packets of open protocols (the filter's policy names them) go to a [`MessageReceiver`] instead of
//! the IP side; [`OwnPackets`] go to peers beside those of the IP side.
//!
//! Each is a struct with a `step` that works on one batch. [`Engine`] gives both directions
//! one thread while that is enough, and else each its own; where there are cores for it, each
//! direction has another one for its later half. What works on a direction is in one place at
//! a time, so a flow cannot overtake itself, and no lock is held across crypto.
#![forbid(unsafe_code)]

mod codel;
mod control_channel;
mod data_threads;
mod datagram_sender;
mod filter;
mod icmp_errors;
mod inbound;
mod load;
mod messages;
mod observer;
mod outbound;
mod own_packets;
mod peer_sockets;
mod prefix_table;
mod queue;
mod relay_queues;
mod rounds;
mod shared;
mod slow_path;
mod stage;
mod threads;
mod vector;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub use control_channel::{
    ControlDatagram, ControlProtocols, ControlReceiver, ControlSender, Magic, control_channel,
};
pub use data_threads::{CpuClock, CpuTime};
pub use filter::Filter;
use icmp_errors::IcmpErrors;
pub use inbound::Inbound;
pub use load::{Histogram, HistogramSnapshot, Load};
pub use messages::{MessageReceiver, MessageSender, message_channel};
pub use observer::{ObservedPackets, Observer};
pub use outbound::Outbound;
pub use own_packets::OwnPackets;
pub use peer_sockets::PeerSockets;
pub use prefix_table::{PREFIX_LEN, PrefixTable, PrefixedAddr};
pub use relay_queues::{InjectError, RelayPeer, RelayQueues, RelayRun};
pub use shared::{Attachments, Shared};
pub use slow_path::{Inbox, SlowPath};
pub use threads::{Engine, Parts};

/// Reads both clocks; called once a batch.
pub type Clock = Arc<dyn Fn() -> wg::Now + Send + Sync>;

/// Lets other threads of this core run, between two batches. Most kernels take a
/// core from a thread that never sleeps only at the next tick, 4 ms later, and
/// whoever is next on the way of a packet would wait for that.
fn take_turns() {
    std::thread::yield_now();
}

/// How many packets one call of the AEAD takes.
const AEAD_BATCH: usize = 64;

/// A thread that panicked leaves what it had locked as it was between two changes.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
