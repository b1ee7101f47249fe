//! The header of each datagram of an association (RFC 1928, section 7).

use std::net::SocketAddr;

use super::{Address, address, put_address};
use config::target::Target;

/// Splits a datagram of the client into target and payload. Returns `None` for an invalid datagram, and
/// for a fragment, which may be dropped.
pub fn parse(datagram: &[u8]) -> Option<(Target, &[u8])> {
    let [_, _, 0, rest @ ..] = datagram else { return None };
    match address(rest) {
        Address::Whole(target, len) => Some((target, &rest[len..])),
        Address::Short | Address::Bad => None,
    }
}

/// Encodes a datagram for the client, with the sender `from` in its header.
pub fn encode(from: SocketAddr, payload: &[u8]) -> Vec<u8> {
    let mut datagram = Vec::with_capacity(22 + payload.len());
    datagram.extend_from_slice(&[0; 3]);
    put_address(&mut datagram, from);
    datagram.extend_from_slice(payload);
    datagram
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn datagram_header_round_trips() {
        for address in ["10.0.0.1:53", "[fd00::1]:53"] {
            let address: SocketAddr = address.parse().unwrap();
            let datagram = encode(address, b"payload");
            assert_eq!(parse(&datagram), Some((Target::from(address), &b"payload"[..])));
        }
        let named = [&[0, 0, 0, 3, 1][..], b"a", &[0, 53], b"x"].concat();
        assert_eq!(parse(&named), Some((Target::parse("a:53", None).unwrap(), &b"x"[..])));
    }

    #[test]
    fn fragments_and_truncated_datagrams_are_rejected() {
        let whole = encode("[fd00::1]:53".parse().unwrap(), b"");
        for len in 0..whole.len() {
            assert_eq!(parse(&whole[..len]), None, "{len}");
        }
        let mut fragment = whole.clone();
        fragment[2] = 1;
        assert_eq!(parse(&fragment), None);
        let mut unknown = whole;
        unknown[3] = 2;
        assert_eq!(parse(&unknown), None);
    }
}
