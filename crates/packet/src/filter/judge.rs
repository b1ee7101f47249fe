//! Judges packets, and mostly knows the verdict from the packet before.

use std::sync::Arc;

use super::{Flow, Reading, Rules, flow::Kind, flow_table::FlowTable, head::Head};
use crate::wire::IpHeader;

/// What becomes of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It may enter.
    Accepted,
    /// It may enter, of an open protocol of which no ports are looked at.
    Open,
    /// It may not.
    Refused,
}

/// Judges the packets of one receiver.
#[derive(Debug)]
pub struct Judge {
    rules: Arc<Rules>,
    /// Which rules an entry of the table is of.
    epoch: u32,
    /// What the rules say, of flows of which many packets need them.
    known: FlowTable<Known>,
    /// The head of the last packet that has one, and the verdict on it.
    last: Option<(Head, bool)>,
    judged: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Known {
    /// The table begins with 0, the rules with 1.
    epoch: u32,
    accepted: bool,
}

impl Judge {
    /// Judges by `rules`. Nobody foresees which flow makes another be forgotten who does not
    /// know `seed`.
    pub fn new(rules: Arc<Rules>, seed: u64) -> Self {
        Self { rules, epoch: 1, known: FlowTable::new(seed), last: None, judged: 0 }
    }

    /// Judges by other rules from now on, old flows as well.
    pub fn set_rules(&mut self, rules: Arc<Rules>) {
        self.rules = rules;
        self.last = None;
        self.epoch = self.epoch.wrapping_add(1);
        if self.epoch == 0 {
            self.known.clear();
            self.epoch = 1;
        }
    }

    /// Begins a batch: flows may have begun since the last.
    pub fn begin(&mut self) {
        self.last = None;
    }

    /// Whether a packet is accepted. `has_begun` says of a flow whether it replies to one of
    /// this host; it is asked only of what no rule accepts.
    pub fn accepts(&mut self, packet: &[u8], has_begun: impl FnOnce(&Flow) -> bool) -> bool {
        IpHeader::parse(packet).is_ok_and(|header| self.accepts_read(&header, packet, has_begun))
    }

    /// The same of a packet whose IP headers are `header`.
    #[inline]
    pub fn accepts_read(
        &mut self,
        header: &IpHeader,
        packet: &[u8],
        has_begun: impl FnOnce(&Flow) -> bool,
    ) -> bool {
        self.verdict(header, packet, has_begun) != Verdict::Refused
    }

    /// The verdict on it.
    #[inline]
    pub fn verdict(
        &mut self,
        header: &IpHeader,
        packet: &[u8],
        has_begun: impl FnOnce(&Flow) -> bool,
    ) -> Verdict {
        let of = |accepted| if accepted { Verdict::Accepted } else { Verdict::Refused };
        let head = Head::of(header, packet);
        if let (Some(head), Some((last, accepted))) = (head, self.last)
            && head == last
        {
            return of(accepted);
        }
        let accepted = match Flow::parse(header, packet) {
            Reading::Flow(flow) if self.rules.is_open(&flow) => return Verdict::Open,
            Reading::Flow(flow) => self.judge(&flow, has_begun),
            Reading::LaterFragment => true,
            Reading::Refused => false,
        };
        self.last = head.map(|head| (head, accepted)).or(self.last);
        of(accepted)
    }

    /// How many flows were judged so far: packets of one TCP or UDP flow in a row, in a batch,
    /// count as one.
    pub fn judged(&self) -> u64 {
        self.judged
    }

    fn judge(&mut self, flow: &Flow, has_begun: impl FnOnce(&Flow) -> bool) -> bool {
        self.judged += 1;
        match flow.kind {
            // The first is sent once, and the others do not ask the rules.
            Kind::Opening | Kind::Connected | Kind::Answer => self.rules.accept(flow),
            Kind::Datagram => self.look_up(flow) || (self.rules.is_local(flow) && has_begun(flow)),
            _ => self.look_up(flow),
        }
    }

    fn look_up(&mut self, flow: &Flow) -> bool {
        let epoch = self.epoch;
        if let Some(known) = self.known.get(flow).filter(|known| known.epoch == epoch) {
            return known.accepted;
        }
        let accepted = self.rules.accept(flow);
        self.known.insert(*flow, Known { epoch, accepted });
        accepted
    }
}
