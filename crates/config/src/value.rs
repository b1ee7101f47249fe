//! Values with the same syntax in UAPI and configuration files, and their errors.

use std::{
    borrow::Cow,
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    str::FromStr,
};

use ipnet::IpNet;

/// Maximum number of input bytes in an error. A full IPv6 address has 39. A key, which may appear in any
/// place by mistake, has at least 43.
const EXCERPT_MAX: usize = 40;

/// An invalid value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValueError {
    wanted: Wanted,
    got: Option<Box<str>>,
}

/// The expected form of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    HexKey,
    Base64Key,
    NonZeroKey,
    Port,
    PortOrService,
    Mark,
    Bytes,
    Keepalive,
    Mtu,
    Table,
    Mask,
    MaskOfMark,
    OwnTable,
    RulePriority,
    Network,
    InterfaceAddress,
    NameServer,
    Endpoint,
    NumericEndpoint,
    NumericScope,
    True,
    Bool,
    OnOff,
    OffOnRequire,
    FastestLibrary,
    SocketAddress,
    Forward,
    Expose,
    ProxyUser,
}

impl ValueError {
    pub(crate) fn new(wanted: Wanted, got: &str) -> Self {
        Self { wanted, got: (got.len() <= EXCERPT_MAX).then(|| got.into()) }
    }

    /// An error that does not contain the value.
    pub(crate) fn secret(wanted: Wanted) -> Self {
        Self { wanted, got: None }
    }
}

impl fmt::Display for ValueError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.got {
            Some(got) => write!(f, "{got:?} is not {}", self.wanted),
            None => write!(f, "not {}", self.wanted),
        }
    }
}

impl std::error::Error for ValueError {}

impl fmt::Display for Wanted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::HexKey => "a key of 64 hexadecimal digits",
            Self::Base64Key => "a key of 44 base64 characters, as wg genkey makes it",
            Self::NonZeroKey => "a private key, all zero as it is",
            Self::Port => "a port, 0 to 65535",
            Self::PortOrService => "a port, 0 to 65535, nor a UDP service of /etc/services",
            Self::Mark => "a mark, 0 to 4294967295 or 0x0 to 0xffffffff",
            Self::Bytes => "a number of bytes",
            Self::Keepalive => "a number of seconds, 0 to 65535",
            Self::Mtu => "an MTU, 68 to 65535",
            Self::Table => {
                "a routing table: off, auto, a number, 0 to 4294967295, or a name in \
                 /etc/iproute2/rt_tables"
            }
            Self::Mask => "a mask, 1 to 4294967295 or 0x1 to 0xffffffff",
            Self::MaskOfMark => "a mask that holds every bit of FwMark",
            Self::OwnTable => {
                "the number of a separate routing table, 1 to 4294967295 except 253 to 255"
            }
            Self::RulePriority => "the priority of a rule, 1 to 32764",
            Self::Network => "an IP address or network, such as 10.0.0.0/24 or fd00::/64",
            Self::InterfaceAddress => {
                "an IP address, such as 10.0.0.1/24, 10.0.0.1/255.255.255.0 or fd00::1/64"
            }
            Self::NameServer => "the IP address of a name server, nor a search domain",
            Self::Endpoint => "an endpoint: host:port, 192.0.2.1:port or [2001:db8::1]:port",
            Self::NumericEndpoint => "an endpoint: 192.0.2.1:port or [2001:db8::1]:port",
            Self::NumericScope => {
                "an endpoint: the scope after % has to be the number of an interface, not its name"
            }
            Self::True => "true, the only value of this key",
            Self::Bool => "true or false",
            Self::OnOff => "on or off",
            Self::OffOnRequire => "off, on or require",
            Self::FastestLibrary => "fastest or library",
            Self::SocketAddress => {
                "an address with its port, such as 127.0.0.1:1080, or unix:/path"
            }
            Self::Forward => {
                "of the form tcp 127.0.0.1:8080 -> 10.0.0.2:80, or udp, or with unix:/path for a \
                 TCP listener"
            }
            Self::Expose => {
                "of the form tcp 10.0.0.1:22 -> 127.0.0.1:22, or udp, or with unix:/path for a \
                 TCP service"
            }
            Self::ProxyUser => "a name and the file of its password, name:/path",
        })
    }
}

