//! The names that rules use, and the ports behind them.

use std::{fmt, net::IpAddr};

use ipnet::IpNet;
use tailnet::messages::PortRange;

use crate::refusal::{PortsFault, Reason};

/// All ports.
pub(crate) const ANY_PORT: PortRange = PortRange { first: 0, last: u16::MAX };

/// Whom a rule means.
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
    /// Reads a name; whether it is defined is for others to say.
    pub fn parse(text: &str) -> Result<Self, Reason> {
        let text = text.trim();
        if let Some(net) = net(text) {
            return Ok(Self::Net(net));
        }
        if let Some(domain) = text.strip_prefix("user:*@") {
            return Ok(Self::Domain(domain.into()));
        }
        if text == "*" {
            return Ok(Self::Any);
        }
        if text.contains('@') {
            return Ok(Self::User(text.into()));
        }
        match text.split_once(':') {
            Some(("group", _)) => Ok(Self::Group(text.into())),
            Some(("tag", _)) => Ok(Self::Tag(text.into())),
            Some(("ipset", _)) => Ok(Self::Set(text.into())),
            Some(("autogroup", name)) => {
                Autogroup::parse(name).map(Self::Auto).ok_or_else(|| Reason::Autogroup(text.into()))
            }
            Some(("svc", _)) => Err(Reason::Unsupported(": there are no services")),
            None if !text.is_empty() => Ok(Self::Host(text.into())),
            _ => Err(Reason::Alias(text.into())),
        }
    }

    /// Whether it is an autogroup.
    pub fn is(&self, group: Autogroup) -> bool {
        *self == Self::Auto(group)
    }
}

impl Autogroup {
    fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "internet" => Self::Internet,
            "member" | "members" => Self::Member,
            "tagged" => Self::Tagged,
            "self" => Self::Itself,
            "danger-all" => Self::DangerAll,
            "admin" => Self::Admin,
            "owner" => Self::Owner,
            _ => return None,
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

/// An address or a network.
pub(crate) fn net(text: &str) -> Option<IpNet> {
    let net = if text.contains('/') { text.parse().ok() } else { single(text) };
    net.map(|net: IpNet| net.trunc())
}

fn single(text: &str) -> Option<IpNet> {
    text.parse::<IpAddr>().ok().map(IpNet::from)
}

/// A network as filters write it: a single address has no length.
pub(crate) fn text(net: &IpNet) -> String {
    if net.prefix_len() == net.max_prefix_len() { net.addr().to_string() } else { net.to_string() }
}

/// Reads `target:ports`.
pub(crate) fn target(text: &str) -> Result<(Alias, Vec<PortRange>), Reason> {
    let text = text.trim();
    let (target, ports) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, rest)) => {
            let (length, ports) =
                rest.rsplit_once(':').ok_or(Reason::Ports(PortsFault::Missing))?;
            (format!("{address}{length}"), ports)
        }
        None => {
            let (target, ports) =
                text.rsplit_once(':').ok_or(Reason::Ports(PortsFault::Missing))?;
            (target.to_owned(), ports)
        }
    };
    let found = self::ports(ports).map_err(|fault| Reason::PortsOf {
        target: text.into(),
        ports: ports.into(),
        fault,
    })?;
    Ok((Alias::parse(&target)?, found))
}

/// Reads `*`, `22`, `22,80-443`.
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

fn port(text: &str) -> Result<u16, PortsFault> {
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(PortsFault::NotNumber);
    }
    text.parse().map_err(|_| PortsFault::TooLarge)
}

/// The number of a protocol by its name or number; none for the usual ones.
pub(crate) fn protocol(text: &str) -> Result<Option<u8>, Reason> {
    let name = text.to_ascii_lowercase();
    let number = match name.as_str() {
        "" => return Ok(None),
        "icmp" => 1,
        "igmp" => 2,
        "ipv4" | "ip-in-ip" => 4,
        "tcp" => 6,
        "egp" => 8,
        "igp" => 9,
        "udp" => 17,
        "gre" => 47,
        "esp" => 50,
        "ah" => 51,
        "ipv6-icmp" => 58,
        "sctp" => 132,
        "fc" => 133,
        digits if !digits.starts_with('0') => {
            digits.parse().map_err(|_| Reason::Protocol(text.into()))?
        }
        _ => return Err(Reason::Protocol(text.into())),
    };
    Ok(Some(number))
}

/// Whether its packets have ports.
pub(crate) fn has_ports(protocol: Option<u8>) -> bool {
    matches!(protocol, None | Some(6 | 17 | 132))
}
