//! MagicDNS: answers to DNS queries from the names in the network map.
//!
//! ```text
//!   query ──► own name? ──► address of a node, extra record, reverse name     Reply, TTL 5 s
//!                │ no
//!                ▼
//!           longest suffix ─► answered here ─► NXDOMAIN with the zone's SOA   Reply, 10 s
//!                │             (MagicDNS suffix, reverse zones, empty routes)
//!                ├──────────► a route's or the default resolvers              Forward
//!                └──────────► no resolver                                     Reply, SERVFAIL
//! ```
//!
//! Semantics: tailscale `net/dns/resolver/tsdns.go` and `ipn/ipnlocal/node_backend.go`. It differs
//! where those break clients: all addresses of a name are in the answer, not only one; the top of a
//! zone and the inner names of a reverse zone exist (RFC 8020); a longer route inside an own zone
//! wins; datagrams that are not queries are ignored.

mod build;
mod forwarded_queries;
mod fqdn;
mod name_answers;
mod reply;
mod reverse;
mod sorted_map;
#[cfg(test)]
mod tests;

use std::{
    collections::HashMap,
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
};

pub use forwarded_queries::{Forward, Reply, ReplyError};
use fqdn::Fqdn;
use sorted_map::Table;

use crate::permitted_addresses::Scope;

/// The address of every node's resolver, in addition to the node's own addresses.
pub const SERVICE_IPV4: Ipv4Addr = Ipv4Addr::new(100, 100, 100, 100);
/// The same for IPv6 (tailscale `net/tsaddr`).
pub const SERVICE_IPV6: Ipv6Addr = Ipv6Addr::new(0xfd7a, 0x115c, 0xa1e0, 0, 0, 0, 0, 0x53);

/// The largest datagram that is sent or requested. It fits into 1280 bytes, the minimum MTU of
/// IPv6, and is the recommended size since DNS flag day 2020.
pub const UDP_LEN: u16 = 1232;

/// The names and resolvers of a node.
#[derive(Clone, Debug, Default)]
pub struct Config {
    /// The MagicDNS suffix of the network.
    pub suffix: String,
    /// Whether this node is authoritative for the suffix and the reverse zones (`Proxied`).
    pub magic: bool,
    /// Whether the user accepts the network's DNS settings (`--accept-dns`). Otherwise only names
    /// of the network are answered.
    pub accept: bool,
    /// This node.
    pub own: Host,
    /// The others.
    pub peers: Vec<Host>,
    /// `ExtraRecords` of the map.
    pub extra: Vec<ExtraRecord>,
    /// Suffixes and their resolvers; an empty list means this node.
    pub routes: Vec<(String, Vec<Resolver>)>,
    /// The resolvers for all other names.
    pub defaults: Vec<Resolver>,
    /// The resolvers for all other names while an exit node is in use and `defaults` is empty.
    pub fallback: Vec<Resolver>,
    /// The previous resolvers of the host, used if the network configures none.
    pub system: Vec<Resolver>,
    /// Whether an exit node is in use.
    pub exit_node: bool,
    /// Whether IPv6 addresses of nodes that also have IPv4 are in answers (the capability
    /// `magicdns-aaaa`).
    pub aaaa: bool,
}

/// The name and addresses of a node.
#[derive(Clone, Debug, Default)]
pub struct Host {
    /// The full name.
    pub name: String,
    /// The addresses in the network.
    pub addresses: Vec<IpAddr>,
    /// Whether the name covers all names below it (`dns-subdomain-resolve`).
    pub subdomains: bool,
}

/// A record from the coordinator (`tailcfg.DNSRecord`).
#[derive(Clone, Debug, Default)]
pub struct ExtraRecord {
    /// The full name.
    pub name: String,
    /// Empty, `A` or `AAAA`: the type is that of the value.
    pub kind: String,
    /// An address.
    pub value: String,
}

/// A resolver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resolver {
    /// DNS over UDP and TCP.
    Plain(SocketAddr),
    /// DNS over HTTPS.
    Https {
        /// The whole URL.
        url: String,
        /// `BootstrapResolution` of the map.
        addresses: Vec<IpAddr>,
    },
    /// The coordinator may not name this address ([`Scope`]). It is not used.
    Refused(SocketAddr),
}

/// The text is not the address of a supported resolver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseResolverError(pub String);

impl fmt::Display for ParseResolverError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is not a resolver: use an address, address:port or an https:// URL", self.0)
    }
}

impl std::error::Error for ParseResolverError {}

impl Resolver {
    /// Reads a resolver of the map (`types/dnstype`).
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

/// A part of a [`Config`] that is not used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Skipped {
    /// The text is not a name.
    Name(String),
    /// The type of an extra record is not supported.
    RecordType(String),
    /// The value of an extra record is not an address.
    RecordValue(String),
    /// DNS over HTTPS is not supported. Queries for which this is the only resolver fail.
    Https(String),
}

impl fmt::Display for Skipped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => write!(f, "{name:?} is not a DNS name"),
            Self::RecordType(name) => write!(f, "the record of {name:?} is neither A nor AAAA"),
            Self::RecordValue(name) => write!(f, "the record of {name:?} has no address"),
            Self::Https(url) => write!(f, "{url}: DNS over HTTPS is not supported"),
        }
    }
}

/// The transport of a query, which limits the size of the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// In a datagram.
    Udp,
    /// On a stream.
    Tcp,
}

/// The reaction to a query.
#[derive(Clone, Debug)]
pub enum Answer {
    /// Send this back.
    Reply(Vec<u8>),
    /// Ask another resolver.
    Forward(Forward),
    /// Ignore the datagram, which is not a query.
    Ignore,
}

/// All names of the network. It is immutable: a new map creates a new one.
#[derive(Debug, Default)]
pub struct Names {
    /// Extra records and nodes. An extra record hides a node of the same name.
    hosts: Table<Fqdn, HostRecord>,
    reverse: Table<IpAddr, Fqdn>,
    suffix: Option<Fqdn>,
    /// The resolvers of each suffix; an empty list means this node.
    routes: HashMap<Fqdn, Arc<[Resolver]>>,
    defaults: Arc<[Resolver]>,
}

/// The addresses of a name.
#[derive(Debug, Default)]
struct HostRecord {
    addresses: Box<[IpAddr]>,
    /// Whether the name is an extra record.
    extra: bool,
    subdomains: bool,
}
