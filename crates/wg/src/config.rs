//! What a device is told and what it tells: the configuration as values,
//! whatever text it came from.

use std::{net::SocketAddr, time::Duration};

use ipnet::IpNet;
use packet::Endpoint;

use crate::{PresharedKey, PrivateKey, PublicKey};

/// A change of a device's configuration, applied in the order of its fields.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DeviceChange {
    /// `Some(None)` takes the private key away.
    pub private_key: Option<Option<PrivateKey>>,
    /// Removes all peers first.
    pub replace_peers: bool,
    /// Changes of peers, applied in order.
    pub peers: Vec<PeerChange>,
}

/// A change of one peer, which it creates where there is none yet.
#[derive(Clone, Debug, PartialEq)]
pub struct PeerChange {
    /// Which peer.
    pub public_key: PublicKey,
    /// Removes the peer; all else is ignored.
    pub remove: bool,
    /// Does nothing where the peer does not exist.
    pub update_only: bool,
    /// All zero takes it away.
    pub preshared_key: Option<PresharedKey>,
    /// Where to reach the peer.
    pub endpoint: Option<SocketAddr>,
    /// Whether what the peer authenticates moves its endpoint, as with every WireGuard. Where it
    /// does not, only configuration sets the endpoint, and a handshake is answered there,
    /// wherever it came from.
    pub roaming: Option<bool>,
    /// Seconds; 0 switches it off.
    pub persistent_keepalive: Option<u16>,
    /// Removes all of the peer's allowed IPs first.
    pub replace_allowed_ips: bool,
    /// Networks to add or to take away, in order.
    pub allowed_ips: Vec<AllowedIpChange>,
}

impl PeerChange {
    /// A change of `public_key` that only makes sure the peer exists.
    pub fn new(public_key: PublicKey) -> Self {
        Self {
            public_key,
            remove: false,
            update_only: false,
            preshared_key: None,
            endpoint: None,
            roaming: None,
            persistent_keepalive: None,
            replace_allowed_ips: false,
            allowed_ips: Vec::new(),
        }
    }
}

/// One network to give to a peer, from whoever had it, or to take from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllowedIpChange {
    /// The network, host bits zero.
    pub net: IpNet,
    /// Takes it away, where the peer has it.
    pub remove: bool,
}

/// The state of one peer, as `wg show` shows it.
#[derive(Clone, Debug, PartialEq)]
pub struct PeerState {
    /// Which peer.
    pub public_key: PublicKey,
    /// All zero where there is none.
    pub preshared_key: PresharedKey,
    /// Where the peer was last heard of, or was configured; `None` where that is behind a relay.
    pub endpoint: Option<SocketAddr>,
    /// When the last handshake completed, since the Unix epoch.
    pub last_handshake: Option<Duration>,
    /// Bytes of authenticated datagrams received.
    pub rx_bytes: u64,
    /// Bytes of datagrams sent.
    pub tx_bytes: u64,
    /// Seconds; 0 is off.
    pub persistent_keepalive: u16,
    /// In ascending order.
    pub allowed_ips: Vec<IpNet>,
    /// The longest inner packet that was seen to arrive whole, in bytes, of those that the
    /// interface sends; `None` while nobody knows.
    pub path_mtu: Option<u16>,
    /// When the secret of its session against quantum computers was agreed on, since the Unix
    /// epoch; `None` where the session has none.
    pub post_quantum: Option<Duration>,
}

/// What a peer sent and received so far.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PeerTraffic {
    /// Which peer.
    pub public_key: PublicKey,
    /// Bytes of authenticated datagrams received.
    pub rx_bytes: u64,
    /// Bytes of datagrams sent.
    pub tx_bytes: u64,
    /// When the last handshake completed, since the Unix epoch.
    pub last_handshake: Option<Duration>,
    /// Where the last authentic packet came from, where there is a subscriber to events.
    pub received_from: Option<Endpoint>,
    /// As [`PeerState::path_mtu`].
    pub path_mtu: Option<u16>,
    /// As [`PeerState::post_quantum`].
    pub post_quantum: Option<Duration>,
}

impl PeerState {
    /// That of a peer with this key and nothing else.
    pub fn new(public_key: PublicKey) -> Self {
        Self {
            public_key,
            preshared_key: PresharedKey::default(),
            endpoint: None,
            last_handshake: None,
            rx_bytes: 0,
            tx_bytes: 0,
            persistent_keepalive: 0,
            allowed_ips: Vec::new(),
            path_mtu: None,
            post_quantum: None,
        }
    }
}
