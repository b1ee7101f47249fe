//! Refused writes. In every case each packet is sent once, in the order of its flow, or is counted
//! as refused.

use std::collections::HashMap;

use nix::errno::Errno;
use packet::checksum::{add, sum};
use proptest::{collection::vec, prelude::*, sample::select};

use super::{
    faulty::{Faulty, Rule},
    *,
};
use crate::{offload::Switch, testing::Random};

/// A flow of TCP or UDP over IPv4 or IPv6, and the number of its host.
#[derive(Clone, Copy, Debug)]
struct Flow {
    udp: bool,
    ipv6: bool,
    host: u8,
}

/// Packet `number` of a flow, at byte `at` of its stream. UDP packets contain that position, so
/// that all differ.
fn packet_of(flow: Flow, number: u16, at: u32, len: usize) -> Vec<u8> {
    let mut transport = vec![0, flow.host, 0, 80];
    if flow.udp {
        transport.extend((8 + len as u16).to_be_bytes());
        transport.extend([0, 0]);
    } else {
        transport.extend(at.to_be_bytes());
        transport.extend([0, 0, 0, 1, 0x50, 0x10, 1, 0, 0, 0, 0, 0]);
    }
    transport.extend(at.to_be_bytes());
    transport.resize(transport.len() + len - 4, flow.host);
    let (protocol, field) = if flow.udp { (17, 6) } else { (6, 16) };
    let mut packet = if flow.ipv6 {
        let mut header = vec![0x60, 0, 0, 0, 0, 0, protocol, 64];
        header[4..6].copy_from_slice(&(transport.len() as u16).to_be_bytes());
        header.extend([flow.host; 32]);
        header
    } else {
        let mut header = vec![0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, protocol, 0, 0];
        header[2..4].copy_from_slice(&(20 + transport.len() as u16).to_be_bytes());
        header[4..6].copy_from_slice(&number.to_be_bytes());
        header.extend([10, 0, 0, flow.host, 10, 0, 1, 1]);
        let checksum = !sum(&header);
        header[10..12].copy_from_slice(&checksum.to_be_bytes());
        header
    };
    let addresses = if flow.ipv6 { 8..40 } else { 12..20 };
    let pseudo = add(add(sum(&packet[addresses]), protocol.into()), transport.len() as u16);
    let checksum = match !add(pseudo, sum(&transport)) {
        0 => 0xffff,
        checksum => checksum,
    };
    transport[field..field + 2].copy_from_slice(&checksum.to_be_bytes());
    packet.extend(transport);
    packet
}

/// `count` packets of each flow, alternating, from byte `from` of their streams.
fn streams(flows: &[Flow], from: u32, count: u32) -> Vec<Vec<u8>> {
    let turn = |number: u32| {
        let at = from + 100 * number;
        flows.iter().map(move |flow| packet_of(*flow, number as u16, at, 100))
    };
    (0..count).flat_map(turn).collect()
}

const TCP: Flow = Flow { udp: false, ipv6: false, host: 1 };
const UDP: Flow = Flow { udp: true, ipv6: false, host: 2 };

struct TestDevice {
    device: Arc<Faulty>,
    send: TunSend<Faulty>,
    offloads: Arc<Offloads>,
}

impl TestDevice {
    fn new(rules: &[Rule]) -> Self {
        let (device, offloads) = (Arc::new(Faulty::new(rules)), Arc::<Offloads>::default());
        let send = TunSend::new(device.clone(), offloads.clone());
        Self { device, send, offloads }
    }

    /// Sends packets, checks the written packets, and returns the number of packets in each write and
    /// of those refused.
    fn send(&mut self, packets: &[Vec<u8>]) -> io::Result<(Vec<usize>, usize)> {
        let mut batch = RecvBatch::new(1 + packets.iter().map(Vec::len).sum::<usize>() / 65_000);
        let mut start = 0;
        let read: Vec<_> = packets
            .iter()
            .map(|packet| {
                let span = Span { start, len: packet.len() };
                batch.get_mut(span).copy_from_slice(packet);
                start += packet.len();
                IpPacket::read(batch.bytes(), span).unwrap()
            })
            .collect();
        self.device.state().packets.clear();
        self.device.state().sizes.clear();
        let refused = self.send.send(&batch, &read);
        let state = self.device.state();
        let (sent, written) = (by_flow(packets), by_flow(&state.packets));
        for (flow, written) in &written {
            let mut sent = sent[flow].iter();
            let in_order = written.iter().all(|packet| sent.any(|other| other == packet));
            assert!(in_order, "a packet was sent twice, out of order or changed");
        }
        let refused = refused?;
        assert_eq!(state.packets.len() + refused, packets.len());
        Ok((state.sizes.clone(), refused))
    }

