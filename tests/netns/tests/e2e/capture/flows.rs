//! Captured frames as the flows of their packets.

use std::collections::BTreeMap;

use netns::{Direction, Frame, Layout, Pattern, is_sound, split};

const TCP: u8 = 6;
const UDP: u8 = 17;

/// The inner packets of one interface in one direction, in order.
pub(super) struct Flows(Vec<Vec<u8>>);

/// Number of super-packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Supers {
    pub tcp: usize,
    pub udp: usize,
}

/// Identifies a flow: addresses and protocol, and the ports, or the identification of a fragment.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    addresses: Vec<u8>,
    protocol: u8,
    ports: Option<[u8; 4]>,
    fragment: Option<u32>,
}

/// Splits the frames of one direction. The kernel's own packets, to link-local addresses and
/// groups, are left out.
pub(super) fn flows(frames: &[Frame], direction: Direction) -> (Flows, Supers) {
    let frames = frames.iter().filter(|frame| frame.direction == direction);
    let (mut packets, mut supers) = (Vec::new(), Supers::default());
    for frame in frames.filter(|frame| is_inner(&frame.bytes)) {
        match (frame.segment_size, Layout::of(&frame.bytes).protocol) {
            (None, _) => {}
            (Some(_), TCP) => supers.tcp += 1,
            (Some(_), _) => supers.udp += 1,
        }
        packets.extend(split(frame));
    }
    (Flows(packets), supers)
}

fn is_inner(packet: &[u8]) -> bool {
    let layout = Layout::of(packet);
    let addresses = layout.addresses(packet);
    let mut addresses = addresses.chunks(addresses.len() / 2);
    addresses.all(|address| address.starts_with(&[10, 9]) || address.starts_with(&[0xfd, 9]))
}

/// Whether a packet arrived unchanged, except for a congestion mark (CE, RFC 3168). The mark also
/// changes the checksum of an IPv4 header.
fn is_same(sent: &[u8], came: &[u8]) -> bool {
    let mut sent = sent.to_vec();
    let (at, bits) = (1, if Layout::of(&sent).version == 4 { 0x03 } else { 0x30 });
    if sent.len() == came.len() && sent[at] & bits != 0 && sent[at] != came[at] {
        sent[at] |= bits;
        if bits == 0x03 {
            // `are_sound` has verified the checksum.
            sent[10..12].copy_from_slice(&came[10..12]);
        }
    }
    sent == came
}

impl Flows {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// # Panics
    /// If a length or a checksum is wrong, or a packet is longer than the MTU.
    pub(super) fn are_sound(&self, mtu: usize) {
        for packet in &self.0 {
            assert!(packet.len() <= mtu && is_sound(packet), "invalid packet: {packet:02x?}");
        }
    }

    /// Compares the packets of each flow in order, except for congestion marks. The error describes the
    /// first difference.
    pub(super) fn same_as(&self, other: &Self) -> Result<(), String> {
        let (ours, theirs) = (self.by_key(), other.by_key());
        if let Some(key) = theirs.keys().find(|key| !ours.contains_key(*key)) {
            return Err(format!("{key:?} was never sent"));
        }
        for (key, packets) in ours {
            let arrived = theirs.get(&key).map_or(&[][..], Vec::as_slice);
            let pairs = packets.iter().zip(arrived);
            if let Some((index, (sent, came))) =
                pairs.enumerate().find(|(_, (a, b))| !is_same(a, b))
            {
                return Err(format!("{key:?}: packet {index}\n{sent:02x?}\n{came:02x?}"));
            }
            if packets.len() != arrived.len() {
                return Err(format!("{key:?}: {} sent, {} came", packets.len(), arrived.len()));
            }
        }
        Ok(())
    }

    fn by_key(&self) -> BTreeMap<Key, Vec<&[u8]>> {
        let mut flows: BTreeMap<Key, Vec<&[u8]>> = BTreeMap::new();
        for packet in &self.0 {
            flows.entry(Key::of(packet)).or_default().push(packet);
        }
        flows
    }

