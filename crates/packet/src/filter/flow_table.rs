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
    let Flow { source, destination, source_port, destination_port, protocol, v4, kind } = *flow;
    let ports = u64::from(source_port) << 48 | u64::from(destination_port) << 32;
    let rest = ports | u64::from(protocol) << 16 | u64::from(v4) << 8 | kind as u64;
    let words = [
        source as u64,
        (source >> 64) as u64,
        destination as u64,
        (destination >> 64) as u64,
        rest,
    ];
    let hash = words.iter().fold(seed, |hash, word| {
        let product = u128::from(hash ^ word) * u128::from(ODD);
        (product as u64) ^ (product >> 64) as u64
    });
    hash as usize % SETS
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(number: u16) -> Flow {
        Flow { source_port: number, ..Flow::default() }
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
            Flow { source: 1, ..flow(1) },
            Flow { source: 1 << 100, ..flow(1) },
            Flow { destination: 1, ..flow(1) },
            Flow { destination: 1 << 100, ..flow(1) },
            Flow { destination_port: 1, ..flow(1) },
            Flow { protocol: 1, ..flow(1) },
            Flow { v4: true, ..flow(1) },
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
