//! What somebody sees who captures inside the tunnel.

use std::{sync::Arc, time::Duration};

use engine::{Capture, CaptureOptions, Tap};
use packet::{
    ChecksumAt, Offload, SegmentProtocol,
    pcapng::{Block, block},
};
use sim::{Link, Network};
use wg::{Now, Time};

use crate::support::{Host, packet, pair, run};

const SECOND: Duration = Duration::from_secs(1);
const ALL: CaptureOptions = CaptureOptions { snaplen: 1 << 18, peer: None };

fn tap(network: &Network, host: &mut Host) -> Arc<Tap> {
    let network = network.clone();
    let wall = move || Now { time: Time::from_nanos(0), wall: network.now() };
    let tap = Arc::new(Tap::new(Arc::new(wall)));
    host.tap_into(&tap);
    tap
}

/// A packet that was captured.
#[derive(Debug, PartialEq)]
struct Frame {
    outbound: bool,
    len: usize,
    bytes: Vec<u8>,
    comment: String,
}

fn frames(capture: &Capture) -> Vec<Frame> {
    capture.end().end();
    let mut frames = Vec::new();
    while let Some(chunk) = capture.next() {
        let mut rest = chunk.bytes();
        while let Some(Block::Packet(len)) = block(rest) {
            frames.push(frame(&rest[..len]));
            rest = &rest[len..];
        }
    }
    frames
}

fn frame(block: &[u8]) -> Frame {
    let word = |at: usize| u32::from_le_bytes(block[at..at + 4].try_into().unwrap()) as usize;
    let (kept, len) = (word(20), word(24));
    let flags = 28 + kept.next_multiple_of(4);
    assert_eq!(word(flags), 0x0004_0002);
    let (head, mut comment) = (word(flags + 8), String::new());
    if head & 0xffff == 1 {
        let at = flags + 12;
        comment = String::from_utf8(block[at..at + (head >> 16)].to_vec()).unwrap();
    }
    let bytes = block[28..28 + kept].to_vec();
    Frame { outbound: word(flags + 4) == 2, len, bytes, comment }
}

#[test]
fn both_hosts_see_each_packet_once_its_way_and_its_peer() {
    let (network, mut a, mut b) = pair(1, Link::CLEAN);
    let captures = [&mut a, &mut b].map(|host| tap(&network, host).capture(ALL).unwrap());
    let forth = packet("10.0.0.1", "10.0.0.2", 0, 1, 500);
    let back = packet("fd00::2", "fd00::1", 0, 2, 600);
    let elsewhere = packet("10.0.0.1", "10.0.0.9", 0, 3, 100);
    a.port.push(elsewhere);
    a.port.push(forth.clone());
    b.port.push(back.clone());
    run(&network, &mut [&mut a, &mut b], SECOND);
    assert_eq!((a.port.take().len(), b.port.take().len()), (1, 1));
    for ((host, other), capture) in [(&a, &b), (&b, &a)].into_iter().zip(&captures) {
        let comment = format!("peer {}", other.key.to_base64());
        let mut seen = frames(capture);
        seen.sort_by_key(|frame| frame.len);
        let frame = |bytes: &Vec<u8>, from: &Host| Frame {
            outbound: from.key == host.key,
            len: bytes.len(),
            bytes: bytes.clone(),
            comment: comment.clone(),
        };
        assert_eq!(seen, [frame(&forth, &a), frame(&back, &b)], "and no keepalive");
        let statistics = capture.statistics();
        assert_eq!((statistics.received, statistics.dropped), (2, 0));
    }
}

#[test]
fn a_super_packet_is_seen_whole_where_it_enters_and_cut_where_that_was_asked_for() {
    let (network, mut a, mut b) = pair(1, Link::CLEAN);
    let (whole_tap, cut_tap) = (tap(&network, &mut a), tap(&network, &mut b));
    let mut whole = packet("10.0.0.1", "10.0.0.2", 0, 0, 20 + 20_000);
    whole[9] = 6;
    whole[20..40]
        .copy_from_slice(&[0, 1, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0x50, 0x10, 1, 0, 0, 0, 0, 0]);
    let checksum = ChecksumAt { start: 20, offset: 16 };
    let offload = Offload::Segment { protocol: SegmentProtocol::Tcp4, size: 1380, checksum };
    let sent = whole_tap.capture(ALL).unwrap();
    let arrived = cut_tap.capture(CaptureOptions { snaplen: 40, ..ALL }).unwrap();
    a.port.push_super(whole.clone(), offload);
    run(&network, &mut [&mut a, &mut b], SECOND);
    let [frame] = &frames(&sent)[..] else { panic!("it is one packet") };
    assert_eq!((frame.len, &frame.bytes), (whole.len(), &whole));
    let arrived = frames(&arrived);
    assert_eq!(arrived.len(), 20_000_usize.div_ceil(1380));
    assert!(arrived.iter().all(|frame| frame.bytes.len() == 40));
    assert_eq!(arrived.iter().map(|frame| frame.len - 40).sum::<usize>(), 20_000);
}

#[test]
fn among_several_peers_each_packet_has_the_name_of_its_own() {
    let network = Network::new(1, Link::CLEAN);
    let mut hub = Host::new(&network, 1, |net| net);
    let mut others = [2, 3].map(|number| Host::new(&network, number, |net| net));
    for (number, other) in (2..).zip(&others) {
        hub.introduce(other.who(), &format!("10.0.0.{number}/32"));
        other.introduce(hub.who(), "10.0.0.1/32");
    }
    let tap = tap(&network, &mut hub);
    hub.start_seconds();
    let all = tap.capture(ALL).unwrap();
    let second = Some(others[1].key);
    let of_one = tap.capture(CaptureOptions { peer: second, ..ALL }).unwrap();
    for round in 0..20 {
        for (number, other) in (2..).zip(&others) {
            let address = format!("10.0.0.{number}");
            other.port.push(packet(&address, "10.0.0.1", 0, round, 10 * number));
            // Somebody else's address: it does not leave the tunnel.
            other.port.push(packet("10.0.0.77", "10.0.0.1", 0, round, 5));
            hub.port.push(packet("10.0.0.1", &address, 0, round, 100 * number));
        }
        let [b, c] = &mut others;
        run(&network, &mut [&mut hub, b, c], SECOND / 10);
    }
    let frames_of_all = frames(&all);
    for (number, other) in (2..).zip(&others) {
        let comment = format!("peer {}", other.key.to_base64());
        let of_it = frames_of_all.iter().filter(|frame| frame.comment == comment);
        let mut lens: Vec<_> = of_it.map(|frame| (frame.len, frame.outbound)).collect();
        lens.sort();
        let (small, large) = (20 + 10 * number, 20 + 100 * number);
        assert_eq!(lens, [vec![(small, false); 20], vec![(large, true); 20]].concat());
    }
    assert_eq!(frames_of_all.len(), 80);
    let frames = frames(&of_one);
    assert_eq!(frames.len(), 40);
    assert!(frames.iter().all(|frame| [50, 320].contains(&frame.len) && frame.comment.is_empty()));
}