    /// The UDP packets by flow, without the values that the kernel chooses: identifications, and
    /// with them the IPv4 header's checksum.
    pub(super) fn datagrams(&self) -> Vec<Vec<u8>> {
        let mut flows: BTreeMap<Key, Vec<Vec<u8>>> = BTreeMap::new();
        for packet in &self.0 {
            let key = Key { fragment: None, ..Key::of(packet) };
            if key.protocol != UDP {
                continue;
            }
            let mut packet = packet.clone();
            let layout = Layout::of(&packet);
            match layout.version {
                4 => [4, 5, 10, 11].iter().for_each(|at| packet[*at] = 0),
                _ if layout.fragment.is_some() => packet[44..48].fill(0),
                _ => {}
            }
            flows.entry(key).or_default().push(packet);
        }
        flows.into_values().flatten().collect()
    }

    /// Checks the stream to a port, assembled by its sequence numbers.
    ///
    /// # Panics
    /// If a byte of it is missing or wrong.
    pub(super) fn stream_is_whole(&self, port: u16, bytes: u64) {
        let pattern = Pattern::new(u64::from(port));
        let segments = self.0.iter().filter_map(|packet| {
            let layout = Layout::of(packet);
            let at = layout.transport;
            let to_port = layout.protocol == TCP && packet[at + 2..at + 4] == port.to_be_bytes();
            to_port.then(|| (&packet[at..], &packet[layout.payload(packet)..]))
        });
        let number =
            |header: &[u8]| u32::from_be_bytes([header[4], header[5], header[6], header[7]]);
        let mut start = None;
        let mut seen = vec![false; bytes as usize];
        for (header, payload) in segments {
            const SYN: u8 = 2;
            if header[13] & SYN != 0 {
                start = Some(number(header).wrapping_add(1));
                continue;
            }
            let start = start.expect("a stream begins with SYN");
            let place = number(header).wrapping_sub(start) as usize;
            if payload.is_empty() {
                continue;
            }
            assert!(*payload == *pattern.at(place as u64, payload.len()), "port {port}, {place}");
            seen[place..place + payload.len()].fill(true);
        }
        assert!(seen.iter().all(|seen| *seen), "port {port}: bytes are missing");
    }
}

impl Key {
    fn of(packet: &[u8]) -> Self {
        let layout = Layout::of(packet);
        let ports = packet.get(layout.transport..layout.transport + 4);
        let ports = ports.and_then(|ports| ports.try_into().ok());
        Self {
            addresses: layout.addresses(packet).to_vec(),
            protocol: layout.protocol,
            ports: ports.filter(|_| layout.fragment.is_none()),
            fragment: layout.fragment,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A UDP packet over IPv4; its source port selects the flow.
    fn packet(port: u8, payload: u8) -> Vec<u8> {
        let mut packet = vec![0x45, 0, 0, 29, 0, 0, 0, 0, 64, UDP, 0, 0];
        packet.extend([10, 9, 0, 1, 10, 9, 0, 2, 0, port, 0, 53, 0, 9, 0, 0, payload]);
        packet
    }

    #[test]
    fn lost_duplicated_reordered_changed_and_extra_packets_are_detected() {
        let flows = |packets: &[(u8, u8)]| {
            Flows(packets.iter().map(|(port, payload)| packet(*port, *payload)).collect())
        };
        let sent = flows(&[(1, 1), (1, 2), (2, 1), (1, 3)]);
        assert_eq!(sent.same_as(&flows(&[(2, 1), (1, 1), (1, 2), (1, 3)])), Ok(()), "two flows");
        for other in [
            &[(1, 1), (2, 1), (1, 3)][..],
            &[(1, 1), (1, 2), (2, 1)],
            &[(1, 1), (1, 2), (1, 3)],
            &[(1, 1), (1, 2), (2, 1), (1, 3), (1, 3)],
            &[(1, 2), (1, 1), (2, 1), (1, 3)],
            &[(1, 1), (1, 2), (2, 1), (1, 4)],
            &[(1, 1), (1, 2), (2, 1), (1, 3), (3, 1)],
        ] {
            assert!(sent.same_as(&flows(other)).is_err(), "{other:?}");
        }
    }

    #[test]
    fn datagrams_may_only_differ_in_values_that_the_kernel_chooses() {
        let flows = |place: usize| {
            let mut packet = packet(1, 1);
            packet[place] ^= 1;
            Flows(vec![packet]).datagrams()
        };
        let same = flows(4);
        for place in [5, 10, 11] {
            assert_eq!(flows(place), same);
        }
        for place in [1, 8, 15, 21, 28] {
            assert_ne!(flows(place), same, "byte {place}");
        }
    }
}
