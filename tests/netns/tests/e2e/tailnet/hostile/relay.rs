use bytes::BytesMut;
use tailnet::derp::{kind, write_frame};

use super::super::double::{Payload, RelayBehaviour};
use super::ruled;
use super::watched::Watched;
use crate::tailnet::PATIENCE;

/// Limit of the anonymous memory of all processes of a node, in bytes.
const MEMORY: u64 = 32 << 20;

/// Frames of a flood.
const MANY: u32 = 5_000;

/// Pings to observe after an attack without a message.
const PINGS: usize = 50;

#[test]
fn a_relay_with_another_protocol_is_reported_and_harmless() {
    let ruled = ruled();
    let watched = Watched::start(&ruled.nodes);
    let upgraded = |frame: Vec<u8>| {
        RelayBehaviour::Sends(Payload::once([b"HTTP/1.1 101 Yes\r\n\r\n", &frame[..]].concat()))
    };
    let forged = [&b"HTTP/1.1 403 Go\x1b[2J away"[..], b"\r\n\r\n"].concat();
    for (behaviour, reported) in [
        (RelayBehaviour::Sends(Payload::once(forged)), "403 Go"),
        (RelayBehaviour::Sends(Payload::once(vec![b'x'; 20_000])), "too long"),
        (upgraded(frame(kind::SERVER_KEY, &[7; 40])), "greeting"),
        (upgraded(frame(kind::PING, &[0; 8])), "first frame is not its key"),
        (upgraded(vec![kind::SERVER_KEY, 0xff, 0xff, 0xff, 0xff]), "4294967295"),
        (
            RelayBehaviour::Then(Payload::once([kind::RECV_PACKET, 0xff, 0xff, 0xff, 0xff])),
            "4294967295",
        ),
        (RelayBehaviour::Then(Payload::cut_off([kind::RECV_PACKET, 0, 0, 1, 0, 7])), "relay"),
        (RelayBehaviour::Then(Payload::once(frame(kind::HEALTH, b"I am\x1b[2J ill"))), "I am"),
    ] {
        ruled.double.relay(behaviour);
        watched.wait_for_status(reported);
    }
    ruled.double.relay(RelayBehaviour::Good);
    watched.recovers();
    watched.finish(MEMORY);
}

#[test]
fn floods_of_a_relay_are_read_only_as_fast_as_they_are_handled() {
    let ruled = ruled();
    let watched = Watched::start(&ruled.nodes);
    for flood in [
        flood(|number| (kind::PEER_GONE, key(number))),
        flood(|number| (kind::RECV_PACKET, [key(number), vec![0xa5; 1000]].concat())),
        flood(|number| (kind::PING, number.to_be_bytes().repeat(2))),
        flood(|number| (0x77, key(number))),
        flood(|number| (kind::HEALTH, format!("ill {number}").into())),
        flood(|_| (kind::RESTARTING, [0u32, u32::MAX].map(u32::to_be_bytes).concat())),
    ] {
        let logins = ruled.double.logins();
        ruled.double.relay(RelayBehaviour::Then(Payload::once(flood)));
        netns::eventually("both log in", PATIENCE, || ruled.double.logins() >= logins + 2);
        watched.wait_for_replies(PINGS);
        watched.status();
    }
    // A frame that would take an hour, and the start of one.
    let length = [kind::RECV_PACKET, 0, 0, 0xff, 0xff];
    ruled.double.relay(RelayBehaviour::Then(Payload::dripping([&length[..], &[7; 1000]].concat())));
    watched.wait_for_replies(PINGS);
    ruled.double.relay(RelayBehaviour::Good);
    watched.recovers();
    watched.finish(MEMORY);
}

fn frame(kind: u8, contents: &[u8]) -> Vec<u8> {
    let mut frame = BytesMut::new();
    write_frame(&mut frame, kind, contents);
    frame.to_vec()
}

/// The key of a node that does not exist.
fn key(number: u32) -> Vec<u8> {
    number.to_be_bytes().repeat(8)
}

fn flood(of: impl Fn(u32) -> (u8, Vec<u8>)) -> Vec<u8> {
    let frames = (0..MANY).map(of).map(|(kind, contents)| frame(kind, &contents));
    frames.collect::<Vec<_>>().concat()
}
