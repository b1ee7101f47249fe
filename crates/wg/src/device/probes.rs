//! Questions and answers about a peer's path, on their way between the control half
//! and the data path. Timers take them for keepalives: nothing has to answer them.

use std::sync::Arc;

use super::{ControlNotice, Device, OutboundNotice};
use crate::{
    peer::{Heard, Peer},
    probe::{Probe, ProbeKind},
    time::Time,
};

impl Device {
    /// Takes what is to be sent to a peer, where there is an
    /// [`OutboundNotice::Probe`].
    pub fn take_probes(&self, peer: &Peer) -> Vec<Probe> {
        peer.path.take_to_send()
    }

    /// Notes that a question or an answer was sent, `bytes` of datagram.
    pub fn probe_sent(&self, peer: &Arc<Peer>, bytes: usize, now: Time) {
        peer.count_tx(bytes);
        if peer.activity.sent(false, now) {
            self.for_control.post(peer, ControlNotice::Timers);
        }
    }

    /// Notes that a question is longer than our own link sends whole.
    pub fn probe_refused(&self, peer: &Arc<Peer>, probe: Probe) {
        peer.path.hear(Heard::Refused(probe.token));
        self.for_control.post(peer, ControlNotice::Probed);
    }

    /// Notes that a question or an answer of a peer came, authentic and new. A question is
    /// answered, whether or not we ask ourselves.
    pub fn probe_received(&self, peer: &Arc<Peer>, probe: Probe, now: Time) {
        if probe.kind == ProbeKind::Question {
            peer.path.send(probe.answer());
            self.for_outbound.post(peer, OutboundNotice::Probe);
        }
        peer.path.hear(Heard::Came(probe, now));
        self.for_control.post(peer, ControlNotice::Probed);
    }
}
