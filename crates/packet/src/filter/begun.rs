//! Flows that this host began, whose replies are accepted.

use super::{Flow, Reading, flow::Kind, flow_table::FlowTable};

/// The UDP and SCTP flows that this host sent on, of those that were used last: 4096 at
/// most. They are kept as their replies, and a reply counts as use.
#[derive(Debug)]
pub struct Begun {
    replies: FlowTable<()>,
}

impl Begun {
    /// None so far. Nobody foresees which flow makes another be forgotten who does not know
    /// `seed`.
    pub fn new(seed: u64) -> Self {
        Self { replies: FlowTable::new(seed) }
    }

    /// The flow that a packet of this host begins, where its replies need one.
    pub fn read(packet: &[u8]) -> Option<Flow> {
        match Flow::read(packet) {
            Reading::Flow(flow) if flow.kind == Kind::Datagram => Some(flow),
            _ => None,
        }
    }

    /// Knows a flow that [`Begun::read`] gave.
    pub fn note(&mut self, flow: Flow) {
        self.replies.insert(flow.reversed(), ());
    }

    /// Whether packets of a flow are replies.
    pub fn has(&mut self, flow: &Flow) -> bool {
        self.replies.get(flow).is_some()
    }
}
