//! The names in rules, and their ports.

use std::{fmt, net::IpAddr};

use ipnet::IpNet;
use tailnet::map_messages::PortRange;

use crate::refusal::{PortsFault, Reason};

/// All ports.
pub(crate) const ANY_PORT: PortRange = PortRange { first: 0, last: u16::MAX };

/// Numbers of IP protocols.
pub(crate) const ICMP: u8 = 1;
pub(crate) const TCP: u8 = 6;
pub(crate) const UDP: u8 = 17;
pub(crate) const ICMP6: u8 = 58;
const SCTP: u8 = 132;

/// Reasons for which names of Tailscale are not supported.
pub(crate) const NO_SERVICES: &str = ": this coordinator does not offer services";
const NO_SHARING: &str = ": machines are not shared with other networks";
const NO_ROLES: &str = ": the roles of users are owner, admin and member";

/// A name of nodes, users or networks in a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Alias {
    Any,
    User(String),
    /// All users of a mail domain.
    Domain(String),
    Group(String),
    Tag(String),
    Host(String),
    Set(String),
    Net(IpNet),
    Auto(Autogroup),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Autogroup {
    Internet,
    Member,
    Tagged,
    Itself,
    DangerAll,
    Admin,
    Owner,
}

impl Alias {
    /// Parses a name. Does not check whether it is defined.
    pub(crate) fn parse(text: &str) -> Result<Self, Reason> {
        let text = text.trim();
        if let Some(net) = net(text) {
            return Ok(Self::Net(net));
        }
        if text == "*" {
            return Ok(Self::Any);
        }
        let invalid = || Reason::Alias(text.into());
        match text.split_once(':') {
            Some(("group" | "tag" | "ipset", "")) => Err(invalid()),
            Some(("group", _)) => Ok(Self::Group(text.into())),
            Some(("tag", _)) => Ok(Self::Tag(text.into())),
            Some(("ipset", _)) => Ok(Self::Set(text.into())),
            Some(("autogroup", name)) => Autogroup::parse(name, text).map(Self::Auto),
            Some(("svc", _)) => Err(Reason::UnsupportedName(text.into(), NO_SERVICES)),
            Some(("user", domain)) => match domain.strip_prefix("*@") {
                Some(domain) if !domain.is_empty() => Ok(Self::Domain(domain.into())),
                _ => Err(invalid()),
            },
            _ if is_user(text) => Ok(Self::User(text.into())),
            None if !text.is_empty() && !text.contains('@') => Ok(Self::Host(text.into())),
            _ => Err(invalid()),
        }
    }

    /// Whether it is this autogroup.
    pub(crate) fn is(&self, group: Autogroup) -> bool {
        *self == Self::Auto(group)
    }
}

impl Autogroup {
    fn parse(name: &str, text: &str) -> Result<Self, Reason> {
        Ok(match name {
            "internet" => Self::Internet,
            "member" | "members" => Self::Member,
            "tagged" => Self::Tagged,
            "self" => Self::Itself,
            "danger-all" => Self::DangerAll,
            "admin" => Self::Admin,
            "owner" => Self::Owner,
            "shared" => return Err(Reason::UnsupportedName(text.into(), NO_SHARING)),
            "auditor" | "billing-admin" | "it-admin" | "network-admin" => {
                return Err(Reason::UnsupportedName(text.into(), NO_ROLES));
            }
            _ => return Err(Reason::Autogroup(text.into())),
        })
    }
}

impl fmt::Display for Alias {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => out.write_str("*"),
            Self::Domain(domain) => write!(out, "user:*@{domain}"),
            Self::User(name)
            | Self::Group(name)
            | Self::Tag(name)
            | Self::Host(name)
            | Self::Set(name) => out.write_str(name),
            Self::Net(net) => out.write_str(&text(net)),
            Self::Auto(group) => write!(out, "autogroup:{group}"),
        }
    }
}

