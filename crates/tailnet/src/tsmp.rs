//! Messages between the data planes of two nodes inside the tunnel (tailscale
//! `net/packet/tsmp.go`): packets of IP protocol 99, which hosts do not receive.
//!
//! ```text
//!   ping     'p'  8 bytes that come back
//!   pong     'o'  the same 8 bytes, and the port of the HTTP server for peers, if there is one
//!   refusal  '!'  protocol, reason, source port, destination port
//!   key      'a'  32 bytes of the sender's disco key
//! ```

use std::net::IpAddr;

use packet::wire::{Fragment, IpHeader, ipv4, ipv6, put_u16, put_u32};

/// The IP protocol (IANA: "any private encryption scheme").
pub const PROTOCOL: u8 = 99;
/// The longest packet. Later versions may append fields.
pub const LONGEST: usize = 1280;

/// The data of a ping, which must be unpredictable.
pub type Token = [u8; 8];

const PING: u8 = b'p';
const PONG: u8 = b'o';
const REFUSAL: u8 = b'!';
const KEY: u8 = b'a';
const KEY_LEN: usize = 32;
/// The TTL. A tunnel does not contain routers.
const HOPS: u8 = 64;

/// A packet of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tsmp {
    /// The source.
    pub from: IpAddr,
    /// The destination.
    pub to: IpAddr,
    /// What it says.
    pub message: Message,
}

/// A message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// Requests a pong with the same token.
    Ping(Token),
    /// The answer.
    Pong(Token),
    /// A connection of the receiver was refused.
    Refusal(Refusal),
    /// The sender's disco key. Nodes with a coordinator do not need it.
    Key,
}

/// A refused connection of this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The protocol of the connection.
    pub protocol: u8,
    /// The reason.
    pub reason: Reason,
    /// The local port.
    pub source_port: u16,
    /// The remote port.
    pub destination_port: u16,
}

/// The reason of a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The policy.
    Policy,
    /// The user rejects all connections.
    Shields,
    /// The node does not forward.
    Forwarding,
    /// A firewall of the host.
    Firewall,
    /// An unknown reason.
    Other(u8),
}

impl Reason {
    fn of(byte: u8) -> Self {
        match byte {
            b'A' => Self::Policy,
            b'S' => Self::Shields,
            b'F' => Self::Forwarding,
            b'W' => Self::Firewall,
            other => Self::Other(other),
        }
    }
}

/// Reads a packet. `None` if it is not a known message of the protocol.
pub fn read(packet: &[u8]) -> Option<Tsmp> {
    let header = IpHeader::parse(packet).ok()?;
    let is_whole = header.fragment == Fragment::Whole;
    if header.protocol != PROTOCOL || !is_whole || packet.len() > LONGEST {
        return None;
    }
    // Bytes after the packet are padding.
    let (kind, said) = header.transport(packet.get(..header.total_len)?).split_first()?;
    let message = match *kind {
        PING => Message::Ping(*said.first_chunk()?),
        PONG => Message::Pong(*said.first_chunk()?),
        REFUSAL => {
            let [protocol, reason, s0, s1, d0, d1] = *said.first_chunk()?;
            Message::Refusal(Refusal {
                protocol,
                reason: Reason::of(reason),
                source_port: u16::from_be_bytes([s0, s1]),
                destination_port: u16::from_be_bytes([d0, d1]),
            })
        }
        KEY if said.len() >= KEY_LEN => Message::Key,
        _ => return None,
    };
    Some(Tsmp { from: header.source(packet), to: header.destination(packet), message })
}

/// Returns a ping; `None` if the addresses are of different families.
pub fn ping(from: IpAddr, to: IpAddr, token: Token) -> Option<Vec<u8>> {
    write(from, to, &[&[PING][..], &token].concat())
}

/// Returns a pong from `from` to `to`. The port is 0, because no HTTP server exists for peers.
pub fn pong(from: IpAddr, to: IpAddr, token: Token) -> Option<Vec<u8>> {
    write(from, to, &[&[PONG][..], &token, &[0, 0]].concat())
}