/// A key of the input for an error. Omits a key that does not look like a word, because a part of a
/// secret becomes a key if a line is split in the wrong place.
pub(crate) fn key_name(key: &str) -> Cow<'static, str> {
    let longest = if key.bytes().any(|b| b.is_ascii_digit()) { 8 } else { 32 };
    let word = key.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-".contains(&b));
    if word && (1..=longest).contains(&key.len()) {
        Cow::Owned(key.to_owned())
    } else {
        Cow::Borrowed("…")
    }
}

/// Parses a number of decimal digits, without sign and spaces.
pub fn decimal<T: FromStr>(text: &str) -> Option<T> {
    if text.bytes().all(|b| b.is_ascii_digit()) { text.parse().ok() } else { None }
}

fn decimal_u16(text: &str, wanted: Wanted) -> Result<u16, ValueError> {
    decimal(text).ok_or_else(|| ValueError::new(wanted, text))
}

/// Parses a number of 32 bits, in decimal or, after `0x`, hexadecimal digits.
pub(crate) fn u32_of_either_base(text: &str) -> Option<u32> {
    match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(hex) if hex.starts_with('+') => None,
        Some(hex) => u32::from_str_radix(hex, 16).ok(),
        None => decimal(text),
    }
}

/// Parses a number like `ip`: decimal, hexadecimal after `0x`, else octal after `0` (strtoul(3)
/// with base 0).
pub(crate) fn u32_of_any_base(text: &str) -> Option<u32> {
    match text.strip_prefix('0') {
        Some(octal) if octal.bytes().all(|b| b.is_ascii_digit()) && !octal.is_empty() => {
            u32::from_str_radix(octal, 8).ok()
        }
        _ => u32_of_either_base(text),
    }
}

pub(crate) fn port(text: &str) -> Result<u16, ValueError> {
    decimal_u16(text, Wanted::Port)
}

pub(crate) fn mark(text: &str) -> Result<u32, ValueError> {
    u32_of_either_base(text).ok_or_else(|| ValueError::new(Wanted::Mark, text))
}

/// Parses seconds; 0 means off.
pub(crate) fn keepalive(text: &str) -> Result<u16, ValueError> {
    decimal_u16(text, Wanted::Keepalive)
}

pub(crate) fn mtu(text: &str) -> Result<u16, ValueError> {
    // The least MTU of the kernel's TUN devices (drivers/net/tun.c, MIN_MTU; RFC 791).
    const MIN_MTU: u16 = 68;
    let mtu = u32_of_any_base(text).and_then(|mtu| u16::try_from(mtu).ok());
    mtu.filter(|mtu| *mtu >= MIN_MTU).ok_or_else(|| ValueError::new(Wanted::Mtu, text))
}

/// Parses an address with or without a prefix length. The host bits remain.
pub(crate) fn address(text: &str) -> Result<IpNet, ValueError> {
    let net = match text.split_once('/') {
        None => text.parse::<IpAddr>().map(IpNet::from).ok(),
        Some((address, prefix)) => address
            .parse::<IpAddr>()
            .ok()
            .and_then(|address| IpNet::new(address, decimal(prefix)?).ok()),
    };
    net.ok_or_else(|| ValueError::new(Wanted::Network, text))
}

/// Parses an address of an interface like `ip address add` (`get_prefix_1` of iproute2): the prefix
/// may be a mask such as `255.255.255.0`, numbers may be octal or hexadecimal, and the last bytes of
/// an IPv4 address may be missing.
pub(crate) fn interface_address(text: &str) -> Result<IpNet, ValueError> {
    let (address, prefix) = text.split_once('/').map_or((text, None), |(a, p)| (a, Some(p)));
    let address = if address.contains(':') {
        address.parse().ok().map(IpAddr::V6)
    } else {
        ipv4_of_ip(address).map(IpAddr::V4)
    };
    let net = address.and_then(|address| match prefix {
        None => Some(IpNet::from(address)),
        Some(prefix) => IpNet::new(address, prefix_len_of_ip(prefix)?).ok(),
    });
    net.ok_or_else(|| ValueError::new(Wanted::InterfaceAddress, text))
}

