//! Handles packets that exceed their path's MTU. It is used only for paths with a smaller MTU than
//! the interface.
//!
//! ```text
//!   TCP                           sent in shorter segments, without notifying either end
//!   may be fragmented             sent; the outer packet is fragmented on its way
//!   the MTU is still searched     sent, because the present value is only a guess
//!   otherwise                     dropped, with an answer to its sender
//! ```

use std::sync::Arc;

use packet::icmp::{is_unfragmentable, packet_too_big};
use wg::{Device, DropReason, PathLimit, Peer, Time};

use super::datagram_writer::Item;
use crate::IcmpErrors;

/// Every IPv6 path has at least this MTU (RFC 8200 section 5). Senders must not be sent a smaller
/// value.
const LEAST_V6: u16 = 1280;

/// Fits runs to the paths of their peers.
pub(super) struct Fit<'a> {
    pub device: &'a Device,
    pub returned: &'a IcmpErrors,
    pub now: Time,
}

impl Fit<'_> {
    /// Makes a run fit the path to its peer.
    pub(super) fn run(&self, peer: &Arc<Peer>, run: &mut [Item<'_>], limit: PathLimit) {
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
