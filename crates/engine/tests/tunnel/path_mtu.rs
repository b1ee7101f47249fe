//! Packets that exceed the MTU of their path.

use std::time::Duration;

use packet::{ChecksumAt, Offload, SegmentProtocol};
use sim::{Link, Network};
use wg::{DropReason, message::DATA_OVERHEAD};

use crate::support::{Host, packet, pair, run};

const SECOND: Duration = Duration::from_secs(1);
const MTU: u16 = 1420;

/// A link that loses datagrams with a longer inner packet.
fn narrow(inner: usize) -> Link {
    Link { longest: inner + DATA_OVERHEAD, ..Link::CLEAN }
}

/// Two hosts that have found the link's MTU. Afterwards the link accepts all lengths, as with outer
/// fragments.
fn found(carries: usize) -> (Network, Host, Host) {
    let (network, mut a, mut b) = pair(1, narrow(carries));
    for host in [&a, &b] {
        host.probe_paths(&network, MTU);
    }
    a.port.push(packet("10.0.0.1", "10.0.0.2", 0, 0, 1000));
    b.port.push(packet("10.0.0.2", "10.0.0.1", 0, 0, 1000));
    run(&network, &mut [&mut a, &mut b], 5 * SECOND);
    assert_eq!((a.port.take().len(), b.port.take().len()), (1, 1));
    for host in [&a, &b] {
        assert_eq!(host.path_mtu(), Some(carries as u16));
        assert_eq!(host.all_drops(), [], "probes are not counted as packets");
    }
    network.set_link(Link::CLEAN);
    (network, a, b)
}

fn df(mut packet: Vec<u8>) -> Vec<u8> {
    packet[6] |= 0x40;
    packet
}

/// A TCP packet over IPv4, with an offload for segments of `size` bytes.
fn tcp(payload: usize, size: u16) -> (Vec<u8>, Offload) {
    let mut packet = df(packet("10.0.0.1", "10.0.0.2", 0, 0, 20 + payload));
    packet[9] = 6;
    packet[20..40]
        .copy_from_slice(&[0, 1, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0x50, 0x10, 1, 0, 0, 0, 0, 0]);
    let checksum = ChecksumAt { start: 20, offset: 16 };
    (packet, Offload::Segment { protocol: SegmentProtocol::Tcp4, size, checksum, tunnel: None })
}

fn sequence(segment: &[u8]) -> usize {
    u32::from_be_bytes(segment[24..28].try_into().unwrap()) as usize
}

#[test]
fn tcp_is_sent_in_segments_of_the_path_mtu() {
    let (network, mut a, mut b) = found(1340);
    network.set_link(narrow(1340));
    let (whole, offload) = tcp(20_000, MTU - 40);
    a.port.push_super(whole.clone(), offload);
    run(&network, &mut [&mut a, &mut b], SECOND);
    let segments = b.port.take();
    let payload: Vec<u8> = segments.iter().flat_map(|segment| &segment[40..]).copied().collect();
    assert_eq!(payload, whole[40..]);
    let mut next = 0;
    for segment in &segments {
        assert!(segment.len() <= 1340);
        assert_eq!(sequence(segment), next);
        next += segment.len() - 40;
    }
    assert_eq!((a.port.take().len(), a.all_drops()), (0, vec![]));
}

#[test]
fn unfragmentable_packets_are_answered_with_the_path_mtu() {
    let (network, mut a, mut b) = found(1340);
    let fits = df(packet("10.0.0.1", "10.0.0.2", 0, 1, 1320));
    let over = df(packet("10.0.0.1", "10.0.0.2", 0, 2, 1321));
    let over_v6 = packet("fd00::1", "fd00::2", 0, 3, 1301);
    for packet in [&fits, &over, &over_v6] {
        a.port.push(packet.clone());
    }
    run(&network, &mut [&mut a, &mut b], SECOND);
    assert_eq!(b.port.take(), [fits]);
    let answers = a.port.take();
    let expected = [(&over, 1340), (&over_v6, 1340)];
    assert_eq!(
        answers,
        expected.map(|(packet, mtu)| packet::icmp::packet_too_big(packet, mtu).unwrap())
    );
    assert_eq!(a.all_drops(), [(DropReason::OutPathMtu, 2)]);
}

