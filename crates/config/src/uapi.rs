//! The cross-platform userspace protocol of wg(8)
//! (<https://www.wireguard.com/xplatform/>): text on a Unix socket.
//!
//! ```text
//!  get=1          private_key=…        set=1                 errno=0
//!             ►   listen_port=…        listen_port=…     ►
//!                 public_key=…         public_key=…
//!                 …                    …
//!                 errno=0
//! ```
//!
//! A request and its reply each end with an empty line. The server collects a request, and
//! [`Request::parse`] accepts all of it or nothing. The reply is [`write_state`], if the state was
//! requested, and then [`write_errno`].

mod change;
mod error;
mod request;
mod state;
mod stats;

use wg::{
    PrivateKey, PublicKey,
    config::{DeviceChange, PeerState},
};

use crate::EndpointName;

pub use self::{
    change::write_change,
    error::{Reason, UapiError},
    request::write_endpoint_names,
    state::{parse_state, write_errno, write_state},
    stats::{LoadStats, OffloadStats, ProxyStats, Service, SocketStats, StackDrops, Stats, Sum},
};

/// A client's request.
#[derive(Clone, Debug, PartialEq)]
pub enum Request {
    /// `get=1`: the state.
    Get,
    /// `set=1`: a change.
    Set(Change),
    /// `linerate-stats=1`, an extension: the counters.
    Stats,
    /// `linerate-ping=1`, an extension: sends an echo request to this host.
    Ping(String),
    /// `linerate-down=1`, an extension: removes the interface and stops.
    Down,
    /// `linerate-capture=1`, an extension: sends packets inside the tunnel as pcapng after the reply.
    Capture(CaptureOptions),
    /// `linerate-offload=1`, an extension: turns the named offloads on or off.
    Offload(Vec<(String, bool)>),
    /// `linerate-endpoint-names=1`, an extension: replaces the names that endpoints of peers were
    /// resolved from. The reply contains `followed=true` if the daemon resolves them again, else
    /// `followed=false`.
    EndpointNames(Vec<(PublicKey, EndpointName)>),
}

/// The options of a capture.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CaptureOptions {
    /// Maximum number of bytes of each packet.
    pub snaplen: usize,
    /// Only packets from and to this peer.
    pub peer: Option<PublicKey>,
}

/// A change of the device; `None` leaves a setting as it is.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Change {
    /// The UDP port; 0 lets the kernel choose.
    pub listen_port: Option<u16>,
    /// The mark of outgoing datagrams; 0 means no mark.
    pub fwmark: Option<u32>,
    /// Settings of the protocol.
    pub device: DeviceChange,
}

impl Change {
    /// Drops the secret keys.
    pub fn forget_secrets(&mut self) {
        self.device.private_key = None;
        self.device.peers.iter_mut().for_each(|peer| peer.preshared_key = None);
    }
}

/// The state of the whole device, as in `wg show`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DeviceState {
    /// The private key, if one is set.
    pub private_key: Option<PrivateKey>,
    /// The UDP port; 0 without a socket.
    pub listen_port: u16,
    /// The mark of outgoing datagrams; 0 means no mark.
    pub fwmark: u32,
    /// All peers.
    pub peers: Vec<PeerState>,
}
