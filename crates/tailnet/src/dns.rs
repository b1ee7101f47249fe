//! MagicDNS: what a query gets, from the network map's names.
//!
//! ```text
//!   query ──► own name? ──► address of a node, extra record, reverse name     Reply, TTL 5 s
//!                │ no
//!                ▼
//!           longest suffix ─► answered here ─► NXDOMAIN with the zone's SOA   Reply, 10 s
//!                │             (MagicDNS suffix, reverse zones, empty routes)
//!                ├──────────► a route's or the default resolvers              Forward
//!                └──────────► nobody to ask                                   Reply, SERVFAIL
//! ```
//!
//! Semantics: tailscale `net/dns/resolver/tsdns.go` and `ipn/ipnlocal/node_backend.go`. It differs
//! where that breaks what asks: all addresses of a name are answered, not one; the top of a zone
//! and the inner names of a reverse zone exist (RFC 8020); a longer route inside an own zone wins;
//! what is not a query gets nothing.

mod answer;
mod build;
mod forward;
mod fqdn;
mod reply;
mod reverse;
mod table;
#[cfg(test)]
mod tests;

use std::{
    collections::HashMap,
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
};

pub use forward::{Forward, Reply, ReplyError};
use fqdn::Fqdn;
use table::Table;

use crate::scope::Scope;

/// Where every node's resolver is, beside its own addresses.
pub const SERVICE_IPV4: Ipv4Addr = Ipv4Addr::new(100, 100, 100, 100);
/// The same for IPv6 (tailscale `net/tsaddr`).
pub const SERVICE_IPV6: Ipv6Addr = Ipv6Addr::new(0xfd7a, 0x115c, 0xa1e0, 0, 0, 0, 0, 0x53);

/// The largest datagram that is sent or asked for: fits the smallest MTU of IPv6, 1280 bytes, and
/// is what DNS software agreed on in 2020.
pub const UDP_LEN: u16 = 1232;

/// What names a node knows and whom it asks for others.
#[derive(Clone, Debug, Default)]
pub struct Config {
    /// The network's MagicDNS suffix, without the node's own label.
    pub suffix: String,
    /// Whether names below the suffix and the reverse zones are answered here alone (`Proxied`).
    pub magic: bool,
    /// Whether the user wants the network's DNS (`--accept-dns`). Without it only known names are
    /// answered.
    pub accept: bool,
    /// This node.
    pub own: Host,
    /// The others.
    pub peers: Vec<Host>,
    /// `ExtraRecords` of the map.
    pub extra: Vec<ExtraRecord>,
    /// Suffixes and who answers for them; nobody means this node alone.
    pub routes: Vec<(String, Vec<Resolver>)>,
    /// Who answers for all else.
    pub defaults: Vec<Resolver>,
    /// Who does so while an exit node is in use and there are no defaults.
    pub fallback: Vec<Resolver>,
    /// The resolvers that the host had before, asked when the network names none.
    pub system: Vec<Resolver>,
    /// Whether an exit node is in use.
    pub exit_node: bool,
    /// Whether IPv6 addresses of nodes that have IPv4 as well are answered (`magicdns-aaaa` among
    /// the node's own capabilities).
    pub aaaa: bool,
}

/// A node, as far as its name goes.
#[derive(Clone, Debug, Default)]
pub struct Host {
    /// Its full name.
    pub name: String,
    /// Its addresses in the network.
    pub addresses: Vec<IpAddr>,
    /// Whether all names below its own are its own too (`dns-subdomain-resolve`).
    pub subdomains: bool,
}

/// A record that the coordinator adds (`tailcfg.DNSRecord`).
#[derive(Clone, Debug, Default)]
pub struct ExtraRecord {
    /// Its full name.
    pub name: String,
    /// Empty, `A` or `AAAA`: each means "what its value is".
    pub kind: String,
    /// An address.
    pub value: String,
}

/// A resolver to ask.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resolver {
    /// DNS over UDP and TCP.
    Plain(SocketAddr),
    /// DNS over HTTPS: a URL, and addresses to find its host by.
    Https {
        /// The whole URL.
        url: String,
        /// `BootstrapResolution` of the map.
        addresses: Vec<IpAddr>,
    },
    /// One that is not asked, at an address that a coordinator may not name ([`Scope`]).
    Refused(SocketAddr),
}

/// A resolver's address that is none of those known here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseResolverError(pub String);

impl fmt::Display for ParseResolverError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is no resolver: an address, address:port or https:// URL is", self.0)
    }
}

impl std::error::Error for ParseResolverError {}

impl Resolver {
    /// What the map of a coordinator calls a resolver (`types/dnstype`).
    pub fn parse(
        text: &str,
        bootstrap: &[IpAddr],
        scope: Scope,
    ) -> Result<Self, ParseResolverError> {
        let address = text.parse::<IpAddr>().map(|address| SocketAddr::new(address, 53));
        if let Ok(at) = address.or_else(|_| text.parse::<SocketAddr>()) {
            return Ok(if scope.admits(at.ip()) { Self::Plain(at) } else { Self::Refused(at) });
        }
        if text.starts_with("https://") {
            return Ok(Self::Https { url: text.to_owned(), addresses: bootstrap.to_vec() });
        }
        Err(ParseResolverError(text.to_owned()))
    }
}

/// A part of a [`Config`] that was left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Skipped {
    /// Text that is no name.
    Name(String),
    /// An extra record of another type.
    RecordType(String),
    /// An extra record whose value is no address.
    RecordValue(String),
    /// A resolver by DNS over HTTPS: what goes to it alone fails.
    Https(String),
}

impl fmt::Display for Skipped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => write!(f, "{name:?} is no DNS name"),
            Self::RecordType(name) => write!(f, "the record of {name:?} is neither A nor AAAA"),
            Self::RecordValue(name) => write!(f, "the record of {name:?} has no address"),
            Self::Https(url) => write!(f, "{url}: DNS over HTTPS is not supported"),
        }
    }
}

/// How a query came, which limits its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// In a datagram.
    Udp,
    /// On a stream.
    Tcp,
}

/// What to do with a query.
#[derive(Clone, Debug)]
pub enum Answer {
    /// Send this back.
    Reply(Vec<u8>),
    /// Ask another resolver.
    Forward(Forward),
    /// Nothing: it is no query.
    Ignore,
}

/// All names that a node knows. It does not change: a new map makes new ones.
#[derive(Debug, Default)]
pub struct Names {
    /// Of extra records and of nodes; an extra record hides a node of that name.
    hosts: Table<Fqdn, HostRecord>,
    reverse: Table<IpAddr, Fqdn>,
    suffix: Option<Fqdn>,
    /// Who answers below a suffix; an empty list is this node.
    routes: HashMap<Fqdn, Arc<[Resolver]>>,
    defaults: Arc<[Resolver]>,
}

/// What a name stands for.
#[derive(Debug, Default)]
struct HostRecord {
    addresses: Box<[IpAddr]>,
    /// Whether this is an extra record.
    extra: bool,
    subdomains: bool,
}
