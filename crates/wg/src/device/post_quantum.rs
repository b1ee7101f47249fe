//! The data path's side of the exchange. Like path MTU probes, its messages count as keepalives for
//! the timers. They are also sent in sessions that must not carry data yet.

use std::sync::Arc;

use super::{ControlNotice, Device};
use crate::{peer::Peer, post_quantum::ExchangeMessage};

impl Device {
    /// Takes the messages to send to a peer, after an
    /// [`OutboundNotice::Exchange`](crate::OutboundNotice::Exchange). Counters are reserved by
    /// [`Device::reserve_probe`].
    pub fn take_exchange(&self, peer: &Peer) -> Vec<ExchangeMessage> {
        peer.exchange.take_outgoing()
    }

    /// Handles an authentic, new message of a peer.
    pub fn handle_exchange_message(&self, peer: &Arc<Peer>, message: ExchangeMessage) {
        peer.exchange.push_received(message);
        self.control_mailbox.post(peer, ControlNotice::ExchangeReceived);
    }
}
