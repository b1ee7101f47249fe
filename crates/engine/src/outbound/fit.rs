//! What becomes of packets that are longer than their peer's path: looked at only where
//! that carries less than the interface sends.
//!
//! ```text
//!   TCP                         in shorter segments; nobody has to be told
//!   may be fragmented           goes; the outer packet is fragmented on its way
//!   the search goes on          goes, for what is known so far is only a guess
//!   else                        its sender is told, and it is dropped
//! ```

use std::sync::Arc;

use packet::icmp::{is_unfragmentable, packet_too_big};
use wg::{Device, DropReason, PathLimit, Peer, Time};

use super::unsealed::Item;
use crate::IcmpErrors;

/// Every IPv6 path carries this (RFC 8200 section 5), so no sender may be told less.
const LEAST_V6: u16 = 1280;

/// What it takes to fit runs to the paths of their peers.
pub(super) struct Fit<'a> {
    pub device: &'a Device,
    pub returned: &'a IcmpErrors,
    pub now: Time,
}

impl Fit<'_> {
    /// Makes a run fit the path to its peer.
    pub fn run(&self, peer: &Arc<Peer>, run: &mut [Item<'_>], limit: PathLimit) {
        run.iter_mut().for_each(|item| self.item(peer, item, limit));
    }

    fn item(&self, peer: &Arc<Peer>, item: &mut Item<'_>, limit: PathLimit) {
        let longest = item.segments.segment_len(0);
        if longest <= limit.bytes.into() {
            return;
        }
        if let Some(narrow) = item.segments.within(limit.bytes.into()) {
            item.segments = narrow;
            return;
        }
        let mut first = vec![0; longest];
        item.segments.write(0, &mut first);
        let least = if first[0] >> 4 == 6 { LEAST_V6 } else { 0 };
        let mtu = limit.bytes.max(least);
        if !limit.settled || longest <= mtu.into() || !is_unfragmentable(&first) {
            return;
        }
        if peer.allow_too_big_report(self.now)
            && let Some(answer) = packet_too_big(&first, mtu)
        {
            self.returned.push(answer);
        }
        self.device.drops.count(DropReason::OutPathMtu, item.indices().len() as u64);
        item.first = item.segments.count();
    }
}
