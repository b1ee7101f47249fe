//! The files of wg-quick(8), such as `/etc/wireguard/wg0.conf`.
//!
//! ```text
//!  bytes ─ text ─ lines ─► sections of key and value ─ parse ─► Conf ─ change ─► uapi::Change
//!                                                        │
//!                          uapi::DeviceState ──────── write ──► text (SaveConfig)
//! ```
//!
//! [`Conf::parse`] finds every fault that the text alone shows, with its line,
//! before anything is done to the machine.

mod access;
mod allowed_ips;
mod change;
mod endpoint;
mod error;
mod interface_name;
mod lines;
mod locations;
mod names;
mod parse;
mod policy;
mod proxy;
mod router;
mod similar;
mod state;
mod text;
mod warnings;
mod write;

use std::{fmt, net::IpAddr};

use ipnet::IpNet;
use wg::{Crypto, PostQuantum, PresharedKey, PrivateKey, PublicKey};

use self::{access::Origin, locations::Locations};
use crate::{EndpointName, value};

pub use self::{
    access::{Access, Writable},
    error::{ConfError, Reason},
    interface_name::{InterfaceName, NameError, fnv1a},
    lines::{Section, key_names},
    locations::Setting,
    names::Names,
    policy::Policy,
    proxy::{Expose, Forward, Proxy, ProxyUser, SocketAddress, Transport, WithOrigin},
    router::Router,
    state::{StateError, read_state, write_state},
    write::write,
};

/// A whole file.
#[derive(Clone, Debug, PartialEq)]
pub struct Conf {
    /// The `[Interface]` section.
    pub interface: Interface,
    /// The `[Peer]` sections, in their order.
    pub peers: Vec<Peer>,
    /// Settings that are allowed but probably not meant, each with file and line.
    pub warnings: Vec<String>,
    file_name: String,
    interface_line: usize,
    /// The first line that only `linerate proxy` understands, and its key.
    proxy_key: Option<(usize, &'static str)>,
    /// The first line that only `linerate up` understands, and its key.
    up_key: Option<(usize, &'static str)>,
    /// The first line with a hook, and its key.
    hook_key: Option<(usize, &'static str)>,
    locations: Locations,
    /// The owner and mode of the file and its folder, if it was read from a file.
    origin: Option<Origin>,
}

/// The `[Interface]` section.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Interface {
    /// A hook may set it later; see [`Conf::private_key`].
    pub private_key: Option<PrivateKey>,
    /// The UDP port.
    pub listen_port: Option<u16>,
    /// The mark of outgoing datagrams; 0 means no mark.
    pub fwmark: Option<u32>,
    /// Addresses of the interface, with their host bits.
    pub addresses: Vec<IpNet>,
    /// Name resolution while the interface is up.
    pub dns: Dns,
    /// The largest IP packet in bytes, at least 68.
    pub mtu: Option<u16>,
    /// The routing table for routes to the allowed IPs.
    pub table: Table,
    /// Whether `down` writes the state back into the file.
    pub save_config: bool,
    /// Shell commands.
    pub hooks: Hooks,
    /// Services of `linerate proxy`.
    pub proxy: Proxy,
    /// Policy rules for a separate routing table, which a default route uses.
    pub policy: Policy,
    /// Forwarding for the peers.
    pub router: Router,
    /// Optional behaviour of the data plane.
    pub features: Features,
}

/// Optional behaviour of the data plane. If a field is `None`, the command line decides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Features {
    /// Whether to search for the MTU of the path to each peer.
    pub path_mtu: Option<bool>,
    /// Whether to agree on post-quantum secrets with peers.
    pub post_quantum: Option<PostQuantum>,
    /// The implementation of handshakes and packet encryption.
    pub crypto: Option<Crypto>,
    /// Whether to resolve the name of an endpoint again when its peer does not answer.
    pub reresolve: Option<bool>,
}

/// The value of `DNS`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dns {
    /// Words that are addresses.
    pub servers: Vec<NameServer>,
    /// All other words.
    pub search_domains: Vec<String>,
}

