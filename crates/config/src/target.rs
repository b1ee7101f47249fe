//! The target of a client: a host and a port.

use std::{
    fmt,
    net::{IpAddr, Ipv6Addr, SocketAddr},
};

/// Longest text of a name (RFC 1035, section 2.3.4).
const NAME_MAX: usize = 253;

/// A host and a TCP or UDP port.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Target {
    /// The host.
    pub host: Host,
    /// The port.
    pub port: u16,
}

/// A host.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Host {
    /// An address.
    Ip(IpAddr),
    /// A name that must be resolved.
    Name(String),
}

impl Host {
    /// Parses an address or a name. An IPv6 address may have brackets.
    pub fn parse(text: &str) -> Option<Self> {
        if let Some(inner) = text.strip_prefix('[') {
            return inner
                .strip_suffix(']')?
                .parse::<Ipv6Addr>()
                .ok()
                .map(|ip| Self::Ip(ip.to_canonical()));
        }
        if let Ok(ip) = text.parse::<IpAddr>() {
            return Some(Self::Ip(ip));
        }
        let is_name = text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b));
        (is_name && (1..=NAME_MAX).contains(&text.len())).then(|| Self::Name(text.to_owned()))
    }
}

impl Target {
    /// Parses `host:port`, with brackets around an IPv6 address. The port may be absent if there is a
    /// `default_port`.
    pub fn parse(text: &str, default_port: Option<u16>) -> Option<Self> {
        let bare = || Some((text, default_port?));
        let (host, port) = match text.rsplit_once(':') {
            Some((host, _)) if text.starts_with('[') && !host.ends_with(']') => bare()?,
            Some((host, port)) => (host, crate::value::decimal(port)?),
            None => bare()?,
        };
        if host.contains(':') && !host.starts_with('[') {
            return None;
        }
        Some(Self { host: Host::parse(host)?, port })
    }
}

impl From<SocketAddr> for Target {
    fn from(address: SocketAddr) -> Self {
        Self { host: Host::Ip(address.ip()), port: address.port() }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host {
            Host::Ip(ip) => SocketAddr::new(*ip, self.port).fmt(f),
            Host::Name(name) => write!(f, "{name}:{}", self.port),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_parse_as_in_urls_and_files() {
        for (text, default, shown) in [
            ("10.0.0.2:80", None, "10.0.0.2:80"),
            ("[fd00::2]:80", None, "[fd00::2]:80"),
            ("[fd00::2]", Some(443), "[fd00::2]:443"),
            ("a.example:65535", None, "a.example:65535"),
            ("a.example", Some(80), "a.example:80"),
            ("_srv-1.a.:1", None, "_srv-1.a.:1"),
            ("[::ffff:10.0.0.2]:80", None, "10.0.0.2:80"),
        ] {
            let target = Target::parse(text, default);
            assert_eq!(target.map(|target| target.to_string()).as_deref(), Some(shown), "{text}");
        }
        for text in [
            "",
            ":80",
            "a",
            "a:",
            "a:65536",
            "a:-1",
            "fd00::2",
            "fd00::2:80",
            "[fd00::2",
            "[a]:1",
            "[10.0.0.1]:1",
            "a b:1",
            "a/b:1",
            "a@b:1",
            "[fd00::2]x:1",
        ] {
            assert_eq!(Target::parse(text, None), None, "{text}");
        }
    }
}
