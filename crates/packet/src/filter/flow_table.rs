//! A bounded table of flows.

use super::Flow;

/// Flows of one hash that are kept.
const WAYS: usize = 8;
/// Hashes.
const SETS: usize = 512;

/// What is known of the flows that were seen last: of each set of them, that share a hash,
/// the [`WAYS`] that were used last. Nothing is allocated but the table itself.
#[derive(Debug)]
pub(super) struct FlowTable<V> {
    sets: Box<[[Entry<V>; WAYS]]>,
    seed: u64,
}

/// [`Flow::default`], which no packet is of, where there is none.
#[derive(Clone, Copy, Debug, Default)]
struct Entry<V> {
    flow: Flow,
    value: V,
}

impl<V: Copy + Default> FlowTable<V> {
    /// An empty table, whose hashes nobody foresees who does not know `seed`.
    pub fn new(seed: u64) -> Self {
        Self { sets: vec![[Entry::default(); WAYS]; SETS].into_boxed_slice(), seed }
    }

    /// What is known of a flow, which is used by that.
    pub fn get(&mut self, flow: &Flow) -> Option<V> {
        let set = &mut self.sets[set_of(flow, self.seed)];
        let at = set.iter().position(|entry| entry.flow == *flow)?;
        set[..=at].rotate_right(1);
        Some(set[0].value)
    }

    /// Knows `value` of a flow from now on; of its set the flow that was unused for longest
    /// is forgotten.
    pub fn insert(&mut self, flow: Flow, value: V) {
        let set = &mut self.sets[set_of(&flow, self.seed)];
        let at = set.iter().position(|entry| entry.flow == flow).unwrap_or(WAYS - 1);
        set[..=at].rotate_right(1);
        set[0] = Entry { flow, value };
    }

    /// Forgets all flows.
    pub fn clear(&mut self) {
        self.sets.fill([Entry::default(); WAYS]);
    }
}

fn set_of(flow: &Flow, seed: u64) -> usize {
    const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
    // The kind follows from these, for flows that one table has.
    let hash = flow.tuple.words().iter().fold(seed, |hash, word| {
        let product = u128::from(hash ^ word) * u128::from(ODD);
        (product as u64) ^ (product >> 64) as u64
    });
    hash as usize % SETS
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::filter::Reading;

    fn read(packet: &[u8]) -> Flow {
        match Flow::read(packet) {
            Reading::Flow(flow) => flow,
            other => panic!("{other:?}"),
        }
    }

    /// A UDP packet of IPv6 with zeros for addresses and destination port.
    fn packet(source_port: u16) -> [u8; 52] {
        let mut packet = [0; 52];
        [packet[0], packet[5], packet[6]] = [0x60, 12, 17];
        packet[40..42].copy_from_slice(&source_port.to_be_bytes());
        packet
    }

    fn flow(number: u16) -> Flow {
        read(&packet(number))
    }

    /// The first one's packet with another byte.
    fn with(at: usize, byte: u8) -> Flow {
        let mut packet = packet(1);
        packet[at] = byte;
        read(&packet)
    }

    /// The first one's packet in IPv4.
    fn v4() -> Flow {
        let header = [&[0x45, 0, 0, 32, 0, 0, 0, 0, 64, 17, 0, 0][..], &[0; 8]].concat();
        read(&[&header, &packet(1)[40..]].concat())
    }

    /// Flows of one set.
    fn neighbours(seed: u64) -> impl Iterator<Item = Flow> {
        let first = set_of(&flow(1), seed);
        (1..).map(flow).filter(move |flow| set_of(flow, seed) == first)
    }

    #[test]
    fn a_full_set_forgets_the_flow_that_was_unused_for_longest() {
        let mut table = FlowTable::new(7);
        let flows: Vec<Flow> = neighbours(7).take(WAYS + 2).collect();
        flows[..WAYS].iter().for_each(|flow| table.insert(*flow, 1));
        assert_eq!(table.get(&flows[0]), Some(1));
        table.insert(flows[1], 2);
        flows[WAYS..].iter().for_each(|flow| table.insert(*flow, 3));
        let known: Vec<_> = flows.iter().map(|flow| table.get(flow)).collect();
        assert_eq!(known[..5], [Some(1), Some(2), None, None, Some(1)]);
        assert_eq!(known[WAYS..], [Some(3), Some(3)]);
    }

    #[test]
    fn every_field_of_a_flow_counts_and_so_does_the_seed() {
        let flows = [
            flow(1),
            with(23, 1),
            with(8, 1),
            with(39, 1),
            with(24, 1),
            with(43, 1),
            with(6, 132),
            v4(),
        ];
        let mut table = FlowTable::new(1);
        for (number, flow) in flows.iter().enumerate() {
            assert_eq!(table.get(flow), None);
            table.insert(*flow, number);
        }
        for (number, flow) in flows.iter().enumerate() {
            assert_eq!(table.get(flow), Some(number));
        }
        let sets = |seed| flows.map(|flow| set_of(&flow, seed));
        assert_ne!(sets(1), sets(2));
    }

    #[test]
    fn half_as_many_flows_as_there_is_room_for_hardly_lose_any() {
        let mut table = FlowTable::new(3);
        let flows = || (0..(SETS * WAYS / 2) as u16).map(flow);
        flows().for_each(|flow| table.insert(flow, ()));
        let lost = flows().filter(|flow| table.get(flow).is_none()).count();
        assert!(lost < 100, "{lost} of {}", SETS * WAYS / 2);
    }
}
