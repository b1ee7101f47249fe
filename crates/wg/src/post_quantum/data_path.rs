//! What the data path does for the exchange. As with questions about the path, timers take its
//! messages for keepalives, and they go by a session that carries nothing else yet.

use std::sync::Arc;

use super::message::ExchangeMessage;
use crate::{
    device::{ControlNotice, Device},
    peer::Peer,
};

impl Device {
    /// Takes what is to be sent to a peer, where there is an
    /// [`OutboundNotice::Exchange`](crate::OutboundNotice::Exchange). Counters are reserved by
    /// [`Device::reserve_probe`].
    pub fn take_exchange(&self, peer: &Peer) -> Vec<ExchangeMessage> {
        peer.exchange.take_to_send()
    }

    /// Notes that a message of a peer came, authentic and new.
    pub fn handle_exchange_message(&self, peer: &Arc<Peer>, message: ExchangeMessage) {
        peer.exchange.hear(message);
        self.control_mailbox.post(peer, ControlNotice::ExchangeReceived);
    }
}
