//! What a tunnel is started with: a file of wg-quick, or the same by calls.

use std::{
    fmt, fs, io,
    net::IpAddr,
    path::{Path, PathBuf},
    sync::Arc,
};

use config::{
    EndpointName,
    conf::{self, Conf, ConfError, Interface, Names},
};
use ipnet::IpNet;
use wg::{PresharedKey, PrivateKey, PublicKey};
use zeroize::Zeroizing;

/// The configuration of a tunnel.
///
/// ```
/// use tunnel::{Config, Peer, PrivateKey, PublicKey};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let text = "yAnz5TF+lXXJte14tji3zlMNq+hd2rYUIgJBgB3fBmk=";
/// let peer = Peer::new(PublicKey::from_base64(text)?)
///     .endpoint("vpn.example", 51820)
///     .allowed_ips(["10.0.0.0/24".parse()?, "fd00::/64".parse()?])
///     .persistent_keepalive(25);
/// let config = Config::new(PrivateKey::from_base64(text)?)
///     .address("10.0.0.2".parse()?)
///     .address("fd00::2".parse()?)
///     .dns("10.0.0.1".parse()?)
///     .peer(peer);
/// # let _ = config;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Config(
    /// In one place: what moves leaves its keys behind.
    pub(crate) Arc<Conf>,
);

/// A peer of a [`Config`].
#[derive(Clone, Debug)]
pub struct Peer(conf::Peer);

/// Why a file makes no configuration.
#[derive(Debug)]
pub enum ConfigError {
    /// It cannot be read.
    Unreadable(PathBuf, io::Error),
    /// A line of it is wrong.
    Refused(ConfError),
}

impl Config {
    /// One without addresses and peers.
    pub fn new(private_key: PrivateKey) -> Self {
        let interface = Interface { private_key: Some(private_key), ..Interface::default() };
        Self(Arc::new(Conf::new(interface, Vec::new())))
    }

    /// Reads the text of a file as of wg-quick(8). `Table`, `SaveConfig` and the hooks mean
    /// nothing here and are passed over.
    ///
    /// # Errors
    /// The first fault found, with its line; the keys of `linerate proxy` are faults here.
    pub fn from_text(text: &str) -> Result<Self, ConfError> {
        Self::parse("configuration", text.as_bytes())
    }

    /// Reads a file as of wg-quick(8), as [`Config::from_text`] does its text.
    ///
    /// # Errors
    /// It cannot be read, or a line of it is wrong.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self, ConfigError> {
        let path = path.as_ref();
        let unreadable = |error| ConfigError::Unreadable(path.to_owned(), error);
        let text = Zeroizing::new(fs::read(path).map_err(unreadable)?);
        Self::parse(&path.display().to_string(), &text).map_err(ConfigError::Refused)
    }

    fn parse(name: &str, text: &[u8]) -> Result<Self, ConfError> {
        let conf = wg::stack::run_and_wipe(|| Conf::parse_file(name, text, &Names::default()))?;
        conf.private_key()?;
        conf.without_proxy()?;
        Ok(Self(Arc::new(conf)))
    }

    /// What the file has that is allowed but hardly meant, each with file and line.
    pub fn warnings(&self) -> &[String] {
        &self.0.warnings
    }

    /// Adds an address of ours inside of the tunnel.
    pub fn address(mut self, address: IpAddr) -> Self {
        self.interface().addresses.push(address.into());
        self
    }

    /// Adds a name server inside of the tunnel.
    pub fn dns(mut self, server: IpAddr) -> Self {
        self.interface().dns.servers.push(server.into());
        self
    }

    /// Adds a domain in which names of one label are looked for.
    pub fn search_domain(mut self, domain: impl Into<String>) -> Self {
        self.interface().dns.search_domains.push(domain.into());
        self
    }

    /// The longest packet inside of the tunnel, in bytes, 1280 or more. Without it, what
    /// the paths to the endpoints allow.
    pub fn mtu(mut self, mtu: u16) -> Self {
        self.interface().mtu = Some(mtu);
        self
    }

    /// The UDP port. Without it the kernel chooses one; see
    /// [`Tunnel::listen_port`](crate::Tunnel::listen_port).
    pub fn listen_port(mut self, port: u16) -> Self {
        self.interface().listen_port = Some(port);
        self
    }

    /// The mark of outgoing datagrams, for which the kernel wants `CAP_NET_ADMIN`.
    pub fn fwmark(mut self, fwmark: u32) -> Self {
        self.interface().fwmark = Some(fwmark);
        self
    }

    /// Adds a peer.
    pub fn peer(mut self, peer: Peer) -> Self {
        Arc::make_mut(&mut self.0).peers.push(peer.0);
        self
    }

    fn interface(&mut self) -> &mut Interface {
        &mut Arc::make_mut(&mut self.0).interface
    }
}

impl Peer {
    /// One without allowed IPs, that is expected to come to us.
    pub fn new(public_key: PublicKey) -> Self {
        Self(conf::Peer {
            public_key,
            preshared_key: None,
            allowed_ips: Vec::new(),
            endpoint: None,
            persistent_keepalive: None,
        })
    }

    /// Where it is: a name or an address, IPv6 without brackets, and the UDP port. A name
    /// is resolved by this machine, when the tunnel starts.
    pub fn endpoint(mut self, host: impl Into<String>, port: u16) -> Self {
        self.0.endpoint = Some(EndpointName { host: host.into(), port });
        self
    }

    /// What is behind it: packets to these go to it, and from it only packets of these are
    /// taken.
    pub fn allowed_ips(mut self, networks: impl IntoIterator<Item = IpNet>) -> Self {
        self.0.allowed_ips.extend(networks.into_iter().map(|net| net.trunc()));
        self
    }

    /// A secret that both sides have beside their keys.
    pub fn preshared_key(mut self, key: PresharedKey) -> Self {
        self.0.preshared_key = Some(key);
        self
    }

    /// After how many seconds without a packet one is sent, so that routers on the way
    /// remember us; 0 is never.
    pub fn persistent_keepalive(mut self, seconds: u16) -> Self {
        self.0.persistent_keepalive = Some(seconds);
        self
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable(path, error) => write!(f, "{}: {error}", path.display()),
            Self::Refused(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for ConfigError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Unreadable(_, error) => Some(error),
            Self::Refused(error) => Some(error),
        }
    }
}
