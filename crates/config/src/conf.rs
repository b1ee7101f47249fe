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
mod names;
mod parse;
mod places;
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

use self::{access::Origin, places::Places};
use crate::value;

pub use self::{
    access::{Access, Writable},
    error::{ConfError, Reason},
    interface_name::{InterfaceName, NameError, fnv1a},
    lines::{Section, key_names},
    names::Names,
    places::Setting,
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
    /// What is allowed but hardly meant, each with file and line.
    pub warnings: Vec<String>,
    file_name: String,
    interface_line: usize,
    /// The first line that only `linerate proxy` understands, and its key.
    proxy_key: Option<(usize, &'static str)>,
    /// The first line that only `linerate up` understands, and its key.
    up_key: Option<(usize, &'static str)>,
    /// The first line with a hook, and its key.
    hook_key: Option<(usize, &'static str)>,
    places: Places,
    /// The owner and mode of the file and its folder, if it was read from a file.
    origin: Option<Origin>,
}

/// The `[Interface]` section.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Interface {
    /// A hook may bring it later; see [`Conf::private_key`].
    pub private_key: Option<PrivateKey>,
    /// The UDP port.
    pub listen_port: Option<u16>,
    /// The mark of outgoing datagrams; 0 is none.
    pub fwmark: Option<u32>,
    /// Addresses of the interface, with their host bits.
    pub addresses: Vec<IpNet>,
    /// Name resolution while the interface is up.
    pub dns: Dns,
    /// Bytes of an IP packet at most, 68 or more.
    pub mtu: Option<u16>,
    /// Where routes to the allowed IPs go.
    pub table: Table,
    /// Whether going down writes the state back into the file.
    pub save_config: bool,
    /// Shell commands.
    pub hooks: Hooks,
    /// What `linerate proxy` does.
    pub proxy: Proxy,
    /// Rules around a table of its own, which a default route has.
    pub policy: Policy,
    /// What is forwarded for the peers.
    pub router: Router,
    /// Whether the MTU of the path to each peer is searched for; the command line says so
    /// where the file does not.
    pub path_mtu: Option<bool>,
    /// Whether secrets are agreed with peers against quantum computers; the command line says so
    /// where the file does not.
    pub post_quantum: Option<PostQuantum>,
    /// Which code computes handshakes and packets. If `None`, the command line decides.
    pub crypto: Option<Crypto>,
    /// Whether endpoints that are names are resolved again when their peers do not answer; `None`
    /// is yes.
    pub reresolve: Option<bool>,
}

/// The words of `DNS`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dns {
    /// Those that are addresses.
    pub servers: Vec<NameServer>,
    /// The others.
    pub search_domains: Vec<String>,
}

/// A name server. Shown as in a file.
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
    /// The main table, and for default routes one of their own with policy rules.
    #[default]
    Auto,
    /// No routes.
    Off,
    /// The table of this number, never 0.
    Id(u32),
}

/// Shell commands around going up and down, in their order, with `%i` for the
/// name of the interface. Each is one line.
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
    /// The peer's name.
    pub public_key: PublicKey,
    /// Never all zero.
    pub preshared_key: Option<PresharedKey>,
    /// Networks, host bits zero.
    pub allowed_ips: Vec<IpNet>,
    /// Where to reach the peer at first.
    pub endpoint: Option<EndpointName>,
    /// Seconds; 0 is off.
    pub persistent_keepalive: Option<u16>,
}

/// An endpoint whose host may still have to be resolved. Shown as in a file.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct EndpointName {
    /// A name or an address: IPv4, or IPv6 without brackets and maybe with
    /// `%scope`.
    pub host: String,
    /// The UDP port.
    pub port: u16,
}

impl Conf {
    /// What a file would say that has these.
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
            places: Places::default(),
            origin: None,
        }
    }

    /// The private key, without which an interface does not come up; only a
    /// hook could still bring one (wg-quick(8) has an example).
    ///
    /// # Errors
    /// The file has none; the error names the line of `[Interface]`.
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

    /// Lets go of the keys that are secret, once a device has them: who changes them there is not
    /// to find them here.
    pub fn forget_secrets(&mut self) {
        self.interface.private_key = None;
        self.peers.iter_mut().for_each(|peer| peer.preshared_key = None);
    }
}

impl EndpointName {
    /// Whether the host is a name, and not an address.
    pub fn is_name(&self) -> bool {
        let address = self.host.split_once('%').map_or(&*self.host, |(address, _)| address);
        address.parse::<IpAddr>().is_err()
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

impl fmt::Display for EndpointName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
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
