//! Floor 2: the data plane around one [`wg::Device`]. It is generic over the half-traits of
//! `packet` and does not depend on Linux.
//!
//! ```text
//!   IpRecv ---> Outbound ---> UdpSend        TUN to network, in order
//!   UdpRecv --> Inbound  ---> IpSend         network to TUN, in order
//!                  |  `--- registered control protocols ---> ControlReceiver
//!                  |  handshake messages
//!                  v
//!              Slow path ---> UdpSend        handshakes, timers; wg::Control
//! ```
//!
//! Runs to relayed endpoints go to [`RelayQueues`] instead of the UDP side, and datagrams from
//! relays are received like datagrams from the socket. [`PrefixTable`] serves peers behind a peer
//! relay, and [`PeerSockets`] serves peers that have their own socket.
//!
//! Packets of open protocols (listed in the filter's policy) go to a [`MessageReceiver`] instead of
//! the IP side. [`OwnPackets`] are packets of this program to peers.
//!
//! Each half has a `step` that processes one batch. [`Engine`] runs both directions on one thread
//! while that is enough, and otherwise on two. With enough cores, each direction has another thread
//! for its second stage. Only one thread at a time has the state of a stage, so a flow cannot
//! overtake itself, and no lock is held during crypto.
#![forbid(unsafe_code)]

mod batch_limit;
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
mod outbound_queue;
mod own_packets;
mod peer_sockets;
mod prefix_table;
mod relay_queues;
mod round_counter;
mod shared;
mod slow_path;
mod stage;
mod threads;

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

/// Reads both clocks. It is called once a batch.
pub type Clock = Arc<dyn Fn() -> wg::Now + Send + Sync>;

/// Yields the core between two batches. Most kernels preempt a thread that never sleeps only at the
/// next tick, 4 ms later. The next thread on a packet's path would wait for that time.
fn take_turns() {
    std::thread::yield_now();
}

/// Packets of one call of the AEAD.
const AEAD_BATCH: usize = 64;

/// Ignores poisoning: a thread that panicked left the locked value consistent.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
