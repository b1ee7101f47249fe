//! Messages as bytes.

use std::net::{Ipv6Addr, SocketAddr};

use super::{
    AllocateRequest, Bind, BirthdayMessage, DiscoError, MAX_ENDPOINTS, Message, RelayEndpoint,
};
use crate::keys::NodePublic;

const PING: u8 = 1;
const PONG: u8 = 2;
const CALL_ME_MAYBE: u8 = 3;
const BIND: u8 = 4;
const BIND_CHALLENGE: u8 = 5;
const BIND_ANSWER: u8 = 6;
const CALL_ME_MAYBE_VIA: u8 = 7;
const ALLOCATE_REQUEST: u8 = 8;
const ALLOCATE_RESPONSE: u8 = 9;
/// Types of linerate. Tailscale counts from 1.
const BUNDLE_OFFER: u8 = 0xb0;
const BIRTHDAY: u8 = 0xb1;
/// The only version. Fields that a later version appends are ignored.
const VERSION: u8 = 0;

/// The length of an address, with IPv4 mapped into IPv6, and a port.
pub(super) const ENDPOINT: usize = 16 + 2;

impl Message {
    /// Appends the encoded message to `text`.
    pub fn write(&self, text: &mut Vec<u8>) {
        match self {
            Self::Ping { tx, node_key, padding } => {
                text.extend_from_slice(&[PING, VERSION]);
                text.extend_from_slice(tx);
                text.extend_from_slice(node_key.as_ref().map_or(&[], |key| &key.0[..]));
                text.resize(text.len() + padding, 0);
            }
            Self::Pong { tx, source } => {
                text.extend_from_slice(&[PONG, VERSION]);
                text.extend_from_slice(tx);
                text.extend_from_slice(&write_endpoint(*source));
            }
            Self::CallMeMaybe { endpoints } => {
                text.extend_from_slice(&[CALL_ME_MAYBE, VERSION]);
                text.extend(endpoints.iter().flat_map(|endpoint| write_endpoint(*endpoint)));
            }
            Self::Bind(bind) => write_bind(BIND, bind, text),
            Self::BindChallenge(bind) => write_bind(BIND_CHALLENGE, bind, text),
            Self::BindAnswer(bind) => write_bind(BIND_ANSWER, bind, text),
            Self::CallMeMaybeVia(endpoint) => {
                text.extend_from_slice(&[CALL_ME_MAYBE_VIA, VERSION]);
                endpoint.write(text);
            }
            Self::AllocateRequest(request) => {
                text.extend_from_slice(&[ALLOCATE_REQUEST, VERSION]);
                request.write(text);
            }
            Self::AllocateResponse { generation, endpoint } => {
                text.extend_from_slice(&[ALLOCATE_RESPONSE, VERSION]);
                text.extend_from_slice(&generation.to_be_bytes());
                endpoint.write(text);
            }
            Self::BundleOffer => text.extend_from_slice(&[BUNDLE_OFFER, VERSION]),
            Self::Birthday(meet) => {
                text.extend_from_slice(&[BIRTHDAY, VERSION]);
                meet.write(text);
            }
        }
    }

    /// Decodes a message.
    ///
    /// # Errors
    /// The message is malformed, or its type is unknown.
    pub fn read(text: &[u8]) -> Result<Self, DiscoError> {
        let (&[kind, version], rest) = text.split_first_chunk().ok_or(DiscoError::Malformed)?;
        let message = match kind {
            PING => read_ping(rest),
            PONG => read_pong(rest),
            // Stock nodes read an empty call from another version, which erases all addresses.
            CALL_ME_MAYBE if version == VERSION => read_call(rest),
            BIND => Bind::read(rest).map(Message::Bind),
            BIND_CHALLENGE => Bind::read(rest).map(Message::BindChallenge),
            BIND_ANSWER => Bind::read(rest).map(Message::BindAnswer),
            // The format of later versions of these is unknown.
            _ if version != VERSION && kind <= ALLOCATE_RESPONSE => None,
            CALL_ME_MAYBE_VIA => {
                RelayEndpoint::read(rest).map(Box::new).map(Message::CallMeMaybeVia)
            }
            ALLOCATE_REQUEST => AllocateRequest::read(rest).map(Message::AllocateRequest),
            ALLOCATE_RESPONSE => read_allocated(rest),
            BUNDLE_OFFER => Some(Self::BundleOffer),
            BIRTHDAY => BirthdayMessage::read(rest).map(Message::Birthday),
            other => return Err(DiscoError::UnknownType(other)),
        };
        message.ok_or(DiscoError::Malformed)
    }
}

fn write_bind(kind: u8, bind: &Bind, text: &mut Vec<u8>) {
    text.extend_from_slice(&[kind, VERSION]);
    bind.write(text);
}