    fn demotions(&self) -> (u64, u64) {
        (self.offloads.tun_tcp_gro.demotions(), self.offloads.tun_udp_gro.demotions())
    }
}

fn by_flow(packets: &[Vec<u8>]) -> HashMap<Vec<u8>, Vec<Vec<u8>>> {
    let mut flows: HashMap<_, Vec<_>> = HashMap::new();
    for packet in packets {
        let is_v6 = packet[0] >> 4 == 6;
        let (protocol, ports) = if is_v6 { (6, 40) } else { (9, 20) };
        let flow = [&packet[..1], &packet[protocol..=protocol], &packet[ports..ports + 4]].concat();
        flows.entry(flow).or_default().push(packet.clone());
    }
    flows
}

#[test]
fn refused_transport_is_demoted_once_per_batch_and_tried_again() {
    for udp in [false, true] {
        let mut tested = TestDevice::new(&[Rule::Super { udp, errno: Errno::EINVAL }]);
        let other = if udp { UDP } else { TCP };
        let flows = [TCP, UDP, Flow { host: 9, ..other }];
        let (mut seconds, mut steps, mut demotions) = (Vec::new(), 0, 0);
        for round in 0..1_000 {
            let (sizes, refused) = tested.send(&streams(&flows, 1_000 * round, 10)).unwrap();
            assert_eq!(refused, 0);
            assert_eq!(sizes.iter().filter(|size| **size == 10).count(), 1, "{sizes:?}");
            assert_eq!(sizes.len(), 21);
            let (tcp, of_udp) = tested.demotions();
            let (ours, theirs) = if udp { (of_udp, tcp) } else { (tcp, of_udp) };
            assert_eq!(theirs, 0);
            if ours > demotions {
                assert_eq!(ours, demotions + 1);
                seconds.push(steps / 4);
                (steps, demotions) = (0, ours);
            }
            if seconds.len() == 9 {
                break;
            }
            tested.device.time.pass(Duration::from_millis(250));
            steps += 1;
        }
        assert_eq!(seconds, [0, 1, 2, 4, 8, 16, 32, 60, 60]);
        assert_eq!(tested.device.state().refused, 9, "one refusal per demotion");
        tested.device.state().rules.clear();
        tested.device.time.pass(Duration::from_secs(60));
        assert_eq!(tested.send(&streams(&flows, 0, 10)).unwrap(), (vec![10, 10, 10], 0));
        tested.device.state().rules = vec![Rule::Super { udp, errno: Errno::EINVAL }];
        tested.send(&streams(&flows, 0, 10)).unwrap();
        tested.device.time.pass(Duration::from_secs(1));
        tested.device.state().rules.clear();
        assert_eq!(
            tested.send(&streams(&flows, 0, 10)).unwrap().0,
            [10; 3],
            "the pauses start again"
        );
    }
}

#[test]
fn super_packet_is_split_without_demotion_if_memory_is_short() {
    for errno in [Errno::ENOBUFS, Errno::ENOMEM] {
        let mut tested = TestDevice::new(&[Rule::Above(1, errno)]);
        assert_eq!(tested.send(&streams(&[TCP, UDP], 0, 10)).unwrap(), (vec![1; 20], 0));
        assert_eq!(tested.demotions(), (0, 0));
        assert_eq!(tested.device.state().refused, 2);
    }
}

#[test]
fn super_packet_takes_one_write_while_the_interface_is_down() {
    let mut tested = TestDevice::new(&[Rule::Until(Duration::MAX, Errno::EIO)]);
    assert_eq!(tested.send(&streams(&[TCP, UDP], 0, 10)).unwrap(), (vec![], 20));
    assert_eq!((tested.device.state().writes, tested.demotions()), (2, (0, 0)));
}

