//! Floor 0: packets, the batches that carry them, and the four half-traits through which a data
//! plane receives and sends them.
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
//! The data plane owns and reuses its batches. No code here allocates for a single packet.
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
pub use flow::flow_hash;
pub use io::{ControlSend, Flood, IpRecv, IpSend, Poll, Ready, UdpRecv, UdpSend, Waker};
pub use offload::{ChecksumAt, Offload, OffloadError, SegmentProtocol, Tunnel, VNET_HEADER_LEN};
pub use segment::{SegmentError, Segments};
pub use tos::Tos;

/// The largest UDP datagram or IP packet, in bytes.
pub const MAX_PACKET: usize = 65_535;