fn read_allocated(text: &[u8]) -> Option<Message> {
    let (generation, rest) = text.split_first_chunk()?;
    let endpoint = Box::new(RelayEndpoint::read(rest)?);
    Some(Message::AllocateResponse { generation: u32::from_be_bytes(*generation), endpoint })
}

fn read_ping(text: &[u8]) -> Option<Message> {
    let (&tx, rest) = text.split_first_chunk()?;
    let key = rest.split_first_chunk().map(|(key, rest)| (NodePublic(*key), rest));
    let (node_key, rest) = match key {
        Some((key, rest)) if !key.is_zero() => (Some(key), rest),
        _ => (None, rest),
    };
    Some(Message::Ping { tx, node_key, padding: rest.len() })
}

fn read_pong(text: &[u8]) -> Option<Message> {
    let (&tx, rest) = text.split_first_chunk()?;
    let source = read_endpoint(rest.first_chunk()?);
    Some(Message::Pong { tx, source })
}

fn read_call(text: &[u8]) -> Option<Message> {
    let (endpoints, []) = text.as_chunks() else { return None };
    let endpoints = endpoints.iter().take(MAX_ENDPOINTS).map(read_endpoint).collect();
    Some(Message::CallMeMaybe { endpoints })
}

pub(super) fn write_endpoint(endpoint: SocketAddr) -> [u8; ENDPOINT] {
    let ip = match endpoint {
        SocketAddr::V4(v4) => v4.ip().to_ipv6_mapped(),
        SocketAddr::V6(v6) => *v6.ip(),
    };
    let mut text = [0; ENDPOINT];
    text[..16].copy_from_slice(&ip.octets());
    text[16..].copy_from_slice(&endpoint.port().to_be_bytes());
    text
}