fn write(from: IpAddr, to: IpAddr, message: &[u8]) -> Option<Vec<u8>> {
    let len = message.len() as u16;
    let mut packet = match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let mut ip = vec![0; ipv4::HEADER_LEN];
            ip[ipv4::VERSION_IHL] = ipv4::PLAIN;
            put_u16(&mut ip, ipv4::TOTAL_LEN, ipv4::HEADER_LEN as u16 + len);
            ip[ipv4::TTL] = HOPS;
            ip[ipv4::PROTOCOL] = PROTOCOL;
            ip[ipv4::SOURCE].copy_from_slice(&from.octets());
            ip[ipv4::DESTINATION].copy_from_slice(&to.octets());
            let checksum = !packet::checksum::sum(&ip);
            put_u16(&mut ip, ipv4::CHECKSUM, checksum);
            ip
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let mut ip = vec![0; ipv6::HEADER_LEN];
            put_u32(&mut ip, ipv6::VERSION_CLASS_LABEL, 6 << 28);
            put_u16(&mut ip, ipv6::PAYLOAD_LEN, len);
            ip[ipv6::NEXT_HEADER] = PROTOCOL;
            ip[ipv6::HOP_LIMIT] = HOPS;
            ip[ipv6::SOURCE].copy_from_slice(&from.octets());
            ip[ipv6::DESTINATION].copy_from_slice(&to.octets());
            ip
        }
        _ => return None,
    };
    packet.extend(message);
    Some(packet)
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;

    const OWN: &str = "100.64.0.1";
    const PEER: &str = "100.64.0.2";

    fn addresses(v4: bool) -> [IpAddr; 2] {
        let texts = if v4 { [OWN, PEER] } else { ["fd7a::1", "fd7a::2"] };
        texts.map(|text| text.parse().unwrap())
    }

    fn stock(message: &[u8]) -> Vec<u8> {
        let [own, peer] = addresses(true);
        write(peer, own, message).unwrap()
    }

    #[test]
    fn pings_and_pongs_match_stock_nodes() {
        let [own, peer] = addresses(true);
        let token = *b"12345678";
        // The bytes of `net/packet/header_test.go` and tsmp.go: total length, TTL 64, protocol 99.
        let ip = [0x45, 0, 0, 29, 0, 0, 0, 0, 64, 99];
        let sent = ping(own, peer, token).unwrap();
        assert_eq!((&sent[..10], &sent[20..]), (&ip[..], &b"p12345678"[..]));
        assert_eq!(packet::checksum::sum(&sent[..20]), 0xffff);
        assert_eq!(&pong(own, peer, token).unwrap()[20..], b"o12345678\0\0");
        let [own, peer] = addresses(false);
        let sent = ping(own, peer, token).unwrap();
        assert_eq!(&sent[..8], &[0x60, 0, 0, 0, 0, 9, 99, 64]);
        assert_eq!(&sent[40..], b"p12345678");
        assert_eq!(ping(own, OWN.parse().unwrap(), token), None, "of two families");
    }

    #[test]
    fn refusals_contain_reason_and_connection() {
        let read_refusal = |message: &[u8]| match read(&stock(message)).unwrap().message {
            Message::Refusal(refusal) => refusal,
            other => panic!("{other:?}"),
        };
        let refusal = read_refusal(b"!\x06A\x30\x39\x00\x50");
        let Refusal { protocol, reason, source_port, destination_port } = refusal;
        assert_eq!((protocol, reason), (6, Reason::Policy));
        assert_eq!((source_port, destination_port), (12345, 80));
        assert_eq!(read_refusal(b"!\x06S\0\0\0\0").reason, Reason::Shields);
        assert_eq!(read_refusal(b"!\x06F\0\0\0\0\x01").reason, Reason::Forwarding);
        assert_eq!(read_refusal(b"!\x06W\0\0\0\0").reason, Reason::Firewall);
        assert_eq!(read_refusal(b"!\x06T\0\0\0\0").reason, Reason::Other(b'T'));
    }

    #[test]
    fn short_fragmented_or_unknown_packets_are_ignored() {
        for message in [&b""[..], b"p1234567", b"o1234567", b"!\x06A\0\0\0", b"a123", b"?12345678"]
        {
            assert_eq!(read(&stock(message)), None, "{message:?}");
        }
        assert_eq!(read(&stock(&[&b"a"[..], &[7; 32]].concat())).unwrap().message, Message::Key);
        for (at, byte) in [(6, 0x20), (7, 1), (9, 17)] {
            let mut other = stock(b"p12345678");
            other[at] = byte;
            assert_eq!(read(&other), None, "byte {at}");
        }
        assert_eq!(read(&stock(&[b'p'; LONGEST])), None);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20_000))]

        #[test]
        fn written_messages_are_read_without_their_padding(
            v4: bool,
            token: Token,
            padding in 0_usize..16,
        ) {
            let [from, to] = addresses(v4);
            for (written, message) in [
                (ping(from, to, token), Message::Ping(token)),
                (pong(from, to, token), Message::Pong(token)),
            ] {
                let mut written = written.unwrap();
                written.resize(written.len() + padding, 0xee);
                prop_assert_eq!(read(&written), Some(Tsmp { from, to, message }));
            }
        }

        #[test]
        fn garbage_is_ignored_or_read_as_its_bytes(
            v4: bool,
            garbage in vec(any::<u8>(), 0..80),
            header: bool,
        ) {
            let mut packet = garbage;
            if header {
                let [from, to] = addresses(v4);
                packet = write(from, to, &packet).unwrap();
            }
            if let Some(Tsmp { message: Message::Ping(token) | Message::Pong(token), .. }) =
                read(&packet)
            {
                prop_assert!(packet.windows(8).any(|window| window == token));
            }
        }
    }
}
