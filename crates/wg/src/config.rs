//! Configuration and state of a device as values, independent of any text format.

use std::{net::SocketAddr, time::Duration};

use ipnet::IpNet;
use packet::Endpoint;

use crate::{PresharedKey, PrivateKey, PublicKey};

/// A change of a device's configuration, applied in the order of its fields.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DeviceChange {
    /// `Some(None)` removes the private key.
    pub private_key: Option<Option<PrivateKey>>,
    /// Removes all peers first.
    pub replace_peers: bool,
    /// Changes of peers, applied in order.
    pub peers: Vec<PeerChange>,
}

/// A change of one peer. Creates the peer if it does not exist.
#[derive(Clone, Debug, PartialEq)]
pub struct PeerChange {
    /// The peer's public key.
    pub public_key: PublicKey,
    /// Removes the peer. All other fields are ignored.
    pub remove: bool,
    /// Does nothing if the peer does not exist.
    pub update_only: bool,
    /// An all-zero key removes the preshared key.
    pub preshared_key: Option<PresharedKey>,
    /// The peer's endpoint.
    pub endpoint: Option<SocketAddr>,
    /// Whether authentic packets of the peer move its endpoint, as the protocol specifies.
    /// Otherwise only configuration sets the endpoint, and responses are sent there regardless of
    /// the initiation's source.
    pub roaming: Option<bool>,
    /// Interval in seconds. 0 disables it.
    pub persistent_keepalive: Option<u16>,
    /// Removes all of the peer's allowed IPs first.
    pub replace_allowed_ips: bool,
    /// Networks to add or remove, in order.
    pub allowed_ips: Vec<AllowedIpChange>,
}

impl PeerChange {
    /// Creates a change that only adds the peer if it does not exist.
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

/// A network to add to a peer or to remove from it. An added network is removed from its previous
/// owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllowedIpChange {
    /// The network, with host bits zero.
    pub net: IpNet,
    /// Removes the network if it belongs to the peer.
    pub remove: bool,
}

/// The state of one peer, as in the output of `wg show`.
#[derive(Clone, Debug, PartialEq)]
pub struct PeerState {
    /// The peer's public key.
    pub public_key: PublicKey,
    /// All zero if absent.
    pub preshared_key: PresharedKey,
    /// The endpoint that was configured or last used by the peer. `None` if the peer is reached
    /// through a relay.
    pub endpoint: Option<SocketAddr>,
    /// Time of the last completed handshake, since the Unix epoch.
    pub last_handshake: Option<Duration>,
    /// Bytes of received, authentic datagrams.
    pub rx_bytes: u64,
    /// Bytes of sent datagrams.
    pub tx_bytes: u64,
    /// Interval in seconds. 0 means off.
    pub persistent_keepalive: u16,
    /// In ascending order.
    pub allowed_ips: Vec<IpNet>,
    /// The longest inner packet that is known to arrive whole, in bytes. `None` while unknown.
    pub path_mtu: Option<u16>,
    /// Time when the session's post-quantum secret was agreed on, since the Unix epoch. `None`
    /// without such a secret.
    pub post_quantum: Option<Duration>,
}

/// Traffic counters of one peer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PeerTraffic {
    /// The peer's public key.
    pub public_key: PublicKey,
    /// Bytes of received, authentic datagrams.
    pub rx_bytes: u64,
    /// Bytes of sent datagrams.
    pub tx_bytes: u64,
    /// Time of the last completed handshake, since the Unix epoch.
    pub last_handshake: Option<Duration>,
    /// Source of the last authentic packet. Recorded only if there is a subscriber to events.
    pub received_from: Option<Endpoint>,
    /// See [`PeerState::path_mtu`].
    pub path_mtu: Option<u16>,
    /// See [`PeerState::post_quantum`].
    pub post_quantum: Option<Duration>,
}

impl PeerState {
    /// Creates the state of a peer with this key and default values.
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