pub(super) fn read_endpoint(text: &[u8; ENDPOINT]) -> SocketAddr {
    let [ip @ .., high, low] = *text;
    SocketAddr::new(Ipv6Addr::from_octets(ip).to_canonical(), u16::from_be_bytes([high, low]))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::{disco::BirthdayStep, geneve::Vni, keys::DiscoPublic};

    fn endpoint() -> impl Strategy<Value = SocketAddr> {
        let v4 = (any::<[u8; 4]>(), any::<u16>()).prop_map(SocketAddr::from);
        let v6 = (any::<[u8; 16]>(), any::<u16>()).prop_map(SocketAddr::from);
        prop_oneof![v4, v6.prop_filter("IPv4", |addr| addr.ip() == addr.ip().to_canonical())]
    }

    fn message() -> impl Strategy<Value = Message> {
        let key = proptest::option::of((1..=255u8).prop_map(|byte| NodePublic([byte; 32])));
        prop_oneof![
            (any::<[u8; 12]>(), key, 0..2000usize)
                .prop_map(|(tx, node_key, padding)| Message::Ping { tx, node_key, padding }),
            (any::<[u8; 12]>(), endpoint()).prop_map(|(tx, source)| Message::Pong { tx, source }),
            proptest::collection::vec(endpoint(), 0..MAX_ENDPOINTS)
                .prop_map(|endpoints| Message::CallMeMaybe { endpoints }),
            Just(Message::BundleOffer),
            (
                prop_oneof![
                    Just(BirthdayStep::Request),
                    Just(BirthdayStep::Accept),
                    Just(BirthdayStep::Start)
                ],
                any::<u32>(),
                endpoint()
            )
                .prop_map(|(step, number, at)| Message::Birthday(BirthdayMessage {
                    step,
                    number,
                    at
                })),
            bind().prop_map(Message::Bind),
            bind().prop_map(Message::BindChallenge),
            bind().prop_map(Message::BindAnswer),
            relay_endpoint().prop_map(|endpoint| Message::CallMeMaybeVia(Box::new(endpoint))),
            (disco_key(), disco_key(), any::<u32>()).prop_map(|(a, b, generation)| {
                Message::AllocateRequest(AllocateRequest { clients: [a, b], generation })
            }),
            (any::<u32>(), relay_endpoint()).prop_map(|(generation, endpoint)| {
                Message::AllocateResponse { generation, endpoint: Box::new(endpoint) }
            }),
        ]
    }

    fn disco_key() -> impl Strategy<Value = DiscoPublic> {
        any::<[u8; 32]>().prop_map(DiscoPublic)
    }

    fn vni() -> impl Strategy<Value = Vni> {
        (0..=Vni::MAX).prop_map(|number| Vni::new(number).unwrap())
    }

    fn bind() -> impl Strategy<Value = Bind> {
        (vni(), any::<u32>(), disco_key(), any::<[u8; 32]>()).prop_map(
            |(vni, generation, other, challenge)| Bind { vni, generation, other, challenge },
        )
    }

    fn relay_endpoint() -> impl Strategy<Value = RelayEndpoint> {
        let lifetime = || (0..=i64::MAX as u64).prop_map(Duration::from_nanos);
        let addresses = proptest::collection::vec(endpoint(), 1..MAX_ENDPOINTS);
        let keys = (disco_key(), disco_key(), disco_key());
        (keys, any::<u64>(), vni(), lifetime(), lifetime(), addresses).prop_map(
            |((server, a, b), lamport, vni, bind_lifetime, steady_lifetime, addresses)| {
                let clients = [a, b];
                RelayEndpoint {
                    server,
                    clients,
                    lamport,
                    vni,
                    bind_lifetime,
                    steady_lifetime,
                    addresses,
                }
            },
        )
    }

    proptest! {
        #[test]
        fn written_value_is_read_back(message in message()) {
            let mut text = Vec::new();
            message.write(&mut text);
            prop_assert_eq!(Message::read(&text), Ok(message));
        }

        #[test]
        fn any_bytes_are_read_or_refused(text in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Message::read(&text);
        }
    }

    #[test]
    fn messages_match_those_of_tailscale() {
        // The formats of disco_test.go: a ping with a key, a pong to IPv4, a call.
        let mut ping = vec![1, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12];
        ping.extend_from_slice(&[2; 32]);
        ping.extend_from_slice(&[0; 3]);
        let tx = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12];
        let expected = Message::Ping { tx, node_key: Some(NodePublic([2; 32])), padding: 3 };
        assert_eq!(Message::read(&ping), Ok(expected));
        let mut pong = vec![2, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12];
        pong.extend_from_slice(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 2, 3, 4, 5, 4, 0xd2]);
        let expected = Message::Pong { tx, source: ([2, 3, 4, 5], 1234).into() };
        assert_eq!(Message::read(&pong), Ok(expected));
    }

    #[test]
    fn malformed_call_is_an_error() {
        assert_eq!(Message::read(&[3, 0]), Ok(Message::CallMeMaybe { endpoints: Vec::new() }));
        assert_eq!(Message::read(&[3, 1]), Err(DiscoError::Malformed));
        assert_eq!(Message::read(&[3, 0, 1]), Err(DiscoError::Malformed));
    }

    #[test]
    fn truncated_peer_relay_message_is_malformed() {
        let endpoint = [&[7; 3 * 32 + 8][..], &[0, 1, 2, 3], &[0; 16], &[1; 2 * ENDPOINT]].concat();
        for (kind, rest, fits) in [
            (BIND, vec![0; 72], &[72][..]),
            (BIND_CHALLENGE, vec![0; 72], &[72]),
            (BIND_ANSWER, vec![0; 72], &[72]),
            (CALL_ME_MAYBE_VIA, endpoint.clone(), &[142, 160]),
            (ALLOCATE_REQUEST, vec![0; 68], &[68]),
            (ALLOCATE_RESPONSE, [&[0; 4][..], &endpoint].concat(), &[146, 164]),
        ] {
            for len in 0..=rest.len() {
                let read = Message::read(&[&[kind, 0][..], &rest[..len]].concat());
                assert_eq!(read.is_ok(), fits.contains(&len), "type {kind}, {len} bytes");
            }
        }
    }

    #[test]
    fn network_identifier_of_more_than_24_bits_is_malformed() {
        let text = [&[BIND, 0][..], &[1, 0, 0, 0], &[0; 68]].concat();
        assert_eq!(Message::read(&text), Err(DiscoError::Malformed));
    }

    #[test]
    fn negative_lifetime_is_read_as_zero() {
        let head = [&[CALL_ME_MAYBE_VIA, 0][..], &[7; 3 * 32 + 8], &[0, 1, 2, 3]].concat();
        let text = [&head[..], &[0xff; 8], &[0, 0, 0, 0, 0, 0, 0, 9], &[1; ENDPOINT]].concat();
        let Ok(Message::CallMeMaybeVia(endpoint)) = Message::read(&text) else { panic!() };
        assert_eq!(endpoint.bind_lifetime, Duration::ZERO);
        assert_eq!(endpoint.steady_lifetime, Duration::from_nanos(9));
    }

    #[test]
    fn addresses_of_a_call_are_limited() {
        let text = [&[3, 0][..], &[1; ENDPOINT * (MAX_ENDPOINTS + 5)]].concat();
        let Ok(Message::CallMeMaybe { endpoints }) = Message::read(&text) else { panic!() };
        assert_eq!(endpoints.len(), MAX_ENDPOINTS);
    }
}
