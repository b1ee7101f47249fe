//! Sends batches of packets through one coalescer and compares with the oracle.

use std::collections::HashMap;

use packet::{Coalesce, Coalescer, Offload, Segments};

use super::{
    coalesced::coalesced,
    oracle::{Vnet, split},
    same::check,
    spec::{ACK, Checksum, Spec, slow_checksum},
    take,
};

/// Limits of packets and bytes per batch, for speed.
const PACKETS: usize = 160;
const BYTES: usize = 150_000;

/// The output, split by the oracle, equals the input.
pub fn coalesce(data: &[u8]) {
    let mut rest = data;
    let [which] = take(&mut rest);
    let which = Coalesce { tcp: which & 1 == 0, udp: which & 2 == 0 };
    let mut coalescer = Coalescer::default();
    let mut sender = Sender::default();
    let mut packets = Vec::new();
    let mut total = 0;
    while total < BYTES {
        let more = sender.step(&mut rest, &mut packets);
        let bytes: usize = packets.iter().map(Vec::len).sum();
        if !more || packets.len() >= PACKETS || bytes >= BYTES {
            run(&mut coalescer, &packets, which);
            total += bytes.max(1);
            packets.clear();
        }
        if rest.is_empty() {
            break;
        }
    }
    run(&mut coalescer, &packets, which);
}

fn run(coalescer: &mut Coalescer, packets: &[Vec<u8>], which: Coalesce) {
    let written = coalesced(coalescer, packets, which);
    check(packets, &written);
    written.iter().for_each(|(written, _)| splits_alike(written));
}

/// Our own segmenter agrees with the oracle.
fn splits_alike(written: &[u8]) {
    let (header, packet) = written.split_first_chunk().expect("there is a header");
    let offload = Offload::parse(header).expect("what we write we can read");
    let segments = Segments::new(packet, offload).expect("it is a super-packet");
    let mut expected = split(Vnet::read(header), packet).expect("the kernel takes it").into_iter();
    for index in 0..segments.count() {
        let mut segment = vec![0; segments.segment_len(index)];
        segments.write(index, &mut segment);
        assert_eq!(Some(segment), expected.next());
    }
    assert_eq!(expected.next(), None);
}

/// Flows that continue from packet to packet.
#[derive(Default)]
pub(super) struct Sender {
    flows: HashMap<(bool, bool, u8), Spec>,
    sent: usize,
}

impl Sender {
    /// Makes packets by the next step; returns `false` at the end of a batch. The low three bits
    /// name the flow, so that one byte is the next packet of a flow.
    pub(super) fn step(&mut self, rest: &mut &[u8], packets: &mut Vec<Vec<u8>>) -> bool {
        let [step] = take(rest);
        let (tcp, ipv6) = (step & 1 == 0, step & 2 == 0);
        let mut flow = (tcp, ipv6, step >> 2 & 1);
        match step >> 3 {
            0..=12 => packets.push(self.next(flow).build()),
            13 | 14 => {
                let [count] = take(rest);
                let most = BYTES / self.flow(flow).build().len();
                for number in 0..count.min(most.min(PACKETS) as u8) {
                    // All packets in one flow, or each in its own.
                    flow.2 = if step >> 3 == 13 { flow.2 } else { number };
                    packets.push(self.next(flow).build());
                }
            }
            15 => return false,
            16 => packets.extend(verbatim(rest)),
            17 => {
                let mut packet = self.next(flow).build();
                poke(&mut packet, rest);
                packets.push(packet);
            }
            18..=22 => {
                let mut spec = self.next(flow);
                change_one(&mut spec, step >> 3, rest);
                packets.push(spec.build());
            }
            _ => change_all(self.flow(flow), step >> 3, rest),
        }
        true
    }

    fn flow(&mut self, flow: (bool, bool, u8)) -> &mut Spec {
        let (tcp, ipv6, host) = flow;
        self.flows.entry(flow).or_insert_with(|| Spec {
            host,
            sequence: u32::MAX - 1_000,
            id: u16::MAX - 5,
            ..Spec::new(tcp, ipv6, vec![0; 100])
        })
    }

