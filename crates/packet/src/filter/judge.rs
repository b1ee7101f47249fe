//! Decides on packets. Most packets get the cached verdict of the packet before.

use std::sync::Arc;

use super::{Flow, Reading, Rules, flow::Kind, flow_table::FlowTable, head::Head};
use crate::wire::IpHeader;

/// The decision on a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The packet may enter.
    Accepted,
    /// The packet may enter. Its protocol is open, and ports are not examined.
    Open,
    /// The packet is dropped.
    Refused,
}

/// Decides on the packets of one receiver.
#[derive(Debug)]
pub struct Judge {
    rules: Arc<Rules>,
    /// Number of the present rules. Entries of the table with another number are stale.
    epoch: u32,
    /// Verdicts of the rules, for the kinds of flows in which many packets need one.
    known: FlowTable<Known>,
    /// The last packet's head and whether it was accepted. Packets without a head are skipped.
    last: Option<(Head, bool)>,
    judged: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Known {
    /// Starts at 1 for rules; 0 is an empty entry.
    epoch: u32,
    accepted: bool,
}

impl Judge {
    /// Creates a judge for `rules`. Evictions from its table are unpredictable without `seed`.
    pub fn new(rules: Arc<Rules>, seed: u64) -> Self {
        Self { rules, epoch: 1, known: FlowTable::new(seed), last: None, judged: 0 }
    }

    /// Replaces the rules. They also apply to existing flows.
    pub fn set_rules(&mut self, rules: Arc<Rules>) {
        self.rules = rules;
        self.last = None;
        self.epoch = self.epoch.wrapping_add(1);
        if self.epoch == 0 {
            self.known.clear();
            self.epoch = 1;
        }
    }

    /// Starts a batch. Flows may have been opened since the last one.
    pub fn begin(&mut self) {
        self.last = None;
    }

    /// Whether a packet is accepted. `is_reply` tests whether a flow replies to one that this host
    /// opened. It is called only if no rule accepts the flow.
    pub fn accepts(&mut self, packet: &[u8], is_reply: impl FnOnce(&Flow) -> bool) -> bool {
        IpHeader::parse(packet).is_ok_and(|header| self.accepts_parsed(&header, packet, is_reply))
    }

    /// [`Judge::accepts`] for a packet with parsed IP headers.
    #[inline]
    pub fn accepts_parsed(
        &mut self,
        header: &IpHeader,
        packet: &[u8],
        is_reply: impl FnOnce(&Flow) -> bool,
    ) -> bool {
        self.verdict(header, packet, is_reply) != Verdict::Refused
    }

    /// Returns the verdict on a packet with parsed IP headers.
    #[inline]
    pub fn verdict(
        &mut self,
        header: &IpHeader,
        packet: &[u8],
        is_reply: impl FnOnce(&Flow) -> bool,
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
            Reading::Flow(flow) => self.judge(&flow, is_reply),
            Reading::LaterFragment => true,
            Reading::Refused => false,
        };
        self.last = head.map(|head| (head, accepted)).or(self.last);
        of(accepted)
    }

    /// Number of decisions so far. Consecutive packets of one TCP or UDP flow in a batch count
    /// once.
    pub fn judged(&self) -> u64 {
        self.judged
    }

    fn judge(&mut self, flow: &Flow, is_reply: impl FnOnce(&Flow) -> bool) -> bool {
        self.judged += 1;
        match flow.kind {
            // Opening segments are rare, and the others need no rules: no cache.
            Kind::Opening | Kind::Connected | Kind::Answer => self.rules.accept(flow),
            Kind::Datagram => self.look_up(flow) || (self.rules.is_local(flow) && is_reply(flow)),
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
