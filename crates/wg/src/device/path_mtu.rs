//! The data path's side. Timers treat probes and replies as keepalives: they need no answer, and
//! request no handshake.

use std::sync::Arc;

use super::{ControlNotice, Device, OutboundNotice, Reservation};
use crate::{
    message::DATA_OVERHEAD,
    path_mtu::{PathLimit, Probe, ProbeKind, constants::MIN_PLPMTU, shared::PathEvent},
    peer::Peer,
    time::Time,
};

/// A longer datagram may exceed the path MTU.
const LONG: usize = MIN_PLPMTU as usize + DATA_OVERHEAD;

/// Records sent data datagrams, the longest of which has `longest` bytes. Returns whether the
/// control half must replan the peer's timers.
pub(super) fn note_long_data_sent(peer: &Peer, longest: usize, now: Time) -> bool {
    longest > LONG && peer.path.note_long_data(now).is_some_and(|due| peer.activity.plan(due))
}

impl Peer {
    /// Returns the path MTU. `None` if it is unknown, or is at least the interface's MTU.
    pub fn path_limit(&self) -> Option<PathLimit> {
        self.path.limit()
    }

    /// Whether a sender may be notified now that its packet was too long. The rate limit applies to
    /// all senders to this peer together (RFC 4443 section 2.4 f).
    pub fn allow_too_big_report(&self, now: Time) -> bool {
        self.path.allow_too_big_report(now)
    }
}

impl Device {
    /// Takes the probes and replies to send to a peer, after an [`OutboundNotice::Probe`].
    pub fn take_probes(&self, peer: &Peer) -> Vec<Probe> {
        peer.path.take_outgoing()
    }

    /// Reserves a counter for a probe or a reply.
    pub fn reserve_probe(&self, peer: &Arc<Peer>, now: Time) -> Option<Reservation> {
        let endpoint = peer.endpoint()?;
        let keypair = peer.live_keypair(now)?;
        let counter = keypair.send.take(1)?;
        Some(Reservation { keypair, counter, endpoint })
    }

    /// Records a sent probe or reply, a datagram of `bytes` bytes.
    pub fn handle_probe_sent(&self, peer: &Arc<Peer>, bytes: usize, now: Time) {
        peer.count_tx(bytes);
        if peer.activity.sent(false, false, now) {
            self.control_mailbox.post(peer, ControlNotice::Replan);
        }
    }

    /// Handles the refusal of a probe by our own link, which it exceeds.
    pub fn handle_probe_refused(&self, peer: &Arc<Peer>, probe: Probe) {
        peer.path.push_event(PathEvent::Refused(probe.token));
        self.control_mailbox.post(peer, ControlNotice::ProbeReceived);
    }

    /// Handles an authentic, new probe or reply of a peer. A request is answered even if this
    /// device does not search.
    pub fn handle_probe_received(&self, peer: &Arc<Peer>, probe: Probe, now: Time) {
        if probe.kind == ProbeKind::Request {
            peer.path.queue_probe(probe.reply());
            self.outbound_mailbox.post(peer, OutboundNotice::Probe);
        }
        peer.path.push_event(PathEvent::Received(probe, now));
        self.control_mailbox.post(peer, ControlNotice::ProbeReceived);
    }
}