#[test]
fn packets_refused_in_both_forms_are_counted_without_demotion() {
    let mut tested = TestDevice::new(&[Rule::Until(Duration::MAX, Errno::EINVAL)]);
    assert_eq!(tested.send(&streams(&[TCP, UDP], 0, 10)).unwrap(), (vec![], 20));
    assert_eq!(tested.demotions(), (0, 0));
    tested.device.state().rules.clear();
    assert_eq!(tested.send(&streams(&[TCP, UDP], 0, 10)).unwrap(), (vec![10, 10], 0));
}

#[test]
fn wait_for_a_full_device_is_limited_per_batch() {
    let ms = Duration::from_millis;
    let mut tested = TestDevice::new(&[Rule::Until(ms(4), Errno::EAGAIN)]);
    assert_eq!(tested.send(&streams(&[TCP, UDP], 0, 10)).unwrap(), (vec![10, 10], 0));
    assert_eq!(tested.device.time.polled(), ms(4));
    tested.device.state().rules = vec![Rule::Until(ms(1_000), Errno::EAGAIN)];
    assert_eq!(tested.send(&streams(&[TCP, UDP], 0, 10)).unwrap(), (vec![], 20));
    assert_eq!((tested.device.time.waited(), tested.demotions()), (ms(4 + 5), (0, 0)));
}

#[test]
fn deleted_device_is_reported_by_every_write() {
    for write in 0..8 {
        let supers = Rule::Super { udp: false, errno: Errno::EINVAL };
        let mut tested = TestDevice::new(&[Rule::Write(write, Errno::EBADFD), supers]);
        let packets = [streams(&[TCP], 0, 5), streams(&[UDP], 0, 1)].concat();
        let ended = tested.send(&packets).map_err(|error| errno(&error));
        if write < 7 {
            assert_eq!(ended, Err(Some(Errno::EBADFD)), "write {write}");
            assert_eq!(tested.device.state().writes, write + 1);
        } else {
            assert_eq!(ended, Ok((vec![1; 6], 0)));
        }
    }
}

fn recv_from(device: Arc<Faulty>, offloads: &Arc<Offloads>) -> TunRecv<Faulty> {
    TunRecv::new(device, Wake::new().unwrap(), offloads.clone())
}

#[test]
fn unsupported_offloads_are_switched_off_and_counted() {
    // In the order in which they were added to the kernel.
    for known in 0..=3 {
        let [tcp, udp, tunnel] = [1, 2, 3].map(|number| known >= number);
        let has = SuperPackets { tcp, udp, tunnel };
        let (device, offloads) = (Arc::new(Faulty::new(&[])), Arc::<Offloads>::default());
        device.state().lacks = SuperPackets { tcp: !tcp, udp: !udp, tunnel: !tunnel };
        let mut recv = recv_from(device.clone(), &offloads);
        assert_eq!(device.state().offload, has);
        let Offloads { tun_tso, tun_uso, tun_tunnel_gso, .. } = &*offloads;
        let switches = [tun_tso, tun_uso, tun_tunnel_gso];
        assert_eq!(switches.map(Switch::is_enabled), [tcp, udp, tunnel]);
        assert_eq!(switches.map(Switch::demotions), [!tcp, !udp, !tunnel].map(u64::from));
        // It is tried again after it was enabled again.
        device.state().lacks = SuperPackets::default();
        switches.iter().for_each(|switch| switch.set_enabled(true));
        device.state().incoming.push_back(Ok(vec![0x45; 30]));
        recv.recv(&mut Batch::new(4, 0), true).unwrap();
        assert_eq!(device.state().offload, SuperPackets { tcp: true, udp: true, tunnel: true });
    }
}

#[test]
fn error_after_packets_is_reported_without_losing_them() {
    let (device, offloads) = (Arc::new(Faulty::new(&[])), Arc::default());
    let mut recv = recv_from(device.clone(), &offloads);
    let packet = |number| Ok(vec![number; 30]);
    // EINVAL drops a single packet. EBADFD is final.
    let errors = [Err(Errno::EINTR), Err(Errno::EINVAL), Err(Errno::EBADFD), Err(Errno::EBADFD)];
    let [signal, bad, deleted, repeated] = errors;
    device.state().incoming =
        [packet(1), signal, packet(2), bad, packet(3), deleted, repeated].into();
    let mut batch = Batch::new(8, 8 * Batch::ROOM);
    recv.waker()();
    recv.recv(&mut batch, true).unwrap();
    assert_eq!(batch.iter().map(|(packet, _)| packet[0]).collect::<Vec<_>>(), [1, 2, 3]);
    batch.clear();
    assert_eq!(errno(&recv.recv(&mut batch, true).unwrap_err()), Some(Errno::EBADFD));
}

