//! The configuration of a tunnel: from a wg-quick file, or by calls.

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
    /// On the heap: moving it would leave copies of its keys behind.
    pub(crate) Arc<Conf>,
);

/// A peer of a [`Config`].
#[derive(Clone, Debug)]
pub struct Peer(conf::Peer);

/// Why a file is not a valid configuration.
#[derive(Debug)]
pub enum ConfigError {
    /// It cannot be read.
    Unreadable(PathBuf, io::Error),
    /// A line of it is invalid.
    Refused(ConfError),
}

impl Config {
    /// A configuration without addresses and peers.
    pub fn new(private_key: PrivateKey) -> Self {
        let interface = Interface { private_key: Some(private_key), ..Interface::default() };
        Self(Arc::new(Conf::new(interface, Vec::new())))
    }

    /// Parses the text of a wg-quick(8) file. `Table`, `SaveConfig` and the hooks are ignored.
    ///
    /// # Errors
    /// The first error, with its line. The keys of `linerate proxy` are errors here.
    pub fn from_text(text: &str) -> Result<Self, ConfError> {
        Self::parse("configuration", text.as_bytes())
    }

    /// Reads a wg-quick(8) file, like [`Config::from_text`].
    ///
    /// # Errors
    /// The file cannot be read, or a line of it is invalid.
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

    /// Warnings about lines that are valid but probably mistakes, with file and line.
    pub fn warnings(&self) -> &[String] {
        &self.0.warnings
    }

    /// Adds an address of this end of the tunnel.
    pub fn address(mut self, address: IpAddr) -> Self {
        self.interface().addresses.push(address.into());
        self
    }

    /// Adds a name server inside the tunnel.
    pub fn dns(mut self, server: IpAddr) -> Self {
        self.interface().dns.servers.push(server.into());
        self
    }

    /// Adds a search domain for names of one label.
    pub fn search_domain(mut self, domain: impl Into<String>) -> Self {
        self.interface().dns.search_domains.push(domain.into());
        self
    }

    /// Sets the MTU inside the tunnel, in bytes, 1280 or more. By default it follows from the MTUs of the
    /// paths to the endpoints.
    pub fn mtu(mut self, mtu: u16) -> Self {
        self.interface().mtu = Some(mtu);
        self
    }

    /// Sets the UDP port. By default the kernel chooses one; see
    /// [`Tunnel::listen_port`](crate::Tunnel::listen_port).
    pub fn listen_port(mut self, port: u16) -> Self {
        self.interface().listen_port = Some(port);
        self
    }

    /// Sets the mark of outgoing datagrams. The kernel requires `CAP_NET_ADMIN` for it.
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
    /// A peer without allowed IPs and without an endpoint: it must initiate the handshake.
    pub fn new(public_key: PublicKey) -> Self {
        Self(conf::Peer {
            public_key,
            preshared_key: None,
            allowed_ips: Vec::new(),
            endpoint: None,
            persistent_keepalive: None,
        })
    }

    /// Sets the endpoint: a name or an address, IPv6 without brackets, and the UDP port. This machine
    /// resolves a name when the tunnel starts.
    pub fn endpoint(mut self, host: impl Into<String>, port: u16) -> Self {
        self.0.endpoint = Some(EndpointName { host: host.into(), port });
        self
    }

    /// Adds allowed IPs: packets to these networks are sent to the peer, and packets from it must have a
    /// source in them.
    pub fn allowed_ips(mut self, networks: impl IntoIterator<Item = IpNet>) -> Self {
        self.0.allowed_ips.extend(networks.into_iter().map(|net| net.trunc()));
        self
    }

    /// Sets a secret that both sides share in addition to their keys.
    pub fn preshared_key(mut self, key: PresharedKey) -> Self {
        self.0.preshared_key = Some(key);
        self
    }

    /// Sets the interval of persistent keepalive packets in seconds, so that NATs on the path keep their
    /// mapping; 0 disables them.
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