fn ipv4_of_ip(text: &str) -> Option<Ipv4Addr> {
    let mut bytes = [0; 4];
    for (place, part) in text.split('.').enumerate() {
        *bytes.get_mut(place)? = u32_of_any_base(part)?.try_into().ok()?;
    }
    Some(bytes.into())
}

fn prefix_len_of_ip(text: &str) -> Option<u8> {
    match u32_of_any_base(text) {
        Some(len) => len.try_into().ok(),
        None => ipnet::ipv4_mask_to_prefix(ipv4_of_ip(text)?).ok(),
    }
}

/// Parses a network; host bits become zero.
pub(crate) fn network(text: &str) -> Result<IpNet, ValueError> {
    address(text).map(|address| address.trunc())
}

/// Splits an endpoint into host and port. A host in brackets is an IPv6 address, possibly with a scope.
/// Other hosts contain no colon.
pub(crate) fn endpoint(text: &str) -> Result<(&str, u16), ValueError> {
    let malformed = || ValueError::new(Wanted::Endpoint, text);
    let (host, port_text) = text.rsplit_once(':').ok_or_else(malformed)?;
    let host = match host.strip_prefix('[') {
        Some(rest) => rest.strip_suffix(']').filter(|host| is_ipv6(host)),
        None => Some(host).filter(|host| is_ipv4_or_name(host)),
    };
    Ok((host.ok_or_else(malformed)?, port(port_text)?))
}

/// Whether the text is an IPv6 address, possibly with a scope.
pub(crate) fn is_ipv6(host: &str) -> bool {
    let (address, scope) = host.split_once('%').unwrap_or((host, "0"));
    address.parse::<Ipv6Addr>().is_ok() && is_scope(scope)
}

/// Whether the text can be the scope of an address: the name or the number of an interface.
pub(crate) fn is_scope(text: &str) -> bool {
    let is_word = !text.is_empty() && text.bytes().all(|b| b.is_ascii_graphic());
    is_word && !text.contains(['[', ']', '%'])
}