fn flow() -> impl Strategy<Value = Flow> {
    (any::<bool>(), any::<bool>(), 0u8..3).prop_map(|(udp, ipv6, host)| Flow { udp, ipv6, host })
}

/// Refusals that do not prevent sending.
fn harmless() -> impl Strategy<Value = Rule> {
    let super_errno =
        || select(vec![Errno::EINVAL, Errno::ENOBUFS, Errno::ENOMEM, Errno::EMSGSIZE]);
    prop_oneof![
        (any::<bool>(), super_errno()).prop_map(|(udp, errno)| Rule::Super { udp, errno }),
        (1usize..70, super_errno()).prop_map(|(most, errno)| Rule::Above(most, errno)),
        (0usize..20).prop_map(|write| Rule::Write(write, Errno::EINTR)),
        (0u64..4).prop_map(|ms| Rule::Until(Duration::from_millis(ms), Errno::EAGAIN)),
    ]
}

fn any_rule() -> impl Strategy<Value = Rule> {
    let errno = || {
        select(vec![
            Errno::EINVAL,
            Errno::EIO,
            Errno::ENOBUFS,
            Errno::ENOMEM,
            Errno::EAGAIN,
            Errno::EMSGSIZE,
            Errno::EFAULT,
        ])
    };
    prop_oneof![
        2 => harmless(),
        2 => (any::<u8>(), errno()).prop_map(|(chances, errno)| Rule::Chance(chances, errno)),
        1 => (0usize..40, errno()).prop_map(|(write, errno)| Rule::Write(write, errno)),
        1 => (any::<bool>(), errno()).prop_map(|(udp, errno)| Rule::Super { udp, errno }),
        1 => (0u64..20, errno())
            .prop_map(|(ms, errno)| Rule::Until(Duration::from_millis(ms), errno)),
    ]
}

/// Interleaved packets of several flows. Some are shorter than the others.
fn packets() -> impl Strategy<Value = Vec<Vec<u8>>> {
    let packet = (any::<prop::sample::Index>(), prop_oneof![9 => Just(100usize), 1 => 4usize..100]);
    (vec(flow(), 1..4), vec(packet, 1..150)).prop_map(|(flows, packets)| {
        let mut streams: HashMap<(bool, bool, u8), (u16, u32)> = HashMap::new();
        let mut build = |(index, len): (prop::sample::Index, usize)| {
            let flow = flows[index.index(flows.len())];
            let stream = streams.entry((flow.udp, flow.ipv6, flow.host));
            let (number, at) = stream.or_insert((0, u32::MAX - 2_000));
            let packet = packet_of(flow, *number, *at, len);
            (*number, *at) = (*number + 1, at.wrapping_add(len as u32));
            packet
        };
        packets.into_iter().map(&mut build).collect()
    })
}

proptest! {
    #[test]
    fn each_packet_is_sent_once_and_in_order_or_counted(
        (rules, seed) in (vec(any_rule(), 0..4), any::<u64>()),
        batches in vec((select(vec![0u64, 500, 61_000]), packets()), 1..4),
    ) {
        let mut tested = TestDevice::new(&rules);
        tested.device.state().random = Random::new(seed);
        for (pause, packets) in batches {
            tested.device.time.pass(Duration::from_millis(pause));
            let (waited, writes) = (tested.device.time.waited(), tested.device.state().writes);
            tested.send(&packets).unwrap();
            prop_assert!(tested.device.time.waited() - waited <= Duration::from_millis(5));
            let written = tested.device.state().writes - writes;
            prop_assert!(written <= 2 * packets.len() + 5 + rules.len());
        }
    }

    #[test]
    fn all_packets_are_sent_after_temporary_and_super_packet_refusals(
        rules in vec(harmless(), 0..4),
        batches in vec((select(vec![0u64, 500, 61_000]), packets()), 1..4),
    ) {
        let mut tested = TestDevice::new(&rules);
        for (pause, packets) in batches {
            tested.device.time.pass(Duration::from_millis(pause));
            prop_assert_eq!(tested.send(&packets).unwrap().1, 0);
        }
    }
}