#[test]
fn fragmentable_packets_and_ipv6_up_to_1280_bytes_are_sent_unchanged() {
    let (network, mut a, mut b) = found(1200);
    let packets =
        [packet("10.0.0.1", "10.0.0.2", 0, 1, 1400), packet("fd00::1", "fd00::2", 0, 2, 1240)];
    packets.iter().for_each(|packet| a.port.push(packet.clone()));
    run(&network, &mut [&mut a, &mut b], SECOND);
    let mut received = b.port.take();
    received.sort();
    assert_eq!(received, packets);
    a.port.push(packet("fd00::1", "fd00::2", 0, 3, 1241));
    run(&network, &mut [&mut a, &mut b], SECOND);
    assert_eq!(b.port.take().len(), 0);
    let answers = a.port.take();
    assert_eq!(answers[0][44..48], 1280u32.to_be_bytes(), "not less than the minimum of IPv6");
}

#[test]
fn answers_about_the_path_mtu_are_rate_limited() {
    let (network, mut a, mut b) = found(1340);
    for round in 0..100 {
        for number in 0..20 {
            a.port.push(df(packet("10.0.0.1", "10.0.0.2", 0, 20 * round + number, 1400)));
        }
        run(&network, &mut [&mut a, &mut b], SECOND / 100);
    }
    let answers = a.port.take().len();
    assert!((80..=125).contains(&answers), "{answers} in a second");
    assert_eq!(a.drops(DropReason::OutPathMtu), 2_000);
}

#[test]
fn a_smaller_path_mtu_is_detected_and_tcp_continues() {
    let (network, mut a, mut b) = pair(3, Link::CLEAN);
    for host in [&a, &b] {
        host.probe_paths(&network, MTU);
    }
    let mut send = |link: Option<Link>, rounds: usize| {
        link.into_iter().for_each(|link| network.set_link(link));
        for _ in 0..rounds {
            let (whole, offload) = tcp(5_000, MTU - 40);
            a.port.push_super(whole, offload);
            run(&network, &mut [&mut a, &mut b], SECOND / 100);
        }
        b.port.take().len()
    };
    assert!(send(None, 200) >= 800);
    send(Some(narrow(1300)), 100);
    // Each super-packet becomes four or five segments.
    let later = send(None, 100);
    assert!(later >= 399, "a second later they are shorter: {later} arrived");
}

#[test]
fn staged_packets_are_fitted_to_the_path_mtu() {
    let (network, mut a, mut b) = found(1340);
    // Sessions expire after 180 s without traffic.
    run(&network, &mut [&mut a, &mut b], 200 * SECOND);
    network.set_link(narrow(1340));
    let (mut whole, _) = tcp(1_380, 1);
    whole[36..38].fill(0);
    let pseudo = packet::checksum::add(packet::checksum::sum(&whole[12..20]), 6 + 1_400);
    let sum = packet::checksum::add(pseudo, packet::checksum::sum(&whole[20..]));
    whole[36..38].copy_from_slice(&(!sum).to_be_bytes());
    a.port.push(whole.clone());
    run(&network, &mut [&mut a, &mut b], SECOND);
    let payload: Vec<u8> =
        b.port.take().iter().flat_map(|segment| segment[40..].to_vec()).collect();
    assert_eq!(payload, whole[40..]);
}

#[test]
fn path_probes_and_their_answers_do_not_cause_keepalives() {
    let (network, mut a, mut b) = pair(1, narrow(1340));
    a.probe_paths(&network, MTU);
    a.port.push(packet("10.0.0.1", "10.0.0.2", 0, 0, 1000));
    run(&network, &mut [&mut a, &mut b], 5 * SECOND);
    assert_eq!(a.path_mtu(), Some(1340), "the search is over");
    // B's probe answers replace the keepalive to A's data. A received only probe answers.
    let before = [&a, &b].map(Host::sent_bytes);
    run(&network, &mut [&mut a, &mut b], 60 * SECOND);
    assert_eq!([&a, &b].map(Host::sent_bytes), before);
}
