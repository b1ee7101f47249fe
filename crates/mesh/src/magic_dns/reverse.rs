//! Reverse names of addresses (RFC 1035, section 3.5; RFC 3596, section 2.5).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::fqdn::Fqdn;

/// Returns the reverse zones of a tailnet: those of 100.64.0.0/10, and of fd7a:115c:a1e0::/48.
pub(super) fn zones() -> impl Iterator<Item = Fqdn> {
    let ipv4 = (64..128).filter_map(|octet| Fqdn::parse(&format!("{octet}.100.in-addr.arpa")));
    ipv4.chain(Fqdn::parse("0.e.1.a.c.5.1.1.a.7.d.f.ip6.arpa"))
}

/// The meaning of a name below `in-addr.arpa` or `ip6.arpa`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reverse {
    /// One address.
    Address(IpAddr),
    /// A prefix of addresses.
    Inner,
    /// No address.
    Malformed,
}

/// Reads a reverse name; `None` for any other name.
pub(super) fn parse(name: &Fqdn) -> Option<Reverse> {
    let mut labels: Vec<&[u8]> = name.labels().collect();
    if labels.pop() != Some(b"arpa") {
        return None;
    }
    match labels.pop() {
        Some(b"in-addr") => Some(read::<4>(&labels, octet, |octets| Ipv4Addr::from(octets).into())),
        Some(b"ip6") => Some(read::<32>(&labels, nibble, |nibbles| {
            let bits = nibbles.iter().fold(0, |bits, nibble| bits << 4 | u128::from(*nibble));
            Ipv6Addr::from_bits(bits).into()
        })),
        _ => None,
    }
}

fn read<const N: usize>(
    labels: &[&[u8]],
    digit: fn(&[u8]) -> Option<u8>,
    address: impl Fn([u8; N]) -> IpAddr,
) -> Reverse {
    let digits: Option<Vec<u8>> = labels.iter().rev().map(|label| digit(label)).collect();
    match digits {
        None => Reverse::Malformed,
        Some(digits) if digits.len() < N => Reverse::Inner,
        Some(digits) => {
            digits.try_into().map_or(Reverse::Malformed, |d| Reverse::Address(address(d)))
        }
    }
}

fn octet(label: &[u8]) -> Option<u8> {
    // Leading zeros are not allowed.
    let plain = label == b"0" || label.first() != Some(&b'0');
    let digits = label.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(label).ok().filter(|_| plain && digits)?.parse().ok()
}

fn nibble(label: &[u8]) -> Option<u8> {
    let [digit] = label else { return None };
    char::from(*digit).to_digit(16).and_then(|value| u8::try_from(value).ok())
}

/// Returns whether a name is a Bonjour query for services by address (RFC 6763, section 11). It
/// always gets a negative answer.
pub(super) fn is_bonjour(name: &Fqdn) -> bool {
    let mut labels = name.labels();
    let first = labels.next();
    matches!(first, Some(b"b" | b"db" | b"r" | b"dr" | b"lb"))
        && labels.next() == Some(b"_dns-sd")
        && labels.next() == Some(b"_udp")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(name: &str) -> Option<Reverse> {
        parse(&Fqdn::parse(name).unwrap())
    }

    #[test]
    fn reverse_names_are_parsed() {
        let v4 = of("4.3.2.1.in-addr.arpa");
        assert_eq!(v4, Some(Reverse::Address(Ipv4Addr::new(1, 2, 3, 4).into())));
        let name = "b.a.9.8.7.6.5.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.8.b.d.0.1.0.0.2.ip6.arpa";
        assert_eq!(of(name), Some(Reverse::Address("2001:db8::567:89ab".parse().unwrap())));
    }

    #[test]
    fn inner_and_malformed_reverse_names_yield_none() {
        assert_eq!(of("2.1.in-addr.arpa"), Some(Reverse::Inner));
        assert_eq!(of("ip6.arpa"), Some(Reverse::Inner));
        for name in ["5.4.3.2.1.in-addr.arpa", "256.3.2.1.in-addr.arpa", "x.in-addr.arpa"] {
            assert_eq!(of(name), Some(Reverse::Malformed), "{name}");
        }
        for name in ["+4.3.2.1.in-addr.arpa", "04.3.2.1.in-addr.arpa", "10.ip6.arpa"] {
            assert_eq!(of(name), Some(Reverse::Malformed), "{name}");
        }
        assert_eq!(of("in-addr.example"), None);
        assert_eq!(of("arpa"), None);
    }
}
