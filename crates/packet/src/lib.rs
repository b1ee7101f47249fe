//! Floor 0: bytes. What a packet is, how packets travel in batches, and the
//! four half-traits through which a data plane takes and gives them.
//!
//! ```text
//!              recv                                   send
//!   IP side   ------> Batch      -> seal -> SendBatch ------>  UDP side
//!   (IpRecv)                                                   (UdpSend)
//!
//!              send                                   recv
//!   IP side   <------ [IpPacket] <- open <- RecvBatch <------  UDP side
//!   (IpSend)                                                   (UdpRecv)
//! ```
//!
//! A batch is owned by the data plane and reused: nothing here allocates per
//! packet.
#![deny(unsafe_code)]

mod batch;
pub mod checksum;
mod coalesce;
mod ecn;
mod endpoint;
pub mod filter;
mod flow;
pub mod icmp;
mod io;
pub mod ip;
mod offload;
pub mod pcapng;
mod segment;
mod tos;
pub mod wire;

pub use batch::{
    Batch, Failure, IpPacket, RecvBatch, RecvMeta, SendBatch, SendError, Span, Transmit,
};
pub use coalesce::{Coalesce, Coalescer, SuperPacket};
pub use ecn::Ecn;
pub use endpoint::{Endpoint, Local, RelayId, Remote, host_prefix};
pub use flow::flow;
pub use io::{ControlSend, Flood, IpRecv, IpSend, Poll, Ready, UdpRecv, UdpSend, Waker};
pub use offload::{ChecksumAt, Offload, OffloadError, SegmentProtocol, Tunnel, VNET_HEADER_LEN};
pub use segment::{SegmentError, Segments};
pub use tos::Tos;

/// The largest UDP datagram or IP packet a buffer has to hold, in bytes.
pub const MAX_PACKET: usize = 65_535;
