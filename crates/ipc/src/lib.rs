//! Floor 0: the messages between the processes of a node of a tailnet, and their encoding. Nothing
//! here opens a socket or a file.
//!
//! ```text
//!   agent: control, relays, paths, names          steward: the host, as root
//!     |  ^   |  ^                                   ^  |
//!     |  |   |  `------------ FromSteward ----------|--'
//!     |  |   `--------------- ToSteward ------------'
//!     |  |
//!     |  `-- ToAgent: datagrams, packets for relays, events, activity
//!     `----- ToDataPlane: peers, paths, filter, datagrams
//!     v  |
//!   data plane: keys, sessions, TUN, UDP socket
//! ```
//!
//! Each connection is a socket that preserves packet boundaries. A message is sent in one or more
//! parts: a byte of flags, and a piece of its `postcard` encoding. Otherwise the data plane parses
//! only headers and the short messages of [`tailnet::tsmp`]. A new agent starts with
//! [`ToDataPlane::Hello`]. Its first part discards an incomplete message of the previous agent.
#![forbid(unsafe_code)]

mod auxiliary_sockets;
mod data_plane_messages;
mod filter_policy;
mod framing;
pub mod relay_process;
mod steward_messages;

pub use self::{
    auxiliary_sockets::{AuxiliarySocket, OpenSockets},
    data_plane_messages::{
        Activity, Identity, Incoming, LocalAddress, Outgoing, Path, Peer, PeerEvent, Relayed,
        ToAgent, ToDataPlane, TunnelPing,
    },
    filter_policy::FilterPolicy,
    framing::{IpcError, LONGEST, PART, Reader, write},
    steward_messages::{DesiredDns, DesiredHost, FromSteward, ToSteward},
};