impl fmt::Display for Autogroup {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Internet => "internet",
            Self::Member => "member",
            Self::Tagged => "tagged",
            Self::Itself => "self",
            Self::DangerAll => "danger-all",
            Self::Admin => "admin",
            Self::Owner => "owner",
        })
    }
}

/// Whether a text is `name@domain`, or `name@`.
fn is_user(text: &str) -> bool {
    text.contains('@') && !text.starts_with('@')
}

/// Parses an address or a network.
pub(crate) fn net(text: &str) -> Option<IpNet> {
    let net = if text.contains('/') { text.parse().ok() } else { single(text) };
    net.map(|net: IpNet| net.trunc())
}

fn single(text: &str) -> Option<IpNet> {
    text.parse::<IpAddr>().ok().map(IpNet::from)
}

/// Formats a network as in filters: a single address is written without a prefix length.
pub(crate) fn text(net: &IpNet) -> String {
    if net.prefix_len() == net.max_prefix_len() { net.addr().to_string() } else { net.to_string() }
}

/// Parses `target:ports`.
pub(crate) fn target(text: &str) -> Result<(Alias, Vec<PortRange>), Reason> {
    let (target, ports) = split(text)?;
    let found = self::ports(ports).map_err(|fault| Reason::PortsOf {
        target: text.trim().into(),
        ports: ports.into(),
        fault,
    })?;
    Ok((Alias::parse(&target)?, found))
}

/// Splits `target:ports`.
pub(crate) fn split(text: &str) -> Result<(String, &str), Reason> {
    let text = text.trim();
    let parts = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, rest)) => {
            rest.rsplit_once(':').map(|(length, ports)| (format!("{address}{length}"), ports))
        }
        None => text.rsplit_once(':').map(|(target, ports)| (target.to_owned(), ports)),
    };
    parts.ok_or(Reason::Ports(PortsFault::Missing))
}

/// Parses ports: `*`, `22`, `22,80-443`.
pub(crate) fn ports(text: &str) -> Result<Vec<PortRange>, PortsFault> {
    if text == "*" {
        return Ok(vec![ANY_PORT]);
    }
    text.split(',').map(|range| self::range(range.trim())).collect()
}

fn range(text: &str) -> Result<PortRange, PortsFault> {
    let Some((first, last)) = text.split_once('-') else {
        let port = port(text)?;
        return if port == 0 {
            Err(PortsFault::Zero)
        } else {
            Ok(PortRange { first: port, last: port })
        };
    };
    let (first, last) = (port(first)?, port(last)?);
    if first > last { Err(PortsFault::Order) } else { Ok(PortRange { first, last }) }
}

/// Parses one port number.
pub(crate) fn port(text: &str) -> Result<u16, PortsFault> {
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(PortsFault::NotNumber);
    }
    text.parse().map_err(|_| PortsFault::TooLarge)
}

/// Parses a protocol's name or number. Returns `None` for an empty text: TCP, UDP and ICMP.
pub(crate) fn protocol(text: &str) -> Result<Option<u8>, Reason> {
    let name = text.to_ascii_lowercase();
    let number = match name.as_str() {
        "" => return Ok(None),
        "icmp" => ICMP,
        "igmp" => 2,
        "ipv4" | "ip-in-ip" => 4,
        "tcp" => TCP,
        "egp" => 8,
        "igp" => 9,
        "udp" => UDP,
        "gre" => 47,
        "esp" => 50,
        "ah" => 51,
        "ipv6-icmp" => ICMP6,
        "sctp" => SCTP,
        "fc" => 133,
        digits if !digits.starts_with('0') => {
            digits.parse().map_err(|_| Reason::Protocol(text.into()))?
        }
        _ => return Err(Reason::Protocol(text.into())),
    };
    Ok(Some(number))
}

/// Whether packets of a protocol have ports.
pub(crate) fn has_ports(protocol: Option<u8>) -> bool {
    matches!(protocol, None | Some(TCP | UDP | SCTP))
}