    /// The next packet of a flow.
    fn next(&mut self, flow: (bool, bool, u8)) -> Spec {
        self.sent += 1;
        let fill = self.sent as u8;
        let spec = self.flow(flow);
        spec.payload.fill(fill);
        let packet = spec.clone();
        spec.sequence = spec.sequence.wrapping_add(spec.payload.len() as u32);
        spec.id = spec.id.wrapping_add(1);
        packet
    }
}

/// Changes a packet.
fn change_one(spec: &mut Spec, what: u8, rest: &mut &[u8]) {
    let [value] = take(rest);
    match what {
        18 => spec.flags = value ^ ACK,
        19 => spec.fragment = u16::from_le_bytes([take::<1>(rest)[0], value]),
        20 => spec.checksum = Checksum::OffBy(value.into()),
        21 => (spec.urgent, spec.reserved) = ((value >> 4).into(), value & 0x0f),
        _ => {
            spec.ip_options = value & 1 != 0;
            spec.ip_checksum_off_by = u16::from(value >> 1);
        }
    }
}

/// Changes the flow for the following packets.
fn change_all(spec: &mut Spec, what: u8, rest: &mut &[u8]) {
    let [value] = take(rest);
    match what {
        23 => {
            let [high] = take(rest);
            // At most half of a packet, so that super-packets reach their limit.
            spec.payload.resize(usize::from(u16::from_le_bytes([value, high & 0x7f])), 0);
        }
        24 => spec.tos = value,
        25 => spec.ttl = value,
        26 => spec.id = spec.id.wrapping_add(value.into()),
        27 => spec.sequence = spec.sequence.wrapping_sub(value.into()),
        28 => spec.tcp_options = vec![1; usize::from(value % 11) * 4],
        29 => (spec.ack, spec.window) = ((value & 0x0f).into(), (value >> 4).into()),
        30 => spec.flow_label = value.into(),
        _ => {
            spec.fragment = u16::from(value & 1) << 14;
            spec.checksum = if value & 2 == 0 { Checksum::Right } else { Checksum::Zero };
            spec.flags = if value & 4 == 0 { ACK } else { ACK | 0x40 };
        }
    }
}

/// Arbitrary bytes, with the length of an IP packet as in its header.
fn verbatim(rest: &mut &[u8]) -> Option<Vec<u8>> {
    let [len, right] = take(rest);
    let (bytes, behind) = rest.split_at(usize::from(len).min(rest.len()));
    *rest = behind;
    let mut packet = bytes.to_vec();
    let total = packet.len() as u16;
    match packet.first()? >> 4 {
        4 if packet.len() >= 20 => packet[2..4].copy_from_slice(&total.to_be_bytes()),
        6 if packet.len() >= 40 => packet[4..6].copy_from_slice(&(total - 40).to_be_bytes()),
        _ => return None,
    }
    if right & 1 == 0 {
        finish(&mut packet);
    }
    Some(packet)
}

/// Changes a byte except the version and the length.
fn poke(packet: &mut [u8], rest: &mut &[u8]) {
    let [at, value, right] = take(rest);
    let at = usize::from(at) % packet.len();
    let length = if packet[0] >> 4 == 6 { 4..6 } else { 2..4 };
    match at {
        0 => packet[0] = packet[0] & 0xf0 | value & 0x0f,
        at if !length.contains(&at) => packet[at] = value,
        _ => {}
    }
    if right & 1 == 0 {
        finish(packet);
    }
}

/// Corrects an IPv4 header's checksum.
fn finish(packet: &mut [u8]) {
    if packet[0] >> 4 == 4 {
        packet[10..12].fill(0);
        let checksum = slow_checksum(&packet[..20]);
        packet[10..12].copy_from_slice(&checksum.to_be_bytes());
    }
}
