//! A bounded cache with a value for each flow.

use super::Flow;

/// Flows in each set.
const WAYS: usize = 8;
/// Number of sets.
const SETS: usize = 512;

/// The values of the most recent flows: a set-associative cache that evicts the least recently used
/// of the [`WAYS`] flows in a set. Only the table itself is allocated.
#[derive(Debug)]
pub(super) struct FlowTable<V> {
    sets: Box<[[Entry<V>; WAYS]]>,
    seed: u64,
}

/// An unused entry has [`Flow::default`], which equals no packet's flow.
#[derive(Clone, Copy, Debug, Default)]
struct Entry<V> {
    flow: Flow,
    value: V,
}

impl<V: Copy + Default> FlowTable<V> {
    /// Creates an empty table. The sets of flows are unpredictable without `seed`.
    pub(super) fn new(seed: u64) -> Self {
        Self { sets: vec![[Entry::default(); WAYS]; SETS].into_boxed_slice(), seed }
    }

    /// Returns the value of a flow, and marks the flow as used.
    pub(super) fn get(&mut self, flow: &Flow) -> Option<V> {
        let set = &mut self.sets[set_of(flow, self.seed)];
        let at = set.iter().position(|entry| entry.flow == *flow)?;
        set[..=at].rotate_right(1);
        Some(set[0].value)
    }

    /// Sets the value of a flow, and evicts the least recently used flow of its set.
    pub(super) fn insert(&mut self, flow: Flow, value: V) {
        let set = &mut self.sets[set_of(&flow, self.seed)];
        let at = set.iter().position(|entry| entry.flow == flow).unwrap_or(WAYS - 1);
        set[..=at].rotate_right(1);
        set[0] = Entry { flow, value };
    }

    /// Removes all flows.
    pub(super) fn clear(&mut self) {
        self.sets.fill([Entry::default(); WAYS]);
    }
}

fn set_of(flow: &Flow, seed: u64) -> usize {
    const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
    // The kind is not hashed: within one table it follows from these words.
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

    /// An IPv6 UDP packet with zeros as addresses and destination port.
    fn packet(source_port: u16) -> [u8; 52] {
        let mut packet = [0; 52];
        [packet[0], packet[5], packet[6]] = [0x60, 12, 17];
        packet[40..42].copy_from_slice(&source_port.to_be_bytes());
        packet
    }

    fn flow(number: u16) -> Flow {
        read(&packet(number))
    }

    /// The flow of `packet(1)` with one byte changed.
    fn with(at: usize, byte: u8) -> Flow {
        let mut packet = packet(1);
        packet[at] = byte;
        read(&packet)
    }

    /// The flow of `packet(1)` over IPv4.
    fn v4() -> Flow {
        let header = [&[0x45, 0, 0, 32, 0, 0, 0, 0, 64, 17, 0, 0][..], &[0; 8]].concat();
        read(&[&header, &packet(1)[40..]].concat())
    }

    /// Flows that share a set.
    fn neighbours(seed: u64) -> impl Iterator<Item = Flow> {
        let first = set_of(&flow(1), seed);
        (1..).map(flow).filter(move |flow| set_of(flow, seed) == first)
    }

    #[test]
    fn a_full_set_evicts_the_least_recently_used_flow() {
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
    fn every_field_of_a_flow_and_the_seed_are_hashed() {
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
    fn a_half_full_table_evicts_few_flows() {
        let mut table = FlowTable::new(3);
        let flows = || (0..(SETS * WAYS / 2) as u16).map(flow);
        flows().for_each(|flow| table.insert(flow, ()));
        let lost = flows().filter(|flow| table.get(flow).is_none()).count();
        assert!(lost < 100, "{lost} of {}", SETS * WAYS / 2);
    }
}
