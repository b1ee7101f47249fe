//! Flows that this host opened. Replies to them are accepted.

use super::{Flow, Reading, flow::Kind, flow_table::FlowTable};

/// The UDP and SCTP flows that this host sent packets on. At most 4096 are stored, and the least
/// recently used are evicted. A flow is stored in the direction of its replies, and a reply counts
/// as use.
#[derive(Debug)]
pub struct OpenedFlows {
    replies: FlowTable<()>,
}

impl OpenedFlows {
    /// Creates an empty table. Evictions are unpredictable without `seed`.
    pub fn new(seed: u64) -> Self {
        Self { replies: FlowTable::new(seed) }
    }

    /// Returns the flow of a packet that this host sends, if its replies must be accepted.
    pub fn read(packet: &[u8]) -> Option<Flow> {
        match Flow::read(packet) {
            Reading::Flow(flow) if flow.kind == Kind::Datagram => Some(flow),
            _ => None,
        }
    }

    /// Adds a flow that [`OpenedFlows::read`] returned.
    pub fn note(&mut self, flow: Flow) {
        self.replies.insert(flow.reversed(), ());
    }

    /// Whether packets of a flow are replies.
    pub fn has(&mut self, flow: &Flow) -> bool {
        self.replies.get(flow).is_some()
    }
}
