//! Packets that an observer receives.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use engine::{Attachments, ObservedPackets, Observer};
use packet::{ChecksumAt, Offload, SegmentProtocol, pcapng::Direction};
use sim::{Link, Network};
use wg::PublicKey;

use crate::support::{Host, make_peers, packet, run};

const SECOND: Duration = Duration::from_secs(1);

/// Records the packets that it receives.
#[derive(Default)]
struct Witness {
    wanted: Arc<AtomicBool>,
    frames: Mutex<Vec<Frame>>,
}

/// An observed packet.
#[derive(Clone, Debug, PartialEq)]
struct Frame {
    at: Duration,
    outbound: bool,
    bytes: Vec<u8>,
    peer: Option<PublicKey>,
}

impl Witness {
    fn frames(&self) -> Vec<Frame> {
        self.frames.lock().unwrap().clone()
    }
}

impl Observer for Witness {
    fn wanted(&self) -> &Arc<AtomicBool> {
        &self.wanted
    }

    fn observe(&self, shown: ObservedPackets<'_>) {
        let frame = |bytes: &&[u8]| Frame {
            at: shown.at,
            outbound: shown.direction == Direction::Outbound,
            bytes: bytes.to_vec(),
            peer: shown.peer.copied(),
        };
        self.frames.lock().unwrap().extend(shown.packets.iter().map(frame));
    }
}

/// A host with an observer.
fn observed(network: &Network, number: u8) -> (Host, Arc<Witness>) {
    let witness = Arc::<Witness>::default();
    let attached = Attachments { observer: Some(witness.clone()), ..Attachments::default() };
    let host = Host::with(network, number, |net| net, attached);
    witness.wanted.store(true, Ordering::Relaxed);
    (host, witness)
}

fn observed_pair() -> (Network, [(Host, Arc<Witness>); 2]) {
    let network = Network::new(1, Link::CLEAN);
    let hosts = [1, 2].map(|number| observed(&network, number));
    make_peers(&hosts[0].0, &hosts[1].0);
    (network, hosts)
}

#[test]
fn both_observers_get_each_packet_once_with_direction_and_peer() {
    let (network, [(mut a, by_a), (mut b, by_b)]) = observed_pair();
    let began = network.now();
    let forth = packet("10.0.0.1", "10.0.0.2", 0, 1, 500);
    let back = packet("fd00::2", "fd00::1", 0, 2, 600);
    let elsewhere = packet("10.0.0.1", "10.0.0.9", 0, 3, 100);
    a.port.push(elsewhere);
    a.port.push(forth.clone());
    b.port.push(back.clone());
    run(&network, &mut [&mut a, &mut b], SECOND);
    assert_eq!((a.port.take().len(), b.port.take().len()), (1, 1));
    for ((host, other), witness) in [(&a, &b), (&b, &a)].into_iter().zip([by_a, by_b]) {
        let mut seen = witness.frames();
        seen.sort_by_key(|frame| frame.bytes.len());
        assert!(seen.iter().all(|frame| (began..network.now()).contains(&frame.at)));
        let seen: Vec<_> =
            seen.iter().map(|frame| (frame.outbound, &frame.bytes, frame.peer)).collect();
        let frame = |bytes, from: &Host| (from.key == host.key, bytes, Some(other.key));
        assert_eq!(seen, [frame(&forth, &a), frame(&back, &b)], "and no keepalive");
    }
}

#[test]
fn an_inactive_observer_is_not_called() {
    let (network, [(mut a, by_a), (mut b, by_b)]) = observed_pair();
    for (round, wanted) in [true, false, true].into_iter().enumerate() {
        for witness in [&by_a, &by_b] {
            witness.wanted.store(wanted, Ordering::Relaxed);
        }
        a.port.push(packet("10.0.0.1", "10.0.0.2", 0, round as u32, 500));
        run(&network, &mut [&mut a, &mut b], SECOND);
    }
    assert_eq!(b.port.take().len(), 3);
    assert_eq!([by_a, by_b].map(|witness| witness.frames().len()), [2, 2]);
}

#[test]
fn a_super_packet_is_observed_whole_by_its_sender_and_in_segments_by_its_receiver() {
    let (network, [(mut a, by_a), (mut b, by_b)]) = observed_pair();
    let mut whole = packet("10.0.0.1", "10.0.0.2", 0, 0, 20 + 20_000);
    whole[9] = 6;
    whole[20..40]
        .copy_from_slice(&[0, 1, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0x50, 0x10, 1, 0, 0, 0, 0, 0]);
    let checksum = ChecksumAt { start: 20, offset: 16 };
    let offload =
        Offload::Segment { protocol: SegmentProtocol::Tcp4, size: 1380, checksum, tunnel: None };
    a.port.push_super(whole.clone(), offload);
    run(&network, &mut [&mut a, &mut b], SECOND);
    let [frame] = &by_a.frames()[..] else { panic!("it is one packet") };
    assert_eq!(&frame.bytes, &whole);
    let arrived = by_b.frames();
    assert_eq!(arrived.len(), 20_000_usize.div_ceil(1380));
    assert_eq!(arrived.iter().map(|frame| frame.bytes.len() - 40).sum::<usize>(), 20_000);
}

#[test]
fn observed_packets_of_several_peers_have_the_right_key() {
    let network = Network::new(1, Link::CLEAN);
    let (mut hub, witness) = observed(&network, 1);
    let mut others = [2, 3].map(|number| Host::new(&network, number, |net| net));
    for (number, other) in (2..).zip(&others) {
        hub.introduce(other.identity(), &format!("10.0.0.{number}/32"));
        other.introduce(hub.identity(), "10.0.0.1/32");
    }
    hub.start_seconds();
    for round in 0..20 {
        for (number, other) in (2..).zip(&others) {
            let address = format!("10.0.0.{number}");
            other.port.push(packet(&address, "10.0.0.1", 0, round, 10 * number));
            // The address of another peer, so the packet does not leave the tunnel.
            other.port.push(packet("10.0.0.77", "10.0.0.1", 0, round, 5));
            hub.port.push(packet("10.0.0.1", &address, 0, round, 100 * number));
        }
        let [b, c] = &mut others;
        run(&network, &mut [&mut hub, b, c], SECOND / 10);
    }
    let frames = witness.frames();
    for (number, other) in (2..).zip(&others) {
        let of_it = frames.iter().filter(|frame| frame.peer == Some(other.key));
        let mut lens: Vec<_> = of_it.map(|frame| (frame.bytes.len(), frame.outbound)).collect();
        lens.sort();
        let (small, large) = (20 + 10 * number, 20 + 100 * number);
        assert_eq!(lens, [vec![(small, false); 20], vec![(large, true); 20]].concat());
    }
    assert_eq!(frames.len(), 80);
}