pub(crate) fn is_ipv4_or_name(host: &str) -> bool {
    if host.bytes().all(|b| b.is_ascii_digit() || b == b'.') {
        return host.parse::<Ipv4Addr>().is_ok();
    }
    host.chars().all(|c| c.is_alphanumeric() || "-._".contains(c))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_digits_in_range() {
        for (text, number) in [("0", Some(0)), ("65535", Some(65535)), ("007", Some(7))] {
            assert_eq!(port(text).ok(), number, "{text}");
        }
        for text in ["", "-1", "+1", "65536", "1 ", "0x1", "1e3", "99999999999999999999999"] {
            assert!(port(text).is_err(), "{text}");
        }
        for (text, number) in [
            ("0", Some(0)),
            ("51820", Some(51820)),
            ("0xCA6c", Some(0xca6c)),
            ("4294967295", Some(u32::MAX)),
            ("0xffffffff", Some(u32::MAX)),
            ("4294967296", None),
            ("0x100000000", None),
            ("0x", None),
            ("0x+1", None),
            ("-0x1", None),
            ("ca6c", None),
        ] {
            assert_eq!(mark(text).ok(), number, "{text}");
        }
    }

    #[test]
    fn host_bits_of_networks_are_cleared() {
        for (text, net) in [
            ("10.1.2.3/8", "10.0.0.0/8"),
            ("10.1.2.3", "10.1.2.3/32"),
            ("0.0.0.0/0", "0.0.0.0/0"),
            ("::/0", "::/0"),
            ("fd00::5", "fd00::5/128"),
            ("fd00::5/64", "fd00::/64"),
        ] {
            assert_eq!(network(text).unwrap().to_string(), net, "{text}");
        }
        for text in ["", "/", "10.0.0.0/", "/8", "10.0.0.0/33", "::/129", "10.0.0/8", "::1%2/64"] {
            assert!(network(text).is_err(), "{text}");
        }
        for text in ["10.0.0.0/+8", "10.0.0.0/-1", "10.0.0.0/8/8", "010.0.0.0/8", " 10.0.0.0/8"] {
            assert!(network(text).is_err(), "{text}");
        }
    }

    #[test]
    fn interface_addresses_parse_as_in_iproute2() {
        for (text, net) in [
            ("10.0.0.1", "10.0.0.1/32"),
            ("10.0.0.1/255.255.255.0", "10.0.0.1/24"),
            ("10.0.0.1/0.0.0.0", "10.0.0.1/0"),
            ("10.0.0.1/255.255.255.255", "10.0.0.1/32"),
            ("10.0.0.7/0x18", "10.0.0.7/24"),
            ("10.0.0.7/030", "10.0.0.7/24"),
            ("10.1/16", "10.1.0.0/16"),
            ("010.0.0.1/8", "8.0.0.1/8"),
            ("0x0a.0.0.9/24", "10.0.0.9/24"),
            ("fd00::1/64", "fd00::1/64"),
            ("fd00::1", "fd00::1/128"),
        ] {
            assert_eq!(interface_address(text).unwrap().to_string(), net, "{text}");
        }
        // iproute2 6.1 refuses these as well.
        for text in [
            "",
            "10.0.0.8/0.0.0.255",
            "10.0.3.8/255.0.255.0",
            "10.0.0.4/",
            "10.0.0.1/33",
            "10.0.0.256/24",
            "10.0.0.1.2/24",
            "10.0.0.08/24",
            "10..0.1/24",
            "fe80::5%wg0/64",
            "fd00::1/129",
            "any/8",
        ] {
            assert!(interface_address(text).is_err(), "{text}");
        }
    }

    #[test]
    fn endpoints_split_into_host_and_port() {
        for (text, host, port) in [
            ("192.0.2.1:51820", "192.0.2.1", 51820),
            ("[2001:db8::1]:1", "2001:db8::1", 1),
            ("[fe80::1%3]:51820", "fe80::1%3", 51820),
            ("[fe80::1%eth0]:51820", "fe80::1%eth0", 51820),
            ("vpn.example.com:65535", "vpn.example.com", 65535),
            ("bücher.example:0", "bücher.example", 0),
        ] {
            assert_eq!(endpoint(text), Ok((host, port)), "{text}");
        }
        for text in [
            "",
            ":",
            ":51820",
            "192.0.2.1",
            "192.0.2.1:",
            "192.0.2.1:65536",
            "192.0.2.400:1",
            "192.0.2:1",
            "2001:db8::1:51820",
            "[2001:db8::1]",
            "[2001:db8::1]51820",
            "[2001:db8::1:51820",
            "2001:db8::1]:51820",
            "[192.0.2.1]:51820",
            "[fe80::1%]:51820",
            "[fe80::1%e h]:51820",
            "http://example.com:80",
            "two words:80",
        ] {
            assert!(endpoint(text).is_err(), "{text}");
        }
    }

    #[test]
    fn errors_omit_text_as_long_as_a_key() {
        let key = "A".repeat(43);
        assert!(!port(&key).unwrap_err().to_string().contains(&key));
        assert_eq!(
            port("x\x1b").unwrap_err().to_string(),
            r#""x\u{1b}" is not a port, 0 to 65535"#
        );
        for (key, name) in [
            ("PrivatKey", "PrivatKey"),
            ("persistent_keepalive_interval", "persistent_keepalive_interval"),
            ("Jc2", "Jc2"),
            ("", "…"),
            ("yAnz5TF+lXXJte14tji3zlMNq", "…"),
            ("lXXJte14tji3z", "…"),
        ] {
            assert_eq!(key_name(key), name);
        }
    }
}
