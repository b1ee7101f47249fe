//! What the data path asks and tells. Timers take questions and answers for keepalives: nothing
//! has to answer them, and for them no handshake is asked for.

use std::sync::Arc;

use super::{
    PathLimit,
    constants::PROBE_FLOOR,
    probe::{Probe, ProbeKind},
    shared::Heard,
};
use crate::{
    device::{ControlNotice, Device, OutboundNotice, Reservation},
    message::DATA_OVERHEAD,
    peer::Peer,
    time::Time,
};

/// A datagram that is longer may be too long for a path.
const LONG: usize = PROBE_FLOOR as usize + DATA_OVERHEAD;

/// Notes that datagrams of data were sent, the `longest` of so many bytes; whether control must
/// plan the peer's timers anew.
pub(crate) fn sent_long(peer: &Peer, longest: usize, now: Time) -> bool {
    longest > LONG && peer.path.note_long(now).is_some_and(|due| peer.activity.plan(due))
}

impl Peer {
    /// What the path to the peer carries; `None` where that is all that the interface
    /// sends, or nobody knows.
    pub fn path_limit(&self) -> Option<PathLimit> {
        self.path.limit()
    }

    /// Whether a sender may be told now that its packet was too long: rate-limited, for
    /// all senders of the peer together (RFC 4443 section 2.4 f).
    pub fn allow_too_big_report(&self, now: Time) -> bool {
        self.path.allow_too_big_report(now)
    }
}

impl Device {
    /// Takes what is to be sent to a peer, where there is an
    /// [`OutboundNotice::Probe`].
    pub fn take_probes(&self, peer: &Peer) -> Vec<Probe> {
        peer.path.take_to_send()
    }

    /// Reserves a counter for a question or an answer.
    pub fn reserve_probe(&self, peer: &Arc<Peer>, now: Time) -> Option<Reservation> {
        let endpoint = peer.endpoint()?;
        let keypair = peer.live_keypair(now)?;
        let counter = keypair.send.take(1)?;
        Some(Reservation { keypair, counter, endpoint })
    }

    /// Notes that a question or an answer was sent, `bytes` of datagram.
    pub fn handle_probe_sent(&self, peer: &Arc<Peer>, bytes: usize, now: Time) {
        peer.count_tx(bytes);
        if peer.activity.sent(false, false, now) {
            self.control_mailbox.post(peer, ControlNotice::Replan);
        }
    }

    /// Notes that a question is longer than our own link sends whole.
    pub fn handle_probe_refused(&self, peer: &Arc<Peer>, probe: Probe) {
        peer.path.hear(Heard::Refused(probe.token));
        self.control_mailbox.post(peer, ControlNotice::ProbeReceived);
    }

    /// Notes that a question or an answer of a peer came, authentic and new. A question is
    /// answered, whether or not we ask ourselves.
    pub fn handle_probe_received(&self, peer: &Arc<Peer>, probe: Probe, now: Time) {
        if probe.kind == ProbeKind::Question {
            peer.path.send(probe.answer());
            self.outbound_mailbox.post(peer, OutboundNotice::Probe);
        }
        peer.path.hear(Heard::Came(probe, now));
        self.control_mailbox.post(peer, ControlNotice::ProbeReceived);
    }
}