/// A name server, displayed as in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NameServer {
    /// Its address.
    pub address: IpAddr,
    /// The interface through which an IPv6 address is reached, by name or number.
    pub scope: Option<String>,
}

/// The routing table for routes to the allowed IPs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Table {
    /// The main table, and a separate table with policy rules for default routes.
    #[default]
    Auto,
    /// No routes.
    Off,
    /// The table of this number, never 0.
    Id(u32),
}

/// Shell commands of `up` and `down`, in their order. `%i` stands for the name of the interface. Each
/// is one line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hooks {
    /// Before the interface is configured.
    pub pre_up: Vec<String>,
    /// After the interface is up.
    pub post_up: Vec<String>,
    /// Before the interface goes down.
    pub pre_down: Vec<String>,
    /// After the interface is gone.
    pub post_down: Vec<String>,
}

/// A `[Peer]` section.
#[derive(Clone, Debug, PartialEq)]
pub struct Peer {
    /// The public key, which identifies the peer.
    pub public_key: PublicKey,
    /// The preshared key, never all zero.
    pub preshared_key: Option<PresharedKey>,
    /// The networks, with host bits zero.
    pub allowed_ips: Vec<IpNet>,
    /// The first endpoint.
    pub endpoint: Option<EndpointName>,
    /// Seconds; 0 is off.
    pub persistent_keepalive: Option<u16>,
}

impl Conf {
    /// A configuration with these settings, as if read from a file.
    pub fn new(interface: Interface, peers: Vec<Peer>) -> Self {
        Self {
            interface,
            peers,
            warnings: Vec::new(),
            file_name: "configuration".to_owned(),
            interface_line: 0,
            proxy_key: None,
            up_key: None,
            hook_key: None,
            locations: Locations::default(),
            origin: None,
        }
    }

    /// The private key, which an interface needs. A hook may set it later (wg-quick(8) has an
    /// example).
    ///
    /// # Errors
    /// The key is missing. The error contains the line of `[Interface]`.
    pub fn private_key(&self) -> Result<&PrivateKey, ConfError> {
        self.interface.private_key.as_ref().ok_or_else(|| {
            let missing = Reason::Missing(Section::Interface);
            ConfError::new(&self.file_name, self.interface_line, "PrivateKey", missing)
        })
    }

    /// The peers with endpoints that are names, not addresses.
    pub fn names(&self) -> impl Iterator<Item = (PublicKey, EndpointName)> {
        self.peers.iter().filter_map(|peer| {
            let name = peer.endpoint.as_ref().filter(|endpoint| endpoint.is_name())?;
            Some((peer.public_key, name.clone()))
        })
    }

    /// Drops the secret keys after a device has received them, so that a changed key does not remain
    /// here.
    pub fn forget_secrets(&mut self) {
        self.interface.private_key = None;
        self.peers.iter_mut().for_each(|peer| peer.preshared_key = None);
    }
}

impl Table {
    pub(crate) const MAIN: Self = Self::Id(254);
}

impl NameServer {
    /// Reads an address. An IPv6 address may have a scope. Returns `None` for other texts.
    pub fn parse(text: &str) -> Option<Self> {
        let (address, scope) = match text.split_once('%') {
            Some((address, scope)) if value::is_scope(scope) => (address, Some(scope.to_owned())),
            Some(_) => return None,
            None => (text, None),
        };
        let address: IpAddr = address.parse().ok()?;
        (scope.is_none() || address.is_ipv6()).then_some(Self { address, scope })
    }
}

impl From<IpAddr> for NameServer {
    fn from(address: IpAddr) -> Self {
        Self { address, scope: None }
    }
}

impl fmt::Display for NameServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.address.fmt(f)?;
        self.scope.iter().try_for_each(|scope| write!(f, "%{scope}"))
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Off => f.write_str("off"),
            Self::Id(id) => id.fmt(f),
        }
    }
}
