//! Complete handshakes with `snow`, an independent implementation of Noise, in both roles.
//! WireGuard's additions (indices, timestamp, MACs) are written by hand.

use snow::{Builder, HandshakeState, StatelessTransportState};
use wg::{PresharedKey, PrivateKey, PublicKey, config::PeerChange, message::DataHeader};

use crate::support::*;

const PROLOGUE: &[u8] = b"WireGuard v1 zx2c4 Jason@zx2c4.com";
const PSK: [u8; 32] = [0x5a; 32];
/// The session index of `snow`'s side.
const INDEX: u32 = 0x0403_0201;

struct Theirs {
    key: PrivateKey,
}

impl Theirs {
    fn new() -> Self {
        Self { key: PrivateKey::from_bytes(&[0x77; 32]) }
    }

    fn builder<'a>(&self, private: &'a [u8; 32]) -> Builder<'a> {
        Builder::new("Noise_IKpsk2_25519_ChaChaPoly_BLAKE2s".parse().unwrap())
            .prologue(PROLOGUE)
            .and_then(|builder| builder.psk(2, &PSK))
            .and_then(|builder| builder.local_private_key(private))
            .unwrap()
    }

    fn responder(&self) -> HandshakeState {
        self.builder(&[0x77; 32]).build_responder().unwrap()
    }

    fn initiator(&self, to: &PublicKey) -> HandshakeState {
        self.builder(&[0x77; 32])
            .remote_public_key(to.as_bytes())
            .and_then(Builder::build_initiator)
            .unwrap()
    }

    fn name(&self) -> PublicKey {
        self.key.public_key()
    }
}

/// One host with `snow`'s side as a peer at `address()`.
fn world(theirs: &Theirs) -> World {
    let mut world = World::new(1);
    world.add_host();
    let change = PeerChange {
        endpoint: Some(address()),
        preshared_key: Some(PresharedKey::from_bytes(&PSK)),
        allowed_ips: vec![allowed("10.0.0.2/32")],
        ..PeerChange::new(theirs.name())
    };
    world.change_peer(A, change);
    world
}

fn address() -> std::net::SocketAddr {
    "198.51.100.1:51820".parse().unwrap()
}

fn data(transport: &StatelessTransportState, receiver: u32, counter: u64, text: &[u8]) -> Vec<u8> {
    let mut sealed = vec![0; text.len() + 16];
    transport.write_message(counter, text, &mut sealed).unwrap();
    [&DataHeader { receiver, counter }.encode()[..], &sealed].concat()
}

fn open(transport: &StatelessTransportState, datagram: &[u8]) -> Vec<u8> {
    let header = DataHeader::parse(datagram).unwrap();
    assert_eq!(header.receiver, INDEX);
    let mut text = vec![0; datagram.len() - 32];
    transport.read_message(header.counter, &datagram[16..], &mut text).unwrap();
    text
}

/// Sends data both ways in an established session, with counters beyond 32 bits.
fn exchange(world: &mut World, transport: &StatelessTransportState, ours: u32) {
    for counter in [0, 1, 1 << 33] {
        let number = counter as u32 + 100;
        let packet = inner_packet(inner(B).into(), inner(A).into(), number);
        world.inject(&data(transport, ours, counter, &packet), address(), A);
        world.run(millis(1));
        assert_eq!(world.received(A).last(), Some(&number));
    }
    for _ in 0..3 {
        let number = world.send(A, B);
        let text = open(transport, &world.sent(A, What::Data).last().unwrap().bytes);
        assert_eq!(text[..24], inner_packet(inner(A).into(), inner(B).into(), number));
        assert_eq!(text.len(), 32, "padded to a multiple of 16");
    }
}

#[test]
fn our_initiator_and_an_independent_responder_agree() {
    let theirs = Theirs::new();
    let mut world = world(&theirs);
    let number = world.send(A, B);
    let initiation = world.sent(A, What::Initiation)[0].bytes.clone();
    assert_eq!(initiation, restamped(&initiation, &theirs.name()));

    let mut responder = theirs.responder();
    let mut stamp_read = [0; 12];
    assert_eq!(responder.read_message(&initiation[8..116], &mut stamp_read).unwrap(), 12);
    assert_eq!(stamp_read, stamp(1_800_000_000, 0));
    assert_eq!(responder.get_remote_static(), Some(&world.key(A).as_bytes()[..]));

    let mut noise = [0; 48];
    assert_eq!(responder.write_message(&[], &mut noise).unwrap(), 48);
    let response = [&[2, 0, 0, 0], &INDEX.to_le_bytes(), &initiation[4..8], &noise[..]].concat();
    world.inject(&with_macs(response, world.key(A).as_bytes()), address(), A);
    world.run(millis(1));
    let transport = responder.into_stateless_transport_mode().unwrap();
    let text = open(&transport, &world.sent(A, What::Data)[0].bytes);
    assert_eq!(text[..24], inner_packet(inner(A).into(), inner(B).into(), number));
    let ours = u32::from_le_bytes(initiation[4..8].try_into().unwrap());
    exchange(&mut world, &transport, ours);
}

#[test]
fn an_independent_initiator_and_our_responder_agree() {
    let theirs = Theirs::new();
    let mut world = world(&theirs);
    let to = world.key(A);
    let mut initiator = theirs.initiator(&to);
    let mut noise = [0; 108];
    let stamp = stamp(1_800_000_000, 0);
    assert_eq!(initiator.write_message(&stamp, &mut noise).unwrap(), 108);
    let initiation = [&[1, 0, 0, 0], &INDEX.to_le_bytes()[..], &noise].concat();
    world.inject(&with_macs(initiation, to.as_bytes()), address(), A);
    world.run(millis(1));

    let response = world.sent(A, What::Response)[0].bytes.clone();
    assert_eq!(response, restamped(&response, &theirs.name()));
    assert_eq!(response[8..12], INDEX.to_le_bytes());
    assert_eq!(initiator.read_message(&response[12..60], &mut []).unwrap(), 0);
    let transport = initiator.into_stateless_transport_mode().unwrap();
    let ours = u32::from_le_bytes(response[4..8].try_into().unwrap());
    exchange(&mut world, &transport, ours);
    assert!(world.sent(A, What::Initiation).is_empty());
}

#[test]
fn an_independent_initiator_with_another_preshared_key_fails() {
    let theirs = Theirs::new();
    let mut world = world(&theirs);
    let change = PeerChange {
        preshared_key: Some(PresharedKey::from_bytes(&[1; 32])),
        ..PeerChange::new(theirs.name())
    };
    world.change_peer(A, change);
    let to = world.key(A);
    let mut initiator = theirs.initiator(&to);
    let mut noise = [0; 108];
    initiator.write_message(&stamp(1_800_000_000, 0), &mut noise).unwrap();
    let initiation = [&[1, 0, 0, 0], &INDEX.to_le_bytes()[..], &noise].concat();
    world.inject(&with_macs(initiation, to.as_bytes()), address(), A);
    world.run(millis(1));
    let response = world.sent(A, What::Response)[0].bytes.clone();
    assert!(initiator.read_message(&response[12..60], &mut []).is_err());
}
